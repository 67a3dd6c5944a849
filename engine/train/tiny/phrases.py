"""Finds runs of pieces that many texts share: system prompts, tool schemas, the frame of a call.

Neighbours that enough texts hold are joined, again and again, until none is left.
Invariant: what stands in few texts (a task's own lines) never joins; the same texts give the same runs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

Run = tuple[str, ...]
"""Neighbouring pieces."""
_Chunk = list[Run]
_Item = TypeVar("_Item")


def shared_runs(texts: Iterable[Sequence[Run]], share: float) -> list[Run]:
    """Runs of two pieces or more that at least `share` of the texts hold, the longest in characters first.

    A text is a list of chunks, a chunk its pieces in order; no run crosses a chunk."""
    number: dict[Run, int] = {}
    holders: defaultdict[int, set[int]] = defaultdict(set)
    total = 0
    for total, text in enumerate(texts, 1):
        for chunk in text:
            holders[number.setdefault(chunk, len(number))].add(total)
    # Most chunks stand in many texts, so each is joined once, not once a text.
    chunks: dict[int, _Chunk] = {index: [(piece,) for piece in chunk] for chunk, index in number.items()}
    least = share * total
    while pairs := _pairs(chunks, holders, least):
        chunks = {index: _joined(chunk, pairs) for index, chunk in chunks.items()}
    held = _texts_holding(chunks, holders, lambda chunk: (run for run in chunk if len(run) > 1))
    runs = [run for run, count in held.items() if count >= least]
    return sorted(runs, key=lambda run: (-len("".join(run)), run))


def _pairs(chunks: Mapping[int, _Chunk], holders: Mapping[int, set[int]], least: float) -> frozenset[tuple[Run, Run]]:
    """Neighbours that enough texts hold, the most widespread first; a run is a left half or a right one, never both,
    so that it does not depend on where a chunk begins which neighbours join."""
    held = _texts_holding(chunks, holders, pairwise)
    lefts: set[Run] = set()
    rights: set[Run] = set()
    chosen = set()
    for left, right in sorted((pair for pair in held if held[pair] >= least), key=lambda pair: (-held[pair], pair)):
        if left != right and left not in rights and right not in lefts:
            lefts.add(left)
            rights.add(right)
            chosen.add((left, right))
    return frozenset(chosen)


def _texts_holding(
    chunks: Mapping[int, _Chunk],
    holders: Mapping[int, set[int]],
    items: Callable[[_Chunk], Iterable[_Item]],
) -> dict[_Item, int]:
    where: defaultdict[_Item, set[int]] = defaultdict(set)
    for index, chunk in chunks.items():
        for item in set(items(chunk)):
            where[item] |= holders[index]
    return {item: len(texts) for item, texts in where.items()}


def _joined(chunk: _Chunk, pairs: frozenset[tuple[Run, Run]]) -> _Chunk:
    result: _Chunk = []
    place = 0
    while place < len(chunk):
        if place + 1 < len(chunk) and (chunk[place], chunk[place + 1]) in pairs:
            result.append(chunk[place] + chunk[place + 1])
            place += 2
        else:
            result.append(chunk[place])
            place += 1
    return result
