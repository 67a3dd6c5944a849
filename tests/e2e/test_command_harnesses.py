"""The real programs in whole trials: sandbox, proxy, renderer and verifier, with scripted tokens for a policy."""

import asyncio
import importlib
import json
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from calc_task import write_calc
from command_pieces import CASES, DONE, SLOW, Case
from conformance_pieces import SUBJECTS
from harness_pieces import make_runtime, options, task_image
from record_pieces import a_trial
from scripted_pieces import script_ids
from tokenizers import Tokenizer

from engine.core.contracts import Harness
from engine.core.records import Scored, Task, Termination
from engine.inference.scripted import ScriptedEngine
from engine.proxy.app import LlmProxy
from engine.run.demonstrations import row, script
from engine.run.trial import Workshop, run_trial
from engine.sandbox.bubblewrap import BubblewrapRuntime
from engine.sandbox.images import DebianImageStore
from engine.tokens import load_renderer
from engine.train.models import TinyQwen3Moe
from engine.verify.pytest_verifier import PytestVerifier

pytestmark = pytest.mark.asyncio(loop_scope="module")
FIX = "sed -i 's/return a - b/return a + b/' calc/__init__.py && echo mended"


@pytest.fixture(scope="module")
def model() -> TinyQwen3Moe:
    made = TinyQwen3Moe(**options("model/tiny_qwen3_moe.yaml"))
    asyncio.run(made.prepare(print))
    return made


PARAMS = {name: pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CASES}
SHOWN = [param for name, param in PARAMS.items() if not name.startswith("command")]
"""The two that are examples of a user's own show no policy how to use them."""
VARIANTS = [param for name, param in PARAMS.items() if name not in SUBJECTS]


@pytest.fixture(scope="module", params=PARAMS.values())
def case(request: pytest.FixtureRequest) -> Case:
    chosen = CASES[request.param]
    _need_npm(chosen.make())
    return chosen


def _need_npm(harness: Harness) -> None:
    if harness.runtime().npm and shutil.which("npm") is None:
        pytest.skip("npm is not installed")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime() -> AsyncIterator[BubblewrapRuntime]:
    started = make_runtime()
    missing = started.problems()
    if missing:
        pytest.skip(f"this machine cannot run sandboxes: {missing[0]}")
    await started.start(DebianImageStore(), "test-commands")
    try:
        yield started
    finally:
        await started.stop()


def _component(written: Mapping[str, Any]) -> Any:
    module, _, name = written["_target_"].rpartition(".")
    values = {key: value for key, value in written.items() if key != "_target_"}
    return getattr(importlib.import_module(module), name)(**values)


def _task(folder: Path) -> Task:
    """`add` subtracts; the solution knows which line."""
    task = write_calc(folder, task_image())
    facts = {"path": "calc/__init__.py", "buggy": "return a - b", "right": "return a + b", "wrong": []}
    (task.directory / "solution/repairs.json").write_text(json.dumps(facts))
    return replace(task, memory_mb=1536, agent_timeout_s=600)


async def _trial(
    harness: Harness, said: Sequence[Mapping[str, Any]], model: TinyQwen3Moe, runtime: BubblewrapRuntime, folder: Path
) -> Scored:
    """One whole trial; `said` are turns as `engine.inference.script` reads them."""
    images, verifier = DebianImageStore(), PytestVerifier(**options("verify/pytest.yaml"))
    for image in (task_image(), harness.runtime(), verifier.toolchain()):
        await images.build(image, print)
    engine = ScriptedEngine(script={"*": list(said)}, final_text="Nothing more.", seed=0, probe=None)
    proxy = LlmProxy(**options("proxy/laptop.yaml"))
    proxy.max_prompt_tokens, proxy.max_response_tokens = 40_000, 80_000
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
    info = replace(model.info(), max_context=131_072)
    await engine.start(info, folder / "engine")
    try:
        await proxy.start(info, engine)
        return await run_trial(a_trial(_task(folder), harness=harness.name), shop)
    finally:
        await proxy.stop()
        await engine.stop()


async def test_the_scripted_fix_earns_1_in_one_segment_of_the_scripted_ids(
    case: Case, model: TinyQwen3Moe, runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    said = [
        case.turn("env; cat /proc/$PPID/environ" if case.closed else "env", "I look. "),
        case.turn("ls nowhere; which python3"),
        case.turn(FIX),
        DONE,
    ]
    scored = await _trial(case.make(), said, model, runtime, tmp_path)
    trajectory = scored.trajectory
    assert trajectory.termination is Termination.AGENT_COMPLETED, trajectory.reason
    assert [exchange.kind for exchange in trajectory.exchanges] == ["policy"] * 4
    sampled = [token for exchange in trajectory.exchanges for token in exchange.sampled_ids.tolist()]
    targets = [segment.token_ids[segment.target].tolist() for segment in trajectory.segments]
    assert targets == [sampled], "one segment"
    assert sampled == script_ids(model, said)
    assert scored.verdict is not None
    assert scored.verdict.reward == 1.0, scored.verdict.evidence
    assert trajectory.patch is not None
    assert [change.path for change in trajectory.patch.changes] == ["calc/__init__.py"]
    _nothing_leaked(case, trajectory.exchanges[-1].request)


@pytest.mark.slow
@pytest.mark.parametrize("case", VARIANTS, indirect=True)
async def test_thirty_turns_with_parallel_calls_and_stray_ones_are_one_segment(
    case: Case, model: TinyQwen3Moe, runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    """As in `test_conformance`, for other settings of its programs and for programs of a user's own."""
    two = {"text": "Two. ", "calls": [call for name in "ab" for call in case.turn(f"echo {name}")["calls"]]}
    odd = case.turn("printf '%s\\n' 'é\u2028 {\"a\": 5000.0}'  ", "  Odd\n\n")
    odd["calls"][0]["arguments"] = dict(reversed(odd["calls"][0]["arguments"].items()))
    said = [
        two,
        odd,
        case.turn("ls nowhere"),
        two,
        *(case.turn(f"echo {n}", "So. ") for n in range(24)),
        case.turn(FIX),
    ]
    harness = case.make()
    harness.max_turns = 40
    scored = await _trial(harness, [*said, DONE], model, runtime, tmp_path)
    trajectory = scored.trajectory
    assert trajectory.termination is Termination.AGENT_COMPLETED, trajectory.reason
    assert [exchange.kind for exchange in trajectory.exchanges] == ["policy"] * 30
    assert len(trajectory.segments) == 1
    (segment,) = trajectory.segments
    assert segment.token_ids[segment.target].tolist() == script_ids(model, [*said, DONE])
    assert scored.verdict is not None
    assert scored.verdict.reward == 1.0, scored.verdict.evidence


@pytest.mark.parametrize("case", SHOWN, indirect=True)
async def test_what_a_warm_start_would_learn_is_a_repair_that_earns_1(
    case: Case, model: TinyQwen3Moe, runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    harness = case.make()
    (tmp_path / "shown").mkdir()
    (turns,) = script(
        [a_trial(_task(tmp_path / "shown"), harness=harness.name)], {harness.name: harness}, 1.0, 0
    ).values()
    said = [
        {"text": turn.text, "calls": [{"name": call.name, "arguments": call.arguments} for call in turn.calls]}
        for turn in turns
    ]
    scored = await _trial(harness, said, model, runtime, tmp_path)
    assert scored.verdict is not None, scored.trajectory.reason
    assert scored.verdict.reward == 1.0, scored.verdict.evidence
    tokens = Tokenizer.from_file(str(model.info().path / "tokenizer.json"))
    stop = [tokens.token_to_id("<|im_end|>")]

    def encode(text: str) -> Any:
        return np.array(tokens.encode(text, add_special_tokens=False).ids + stop, dtype=np.int32)

    learned = row(scored, turns, load_renderer(model.info()), encode)
    (segment,) = scored.trajectory.segments
    assert learned.token_ids.tolist() == segment.token_ids.tolist()
    assert learned.sampled.tolist() == segment.target.tolist()


def _nothing_leaked(case: Case, seen: str) -> None:
    """What the agent's commands printed stands in the last request."""
    assert "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" in seen, "the sandbox's"
    assert "/usr/bin/python3" in seen, "the task's own"
    if case.closed:
        assert "Permission denied" in seen, "the process that knows the key is closed to them"
    assert "sk-trial" not in seen
    assert case.hidden not in seen


async def test_the_limit_of_turns_ends_the_trial_and_keeps_it(
    case: Case, model: TinyQwen3Moe, runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    said = [case.turn(f"echo {number}") for number in range(20)]
    scored = await _trial(case.make(), said, model, runtime, tmp_path)
    assert scored.trajectory.termination is Termination.MAX_TURNS, scored.trajectory.reason
    assert len([exchange for exchange in scored.trajectory.exchanges if exchange.kind == "policy"]) == 6
    assert scored.verdict is not None
    assert scored.verdict.reward == 0.0
