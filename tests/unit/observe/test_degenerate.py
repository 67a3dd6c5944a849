"""`engine.observe.degenerate`: which rewards say nothing of the work."""

from dataclasses import replace

import pytest
from plan_pieces import judged

from engine.core.records import Artifact, Scored
from engine.observe.degenerate import degenerate


@pytest.mark.parametrize(
    ("group", "signs"),
    [
        ([judged(0, "fix", True), judged(1, "other", False)], ()),
        ([judged(0, "", False), judged(1, "", False)], ()),
        ([judged(0, "", True), judged(1, "fix", False)], ("empty_patch",)),
        ([judged(0, "fix", True), judged(1, "fix", False)], ("verdict_flips",)),
        ([judged(0, "", True), judged(1, "", False)], ("empty_patch", "verdict_flips")),
        ([judged(number, "fix", True) for number in range(4)], ("solved_at_once",)),
        ([judged(number, "fix", True, epoch=1) for number in range(4)], ()),  # it was learnt
        ([judged(number, "fix", True) for number in range(3)], ()),  # too few
        ([judged(0, "fix", True), judged(1, "fix", None)], ()),  # of an excluded trial nothing is read
    ],
)
def test_signs(group: list[Scored], signs: tuple[str, ...]) -> None:
    assert degenerate(group) == ({"t00": signs} if signs else {})


def test_artefacts_are_part_of_what_was_done() -> None:
    """No change of text is no empty patch then, and other artefacts are another patch."""

    def with_file(contents: bytes, resolved: bool, sample: int) -> Scored:
        one = judged(sample, "", resolved)
        assert one.trajectory.patch is not None
        patch = replace(one.trajectory.patch, artifacts=(Artifact(path="/tmp/x", contents=contents),))
        return replace(one, trajectory=replace(one.trajectory, patch=patch))

    assert degenerate([with_file(b"1", True, 0), with_file(b"2", False, 1)]) == {}
    assert degenerate([with_file(b"1", True, 0), with_file(b"1", False, 1)]) == {"t00": ("verdict_flips",)}


def test_each_task_is_judged_by_its_own_trials() -> None:
    group = [judged(0, "fix", True), judged(0, "fix", False, task="t01"), judged(0, "", True, task="t02")]
    assert degenerate(group) == {"t02": ("empty_patch",)}
