"""The learning report of a run that goes on: it is written, and one that cannot be made is told and stops nothing."""

from pathlib import Path

from learning_pieces import a_run

from engine.run.jobs.train import _write_report


class Spoken:
    """The part of an observer that is spoken to."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def phase(self, name: str, done: int, total: int, note: str) -> None:
        self.lines.append(name)

    def say(self, line: str) -> None:
        self.lines.append(line)


async def test_it_is_written(tmp_path: Path) -> None:
    layout, spoken = a_run(tmp_path / "r", [{"a": [1.0, 0.0]}]), Spoken()
    await _write_report(layout, spoken)  # type: ignore[arg-type]
    assert spoken.lines == ["writing the learning report"]
    assert layout.learning.is_file()


async def test_a_damaged_file_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    layout, spoken = a_run(tmp_path / "r", [{"a": [1.0, 0.0]}]), Spoken()
    layout.step(0).write_bytes(b"PAR1")
    await _write_report(layout, spoken)  # type: ignore[arg-type]
    assert "step=000000.parquet is damaged" in spoken.lines[-1]
    assert f"job=report job.runs=[{layout.root}]" in spoken.lines[-1]
    assert not layout.learning.exists()
