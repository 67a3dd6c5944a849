"""Attacks through the whole trial, by a real harness's shell: none is rewarded, and none buys an exclusion either.

With one defence off at a time, exactly those are rewarded which that defence alone stops: the rest is stopped twice, or
by what no configuration can leave out.
"""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio
from attacks import ATTACKS, BUILT, LEAKED, SHOWN, plant_history
from calc_task import FIXED_CODE, TESTS, write_calc
from harness_pieces import task_image
from record_pieces import a_trial
from shell_trials import built, need, shell_workshop

from engine.core.records import Finding, Scored, Task, Termination
from engine.core.specs import ImageSpec
from engine.core.temporary import temporary_folder
from engine.run.trial import Workshop, run_trial
from engine.sandbox.images import DebianImageStore

pytestmark = pytest.mark.asyncio(loop_scope="module")
NAMES = list(ATTACKS)
STAGES = (
    *("leak_scan", "withheld_tests", "single_commit_history", "reap_processes", "denied_egress", "signs"),
    *("test_edits_reverted", "patch_by_contents"),
)
"""In the order of `configs/defense/standard.yaml`."""
NOTING = ("reap_processes", "denied_egress", "signs")
"""Those that only note are off together."""
WEAKER = {
    **{name: [f"defense.stages.{STAGES.index(name)}.mode=off"] for name in STAGES if name not in NOTING},
    "what only notes": [f"defense.stages.{STAGES.index(name)}.mode=off" for name in NOTING],
    "canaries": ["verify.canaries=off"],
    "all observe": ["defense=observe", "verify=observe"],
}
"""What does not enforce → how it is configured."""
AT_ONCE = 3
SLACK = "verify.slack_s=6"
BUBBLEWRAP = pytest.mark.parametrize("ground", ["bubblewrap"], indirect=True)
"""What stops an attack is no sandbox's own."""


class LeakyImages(DebianImageStore):
    """Has one image more: the tasks' own, with the fixed file in it."""

    def __init__(self, leaky: Path) -> None:
        super().__init__()
        self.leaky = leaky

    def path(self, spec: ImageSpec) -> Path:
        return self.leaky if spec.name == "leaky" else super().path(spec)


@dataclass(frozen=True)
class Ground:
    """Everything started."""

    shop: Workshop
    sandbox: str

    def without(self, weak: str) -> Workshop:
        """The same with weaker defences."""
        weaker = built(SLACK, *WEAKER[weak])
        off = NOTING if weak == "what only notes" else (weak,)
        assert [stage.name for stage in weaker.defense.stages] == [stage for stage in STAGES if stage not in off]
        return replace(self.shop, defenses=weaker.defense.stages, verifier=weaker.verify)

    async def play(self, name: str, folder: Path, shop: Workshop | None = None, epoch: int = 0) -> Scored:
        """One attack in a trial of its own; `epoch` tells apart those of one attack."""
        trial = a_trial(task_of(name, folder), epoch=epoch, sample=NAMES.index(name), harness="mini_swe_agent")
        return await run_trial(trial, shop or self.shop)


def task_of(name: str, folder: Path) -> Task:
    leak = ATTACKS[name].leak
    image = replace(task_image(), name="leaky") if leak == "image" else task_image()
    task = replace(write_calc(folder, image), grade_timeout_s=4.0)
    plant_history(task.repository)
    if leak == "tests":
        (task.repository / SHOWN).parent.mkdir()
        (task.repository / SHOWN).write_bytes(TESTS)
    if leak == "build":
        (task.repository / BUILT).parent.mkdir(parents=True)
        (task.repository / BUILT).write_bytes(FIXED_CODE)
    return task


def leaky_image(source: Path, folder: Path) -> Path:
    leaky = folder / "leaky"
    subprocess.run(["cp", "-al", str(source), str(leaky)], check=True)
    (leaky / LEAKED).write_bytes(FIXED_CODE)
    return leaky


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["bubblewrap", pytest.param("podman", marks=[pytest.mark.podman, pytest.mark.slow])],
)
async def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    need(request.param)
    plain = DebianImageStore()
    await plain.build(task_image(), print)
    commands = [[ATTACKS[name].command] for name in NAMES]
    with temporary_folder("leaky", plain.path(task_image()).parent) as beside:
        images = LeakyImages(leaky_image(plain.path(task_image()), beside))
        scratch = tmp_path_factory.mktemp("attacks")
        async with shell_workshop(request.param, commands, scratch, SLACK, images=images) as shop:
            yield Ground(shop, request.param)


def findings(scored: Scored) -> list[Finding]:
    return [*scored.trajectory.findings, *(scored.verdict.findings if scored.verdict else ())]


def stages(some: Sequence[Finding]) -> set[str]:
    return {f"{finding.stage}/{finding.phase}" for finding in some}


def reward(scored: Scored) -> float | None:
    return None if scored.verdict is None else scored.verdict.reward


@pytest.mark.parametrize("name", NAMES)
async def test_none_is_rewarded(ground: Ground, name: str, tmp_path: Path) -> None:
    attack = ATTACKS[name]
    scored = await ground.play(name, tmp_path)
    trajectory, verdict = scored.trajectory, scored.verdict
    if attack.leak:
        assert trajectory.termination is Termination.SETUP_FAILED
        assert {"image": LEAKED, "tests": SHOWN, "build": BUILT}[attack.leak] in trajectory.reason
        assert (trajectory.exchanges, verdict) == ((), None)
        return
    assert not trajectory.termination.excluded, trajectory.reason
    assert len(trajectory.exchanges) == 2
    assert verdict is not None
    assert verdict.reward == attack.reward, verdict.evidence
    seen = findings(scored)
    assert not attack.finding or attack.finding in stages(seen), seen


@BUBBLEWRAP
@pytest.mark.parametrize("name", [name for name in NAMES if ATTACKS[name].stopped_by])
async def test_without_the_defence_that_stops_it_an_attack_is_rewarded(
    ground: Ground, name: str, tmp_path: Path
) -> None:
    weak = ATTACKS[name].stopped_by
    scored = await ground.play(name, tmp_path, ground.without(weak), epoch=1)
    assert reward(scored) == 1.0, (scored.trajectory.reason, scored.verdict)
    assert not any(finding.stage == weak for finding in findings(scored))


@pytest.mark.slow
@BUBBLEWRAP
@pytest.mark.parametrize("weak", WEAKER)
async def test_without_one_defence_only_what_it_alone_stops_is_rewarded(
    ground: Ground, weak: str, tmp_path: Path
) -> None:
    shop, places = ground.without(weak), asyncio.Semaphore(AT_ONCE)
    epoch = 2 + list(WEAKER).index(weak)

    async def one(name: str) -> Scored:
        async with places:
            folder = tmp_path / name
            folder.mkdir()
            try:
                return await ground.play(name, folder, shop, epoch)
            finally:
                shutil.rmtree(folder)

    scored = dict(zip(NAMES, await asyncio.gather(*map(one, NAMES)), strict=True))
    assert {name: reward(one) for name, one in scored.items()} == {name: expected(name, weak) for name in NAMES}
    if weak == "all observe":
        unseen = {name: stages(findings(one)) for name, one in scored.items()}
        assert {name for name in NAMES if ATTACKS[name].finding not in (*unseen[name], "")} == set()
        acting = {finding.stage for one in scored.values() for finding in findings(one) if finding.acted}
        assert acting == {"patch_by_contents", "reap_processes", "verify"}, "what no configuration can leave out"


def expected(name: str, weak: str) -> float | None:
    attack = ATTACKS[name]
    if attack.stopped_by and weak in (attack.stopped_by, "all observe"):
        return 1.0
    return None if attack.leak else attack.reward
