"""Rewards that say nothing of the work they were given for: what in one step's trials shows that a task is broken.

    empty_patch     a patch without a change was resolved
    verdict_flips   one patch was resolved in one trial and not in another
    solved_at_once  every rollout resolved the task when it was first asked: it is trivial, or its answer lies open

The first two are no policy's doing. Of excluded trials nothing is read.
"""

from collections.abc import Callable, Mapping, Sequence

from engine.core.records import Patch, Scored

_ENOUGH = 4
"""Rollouts of a group at least, before their agreement is told: two may agree by chance."""

_Judged = tuple[Patch, bool, int]
"""Patch, whether it was resolved, epoch."""


def degenerate(scored: Sequence[Scored]) -> dict[str, tuple[str, ...]]:
    """Task → the signs that its trials show, in the order above; tasks without one are left out."""
    groups: dict[str, list[_Judged]] = {}
    for one in scored:
        patch, verdict = one.trajectory.patch, one.verdict
        if patch is not None and verdict is not None:
            key = one.trajectory.trial.key
            groups.setdefault(key.task, []).append((patch, verdict.resolved, key.epoch))
    shown = {task: tuple(sign for sign, holds in _SIGNS.items() if holds(group)) for task, group in groups.items()}
    return {task: signs for task, signs in shown.items() if signs}


def _empty_patch(group: Sequence[_Judged]) -> bool:
    return any(resolved and patch.empty for patch, resolved, _ in group)


def _verdict_flips(group: Sequence[_Judged]) -> bool:
    verdicts: dict[object, set[bool]] = {}
    for patch, resolved, _ in group:
        verdicts.setdefault((patch.changes, patch.artifacts), set()).add(resolved)
    return any(len(found) > 1 for found in verdicts.values())


def _solved_at_once(group: Sequence[_Judged]) -> bool:
    return len(group) >= _ENOUGH and all(resolved and epoch == 0 for _, resolved, epoch in group)


_SIGNS: Mapping[str, Callable[[Sequence[_Judged]], bool]] = {
    "empty_patch": _empty_patch,
    "verdict_flips": _verdict_flips,
    "solved_at_once": _solved_at_once,
}
