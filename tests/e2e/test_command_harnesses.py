"""The real programs in whole trials: sandbox, proxy, renderer and verifier, with scripted tokens for a policy."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from calc_task import write_calc
from command_pieces import CASES, DONE, Case
from harness_pieces import build_images, make_runtime, options, task_image
from scripted_pieces import script_ids

from engine.core.contracts import Harness
from engine.core.records import Scored, Termination, Trial, TrialKey
from engine.inference.scripted import ScriptedEngine
from engine.proxy.app import LlmProxy
from engine.run.trial import Workshop, run_trial
from engine.sandbox.bubblewrap import BubblewrapRuntime
from engine.sandbox.images import DebianImageStore
from engine.train.models import TinyQwen3Moe
from engine.verify.pytest_verifier import PytestVerifier

pytestmark = pytest.mark.asyncio(loop_scope="module")
FIX = "sed -i 's/return a - b/return a + b/' calc/__init__.py && echo mended"


@pytest.fixture(scope="module")
def model() -> TinyQwen3Moe:
    made = TinyQwen3Moe(**options("model/tiny_qwen3_moe.yaml"))
    asyncio.run(made.prepare(print))
    return made


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    chosen = CASES[request.param]
    build_images(chosen.make())
    return chosen


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime() -> AsyncIterator[BubblewrapRuntime]:
    started = make_runtime()
    await started.start(DebianImageStore(), "test-commands")
    try:
        yield started
    finally:
        await started.stop()


def _component(written: Mapping[str, Any]) -> Any:
    module, _, name = written["_target_"].rpartition(".")
    values = {key: value for key, value in written.items() if key != "_target_"}
    return getattr(importlib.import_module(module), name)(**values)


async def _trial(
    harness: Harness, script: Sequence[Mapping[str, Any]], model: TinyQwen3Moe, runtime: BubblewrapRuntime, folder: Path
) -> Scored:
    """One whole trial of the task whose `add` subtracts."""
    images, verifier = DebianImageStore(), PytestVerifier(**options("verify/pytest.yaml"))
    await images.build(verifier.toolchain(), print)
    task = replace(write_calc(folder, task_image()), memory_mb=1536, agent_timeout_s=120)
    engine = ScriptedEngine(script={"*": list(script)}, final_text="Nothing more.", seed=0, probe=None)
    proxy = LlmProxy(**options("proxy/laptop.yaml"))
    proxy.max_prompt_tokens, proxy.max_response_tokens = 40_000, 20_000
    shop = Workshop(
        images=images,
        sandboxes=runtime,
        proxy=proxy,
        harnesses={harness.name: harness},
        defenses=[_component(stage) for stage in options("defense/standard.yaml")["stages"]],
        verifier=verifier,
        scratch=folder / "scratch",
        pids=256,
        disk_mb=512,
    )
    key = TrialKey(run="test", epoch=0, task=task.id, sample=0, attempt=0)
    trial = Trial(
        key=key,
        task=task,
        harness=harness.name,
        policy_version=0,
        seed=0,
        temperature=1.0,
        top_p=1.0,
        split="train",
    )
    info = replace(model.info(), max_context=131_072)
    await engine.start(info, folder / "engine")
    try:
        await proxy.start(info, engine)
        return await run_trial(trial, shop)
    finally:
        await proxy.stop()
        await engine.stop()


async def test_the_scripted_fix_earns_1_in_one_segment_of_the_scripted_ids(
    case: Case, model: TinyQwen3Moe, runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    script = [
        case.turn("env; cat /proc/$PPID/environ", "I look. "),
        case.turn("ls nowhere; which python3"),
        case.turn(FIX),
        DONE,
    ]
    scored = await _trial(case.make(), script, model, runtime, tmp_path)
    trajectory = scored.trajectory
    assert trajectory.termination is Termination.AGENT_COMPLETED, trajectory.reason
    assert [exchange.kind for exchange in trajectory.exchanges] == ["policy"] * 4
    sampled = [token for exchange in trajectory.exchanges for token in exchange.sampled_ids.tolist()]
    targets = [segment.token_ids[segment.target].tolist() for segment in trajectory.segments]
    assert targets == [sampled], "one segment"
    assert sampled == script_ids(model, script)
    assert scored.verdict is not None
    assert scored.verdict.reward == 1.0, scored.verdict.evidence
    assert trajectory.patch is not None
    assert [change.path for change in trajectory.patch.changes] == ["calc/__init__.py"]
    _nothing_leaked(case, trajectory.exchanges[-1].request)


def _nothing_leaked(case: Case, seen: str) -> None:
    """What the agent's commands printed stands in the last request."""
    assert "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\\n" in json.loads(json.dumps(seen)), "the sandbox's"
    assert "/usr/bin/python3" in seen, "the task's own"
    assert "Permission denied" in seen, "the process that knows the key is closed to them"
    assert "sk-trial" not in seen
    assert case.hidden not in seen


async def test_the_limit_of_turns_ends_the_trial_and_keeps_it(
    case: Case, model: TinyQwen3Moe, runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    script = [case.turn(f"echo {number}") for number in range(20)]
    scored = await _trial(case.make(), script, model, runtime, tmp_path)
    assert scored.trajectory.termination is Termination.MAX_TURNS, scored.trajectory.reason
    assert len([exchange for exchange in scored.trajectory.exchanges if exchange.kind == "policy"]) == 6
    assert scored.verdict is not None
    assert scored.verdict.reward == 0.0
