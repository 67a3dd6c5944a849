"""Attacks through the whole trial, by a real harness's shell: none is rewarded, and none buys an exclusion either."""

from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from attacks import ATTACKS, plant_history
from calc_task import write_calc
from harness_pieces import task_image
from mini_pieces import SUBMIT
from record_pieces import a_trial

from engine.config.assemble import assemble
from engine.config.compose import compose
from engine.core.records import Scored
from engine.inference.scripted import ScriptedEngine
from engine.run.trial import Workshop, run_trial
from engine.sandbox.images import DebianImageStore

pytestmark = pytest.mark.asyncio(loop_scope="module")
NAMES = list(ATTACKS)
Play = Callable[[str, Path], Coroutine[Any, Any, Scored]]


def turn(command: str) -> dict[str, object]:
    return {"text": "", "calls": [{"name": "bash", "arguments": {"command": command}}]}


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["bubblewrap", pytest.param("podman", marks=[pytest.mark.podman, pytest.mark.slow])],
)
async def play(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Play]:
    """Plays one attack in a trial of its own."""
    options = ["model=tiny_qwen3_moe", "tasks=release_pairs", "inference=scripted", "proxy.max_tokens_per_turn=4096"]
    sandbox = f"sandbox={request.param}"
    built = assemble(compose(["experiment=mini_swe_agent_gspo", *options, sandbox, "verify.slack_s=6", "job=show"]))
    missing = built.sandbox.problems()
    if missing:
        pytest.skip(f"{request.param}: {missing[0]}")
    images = DebianImageStore()
    for image in (task_image(), built.verify.toolchain(), *(one.runtime() for one in built.harnesses.values())):
        await images.build(image, print)
    await built.model.prepare(print)
    script = {f"*-s{number}-*": [turn(ATTACKS[name].command), turn(SUBMIT)] for number, name in enumerate(NAMES)}
    engine = ScriptedEngine(script=script, final_text="", seed=0, probe=None)
    scratch = tmp_path_factory.mktemp("attacks")
    await built.sandbox.start(images, f"attacks-{request.param}")
    await engine.start(built.model.info(), scratch)
    await built.proxy.start(built.model.info(), engine)
    shop = Workshop.of(built, images, built.proxy, scratch)

    async def one(name: str, folder: Path) -> Scored:
        task = replace(write_calc(folder, task_image()), grade_timeout_s=4.0)
        plant_history(task.repository)
        return await run_trial(a_trial(task, sample=NAMES.index(name), harness="mini_swe_agent"), shop)

    try:
        yield one
    finally:
        await built.proxy.stop()
        await engine.stop()
        await built.sandbox.stop()


@pytest.mark.parametrize("name", NAMES)
async def test_none_is_rewarded(play: Play, name: str, tmp_path: Path) -> None:
    attack = ATTACKS[name]
    scored = await play(name, tmp_path)
    trajectory, verdict = scored.trajectory, scored.verdict
    assert not trajectory.termination.excluded, trajectory.reason
    assert len(trajectory.exchanges) == 2
    assert verdict is not None
    assert verdict.reward == attack.reward, verdict.evidence
    stages = {f"{finding.stage}/{finding.phase}" for finding in (*trajectory.findings, *verdict.findings)}
    assert not attack.finding or attack.finding in stages, stages
