"""Step metrics as TensorBoard scalars. Loaded only when `observe.tensorboard` is on."""

from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from engine.core.records import StepRecord


class TensorBoard:
    """Writes scalars with the step counted from 1: the weights after that many updates."""

    def __init__(self, folder: Path) -> None:
        self._writer = EventFileWriter(str(folder))

    def step(self, record: StepRecord, wall_time_s: float) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in record.metrics.items()]
        event = Event(wall_time=wall_time_s, step=record.step + 1, summary=Summary(value=values))
        self._writer.add_event(event)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
