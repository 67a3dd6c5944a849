"""One trial: task → sandbox + harness ⇄ proxy → patch → fresh sandbox → verdict.

Invariant: a trial that was started always yields a `Scored`; whatever broke around the agent excludes it, with its
reason, and is never a reward of 0. Errors that are not the project's own (bugs) pass through and stop the run.

A trial without a harness (`BY_HAND`) is a visitor's own work in the same sandbox, behind the same defences, and is
judged like an agent's.
"""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol, Self

from engine.config.built import Built
from engine.core.contracts import Harness, ImageStore, Proxy, Sandbox, SandboxRuntime, Session
from engine.core.errors import EnvironmentFailure, HarnessError, SandboxError
from engine.core.naming import first
from engine.core.records import Exchange, Finding, Patch, Scored, Task, Termination, Trajectory, Trial, Verdict
from engine.core.specs import Mount, SandboxSpec
from engine.core.task_contracts import Defense, Verifier
from engine.defense.artifacts import artifacts_within, take_artifacts
from engine.defense.patch_by_contents import make_patch
from engine.run.control import confirmed

PORT = 8080
"""Port on the sandbox's own loopback where the harness finds its model."""
REPORT_LIMIT = 1 << 20
"""Bytes of the harness's report that are read."""
_NAMED = 10
"""Places that a finding names."""
BY_HAND = "none"
"""Name of no harness: a visitor works in the sandbox in place of an agent."""


class Visitor(Protocol):
    """Somebody who looks on at one trial and may go into its sandbox. Raises nothing but bugs and its own end."""

    lasting: bool
    """Whether the sandbox may be left running (`SandboxSpec.lasting`)."""

    @property
    def stays(self) -> bool:
        """Whether somebody may stay in it for as long as they like."""
        ...

    def heard(self, exchange: Exchange) -> None:
        """A call was answered, or came to nothing."""
        ...

    async def before(self, sandbox: Sandbox, environment: Mapping[str, str]) -> None:
        """All is set up as the agent will find it, the model answers, and the agent has not been started."""
        ...

    async def after(self, sandbox: Sandbox) -> None:
        """The agent has ended, however it did; the model still answers, and nothing was taken from the sandbox."""
        ...

    async def leave(self, sandbox: Sandbox) -> None:
        """All was taken from the sandbox, which is removed next unless it is left running (`Sandbox.leave`)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """Everything started that a trial needs."""

    images: ImageStore
    sandboxes: SandboxRuntime
    proxy: Proxy
    harnesses: Mapping[str, Harness]
    defenses: Sequence[Defense]
    verifier: Verifier
    scratch: Path
    """Host folder for staged and downloaded trees."""
    pids: int
    disk_mb: int
    visitor: Visitor | None = None
    """None: nobody looks on, as always in training."""

    @classmethod
    def of(cls, built: Built, images: ImageStore, proxy: Proxy, scratch: Path) -> Self:
        """What a configuration is made of; the proxy may be another than its own."""
        return cls(
            images=images,
            sandboxes=built.sandbox,
            proxy=proxy,
            harnesses=built.harnesses,
            defenses=built.defense.stages,
            verifier=built.verify,
            scratch=scratch,
            pids=built.sandbox.pids,
            disk_mb=built.sandbox.disk_mb,
        )


@dataclass(kw_only=True)
class _Notes:
    """What a trial gathers on its way."""

    enter: Callable[[str], None]
    """Hears of each stage that begins."""
    timings: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    launched_s: float | None = None
    """Unix time at which the harness was started."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        self.enter(name)
        try:
            yield
        finally:
            self.timings[name] = time.monotonic() - begun


async def run_trial(trial: Trial, shop: Workshop, enter: Callable[[str], None] = lambda _: None) -> Scored:
    """Run one trial to its end and grade it. `enter` hears of each stage that begins."""
    shop.scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{trial.key}-", dir=shop.scratch))
    notes = _Notes(enter=enter)
    try:
        phase = _hand_phase if trial.harness == BY_HAND else _agent_phase
        trajectory = await phase(trial, shop, folder, notes)
        if trajectory.patch is None:
            return Scored(trajectory=trajectory, verdict=None)
        return await _grade_phase(trajectory, trajectory.patch, shop, notes)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, True)


async def _agent_phase(trial: Trial, shop: Workshop, folder: Path, notes: _Notes) -> Trajectory:
    harness = shop.harnesses[trial.harness]
    session = shop.proxy.open(trial, harness, PORT, folder)
    if shop.visitor is not None:
        session.heard = shop.visitor.heard
    sandbox: Sandbox | None = None
    patch: Patch | None = None
    ending: tuple[Termination, str]
    try:
        try:
            with notes.stage("setup"):
                sandbox = await _set_up(trial, (harness.mount(shop.images),), shop, folder, notes)
        except EnvironmentFailure as failure:
            ending = Termination.SETUP_FAILED, str(failure)
        else:
            ending = await _converse(trial, harness, session, sandbox, notes, shop.visitor)
            if shop.visitor is not None:
                await shop.visitor.after(sandbox)
        # Before anything else: what the harness left running must not sample for it.
        exchanges, segments, ended_by_proxy = await session.close()
        for defense in shop.defenses:
            notes.findings += defense.review(exchanges)
        ending = _reconcile(ending, ended_by_proxy, sampled=any(len(exchange.sampled_ids) for exchange in exchanges))
        if sandbox is not None and not ending[0].excluded:
            patch, ending = await _extract(trial.task, shop, sandbox, folder, notes, ending)
        if sandbox is not None and shop.visitor is not None:
            await shop.visitor.leave(sandbox)
    finally:
        try:
            await session.close()
        finally:
            if sandbox is not None:
                await _remove(sandbox, notes)
    if exchanges and notes.launched_s is not None:
        notes.timings["first_request"] = max(0.0, exchanges[0].started_s - notes.launched_s)
    return Trajectory(
        trial=trial,
        exchanges=exchanges,
        segments=segments,
        termination=ending[0],
        reason=ending[1],
        timings=notes.timings,
        patch=patch,
        findings=tuple(notes.findings),
    )


async def _hand_phase(trial: Trial, shop: Workshop, folder: Path, notes: _Notes) -> Trajectory:
    """As `_agent_phase`, with the visitor in the agent's place: no harness, no model."""
    sandbox: Sandbox | None = None
    patch: Patch | None = None
    ending = Termination.AGENT_COMPLETED, "worked on by hand"
    try:
        try:
            with notes.stage("setup"):
                sandbox = await _set_up(trial, (), shop, folder, notes)
        except EnvironmentFailure as failure:
            ending = Termination.SETUP_FAILED, str(failure)
        else:
            assert shop.visitor is not None
            with notes.stage("agent"):
                await shop.visitor.before(sandbox, {})
                await shop.visitor.after(sandbox)
            patch, ending = await _extract(trial.task, shop, sandbox, folder, notes, ending)
            await shop.visitor.leave(sandbox)
    finally:
        if sandbox is not None:
            await _remove(sandbox, notes)
    return Trajectory(
        trial=trial,
        exchanges=(),
        segments=(),
        termination=ending[0],
        reason=ending[1],
        timings=notes.timings,
        patch=patch,
        findings=tuple(notes.findings),
    )


async def _remove(sandbox: Sandbox, notes: _Notes) -> None:
    """A sandbox that cannot be removed is reaped later; it changes nothing about what the trial was."""
    try:
        with notes.stage("stop"):
            await asyncio.shield(sandbox.stop())
    except SandboxError as failure:
        notes.findings.append(Finding(stage="sandbox", phase="stop", detail=str(failure)))


async def _set_up(trial: Trial, mounts: tuple[Mount, ...], shop: Workshop, folder: Path, notes: _Notes) -> Sandbox:
    task, staged = trial.task, folder / "staged"
    for root in (shop.images.path(task.image), *(mount.source for mount in mounts)):
        for defense in shop.defenses:
            notes.findings += await defense.inspect(task, root)
    await asyncio.to_thread(shutil.copytree, task.repository, staged, symlinks=True)
    for defense in shop.defenses:
        notes.findings += await defense.setup(task, staged)
    sandbox = await shop.sandboxes.create(
        SandboxSpec(
            name=str(trial.key),
            image=task.image,
            mounts=mounts,
            workdir=task.workdir,
            environment={},
            memory_mb=task.memory_mb,
            cpus=task.cpus,
            pids=shop.pids,
            disk_mb=shop.disk_mb,
            lasting=shop.visitor is not None and shop.visitor.lasting,
            work_s=None if shop.visitor is not None and shop.visitor.stays else task.agent_timeout_s,
            phase="setup",
        )
    )
    try:
        await sandbox.upload(staged, task.workdir)
        await sandbox.phase("agent")
        for kind, places in (("tried to reach", sandbox.denied()), ("reached", sandbox.reached())):
            if places:
                notes.findings.append(
                    Finding(stage="sandbox", phase="setup", detail=f"setup {kind} {first(places, _NAMED)}")
                )
    except BaseException:
        await asyncio.shield(sandbox.stop())
        raise
    return sandbox


async def _converse(
    trial: Trial, harness: Harness, session: Session, sandbox: Sandbox, notes: _Notes, visitor: Visitor | None
) -> tuple[Termination, str]:
    """Start the harness, serve it until it ends, and say how it ended."""
    try:
        await session.serve(await sandbox.listen(PORT))
        launch = harness.launch(trial.task, session.endpoint)
        await sandbox.write(launch.files)
        if visitor is not None:
            await visitor.before(sandbox, launch.environment)
        notes.launched_s = time.time()
        with notes.stage("agent"):
            result = await sandbox.exec(
                launch.command,
                environment=launch.environment,
                cwd=launch.cwd,
                timeout_s=trial.task.agent_timeout_s,
                stdin=b"",
                warm=launch.warm,
            )
        report = await sandbox.read(harness.report_path, REPORT_LIMIT)
        return harness.judge(result, report)
    except HarnessError as failure:
        return Termination.HARNESS_FAILED, str(failure)
    except EnvironmentFailure as failure:
        return Termination.SANDBOX_LOST, str(failure)


async def _extract(
    task: Task, shop: Workshop, sandbox: Sandbox, folder: Path, notes: _Notes, ending: tuple[Termination, str]
) -> tuple[Patch | None, tuple[Termination, str]]:
    """End the agent's processes, then read its tree from outside and compare contents."""
    try:
        with notes.stage("extract"):
            outlived = await sandbox.kill()  # here and in no defence, so that no configuration does without it
            for defense in shop.defenses:
                notes.findings += await defense.settle(task, sandbox, outlived)
            bounds = (shop.verifier.artifact_files, shop.verifier.artifact_mb << 20) if task.artifacts else (0, 0)
            artifacts, found = await take_artifacts(task.artifacts, sandbox, folder / "artifacts", bounds)
            notes.findings += found
            tree = folder / "tree"  # after these: a sandbox that is lost by now is told by it
            await sandbox.download(task.workdir, tree)
            patch, findings = await asyncio.to_thread(make_patch, task.repository, tree, artifacts_within(task))
            notes.findings += findings
            for defense in shop.defenses:
                patch, seen = defense.extract(task, tree, patch)
                notes.findings += seen
            patch = replace(patch, artifacts=artifacts)
    except EnvironmentFailure as failure:
        return None, (Termination.SANDBOX_LOST, str(failure))
    return patch, ending


def _reconcile(
    ending: tuple[Termination, str], ended_by_proxy: Termination | None, *, sampled: bool
) -> tuple[Termination, str]:
    """One termination from what the harness said and what the proxy knows.

    A broken engine excludes whatever the harness made of it. A limit that the proxy enforced explains a harness that
    gave up on it. The agent's clock and memory, and a lost sandbox, are facts that no proxy limit changes. A trial
    without a single sampled token never met the policy: however it ended, that was not the policy's doing.
    """
    if ended_by_proxy is Termination.ENGINE_ERROR:
        return ended_by_proxy, f"the inference engine failed; the harness said: {ending[1]}"
    facts = (Termination.AGENT_TIMEOUT, Termination.AGENT_OOM, Termination.SETUP_FAILED, Termination.SANDBOX_LOST)
    if ended_by_proxy is not None and ending[0] not in facts:
        ending = ended_by_proxy, f"ended by the proxy ({ended_by_proxy}); the harness said: {ending[1]}"
    if not sampled and not ending[0].excluded:
        return Termination.HARNESS_FAILED, f"no token was sampled ({ending[0]}): {ending[1]}"
    return ending


async def _grade_phase(trajectory: Trajectory, patch: Patch, shop: Workshop, notes: _Notes) -> Scored:
    trial = trajectory.trial

    async def grade(judged: Patch, name: str) -> Verdict:
        return await shop.verifier.grade(trial.task, judged, shop.sandboxes, shop.images, f"{trial.key}-{name}")

    try:
        with notes.stage("grade"):
            verdict = await grade(patch, "grade")
            verdict = await confirmed(trial.task, verdict, partial(grade, name="control"))
    except EnvironmentFailure as failure:
        broken = replace(trajectory, termination=Termination.GRADER_FAILED, reason=str(failure))
        return Scored(trajectory=broken, verdict=None)
    return Scored(trajectory=trajectory, verdict=verdict)
