"""From what an address names to what lies on the disk.

Invariant: a name from an address is looked up among the names that are there and never becomes part of a path by
itself, and no trial or configuration is read through a link out of its run; only a whole run that its owner linked into
the folder of runs lies elsewhere. What is damaged is told on the page that needed it (`noted`).
Refuses (Unknown) whatever is not there.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from engine.core.errors import RunError
from engine.core.records import Split
from engine.observe.curves import is_run
from engine.store.layout import Layout
from engine.store.reader import Reader

Asked = Mapping[str, str]
"""Of an address: the parts of its path and its query, by name."""
Page = dict[str, Any]
"""All that a page shows; plain values, the same for HTML and JSON."""

SPLITS: tuple[Split, ...] = tuple(split for split in get_args(Split) if split != "warm_start")
"""Those whose trials lie in a run; of a warm start only the checkpoint is left."""


_OF_GATE = "~"
"""Between a run's name and what its gate is called."""


class Unknown(LookupError):
    """An address that names nothing; one line for a person."""


def run_names(root: Path) -> list[str]:
    """Folders of `root` that hold a run, in order; none where there is no such folder."""
    return sorted(folder.name for folder in root.glob("*") if _holds_run(folder))


def gate_folders(root: Path) -> dict[str, Path]:
    """Name → folder of the trials by which a warm start was judged: `<run>/gate/<model>-<hash>`, in order."""
    found = (path for path in root.glob("*/gate/*") if (path / "trajectories").is_dir())
    return {f"{path.parent.parent.name}{_OF_GATE}{path.name}": path for path in sorted(found)}


def _holds_run(folder: Path) -> bool:
    try:
        return folder.is_dir() and is_run(folder)
    except OSError:  # a folder that may not be looked into hides no other
        return False


def find_run(root: Path, asked: Asked) -> Reader:
    """The run that an address names."""
    folder = find_folder(root, asked["run"])
    if folder is None:
        raise Unknown(f"There is no run {asked['run']!r} under {root.absolute()}.")
    return Reader(Layout(root=folder))


def find_folder(root: Path, name: str) -> Path | None:
    """Of a run, or of a warm start's gate; None where nothing bears that name."""
    if name in run_names(root):
        return root / name
    return gate_folders(root).get(name) if _OF_GATE in name else None


def find_split(asked: Asked) -> Split:
    """The split that an address names; `train` where it names none."""
    for split in SPLITS:
        if asked.get("split", SPLITS[0]) == split:
            return split
    raise Unknown(f"There is no split {asked['split']!r}; there are {', '.join(SPLITS)}.")


def find_trial(root: Path, asked: Asked) -> tuple[Reader, Split, int, str]:
    """Run, split, step and name of the trial that an address names."""
    reader, split, step, name = find_run(root, asked), find_split(asked), find_number(asked, "step", 0), asked["trial"]
    if step not in reader.rollouts(split) or name not in reader.trials(step, split):
        raise Unknown(f"There is no trial {name!r} of step {step}, split {split!r}, in this run.")
    check_inside(reader, reader.layout.trials(step, split) / f"{name}.parquet")
    return reader, split, step, name


def check_inside(reader: Reader, path: Path) -> None:
    """Raise RunError for a link that leads out of the run, which may show anybody's file as the run's own."""
    try:
        inside = path.resolve().is_relative_to(reader.layout.root.resolve())
    except (OSError, RuntimeError):  # links in a circle
        inside = False
    if not inside:
        raise RunError(f"{path} is a link that leads out of the run; it is not followed")


def find_number(asked: Asked, name: str, default: int) -> int:
    """A number of an address, from 0."""
    text = asked.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise Unknown(f"{name}={text!r} is not a number from 0.")
    return int(text)


@contextmanager
def noted(problems: list[str]) -> Iterator[None]:
    """What is damaged becomes a line of the page, and the rest of the page stands."""
    try:
        yield
    except RunError as error:
        problems.append(str(error))
