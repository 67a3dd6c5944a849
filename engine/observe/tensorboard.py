"""Step metrics as TensorBoard scalars. Loaded only when `observe.tensorboard` is on.

Invariant: the folder holds each finished step once, whatever became of the processes that wrote there before.
"""

from collections.abc import Iterable
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from engine.core.records import StepRecord


class TensorBoard:
    """Writes scalars with the step counted from 1: the weights after that many updates."""

    def __init__(self, folder: Path, done: Iterable[tuple[StepRecord, float]]) -> None:
        """`done`: finished steps and their times, Unix seconds."""
        earlier = list(folder.glob("events.out.tfevents.*"))
        self._writer = EventFileWriter(str(folder))
        for record, wall_time_s in done:
            self._add(record, wall_time_s)
        self._writer.flush()
        for file in earlier:
            file.unlink()

    def step(self, record: StepRecord, wall_time_s: float) -> None:
        self._add(record, wall_time_s)
        self._writer.flush()

    def _add(self, record: StepRecord, wall_time_s: float) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in record.metrics.items()]
        event = Event(wall_time=wall_time_s, step=record.step + 1, summary=Summary(value=values))
        self._writer.add_event(event)

    def close(self) -> None:
        self._writer.close()
