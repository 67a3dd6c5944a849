"""A task whose reward says nothing is told, kept out of the step that shows it and of all later ones, also after a
restart."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from plan_pieces import judged

from engine.core.errors import RunError
from engine.core.records import Scored
from engine.run.quarantine import Quarantine
from engine.run.rollout import entry
from engine.store.layout import Layout
from engine.store.ledger import Ledger
from engine.store.reader import Reader
from engine.store.writer import Writer

BROKEN, SOUND = judged(0, "", True), judged(0, "fix", True, task="t01")
EASY = [judged(number, "fix", True, task="t02") for number in range(4)]


def quarantine(root: Path, signs: Sequence[str] = ("empty_patch",)) -> Quarantine:
    """As a start of the run makes it."""
    layout = Layout(root=root)
    return Quarantine(signs, Reader(layout), Writer(layout), Ledger(layout))


def finish(root: Path, step: int, scored: Sequence[Scored]) -> None:
    ledger = Ledger(Layout(root=root))
    for state in ("pending", "running", "finished"):
        ledger.move(step, [entry(one.trajectory.trial) for one in scored], state)


def test_its_trials_count_no_more(tmp_path: Path) -> None:
    said: list[str] = []
    finish(tmp_path, 3, [BROKEN, SOUND, *EASY])
    assert quarantine(tmp_path).sift(3, [BROKEN, SOUND, *EASY], said.append) == [SOUND, *EASY]
    assert said == [
        "ALARM: rewards that say nothing, tasks quarantined: t00 (empty_patch)",
        "rewards that may say nothing: t02 (solved_at_once)",
    ]
    states = Ledger(Layout(root=tmp_path)).states(3)
    assert states[entry(BROKEN.trajectory.trial)] == "excluded"
    assert states[entry(SOUND.trajectory.trial)] == "finished"


def test_a_restart_leaves_out_the_same(tmp_path: Path) -> None:
    finish(tmp_path, 3, [BROKEN, SOUND])
    first = quarantine(tmp_path).sift(3, [BROKEN, SOUND], lambda _: None)
    assert quarantine(tmp_path).sift(3, [BROKEN, SOUND], lambda _: None) == first == [SOUND]
    planned = [BROKEN.trajectory.trial, SOUND.trajectory.trial]
    assert quarantine(tmp_path).left(3, planned) == planned  # it showed itself in this step
    assert quarantine(tmp_path).left(4, planned) == planned[1:]
    Writer(Layout(root=tmp_path)).forget_beyond(3)  # the update of step 3 is lost, and its alarms with it
    assert quarantine(tmp_path).left(4, planned) == planned


def test_what_is_only_told_stays(tmp_path: Path) -> None:
    finish(tmp_path, 0, [BROKEN])
    assert quarantine(tmp_path, signs=()).sift(0, [BROKEN], lambda _: None) == [BROKEN]
    assert quarantine(tmp_path, signs=()).left(1, [BROKEN.trajectory.trial])
    assert Reader(Layout(root=tmp_path)).alerts() == [
        {"alert": "degenerate_reward", "step": 0, "tasks": {"t00": ["empty_patch"]}}
    ]


def test_nothing_left_says_what_to_do(tmp_path: Path) -> None:
    finish(tmp_path, 0, [BROKEN])
    with pytest.raises(RunError, match=r"every task of step 1 is quarantined; .*schedule\.quarantine=\[\]"):
        quarantine(tmp_path).sift(0, [BROKEN], lambda _: None)
    with pytest.raises(RunError, match="every task of step 2 is quarantined"):
        quarantine(tmp_path).left(1, [BROKEN.trajectory.trial])
