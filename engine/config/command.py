"""The command line: Hydra's habits (--help, --cfg, --info, -m, completion), this project's errors and exit codes.

`from=RUN` chooses the configuration that a run wrote (`engine.config.written`); all else then applies to it.

Invariant: whatever is wrong with a configuration is told as one line a problem on standard error, with exit code 2,
before anything runs; in a sweep that holds for every job of it. Hydra writes no files beside a sweep's own record, does
not change the working directory and leaves logging alone (see `configs/run.yaml`).
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from engine.config.completion import install_script
from engine.config.compose import HYDRA_VERSION_BASE, compose, explain, finish
from engine.config.credentials import unseen
from engine.config.diagnose import told_by_hydra
from engine.config.nearest import nearest, suggestion
from engine.config.own_files import check_folder
from engine.config.schemas import CONFIG_NAME, TREE, Tree
from engine.config.sweep import Program, check_sweep
from engine.config.written import read_written, take, written_tree
from engine.core.errors import ConfigError, ConfigErrors

NOTHING_TO_DO = "say what to run, for example: python -m engine experiment=openhands_gspo (groups and options: --help)"


def run_command(arguments: Sequence[str], program: Program, tree: Tree = TREE) -> int:
    """Do what the command line says. Returns the exit code; raises ConfigError and SystemExit (Hydra's own flags)."""
    parsed = parse_arguments(arguments)
    if not arguments or (parsed.multirun and not parsed.overrides):
        print(NOTHING_TO_DO, file=sys.stderr)
        return 2
    flags = [text for text in arguments if text not in parsed.overrides]
    if parsed.shell_completion and "install=bash" in parsed.overrides:
        print(install_script())
        return 0
    if parsed.config_dir:
        tree = replace(tree, extra=(check_folder(parsed.config_dir, tree),))
    given, overrides = take(parsed.overrides)
    parsed.overrides = overrides
    if given is not None:
        tree = written_tree(read_written(given, tree), tree)
    if _is_plain_run(parsed):
        return program(compose(parsed.overrides, tree))
    return _run_hydra(flags, parsed, program, tree)


def _run_hydra(flags: Sequence[str], parsed: argparse.Namespace, program: Program, tree: Tree) -> int:
    """A flag of Hydra's, or a sweep. Returns the first exit code that is not 0."""
    overrides, codes = list(parsed.overrides), list[int]()
    if parsed.multirun:
        sweep = check_sweep(overrides, tree, program)
        overrides = [sweep.overrides.get(text, text) for text in overrides]
        if sweep.record and not any(text.startswith("hydra.sweep.dir=") for text in overrides):
            overrides.append(f"hydra.sweep.dir={_quoted(str(sweep.record))}")

    def task(config: DictConfig) -> None:
        hydra_config = HydraConfig.get()
        composed = finish(config, OmegaConf.create({"hydra": hydra_config}), tree)
        codes.append(program.run_point(hydra_config.job.num, composed) if parsed.multirun else program(composed))

    shows = nullcontext() if parsed.multirun or not (parsed.cfg or parsed.info) else unseen()
    try:
        with shows, _arguments_of_hydra([*flags, *_searched(tree), *overrides]):
            hydra.main(version_base=HYDRA_VERSION_BASE, config_path=str(tree.configs), config_name=CONFIG_NAME)(task)()
    except (HydraException, OmegaConfBaseException, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.filename and parsed.multirun:
            problem = f"the sweep's record cannot be written ({error.strerror})"
            raise ConfigError("run.root", str(error.filename), problem, "name a folder to write to") from error
        if parsed.multirun:  # its points have passed, so what is left is Hydra's own
            raise told_by_hydra(error) from error
        raise explain(parsed.overrides, error, tree) from error
    return next((code for code in codes if code), 0)


def _searched(tree: Tree) -> list[str]:
    """The folders that are searched beside `tree.configs`, as Hydra takes them: one by its flag (the last one given
    counts), the others by a key."""
    first, others = tree.extra[:1], tree.extra[1:]
    paths = ",".join(_quoted(f"file://{folder.absolute()}") for folder in others)
    flag = [text for folder in first for text in ("--config-dir", str(folder))]
    return [*flag, *([f"hydra.searchpath=[{paths}]"] if others else [])]


def _quoted(text: str) -> str:
    """A value of the override grammar."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


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
