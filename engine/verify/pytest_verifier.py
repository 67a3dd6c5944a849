"""Grades a patch: a fresh sandbox, the task's own interpreter isolated, pytest from a read-only toolchain.

Invariant: the reward is decided here, from a report that came over the sandbox's exec channel, which no agent ever had.
What the tested code does to itself (hangs, runs out of memory, kills its runner, forges or cuts the report) is reward 0
with evidence. `GraderError` is for a toolchain or driver that never got ready, and for a patch that does not fit: no
verdict at all. A broken sandbox stays a `SandboxError`.

The tested code shares a process with pytest, so no single report is proof. Marks, numbering, exit code and canaries
make a forgery visible; and what would be rewarded is run again in a sandbox of its own, where the target tests must
fail and nothing else is other: so code that knows how to pass them must know what is right.
"""

import asyncio
import base64
import json
import random
import secrets
import time
import zlib
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal, Self

from engine.core.contracts import ImageStore, Sandbox, SandboxRuntime
from engine.core.errors import GraderError, HarnessError, PatchError
from engine.core.naming import first
from engine.core.records import Finding, Patch, Task, Verdict
from engine.core.specs import ExecResult, ImageSpec, Mount, SandboxSpec, WarmStart
from engine.core.task_contracts import Mode
from engine.core.temporary import temporary_folder
from engine.verify.artifacts import lay
from engine.verify.canaries import CanaryFile, belied, make_canaries, without_canaries
from engine.verify.clones import Clone, make_clone, passed_wrongly
from engine.verify.driver import TOOLCHAIN
from engine.verify.judgement import judge, summary
from engine.verify.report import Report, read_report
from engine.verify.tree import assemble, lay_over

_DRIVER = Path(__file__).with_name("driver.py")
_MODULE = "grading_driver"
_WARM = "/run/grader"
"""Where the warm process finds the driver; no sandbox has it there."""
_OUTPUT_BYTES = 1 << 16
"""Bytes of the tests' output, from its end, that leave the sandbox."""
_SITES = (
    "/opt/venv/lib/{version}/site-packages",
    "/usr/local/lib/{version}/dist-packages",
    "/usr/lib/python3/dist-packages",
)
_ENVIRONMENT = {
    "PATH": "/opt/venv/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}
REACHES = "the tests tried to reach"
"""How the finding of what they tried in vain begins."""
_NAMED = 10
_ENDINGS = {"timeout": "the tests ran over their time", "flooded": "the tests flooded the report"}


_NOTHING = Report(outcomes={}, broken_files=(), fault="")
_SOURCE = random.SystemRandom()
_CLONE_RUNS = 2
"""Times that clones are run where none of them was told of."""


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What came back from one run of the driver."""

    ready: bool
    ended: str
    """exited, timeout, flooded, or in words what befell a run without a sealed result."""
    exit_code: int
    report: str
    output: str
    canaries: Sequence[CanaryFile] = ()
    told: Report = _NOTHING
    """What the report says."""
    tried: Sequence[str] = ()
    """What the tests tried to reach."""
    findings: tuple[Finding, ...] = ()
    """Of the tree that was graded."""


class PytestVerifier:
    """`contracts.Verifier` for Python repositories tested by pytest."""

    def __init__(
        self,
        *,
        requirements: Sequence[str],
        canaries: Mode,
        canary_files: int,
        canary_clones: int,
        evidence_chars: int,
        start: Literal["warm", "cold"],
        slack_s: float,
        pids: int,
        disk_mb: int,
        artifact_files: int,
        artifact_mb: int,
    ) -> None:
        self.requirements = requirements
        self.canaries = canaries
        self.canary_files = canary_files
        self.canary_clones = canary_clones
        self.evidence_chars = evidence_chars
        self.start = start
        self.slack_s = slack_s
        self.pids = pids
        self.disk_mb = disk_mb
        self.artifact_files = artifact_files
        self.artifact_mb = artifact_mb
        self._hash_seed = 0
        self._order: int | None = None
        """Seed of the order of tests; None: the repository's own."""

    def varied(self, seed: int, *, shuffled: bool) -> Self:
        """In an interpreter of its own, whose hashes are by the seed; shuffled without canaries, which have a place."""
        other = copy(self)
        other.start, other._hash_seed = "cold", seed
        if shuffled:
            other.canaries, other._order = "off", seed
        return other

    def toolchain(self) -> ImageSpec:
        """The folder of Python packages that is mounted read-only."""
        return ImageSpec(name="grader", suite=None, packages=(), pip=tuple(self.requirements))

    async def grade(self, task: Task, patch: Patch, runtime: SandboxRuntime, images: ImageStore, name: str) -> Verdict:
        """Grade in a sandbox of its own. Raises GraderError and SandboxError when there can be no verdict."""
        begun = time.monotonic()
        try:
            run = await self._run(task, patch, runtime, images, name, None)
        except PatchError as error:
            return _unfit(task, f"the patch cannot be applied: {error}", time.monotonic() - begun)
        output = without_canaries(run.output, run.canaries)[-self.evidence_chars :]
        enforce = self.canaries == "enforce"
        verdict = decide(task, run.canaries, run.told, run.ended, output, enforce=enforce)
        if verdict.resolved and self.canaries != "off" and self.canary_clones:
            passed = [test for test in task.fail_to_pass if run.told.outcomes[test] == "passed"]
            clone = make_clone(task.tests, passed, self.canary_clones, _SOURCE)
            wrong = await self._cloned(task, patch, runtime, images, name, clone) if clone else ()
            verdict = _exposed(verdict, wrong, enforce=enforce) if wrong else verdict
        findings = (*run.findings, *_egress(run.tried), *verdict.findings)
        return replace(verdict, findings=findings, grade_s=time.monotonic() - begun)

    async def _cloned(
        self, task: Task, patch: Patch, runtime: SandboxRuntime, images: ImageStore, name: str, clone: Clone
    ) -> Sequence[str]:
        """Targets that passed though they must fail, or were never told of: by a machine that is slow this once, as it
        may be, or by code that does not end where it is to fail."""
        wrong: Sequence[str] = clone.must_fail
        for again in range(_CLONE_RUNS):
            run = await self._run(task, patch, runtime, images, f"{name}-{again}", clone)
            wrong = passed_wrongly(clone, run.told.outcomes)
            if any(test in run.told.outcomes for test in clone.must_fail):
                break
        return wrong

    async def _run(
        self, task: Task, patch: Patch, runtime: SandboxRuntime, images: ImageStore, name: str, clone: Clone | None
    ) -> _Run:
        """One run of the driver in a sandbox of its own. Raises PatchError, GraderError and SandboxError."""
        canaries = () if self.canaries == "off" else make_canaries(_test_folder(task), self.canary_files, _SOURCE)
        mark = secrets.token_hex(16)
        with temporary_folder("grade") as folder:
            tree = folder / "tree"
            findings = await asyncio.to_thread(assemble, task, patch, canaries, tree)
            if clone is not None:
                await asyncio.to_thread(lay_over, clone.files, tree)
            sandbox = await runtime.create(self._sandbox(task, images, name))
            try:
                await sandbox.upload(tree, task.workdir)
                findings = (*findings, *await lay(task, patch.artifacts, sandbox, folder / "artifacts"))
                run = await self._drive(task, sandbox, canaries, mark)
                tried = sandbox.denied()
            finally:
                await asyncio.shield(sandbox.stop())
        if not run.ready:
            raise GraderError(f"task {task.id}: the grader never got ready ({run.ended}): {_last_line(run.output)}")
        told = read_report(run.report, mark, run.exit_code)
        return replace(run, canaries=canaries, told=told, tried=tried, findings=findings)

    def _sandbox(self, task: Task, images: ImageStore, name: str) -> SandboxSpec:
        return SandboxSpec(
            name=name,
            image=task.image,
            mounts=(Mount(source=images.path(self.toolchain()), target=TOOLCHAIN),),
            workdir=task.workdir,
            environment={},
            memory_mb=task.memory_mb,
            cpus=task.cpus,
            pids=self.pids,
            disk_mb=self.disk_mb,
            work_s=task.grade_timeout_s + self.slack_s,
            phase="grade",
        )

    async def _drive(self, task: Task, sandbox: Sandbox, canaries: Sequence[CanaryFile], mark: str) -> _Run:
        """Put the driver into the sandbox and run it."""
        home = f"/tmp/grade-{secrets.token_hex(8)}"  # noqa: S108
        seal = secrets.token_hex(16)
        await sandbox.write({f"{home}/pytest.ini": b"[pytest]\n"})
        tests = (*task.fail_to_pass, *task.pass_to_pass)
        spec = {
            "mark": mark,
            "sites": _SITES,
            "root": task.workdir,
            "python_path": [str(PurePosixPath(task.workdir) / path) for path in task.python_path],
            "select": [*tests, *(test for canary in canaries for test in canary.expected)],
            "order": self._order,
            "arguments": _arguments(f"{home}/pytest.ini", task, _files(tests, canaries)),
        }
        head = f"{seal} {mark} {task.grade_timeout_s} {_OUTPUT_BYTES}\n"
        return _sealed(await self._start(task, sandbox, home, (head + json.dumps(spec)).encode()), seal)

    async def _start(self, task: Task, sandbox: Sandbox, home: str, stdin: bytes) -> ExecResult:
        """Run the driver, forked from a warm process or in an interpreter of its own."""
        python = "/opt/venv/bin/python3" if task.image.pip else "/usr/bin/python3"
        interpreter = (python, "-s", "-S", "-B", "-u")
        command, warm = (*interpreter, f"{home}/{_MODULE}.py"), None
        if self.start == "warm":
            files = {f"{_MODULE}.py": _DRIVER.read_bytes()}
            warm = WarmStart(interpreter=interpreter, folder=_WARM, module=_MODULE, files=files, image=True)
        else:
            await sandbox.write({command[-1]: _DRIVER.read_bytes()})
        try:
            return await sandbox.exec(
                command,
                environment=_ENVIRONMENT | {"PYTHONHASHSEED": str(self._hash_seed)},
                cwd="/",
                timeout_s=task.grade_timeout_s + self.slack_s,
                stdin=stdin,
                warm=warm,
            )
        except HarnessError as error:
            raise GraderError(f"task {task.id}: the grader never got ready: {error}") from error


def decide(
    task: Task, canaries: Sequence[CanaryFile], report: Report, ended: str, output: str, *, enforce: bool
) -> Verdict:
    """The verdict on a run that had got ready. Everything that went wrong after that is the tested code's doing.

    `enforce`: whether canaries that turned take the reward, or are only noted."""
    results = judge(task, report.outcomes)
    findings: list[Finding] = []
    reasons: list[str] = []
    if ended != "exited":
        reasons.append(_ENDINGS.get(ended, f"the tests {ended}"))
        findings.append(Finding(stage="verify", phase="grade", detail=reasons[0], acted=True))
    elif report.fault:
        reasons.append(report.fault)
        detail = f"report not believed: {report.fault}"
        findings.append(Finding(stage="verify", phase="grade", detail=detail, acted=True))
    wrong = belied(canaries, report.outcomes, whole=not reasons)  # one that was cut off may lack them as it lacks tests
    if wrong:
        detail = "tests of known outcome were reported otherwise: the tested code disturbs pytest"
        reasons += [detail] if enforce else []
        findings.append(Finding(stage="canaries", phase="grade", detail=detail, paths=wrong, acted=enforce))
    reasons.append(summary(results))
    resolved = len(reasons) == 1 and all(result.ok for result in results)
    return Verdict(
        reward=1.0 if resolved else 0.0,
        resolved=resolved,
        tests=results,
        evidence="; ".join(reasons) + ("\n" + output if output else ""),
        findings=tuple(findings),
        grade_s=0.0,
    )


def _exposed(verdict: Verdict, wrong: Sequence[str], *, enforce: bool) -> Verdict:
    """A verdict whose target tests were not seen to fail where they must."""
    detail = (
        "target tests that were changed so that they must fail were not seen to fail: what passes them is not right"
    )
    finding = Finding(stage="canaries", phase="grade", detail=detail, paths=tuple(wrong), acted=enforce)
    findings = (*verdict.findings, finding)
    if not enforce:
        return replace(verdict, findings=findings)
    evidence = f"{detail}; {verdict.evidence}"
    return replace(verdict, reward=0.0, resolved=False, evidence=evidence, findings=findings)


def _egress(tried: Sequence[str]) -> tuple[Finding, ...]:
    """What the tested code tried to reach, where there is no network; its tests' outcomes say what came of it."""
    detail = f"{REACHES} {first(tried, _NAMED)}"
    return (Finding(stage="verify", phase="grade", detail=detail),) if tried else ()


def _unfit(task: Task, reason: str, grade_s: float) -> Verdict:
    """Reward 0 for a patch that was made on this base and yet cannot be laid over it."""
    results = judge(task, {})
    finding = Finding(stage="verify", phase="grade", detail=reason, acted=True)
    return Verdict(reward=0.0, resolved=False, tests=results, evidence=reason, findings=(finding,), grade_s=grade_s)


def _test_folder(task: Task) -> str:
    """Where canaries lie: beside the first test that judges."""
    return str(PurePosixPath(task.fail_to_pass[0].split("::", 1)[0]).parent)


def _files(tests: Sequence[str], canaries: Sequence[CanaryFile]) -> list[str]:
    """Files that hold named tests, in order, with canaries before and after."""
    files = sorted({test.split("::", 1)[0] for test in tests})
    paths = [canary.path for canary in canaries]
    half = (len(paths) + 1) // 2
    return [*paths[:half], *files, *paths[half:]]


def _arguments(ini: str, task: Task, files: Sequence[str]) -> list[str]:
    """pytest's command line: no configuration, plugin or cache but the grader's own."""
    own = ["-c", ini, "--rootdir", task.workdir, "--confcutdir", task.workdir, "-p", "no:cacheprovider"]
    shown = ["-q", "--color=no", "--tb=short", "--disable-warnings"]
    return [*own, *shown, "--continue-on-collection-errors", "--import-mode=prepend", *files]


def _sealed(result: ExecResult, seal: str) -> _Run:
    """The sealed lines of the supervisor; anything else on its stdout is not its own."""
    text = result.stdout.decode("utf-8", "replace")
    lines = [line.removeprefix(seal + " ") for line in text.splitlines() if line.startswith(seal)]
    ready = "ready" in lines
    try:
        packed = next(line for line in lines if line.startswith("result ")).removeprefix("result ")
        said, _, body = zlib.decompress(base64.b64decode(packed)).partition(b"\n")
        ended, exit_code, length = said.decode().split()
        answer = _Run(
            ready=ready,
            ended=ended,
            exit_code=int(exit_code),
            report=body[: int(length)].decode("utf-8", "replace"),
            output=body[int(length) :].decode("utf-8", "replace"),
        )
    except (StopIteration, ValueError, zlib.error):
        ended = "ran out of memory" if result.oom_killed else "timeout" if result.timed_out else "ended the grader"
        output = result.stderr.decode("utf-8", "replace")
        return _Run(ready=ready, ended=ended, exit_code=result.exit_code, report="", output=output)
    if result.oom_killed and answer.exit_code < 0 and answer.ended == "exited":
        return replace(answer, ended="ran out of memory")
    return answer


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no output")
