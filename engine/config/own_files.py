"""A person's own folder of configuration files (`--config-dir`): what in it Hydra would pass over without a word.

Hydra searches a folder that does not exist, and puts a file without a package line below its group's name, where
nothing of this project's groups with a place of their own (`harnesses.NAME`, `_global_`) is read. Refuses both.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from engine.config.schemas import Tree
from engine.core.errors import ConfigError

FLAG = "--config-dir"


def check_folder(given: str, tree: Tree) -> Path:
    """The folder of the flag. Raises ConfigError for one that holds no option of a group."""
    folder = Path(given)
    if not folder.is_dir():
        problem = "is no folder" if folder.exists() else "there is no such folder"
        raise ConfigError(FLAG, given, problem, "name one that holds a folder a group, as harness/NAME.yaml")
    groups = {path.name for path in tree.configs.iterdir() if path.is_dir()} | {"hydra"}
    if not any((folder / group).is_dir() for group in groups):
        if folder.resolve().name in groups and any(folder.glob("*.yaml")):
            raise ConfigError(FLAG, given, "is the folder of a group itself", f"name the one above it, {folder.parent}")
        way_out = f"put the file at {folder}/harness/NAME.yaml, for example"
        raise ConfigError(FLAG, given, "holds no folder of a group", way_out)
    return folder


def misplaced(options: Iterable[str], tree: Tree) -> list[ConfigError]:
    """Options (`group/option`) that are files of `tree.extra` and whose keys lie where nothing is read."""
    groups = (option.rpartition("/")[::2] for option in options)
    return [error for group, option in groups for error in _misplaced(group, option, tree)]


def _misplaced(group: str, option: str, tree: Tree) -> Iterator[ConfigError]:
    files = [folder / group / f"{option}.yaml" for folder in (tree.configs, *tree.extra)]
    file = next((file for file in files if file.is_file()), None)
    ignored = next((other for other in files[1:] if other.is_file()), None)
    if file == files[0] and ignored is not None and tree.written is None:
        problem = f"{ignored} is not read: the project has a {group}/{option} of its own"
        yield ConfigError(group, option, problem, "give your file another name, and choose it by that")
    wanted = _place_of_the_group(group, option, tree)
    if file is None or file == files[0] or wanted is None:
        return
    package = _package(file)
    place = package or group.replace("/", ".")  # Hydra's own, where a file names none
    if place.partition(".")[0] != wanted.partition(".")[0]:
        where = f"below `{place}`, which nothing reads"
        problem = f"puts its keys {where}" if package else f"has no package line, so its keys lie {where}"
        way_out = f"let its first line be `# @package {wanted}`, alone"
        yield ConfigError(group, option, f"{file} {problem}", way_out)


def _place_of_the_group(group: str, option: str, tree: Tree) -> str | None:
    """The package that an option of the group needs, as the project's own have it; None where they have none."""
    for folder in (tree.configs, *tree.extra):
        for sibling in sorted((folder / group).glob("*.yaml")):
            package = _package(sibling)
            if sibling.stem != option and package is not None:
                name = re.sub(r"[^a-z0-9_]", "_", option.lower())  # a key's form
                return ".".join(name if part == sibling.stem else part for part in package.split("."))
        if any((folder / group).glob("*.yaml")):
            return None
    return None


def _package(file: Path) -> str | None:
    """As Hydra reads it: of the `# @…` lines that a file begins with."""
    for line in file.read_text(encoding="utf-8").splitlines():
        words = line.strip().lstrip("#").split()
        if not line.strip():
            continue
        if not line.strip().startswith("#") or not words or not words[0].startswith("@"):
            return None
        if words[0] == "@package" and len(words) > 1:
            return words[1]
    return None
