"""Tasks whose reward says nothing (`engine.observe.degenerate`) are told, and those of `schedule.quarantine` kept out.

A quarantined task's trials of the step that showed it count no more: not trained, in no statistic of the group, not in
a denominator. Later steps do not run it. Invariant: what a step leaves out depends on the alarms of the steps before
it and on its own trials alone, so a restart leaves out the same. A later run begins without: the task is to be mended.
"""

from collections.abc import Callable, Sequence

from engine.core.errors import RunError
from engine.core.naming import first
from engine.core.records import Scored, Trial
from engine.observe.degenerate import degenerate
from engine.run.rollout import entry
from engine.store.ledger import Ledger
from engine.store.reader import Reader
from engine.store.writer import Writer

ALARM = "degenerate_reward"
_NAMED = 5
"""Tasks that a line names."""


class Quarantine:
    """Of one run; `signs`: those that keep a task out."""

    def __init__(self, signs: Sequence[str], reader: Reader, writer: Writer, ledger: Ledger) -> None:
        self._signs = frozenset(signs)
        self._reader = reader
        self._writer = writer
        self._ledger = ledger

    def tasks(self, step: int) -> set[str]:
        """Kept out of a step by what earlier ones showed."""
        alarms = (alarm for alarm in self._reader.alerts() if alarm["alert"] == ALARM and alarm["step"] < step)
        return {task for alarm in alarms for task, signs in alarm["tasks"].items() if self._signs & set(signs)}

    def left(self, step: int, planned: Sequence[Trial]) -> list[Trial]:
        """The planned trials of tasks that are not kept out. Raises RunError when there is none."""
        tasks = self.tasks(step)
        left = [trial for trial in planned if trial.task.id not in tasks]
        if planned and not left:
            raise self._nothing(step)
        return left

    def sift(self, step: int, scored: Sequence[Scored], say: Callable[[str], None]) -> list[Scored]:
        """Tell what the step's trials show; those that count are returned. Raises RunError when there is none."""
        shown = degenerate(scored)
        if not shown:
            return list(scored)
        self._writer.alert(step, ALARM, {"tasks": {task: list(signs) for task, signs in shown.items()}})
        out = {task for task, signs in shown.items() if self._signs & set(signs)}
        for line in _lines(shown, out):
            say(line)
        states = self._ledger.states(step)
        gone = [one.trajectory.trial for one in scored if one.trajectory.trial.key.task in out]
        finished = [entry(trial) for trial in gone if states[entry(trial)] == "finished"]
        if finished:
            self._ledger.move(step, finished, "excluded", "its task is quarantined")
        left = [one for one in scored if one.trajectory.trial.key.task not in out]
        if not left:
            raise self._nothing(step)
        return left

    def _nothing(self, step: int) -> RunError:
        way_out = "mend or leave out these tasks (alerts/), or set schedule.quarantine=[] and trust their rewards"
        return RunError(f"every task of step {step + 1} is quarantined; {way_out}")


def _lines(shown: dict[str, tuple[str, ...]], out: set[str]) -> list[str]:
    """One for those that are kept out, one for the others."""
    lines = []
    for tasks, what in (
        ([task for task in shown if task in out], "ALARM: rewards that say nothing, tasks quarantined"),
        ([task for task in shown if task not in out], "rewards that may say nothing"),
    ):
        if tasks:
            named = [f"{task} ({', '.join(shown[task])})" for task in tasks]
            lines.append(f"{what}: {first(named, _NAMED)}")
    return lines
