"""What a person sees of a run while it goes on: progress, TensorBoard, alarms. Reads records, changes nothing."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from engine.core.records import Scored, StepRecord
from engine.observe.digits import below, is_correlation
from engine.observe.progress import Note, ProgressView, Shown, make_progress
from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.store.writer import Writer


class Observer:
    """Configured by the group `observe`."""

    def __init__(
        self, *, tensorboard: bool, progress_interval_s: float, report_every: int, correlation_alarm: float
    ) -> None:
        self.report_every = report_every
        self.tensorboard = tensorboard
        self.progress_interval_s = progress_interval_s
        self.correlation_alarm = correlation_alarm
        self._shown: Shown | None = None
        self._progress: ProgressView | None = None
        self._board: Any = None

    def start(self, layout: Layout, beats: Sequence[Callable[[], None]] = ()) -> None:
        """Begin to show; TensorBoard's file is made anew of the finished steps but the last, which is still to be
        shown, with its validation. `beats` are called about once a second, in a thread."""
        self._shown = make_progress(self.progress_interval_s, beats)
        self._progress = self._shown.__enter__()
        if self.tensorboard:
            from engine.observe.tensorboard import TensorBoard

            done = [(record, layout.step(record.step).stat().st_mtime) for record in Reader(layout).steps()[:-1]]
            self._board = TensorBoard(layout.tensorboard, done)

    def say(self, line: str) -> None:
        """Show one line that stays."""
        if self._progress is not None:
            self._progress.say(line)

    def phase(self, name: str, done: int, total: int, note: Note) -> None:
        """Show the current phase; a note that is a function is asked whenever the phase is shown, also in a thread."""
        if self._progress is not None:
            self._progress.phase(name, done, total, note)

    def trials(self, name: str, done: Sequence[Scored], total: int, running: Callable[[], str]) -> None:
        """Show how far a rollout is; `done`: the last attempt of each finished trial, `running` tells of the others."""
        rewards = [scored.verdict.reward for scored in done if scored.verdict is not None]
        ended = [f"excluded {len(done) - len(rewards)}"] if len(rewards) < len(done) else []
        if rewards:
            ended.append(f"reward {sum(rewards) / len(rewards):.2f}")
        self.phase(name, len(done), total, lambda: ", ".join(part for part in (running(), *ended) if part))

    def judge(self, record: StepRecord, writer: Writer) -> None:
        """Keep an alarm where rollout and trainer part; the same step again keeps the same one."""
        if self._parted(record):
            correlation = record.metrics.get("alignment/pearson_r")
            writer.alert(record.step, "correlation", {"pearson_r": correlation})

    def step(self, record: StepRecord, steps: int) -> None:
        """Show a finished step, and say so where rollout and trainer part."""
        metrics = record.metrics
        if self._board is not None:
            self._board.step(record, time.time())
        shown = " · ".join(
            f"{label} {below(metrics[name], 6) if is_correlation(name) else format(metrics[name], form)}"
            for label, name, form in (
                ("reward", "reward/mean", ".3f"),
                ("loss", "loss/total", ".2e"),
                ("grad", "train/grad_norm", ".2e"),
                ("r", "alignment/pearson_r", ""),
                ("max|Δlogp|", "alignment/max_abs_dlogp", ".1e"),
                ("probe", "probe/max_abs_dlogp", ".1e"),
                ("entropy", "train/entropy", ".3f"),
                ("valid calls", "calls/valid", ".0%"),
                ("held-out", "validation/reward", ".3f"),
            )
            if name in metrics
        )
        self.say(f"step {record.step + 1}/{steps} done · {shown}")
        parted = self._parted(record)
        if parted:
            self.say(f"ALARM: rollout-to-trainer correlation {parted}")

    def _parted(self, record: StepRecord) -> str:
        """Why the correlation is an alarm; empty when it is none. One that is not defined shows no agreement."""
        correlation = record.metrics.get("alignment/pearson_r")
        if correlation is None:
            tokens = record.metrics.get("alignment/tokens", 0.0)
            return f"is not defined over {tokens:.0f} tokens: one side is constant" if tokens >= 2 else ""
        if correlation < self.correlation_alarm:
            told = below(correlation, 4, self.correlation_alarm)
            return f"{told} is below observe.correlation_alarm={self.correlation_alarm}"
        return ""

    def stop(self) -> None:
        """Stop showing; safe to call twice."""
        if self._shown is not None:
            self._shown.__exit__(None, None, None)
            self._shown = self._progress = None
        if self._board is not None:
            self._board.close()
            self._board = None
