"""`job=audit`: each task stands under the first thing that is wrong with it, and the funnel counts them."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from record_pieces import a_task

from engine.core.errors import ConfigError, EnvironmentFailure, GraderError, RunError
from engine.core.patch import make
from engine.core.records import FileChange, Finding, Patch, Task, Verdict
from engine.run.jobs import audit
from engine.run.jobs.audit import AuditJob

FIX = make([FileChange(path="a.py", before=b"", after=b"x")])
REPOSITORY: dict[int, Path] = {}
TOLD = Finding(stage="verify", phase="grade", detail="the tests tried to reach pypi.org")


class Grader:
    """Resolves as a task's id says: `reference verdicts / base verdicts / shuffled`, each 1, 0 or x (it breaks)."""

    artifact_files = artifact_mb = 0

    def __init__(self, seed: int = 0, *, shuffled: bool = False) -> None:
        self.seed, self.shuffled = seed, shuffled

    def varied(self, seed: int, *, shuffled: bool) -> "Grader":
        return Grader(seed, shuffled=shuffled)

    async def grade(self, task: Task, patch: Any, runtime: Any, images: Any, name: str) -> Verdict:
        good, bad, shuffled = task.id.split("-")[1:4]
        told = shuffled if self.shuffled else (good if patch.changes else bad)[self.seed]
        if told == "x":
            raise GraderError("never got ready")
        return Verdict(
            reward=float(told), resolved=told == "1", tests=(), evidence="1 failed", findings=(TOLD,), grade_s=0.0
        )


class Leaks:
    async def inspect(self, task: Task, root: Path) -> Sequence[Finding]:
        if task.id.startswith("leaky"):
            raise EnvironmentFailure("a copy lies in the image")
        return ()

    def extract(self, task: Task, tree: Path, patch: Patch) -> tuple[Patch, Sequence[Finding]]:
        return patch, ()


async def nothing(*_: object) -> None:
    return None


def audited(pool: Sequence[str], *, reference: Patch = FIX, **changes: Any) -> None:
    tasks = [a_task(id=name, reference=reference, repository=REPOSITORY[0]) for name in pool]
    built: Any = SimpleNamespace(
        observe=SimpleNamespace(progress_interval_s=60.0),
        tasks=SimpleNamespace(load=lambda: tasks),
        harnesses={},
        verify=Grader(),
        defense=SimpleNamespace(stages=[Leaks()]),
        sandbox=SimpleNamespace(start=nothing, stop=nothing),
        schedule=SimpleNamespace(concurrency=2),
        hash="0",
    )
    job = AuditJob(**{"names": [], "times": 2, "order": "note", "to": None} | changes)
    asyncio.run(job.run(built))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "a.py").write_text("")
    monkeypatch.setitem(REPOSITORY, 0, repository)
    monkeypatch.setattr(audit, "check_grading", lambda built, images: None)


def test_a_reference_is_graded_as_far_as_an_agent_could_hand_it_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = make([FileChange(path="data.bin", before=None, after=b"\0\1")])
    with pytest.raises(RunError, match="1 of 1 tasks do not hold"):
        audited(["fine-11-00-1"], reference=binary)
    said = capsys.readouterr().out
    assert "reference fails: an agent could not hand it in: not taken into the patch: not text: data.bin" in said


def test_every_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {
        "fine-11-00-1": "holds",
        "sorted-11-00-0": "holds",
        "leaky-11-00-1": "leaks",
        "broken-1x-00-1": "breaks",
        "wrong-00-00-1": "reference fails",
        "flaky-10-00-1": "flaky",
        "idle-11-01-1": "nothing to do",
    }
    with pytest.raises(RunError, match="5 of 7 tasks do not hold"):
        audited(list(names), to=str(tmp_path / "audit.json"))
    report = json.loads((tmp_path / "audit.json").read_text())
    assert {one["task"]: one["verdict"] for one in report["tasks"]} == names
    assert list(report["funnel"].values()) == [7, 6, 5, 4, 3, 3, 2]
    by_task = {one["task"]: one for one in report["tasks"]}
    assert by_task["flaky-10-00-1"]["reference"] == "1/2" and by_task["idle-11-01-1"]["base"] == "1/2"
    assert by_task["sorted-11-00-0"]["order"] == "1 failed" and by_task["fine-11-00-1"]["order"] == ""
    out = capsys.readouterr().out
    assert "leaky-11-00-1: leaks: a copy lies in the image (reference 0/0, base 0/0)" in out
    assert "fine-11-00-1: the tests tried to reach pypi.org" in out
    assert "sorted-11-00-0: only in their order: 1 failed" in out


def test_a_task_that_needs_its_order_may_be_refused() -> None:
    audited(["sorted-11-00-0"])
    with pytest.raises(RunError, match="1 of 1 tasks do not hold"):
        audited(["sorted-11-00-0"], order="refuse")


def test_names_and_files_are_checked_first(tmp_path: Path) -> None:
    audited(["fine-11-00-1", "wrong-00-00-1"], names=["fine-11-00-1"])
    with pytest.raises(ConfigError, match=r"job.names='fine-11-00-2': .*did you mean fine-11-00-1\?"):
        audited(["fine-11-00-1"], names=["fine-11-00-2"])
    (tmp_path / "there").touch()
    with pytest.raises(ConfigError, match=r"job.to=.*is there already"):
        audited(["fine-11-00-1"], to=str(tmp_path / "there"))
