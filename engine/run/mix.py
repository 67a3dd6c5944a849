"""Which harness runs which trial of a mix: a pure function of the configuration and of the trial's place in the run.

By trajectory, every group (the trials of one task) has each harness's share of its trials, rounded down; what is left
over is dealt from one group to the next. By task, whole groups are dealt. Invariant: after any number of deals each
harness has had its exact share, rounded down or up, so no proportion drifts; the order in which a mix is written
changes nothing. With equal weights sample i of a group is run by harness i modulo their number, as far as that goes up.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from math import lcm
from typing import Literal

By = Literal["trajectory", "task"]


def shares(names: Iterable[str], weights: Mapping[str, float] | None) -> dict[str, Fraction]:
    """Harness → its exact share of the trials, in order of name; without weights all have the same."""
    exact = {name: Fraction(str(weights[name])) if weights else Fraction(1) for name in sorted(names)}
    whole = sum(exact.values())
    return {name: weight / whole for name, weight in exact.items()}


@dataclass(frozen=True, kw_only=True)
class HarnessMix:
    """The harnesses of a run."""

    by: By
    shares: Mapping[str, Fraction]

    def group(self, place: int, size: int) -> list[str]:
        """The harness of each of a group's `size` trials; `place`: how many groups came before it."""
        names = list(self.shares)
        if self.by == "task":
            return [names[_dealt(self._all, place, 1)[0]]] * size
        exact = [share * size for share in self.shares.values()]
        counts = [int(count) for count in exact]
        left = size - sum(counts)
        if left:
            rest = tuple((count - int(count)) / left for count in exact)
            for chosen in _dealt(rest, place * left, left):
                counts[chosen] += 1
        return [names[chosen] for chosen in _in_turn(counts)]

    @cached_property
    def _all(self) -> tuple[Fraction, ...]:
        return tuple(self.shares.values())


def _in_turn(counts: list[int]) -> Iterable[int]:
    for turn in range(max(counts)):
        for chosen, count in enumerate(counts):
            if turn < count:
                yield chosen


def _dealt(exact: tuple[Fraction, ...], start: int, count: int) -> tuple[int, ...]:
    """Deals `start` up to `start + count`; they repeat where all shares come out whole."""
    period = lcm(*(share.denominator for share in exact))
    first = start % period
    length = 1 << (first + count).bit_length()  # few different ones, so that most are remembered
    return _deals(exact, length)[first : first + count]


@lru_cache(maxsize=64)
def _deals(exact: tuple[Fraction, ...], length: int) -> tuple[int, ...]:
    """Each deal goes to the one that must have it soonest, of those whose next one is due.

    The n-th of a share s is due from deal floor(n/s) on and before deal ceil((n+1)/s), which can always be kept for
    shares that add up to 1 (Baruah et al. 1996, proportionate progress)."""
    had = [0] * len(exact)
    deals = []
    for place in range(length):
        due = [
            (-((-(count + 1)) // share), chosen)
            for chosen, (count, share) in enumerate(zip(had, exact, strict=True))
            if share and count // share <= place
        ]
        _, chosen = min(due)
        had[chosen] += 1
        deals.append(chosen)
    return tuple(deals)
