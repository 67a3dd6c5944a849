"""Judged trajectories of one step → groups with advantages.

Invariant: an excluded trajectory enters no statistic; each (epoch, task, sample) is kept at most once, so that no
trial trains twice.
Refuses: a kept trajectory without verdict, a validation trajectory, a sample that was kept twice.
"""

from collections.abc import Callable, Iterator, Sequence

from engine.core.errors import RunError
from engine.core.records import Group, Scored
from engine.core.training_contracts import Advantage

Deal = Callable[[Sequence[float]], Sequence[float]]
"""The rewards of all kept trajectories, in order of group and member → those that advantages are computed from."""


def make_groups(scored: Sequence[Scored], advantage: Advantage, deal: Deal = tuple) -> tuple[Group, ...]:
    """Group by (epoch, task), in order of first appearance; members in order of sample and attempt.

    A group whose members are all excluded is returned with `kept` empty, so that reports can count it. `deal` is the
    algorithm's `rewards` at this step; without it rewards count as judged.
    Raises RunError on input that would train something wrongly or twice.
    """
    by_task: dict[tuple[int, str], list[Scored]] = {}
    for item in scored:
        key = item.trajectory.trial.key
        by_task.setdefault((key.epoch, key.task), []).append(item)
    groups = {key: _members(key[1], members) for key, members in by_task.items()}
    judged = [reward for kept, _ in groups.values() for reward in _rewards(kept)]
    dealt = list(deal(judged))
    if len(dealt) != len(judged):
        raise RunError(f"the algorithm's rewards: {len(dealt)} for {len(judged)} kept trajectories")
    rest = iter(dealt)
    return tuple(_group(task, members, rest, advantage) for (_, task), members in groups.items())


_Members = tuple[tuple[Scored, ...], tuple[Scored, ...]]
"""Kept and excluded trajectories of one task."""


def _members(task: str, members: list[Scored]) -> _Members:
    ordered = sorted(members, key=lambda s: (s.trajectory.trial.key.sample, s.trajectory.trial.key.attempt))
    kept = tuple(item for item in ordered if not item.trajectory.termination.excluded)
    seen: set[int] = set()
    for item in kept:
        trial = item.trajectory.trial
        if item.verdict is None:
            raise RunError(
                f"trial {trial.key} ended with {item.trajectory.termination} and has no verdict; "
                "grade it or exclude it with a termination that is excluded"
            )
        if trial.split != "train":
            raise RunError(f"trial {trial.key} belongs to split {trial.split!r}; only 'train' may be trained")
        if trial.key.sample in seen:
            raise RunError(f"sample {trial.key.sample} of task {task} was kept twice; the second is {trial.key}")
        seen.add(trial.key.sample)
    return kept, tuple(item for item in ordered if item.trajectory.termination.excluded)


def _rewards(kept: Sequence[Scored]) -> list[float]:
    return [item.verdict.reward for item in kept if item.verdict is not None]


def _group(task: str, members: _Members, rewards: Iterator[float], advantage: Advantage) -> Group:
    kept, excluded = members
    advantages = advantage([next(rewards) for _ in kept])
    if len(advantages) != len(kept):
        raise RunError(f"group of {task}: {len(advantages)} advantages for {len(kept)} kept trajectories")
    return Group(task=task, kept=kept, excluded=excluded, advantages=advantages)
