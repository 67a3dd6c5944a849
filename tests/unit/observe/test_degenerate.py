"""`engine.observe.degenerate`: which rewards say nothing of the work."""

import pytest
from plan_pieces import judged

from engine.core.records import Scored
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


def test_each_task_is_judged_by_its_own_trials() -> None:
    group = [judged(0, "fix", True), judged(0, "fix", False, task="t01"), judged(0, "", True, task="t02")]
    assert degenerate(group) == {"t02": ("empty_patch",)}
