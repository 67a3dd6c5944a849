"""One trial on stand-ins for every part: whatever breaks around the agent excludes it, and is never a reward of 0."""

import asyncio
import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plan_pieces import tasks

from engine.core.errors import AlignmentError, EnvironmentFailure, GraderError, HarnessError, SandboxError
from engine.core.records import Scored, Termination, Trial, TrialKey, Verdict
from engine.core.specs import ExecResult, Launch, Mount
from engine.run.trial import Workshop, run_trial

DONE = ExecResult(exit_code=0, stdout=b"", stderr=b"", timed_out=False, oom_killed=False, duration_s=1.0)
SAMPLED = SimpleNamespace(sampled_ids=[1, 2], started_s=0.0)
UNSAMPLED = SimpleNamespace(sampled_ids=[], started_s=0.0)


@dataclasses.dataclass
class Stand:
    """Every part of a workshop at once; `breaks` names the calls that fail, `log` the order of those that were made."""

    repository: Path
    scratch: Path
    breaks: dict[str, Exception] = dataclasses.field(default_factory=dict)
    ending: Termination = Termination.AGENT_COMPLETED
    by_proxy: Termination | None = None
    exchanges: tuple[Any, ...] = (SAMPLED,)
    log: list[str] = dataclasses.field(default_factory=list)
    entered: list[str] = dataclasses.field(default_factory=list)
    visitor: "Guest | None" = None
    harness: str = "stand"
    specs: list[Any] = dataclasses.field(default_factory=list)
    heard: Any = None
    name: str = "stand"
    max_turns: int = 3
    report_path: str = "/report"
    endpoint: Any = None

    def _do(self, what: str) -> None:
        self.log.append(what)
        if what in self.breaks:
            raise self.breaks[what]

    async def create(self, spec: Any) -> "Stand":
        self._do("create")
        self.specs.append(spec)
        return self

    async def upload(self, source: Path, target: str) -> None:
        self._do("upload")

    def denied(self) -> tuple[()]:
        return ()

    def reached(self) -> tuple[()]:
        return ()

    async def phase(self, name: str) -> None:
        self._do(f"phase {name}")

    async def listen(self, port: int) -> Any:
        self._do("listen")

    async def write(self, files: Any) -> None:
        self._do("write")

    async def exec(self, command: Any, **options: Any) -> ExecResult:
        self._do("exec")
        return DONE

    async def read(self, path: str, limit: int) -> None:
        self._do("read")

    async def kill(self) -> int:
        self._do("kill")
        return 0

    async def download(self, source: str, target: Path) -> None:
        self._do("download")
        shutil.copytree(self.repository, target)

    async def stop(self) -> None:
        self._do("stop")

    # the image store
    def path(self, spec: Any) -> Path:
        return self.repository

    # the harness
    def mount(self, images: Any) -> Mount:
        return Mount(source=self.repository, target="/opt/agent")

    def launch(self, task: Any, endpoint: Any) -> Launch:
        return Launch(command=("agent",), environment={}, cwd="/workspace")

    def judge(self, result: ExecResult, report: bytes | None) -> tuple[Termination, str]:
        self._do("judge")
        return self.ending, "as scripted"

    # the proxy and its session
    def open(self, trial: Trial, harness: Any, port: int, folder: Path) -> "Stand":
        return self

    async def serve(self, listener: Any) -> None:
        self._do("serve")

    async def close(self) -> Any:
        self._do("close")
        return self.exchanges, (), self.by_proxy

    # a defence
    async def setup(self, task: Any, tree: Path) -> tuple[()]:
        self._do("setup")
        return ()

    async def inspect(self, task: Any, root: Path) -> tuple[()]:
        self._do("inspect")
        return ()

    async def settle(self, task: Any, sandbox: Any, outlived: int) -> tuple[()]:
        self._do("settle")
        return ()

    def review(self, exchanges: Any) -> tuple[()]:
        self._do("review")
        return ()

    def extract(self, task: Any, tree: Path, patch: Any) -> Any:
        self._do("extract")
        return patch, ()

    # the verifier
    async def grade(self, *arguments: Any) -> Verdict:
        self._do("grade")
        return Verdict(reward=0.0, resolved=False, tests=(), evidence="", findings=(), grade_s=0.0)

    async def run(self) -> Scored:
        task = dataclasses.replace(tasks(1, 0)[0], repository=self.repository)
        key = TrialKey(run="r", epoch=0, task=task.id, sample=0, attempt=0)
        planned: dict[str, Any] = {"policy_version": 0, "seed": 0, "temperature": 1.0, "top_p": 1.0, "split": "train"}
        parts: Any = self
        shop = Workshop(
            images=parts,
            sandboxes=parts,
            proxy=parts,
            harnesses={"stand": parts},
            defenses=[parts],
            verifier=parts,
            scratch=self.scratch,
            pids=1,
            disk_mb=1,
            visitor=self.visitor,
        )
        return await run_trial(Trial(key=key, task=task, harness=self.harness, **planned), shop, self.entered.append)


@dataclasses.dataclass
class Guest:
    """A visitor who notes where it is."""

    log: list[str]
    lasting: bool = False
    stays: bool = False

    def heard(self, exchange: Any) -> None: ...

    async def before(self, sandbox: Any, environment: Any) -> None:
        self.log.append("before")

    async def after(self, sandbox: Any) -> None:
        self.log.append("after")

    async def leave(self, sandbox: Any) -> None:
        self.log.append("leave")


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "a.py").write_text("a = 1\n")
    return Stand(repository=repository, scratch=tmp_path / "scratch")


def assert_excluded(scored: Scored, termination: Termination) -> None:
    assert scored.trajectory.termination is termination, scored.trajectory.reason
    assert termination.excluded
    assert scored.verdict is None
    assert scored.trajectory.patch is None or termination is Termination.GRADER_FAILED


async def test_the_stages_follow_each_other_and_each_is_timed(stand: Stand) -> None:
    scored = await stand.run()
    assert scored.verdict is not None
    assert {"setup", "agent", "extract", "stop", "first_request", "grade"} <= set(scored.trajectory.timings)
    order = [
        "inspect",
        "setup",
        "create",
        "upload",
        "phase agent",
        "exec",
        "judge",
        "close",
        "kill",
        "settle",
        "download",
        "extract",
    ]
    order += ["stop", "grade"]
    first = [stand.log.index(stage) for stage in order]
    assert first == sorted(first)
    assert stand.entered == ["setup", "agent", "extract", "stop", "grade"]
    assert list(stand.scratch.iterdir()) == []


async def test_nobody_samples_once_the_harness_has_ended(stand: Stand) -> None:
    """A process that it left behind lives until `settle`: the proxy is closed before."""
    await stand.run()
    assert stand.log.index("judge") < stand.log.index("close") < stand.log.index("settle")


@pytest.mark.parametrize(
    ("stage", "failure", "termination"),
    [
        ("inspect", EnvironmentFailure, Termination.SETUP_FAILED),
        ("setup", EnvironmentFailure, Termination.SETUP_FAILED),
        ("create", SandboxError, Termination.SETUP_FAILED),
        ("upload", SandboxError, Termination.SETUP_FAILED),
        ("listen", SandboxError, Termination.SANDBOX_LOST),
        ("write", SandboxError, Termination.SANDBOX_LOST),
        ("exec", SandboxError, Termination.SANDBOX_LOST),
        ("judge", HarnessError, Termination.HARNESS_FAILED),
        ("phase agent", SandboxError, Termination.SETUP_FAILED),
        ("settle", EnvironmentFailure, Termination.SANDBOX_LOST),
        ("kill", SandboxError, Termination.SANDBOX_LOST),
        ("download", SandboxError, Termination.SANDBOX_LOST),
        ("extract", EnvironmentFailure, Termination.SANDBOX_LOST),
        ("grade", GraderError, Termination.GRADER_FAILED),
        ("grade", SandboxError, Termination.GRADER_FAILED),
        ("grade", EnvironmentFailure, Termination.GRADER_FAILED),
    ],
)
async def test_what_breaks_around_the_agent_excludes_the_trial(
    stand: Stand, stage: str, failure: Callable[[str], Exception], termination: Termination
) -> None:
    stand.breaks[stage] = failure("it broke")
    scored = await stand.run()
    assert_excluded(scored, termination)
    assert "it broke" in scored.trajectory.reason
    assert "close" in stand.log
    assert "exec" not in stand.log or stage not in (
        *("inspect", "setup", "create", "upload", "phase agent", "listen", "write"),
    )
    assert ("stop" in stand.log) == (stage not in ("inspect", "setup", "create"))


async def test_a_sandbox_that_cannot_be_removed_changes_nothing_about_the_trial(stand: Stand) -> None:
    stand.breaks["stop"] = SandboxError("busy")
    scored = await stand.run()
    assert scored.verdict is not None
    assert [finding.detail for finding in scored.trajectory.findings] == ["busy"]


@pytest.mark.parametrize("stage", ["close", "grade", "download"])
async def test_a_defect_passes_through_and_the_sandbox_is_removed(stand: Stand, stage: str) -> None:
    stand.breaks[stage] = AlignmentError("3 rows for 5 tokens") if stage == "close" else ZeroDivisionError("bug")
    with pytest.raises(type(stand.breaks[stage])):
        await stand.run()
    assert "stop" in stand.log
    assert list(stand.scratch.iterdir()) == []


KEPT = [termination for termination in Termination if not termination.excluded]


@pytest.mark.parametrize("ending", KEPT)
@pytest.mark.parametrize("by_proxy", [None, Termination.CONTEXT_OVERFLOW])
@pytest.mark.parametrize("exchanges", [(), (UNSAMPLED,)])
async def test_a_trial_that_never_met_the_policy_is_not_the_policys_failure(
    stand: Stand, ending: Termination, by_proxy: Termination | None, exchanges: tuple[Any, ...]
) -> None:
    """Out of memory at its start, a first prompt over the limit, a harness that asks for nothing: no reward at all."""
    stand.ending, stand.by_proxy, stand.exchanges = ending, by_proxy, exchanges
    scored = await stand.run()
    assert_excluded(scored, Termination.HARNESS_FAILED)
    assert "no token was sampled" in scored.trajectory.reason
    assert "grade" not in stand.log


@pytest.mark.parametrize("ending", KEPT)
async def test_what_the_agent_did_to_itself_is_graded(stand: Stand, ending: Termination) -> None:
    stand.ending = ending
    scored = await stand.run()
    assert scored.trajectory.termination is ending
    assert scored.verdict is not None


@pytest.mark.parametrize("ending", [*KEPT, Termination.AGENT_TIMEOUT])
async def test_a_broken_engine_excludes_whatever_the_harness_made_of_it(stand: Stand, ending: Termination) -> None:
    stand.ending, stand.by_proxy = ending, Termination.ENGINE_ERROR
    assert_excluded(await stand.run(), Termination.ENGINE_ERROR)


async def test_a_limit_of_the_proxy_explains_a_harness_that_gave_up(stand: Stand) -> None:
    stand.breaks["judge"] = HarnessError("its endpoint refused")
    stand.by_proxy = Termination.TOKEN_BUDGET
    scored = await stand.run()
    assert scored.trajectory.termination is Termination.TOKEN_BUDGET
    assert "its endpoint refused" in scored.trajectory.reason
    assert scored.verdict is not None, "what is kept is graded"


@pytest.mark.parametrize("fact", [Termination.AGENT_TIMEOUT, Termination.AGENT_OOM])
async def test_no_limit_of_the_proxy_changes_a_fact(stand: Stand, fact: Termination) -> None:
    stand.ending, stand.by_proxy = fact, Termination.MAX_TURNS
    scored = await stand.run()
    assert scored.trajectory.termination is fact
    assert (scored.verdict is None) == fact.excluded


# ---------------------------------------------------------------- visitors


def visited(stand: Stand, **changes: Any) -> list[str]:
    stand.visitor = Guest(log=stand.log, **changes)
    return stand.log


async def test_a_visitor_comes_before_and_after_the_agent_and_hears_its_calls(stand: Stand) -> None:
    log = visited(stand)
    scored = await stand.run()
    assert scored.verdict is not None
    places = [log.index(name) for name in ("serve", "write", "before", "exec", "after", "close", "settle", "extract")]
    assert places == sorted(places)
    assert log.index("extract") < log.index("leave") < log.index("stop") < log.index("grade")
    assert stand.heard == stand.visitor.heard  # type: ignore[union-attr]
    assert not stand.specs[0].lasting


async def test_without_a_visitor_nobody_listens_and_nothing_lasts(stand: Stand) -> None:
    await stand.run()
    assert stand.heard is None
    assert not stand.specs[0].lasting


@pytest.mark.parametrize("ending", [Termination.AGENT_TIMEOUT, Termination.ENGINE_ERROR])
async def test_a_visitor_sees_what_an_excluded_agent_left(stand: Stand, ending: Termination) -> None:
    log, stand.ending = visited(stand, lasting=True), ending
    assert_excluded(await stand.run(), ending)
    assert [name for name in log if name in ("before", "after", "leave", "stop")] == [
        "before",
        "after",
        "leave",
        "stop",
    ]
    assert stand.specs[0].lasting


async def test_no_visit_where_there_is_no_sandbox(stand: Stand) -> None:
    log = visited(stand)
    stand.breaks["create"] = SandboxError("it broke")
    assert_excluded(await stand.run(), Termination.SETUP_FAILED)
    assert {"before", "after", "leave"} & set(log) == set()


async def test_by_hand_there_is_no_harness_and_no_proxy_and_the_same_judgement(stand: Stand) -> None:
    log, stand.harness = visited(stand), "none"
    scored = await stand.run()
    assert log == [
        *("inspect", "setup", "create", "upload", "phase agent", "before", "after"),
        *("kill", "settle", "download", "extract", "leave", "stop", "grade"),
    ]
    assert scored.verdict is not None
    assert scored.trajectory.termination is Termination.AGENT_COMPLETED
    assert stand.specs[0].mounts == ()
    assert stand.entered == ["setup", "agent", "extract", "stop", "grade"]


@pytest.mark.parametrize(
    ("stage", "ending"), [("upload", Termination.SETUP_FAILED), ("download", Termination.SANDBOX_LOST)]
)
async def test_what_breaks_around_a_hand_excludes_too(stand: Stand, stage: str, ending: Termination) -> None:
    visited(stand)
    stand.harness, stand.breaks[stage] = "none", SandboxError("it broke")
    assert_excluded(await stand.run(), ending)


async def test_a_visitor_that_is_interrupted_leaves_nothing(stand: Stand) -> None:
    log = visited(stand, lasting=True)

    async def interrupted(sandbox: Any) -> None:
        raise asyncio.CancelledError

    stand.visitor.after = interrupted  # type: ignore[union-attr, method-assign]
    with pytest.raises(asyncio.CancelledError):
        await stand.run()
    assert "stop" in log
    assert "leave" not in log
