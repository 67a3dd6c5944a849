"""Which bugs become tasks, and which split each belongs to.

Invariants: no function (bundle, module, function) gives tasks to two splits; a function gives at most two; each split
gets exactly the numbers that were asked for; bundles and families take turns, so that none fills a split; the right
line stands equally often in each place, so that a policy which always takes the same one gains nothing. A pure
function of bugs, numbers and seed. Refuses (`RunError`) numbers that the bugs cannot give, naming the key.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from engine.core.errors import RunError
from engine.core.records import Split
from engine.tasks.audit import WRONG_REPAIRS, Bug
from engine.tasks.bundles import Kind

SPLITS: tuple[Split, ...] = ("warm_start", "train", "validation")
KINDS: tuple[Kind, ...] = ("real", "generated")
Wanted = Mapping[Kind, Mapping[Split, int]]
PER_FUNCTION = 2
PLACES = WRONG_REPAIRS + 1
"""Lines that an issue offers."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A bug, its split, and where the right line stands among those that its issue offers."""

    bug: Bug
    split: Split
    place: int
    """0, 1 or 2."""


def select(bugs: Sequence[Bug], wanted: Wanted, seed: int) -> tuple[Chosen, ...]:
    """Exactly the wanted numbers, by split and then in the order of choice."""
    chosen = [item for kind in KINDS for item in _kind(kind, bugs, wanted[kind], seed)]
    by_split = {split: [bug for bug, its in chosen if its == split] for split in SPLITS}
    return tuple(
        Chosen(bug=bug, split=split, place=place)
        for split in SPLITS
        for bug, place in zip(by_split[split], _places(len(by_split[split]), f"{seed}/{split}"), strict=True)
    )


def _places(count: int, seed: str) -> list[int]:
    """Every run of three, and what is left over, holds different ones."""
    chance = random.Random(seed)  # noqa: S311
    return [place for _ in range(0, count, PLACES) for place in chance.sample(range(PLACES), PLACES)][:count]


def _kind(kind: Kind, bugs: Sequence[Bug], wanted: Mapping[Split, int], seed: int) -> list[tuple[Bug, Split]]:
    chance = random.Random(f"{seed}/{kind}")  # noqa: S311
    left = {split: wanted[split] for split in SPLITS}
    given = Counter[tuple[str, Split]]()
    chosen: list[tuple[Bug, Split]] = []

    def need(split: Split, bundle: str) -> tuple[float, float]:
        """The share that a split has of what it wants: from this bundle, then at all."""
        return given[bundle, split] / wanted[split], 1 - left[split] / wanted[split]

    for unit in _turns([bug for bug in bugs if bug.kind == kind], chance):
        bundle = unit[0].bundle
        split = min((split for split in SPLITS if left[split]), key=partial(need, bundle=bundle), default=None)
        if split is None:
            break
        taken = unit[: min(PER_FUNCTION, left[split])]
        left[split] -= len(taken)
        given[bundle, split] += len(taken)
        chosen += [(bug, split) for bug in taken]
    short = {split: number for split, number in left.items() if number}
    if short:
        split, number = next(iter(short.items()))
        got = sum(wanted.values()) - sum(left.values())
        raise RunError(
            f"tasks.{kind}.{split}={wanted[split]}: {number} short, {got} {kind} bugs of separate functions hold; "
            "lower it or choose another tasks.seed"
        )
    return chosen


def _turns(bugs: Sequence[Bug], chance: random.Random) -> list[list[Bug]]:
    """The bugs of each function, bundles taking turns, functions in a drawn order."""
    bundles: dict[str, dict[tuple[str, str, str], list[Bug]]] = {}
    for bug in sorted(bugs, key=lambda bug: (*bug.unit, bug.line)):
        bundles.setdefault(bug.bundle, {}).setdefault(bug.unit, []).append(bug)
    queues = []
    for name in sorted(bundles):
        units = list(bundles[name].values())
        chance.shuffle(units)
        queues.append(units)
    order = []
    for turn in range(max(map(len, queues), default=0)):
        chance.shuffle(queues)
        order += [units[turn] for units in queues if turn < len(units)]
    return order


def wanted_numbers(real: Mapping[str, int], generated: Mapping[str, int]) -> Wanted:
    """The configured numbers, by kind and split."""
    return {
        kind: {split: values[split] for split in SPLITS}
        for kind, values in cast(dict[Kind, Mapping[str, int]], {"real": real, "generated": generated}).items()
    }
