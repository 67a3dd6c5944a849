"""What pools of tasks share: which names exist, who is held out, and the image.

A name in `names` or `validation` is a task's own or that of a family (its package): holding a family out keeps all of
its tasks from training. The split depends on the configuration alone, so it is the same on every machine.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.core.errors import ConfigError
from engine.core.records import Split
from engine.core.specs import ImageSpec


def split_of(names: Sequence[str], validation: Sequence[str]) -> Split:
    """`validation` when any of a task's names is held out."""
    return "validation" if set(names) & set(validation) else "train"


def check_names(key: str, wanted: Sequence[str], known: Sequence[Sequence[str]]) -> list[ConfigError]:
    """One error for each name that no task answers to."""
    names = sorted({name for task in known for name in task})
    return [
        ConfigError(f"{key}.{index}", name, "no task has this name", f"known: {', '.join(names)}")
        for index, name in enumerate(wanted)
        if name not in names
    ]


def image_spec(image: Mapping[str, Any]) -> ImageSpec:
    """The record of a pool's `image` mapping."""
    return ImageSpec(
        name=image["name"], suite=image["suite"], packages=tuple(image["packages"]), pip=tuple(image["pip"])
    )
