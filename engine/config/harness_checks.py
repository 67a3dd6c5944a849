"""The rules of a harness by configuration alone: what its texts can have put in, and where its files may lie.

Invariant: as `engine.config.checks`, whose rules these are: reads a validated configuration, and needs no adapter.
Refuses a placeholder that is nearly one of those that are known, which would stay in the text as it is; the trial's key
where every process of the sandbox could read it; files and folders that are none. Other braces, and the texts of files,
which are programs, are left alone.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from engine.core import guest
from engine.core.errors import ConfigError

Config = Mapping[str, Any]
Texts = Iterator[tuple[str, str]]
"""Key and text."""

COMMAND = "engine.harness.command.CommandHarness"
_BRACED = re.compile(r"(?<!\$)\{\s*([A-Za-z][A-Za-z _-]*?)\s*\}")
_KEY = f"{{{guest.KEY}}}"
_KEYS_PLACE = f"give {_KEY} in `environment`, which is closed to the agent's commands"
_PLACES = {"state": guest.STATE, "runtime": guest.RUNTIME, "workdir": "/repository"}


def placeholders_are_known(config: Config) -> Iterator[ConfigError]:
    for key, harness in _own(config):
        told = _listed(guest.PLACEHOLDERS)
        for place, text in _public(key, harness):
            for found, near in _nearly(text, (*guest.PLACEHOLDERS, guest.KEY)):
                way_out = _KEYS_PLACE if near == guest.KEY else f"write {{{near}}} (known here: {told})"
                yield _misspelt(place, text, found, way_out)
        known = (*guest.PLACEHOLDERS, guest.KEY)
        for name, text in harness["environment"].items():
            for found, near in _nearly(text, known):
                way_out = f"write {{{near}}} (known here: {_listed(known)})"
                yield _misspelt(f"{key}.environment.{name}", text, found, way_out)
        for index, text in enumerate(harness["packages"]):
            for found, near in _nearly(text, guest.PACKAGE_PLACEHOLDERS):
                way_out = f"write {{{near}}} (known here: {_listed(guest.PACKAGE_PLACEHOLDERS)})"
                yield _misspelt(f"{key}.packages[{index}]", text, found, way_out)


def demonstrations_are_filled(config: Config) -> Iterator[ConfigError]:
    """Of every harness: what a warm start would learn with a brace in it."""
    known = guest.DEMONSTRATION_PLACEHOLDERS
    for name, harness in config["harnesses"].items():
        for place, text in _texts(harness.get("demonstration"), f"harnesses.{name}.demonstration"):
            for found, near in _nearly(text, known):
                yield _misspelt(place, text, found, f"write {{{near}}} (known here: {_listed(known)})")


def key_is_closed(config: Config) -> Iterator[ConfigError]:
    for key, harness in _own(config):
        contents = ((f"{key}.files", text) for text in harness["files"].values())
        for place, text in (*_public(key, harness), *contents):
            if _KEY in text:
                problem = "the trial's key would be in reach of every command of the agent"
                yield ConfigError(place, text, problem, _KEYS_PLACE)


def files_have_a_place(config: Config) -> Iterator[ConfigError]:
    for key, harness in _own(config):
        for path in harness["files"]:
            place, way_out = _filled(path), f"give a path below {guest.FOLDER}"
            if any(_nearly(path, guest.PLACEHOLDERS)):
                continue  # told as that
            if not _is_absolute(place):
                yield ConfigError(f"{key}.files", path, "is no absolute path to a file", way_out)
            elif place in guest.TAKEN:
                yield ConfigError(f"{key}.files", path, "is a file of the engine's own", f"{way_out} with another name")
            elif place.startswith(f"{guest.RUNTIME}/"):
                yield ConfigError(f"{key}.files", path, "lies in the runtime, which is mounted read-only", way_out)
        for index, folder in enumerate(harness["search"]):
            place = _filled(folder)
            if any(_nearly(folder, guest.PLACEHOLDERS)) or (_is_absolute(place) and ":" not in place):
                continue
            way_out = "begin it with `/`, {runtime}, {state} or {workdir}, and give one a line"
            yield ConfigError(f"{key}.search[{index}]", folder, "is no absolute path to a folder", way_out)


def runtime_has_packages(config: Config) -> Iterator[ConfigError]:
    for key, harness in _own(config):
        if harness["packages"]:
            continue
        variables = ((f"{key}.environment.{name}", text) for name, text in harness["environment"].items())
        for place, text in (*_public(key, harness), *variables):
            if "{runtime}" in text and place != f"{key}.files":
                problem = f"{{runtime}} is an empty folder, for {key}.packages is empty"
                yield ConfigError(place, text, problem, "name the npm packages there, or a path of the task's image")


RULES = (placeholders_are_known, demonstrations_are_filled, key_is_closed, files_have_a_place, runtime_has_packages)


def _own(config: Config) -> Iterator[tuple[str, Config]]:
    """Key and settings of each harness by configuration alone."""
    for name, harness in config["harnesses"].items():
        if harness.get("_target_") == COMMAND:
            yield f"harnesses.{name}", harness


def _public(key: str, harness: Config) -> Texts:
    """What every process of the sandbox can read, but for the texts of files."""
    for part in ("argv", "search"):
        for index, text in enumerate(harness[part]):
            yield f"{key}.{part}[{index}]", text
    for path in harness["files"]:
        yield f"{key}.files", path


def _texts(value: Any, key: str) -> Texts:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, child in value.items():
            yield from _texts(child, f"{key}.{name}")
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _texts(child, f"{key}[{index}]")


def _nearly(text: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What stands in braces and is nearly one of `names`, and which."""
    folded = {name.replace("_", ""): name for name in names}
    for found in _BRACED.finditer(text):
        if found[0] in (f"{{{name}}}" for name in names):
            continue
        near = get_close_matches(re.sub(r"[ _-]", "", found[1]).lower(), folded, n=1, cutoff=0.75)
        if near:
            yield found[0], folded[near[0]]


def _misspelt(key: str, text: str, found: str, way_out: str) -> ConfigError:
    return ConfigError(key, text, f"{found} is no placeholder, and would stay as it is", way_out)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)


def _filled(path: str) -> str:
    for name, place in _PLACES.items():
        path = path.replace(f"{{{name}}}", place)
    return path


def _is_absolute(path: str) -> bool:
    single = path.startswith("/") and path != "/" and not path.startswith("//")  # which `normpath` leaves as it is
    return single and posixpath.normpath(path) == path
