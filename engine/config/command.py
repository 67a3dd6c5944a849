"""The command line: Hydra's habits (--help, --cfg, --info, -m, completion), this project's errors and exit codes.

Invariant: whatever is wrong with a configuration is told as one line a problem on standard error, with exit code 2,
before anything runs; in a sweep that holds for every job of it. Hydra writes no files beside a sweep's own record, does
not change the working directory and leaves logging alone (see `configs/run.yaml`).
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from engine.config.completion import install_script
from engine.config.compose import HYDRA_VERSION_BASE, compose, explain, finish, initialised
from engine.config.composed import Composed
from engine.config.nearest import nearest, suggestion
from engine.config.schemas import CONFIG_NAME, TREE, Tree, load_registry
from engine.config.validate import problems
from engine.core.errors import ConfigError, ConfigErrors

Execute = Callable[[Composed], int]
"""Runs one composed configuration; returns an exit code and raises nothing but BaseException."""

NOTHING_TO_DO = "say what to run, for example: python -m engine experiment=openhands_gspo (groups and options: --help)"


def run_command(arguments: Sequence[str], execute: Execute, tree: Tree = TREE) -> int:
    """Do what the command line says. Returns the exit code; raises ConfigError and SystemExit (Hydra's own flags)."""
    if not arguments:
        print(NOTHING_TO_DO, file=sys.stderr)
        return 2
    parsed = parse_arguments(arguments)
    arguments = [*(text for text in arguments if text not in parsed.overrides), *parsed.overrides]
    if parsed.shell_completion and "install=bash" in parsed.overrides:
        print(install_script())
        return 0
    if parsed.config_dir:
        tree = replace(tree, extra=Path(parsed.config_dir))
    if _is_plain_run(parsed):
        return execute(compose(parsed.overrides, tree))
    rewritten = list(arguments)
    if parsed.multirun:
        overrides = check_sweep(parsed.overrides, tree)
        rewritten = [overrides.get(argument, argument) for argument in arguments]
    codes: list[int] = []

    def task(config: DictConfig) -> None:
        with_hydra = OmegaConf.create({"hydra": HydraConfig.get()})
        codes.append(execute(finish(config, with_hydra, tree)))

    try:
        with _arguments_of_hydra(rewritten):
            hydra.main(version_base=HYDRA_VERSION_BASE, config_path=str(tree.configs), config_name=CONFIG_NAME)(task)()
    except BrokenPipeError:
        raise
    except (HydraException, OmegaConfBaseException, ValueError, OSError) as error:
        raise explain(parsed.overrides, error, tree) from error
    return next((code for code in codes if code), 0)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Hydra's flags and the overrides, in any order. Raises ConfigErrors for what is neither."""
    parser: argparse.ArgumentParser = get_args_parser()
    parser.exit_on_error = False
    try:
        parsed, rest = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        way_out = "see --help for what it takes"
        raise ConfigError(str(error.argument_name), "", str(error.message).replace("\n", " "), way_out) from error
    flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    unknown = [text.partition("=")[::2] for text in rest if text.startswith("-")]
    if unknown:
        raise ConfigErrors(
            [ConfigError(key, value, "unknown flag", suggestion(nearest(key, flags), flags)) for key, value in unknown]
        )
    parsed.overrides += rest
    return parsed


def _is_plain_run(parsed: argparse.Namespace) -> bool:
    """One job and no flag that asks Hydra for something else; such a run needs no more of Hydra than composing."""
    flags = {name: value for name, value in vars(parsed).items() if name not in ("overrides", "config_dir", "run")}
    return not any(flags.values()) and not any(text.startswith("hydra.") for text in parsed.overrides)


def check_sweep(overrides: Sequence[str], tree: Tree) -> dict[str, str]:
    """Validate every job of a sweep before the first one starts; returns how Hydra is to be given each override.

    A fixed override becomes a sweep of one value: Hydra otherwise checks it against the configuration without the
    swept choices, where its key may not exist. A key that is given twice is refused: Hydra would drop one of them."""
    with initialised(tree) as loader:
        lines = _parse(overrides, loader)
    _refuse_repeated(lines)
    own = [line for line in lines if not line.is_hydra_override()]
    errors: dict[str, ConfigError] = {}
    for job in _jobs(own):
        try:
            found: Sequence[ConfigError] = problems(compose(job, tree), load_registry(tree.schemas))
        except ConfigErrors as several:
            found = several.errors
        errors |= {str(error): error for error in found}
    if errors:
        raise ConfigErrors(list(errors.values()))
    return {str(line.input_line): _as_sweep(line) for line in own}


def _jobs(lines: Sequence[Override]) -> list[list[str]]:
    """The overrides of each job; none for a search space (`interval`), whose points only the sweeper knows."""
    if any(line.is_sweep_override() and not line.is_discrete_sweep() for line in lines):
        return []
    jobs: list[list[str]] = BasicSweeper.split_arguments(list(lines), max_batch_size=None)[0]
    return jobs


def _parse(overrides: Sequence[str], loader: ConfigLoader) -> list[Override]:
    parsed: list[Override] = []
    errors: list[ConfigError] = []
    for text in overrides:
        try:
            parsed += OverridesParser.create(loader).parse_overrides([text])
        except HydraException:
            key, _, value = text.partition("=")
            errors.append(ConfigError(key, value, "cannot be parsed", "write key=value, or key=a,b for a sweep"))
    if errors:
        raise ConfigErrors(errors)
    return parsed


def _refuse_repeated(lines: Sequence[Override]) -> None:
    seen: dict[str, Override] = {}
    for line in lines:
        key = line.get_key_element()
        if key in seen:
            values = f"{seen[key].input_line} and {line.input_line}"
            value = str(line.input_line).partition("=")[2]
            raise ConfigError(key, value, f"given twice ({values})", "give a key once")
        seen[key] = line


def _as_sweep(line: Override) -> str:
    text = str(line.input_line)
    key, equals, value = text.partition("=")
    if line.is_sweep_override() or line.is_delete() or not value or key.startswith("run."):
        return text
    return f"{key}{equals}choice({value})"


@contextmanager
def _arguments_of_hydra(arguments: Sequence[str]) -> Any:
    """`hydra.main` reads `sys.argv`, and tells its errors itself unless it is asked for all of them."""
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [argv[0], *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full_error is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error
