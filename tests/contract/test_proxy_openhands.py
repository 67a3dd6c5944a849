"""The real OpenHands SDK in a real sandbox, through the real proxy and renderer: its rewrites split no segment."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness_pieces import build_images, sandbox_of
from openhands_pieces import make_harness, make_task
from proxy_pieces import (
    SETTINGS,
    ScriptedEngine,
    Step,
    engine_failure,
    make_checkpoint,
    make_trial,
    model_info,
    routing,
)

from engine.core.records import Exchange, Segment, Termination
from engine.core.specs import ExecResult
from engine.proxy.app import LlmProxy
from engine.tokens.tokenizer import CheckpointTokenizer

PORT = 8080


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    build_images(make_harness())


def tool(name: str, arguments: Any) -> str:
    text = arguments if isinstance(arguments, str) else json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{text}\n</tool_call>"


async def converse(
    script: list[Step], folder: Path, **settings: Any
) -> tuple[tuple[Exchange, ...], tuple[Segment, ...], Termination | None, ExecResult, ScriptedEngine]:
    """One trial; returns what the session captured and how the harness ended."""
    checkpoint = make_checkpoint(folder / "model")
    encode = CheckpointTokenizer(checkpoint).encode
    engine = ScriptedEngine(encode=encode, script=script, stop=encode("<|im_end|>")[0])
    limits = {"max_prompt_tokens": 40_000, "max_response_tokens": 20_000, "max_tokens_per_turn": 400}
    proxy = LlmProxy(**(SETTINGS | limits | settings))
    harness, task = make_harness(max_turns=8), make_task(folder)
    await proxy.start(model_info(checkpoint, max_context=60_000), engine)  # type: ignore[arg-type]
    try:
        session = proxy.open(make_trial(folder), harness, PORT)
        async with sandbox_of(task, harness, folder) as sandbox:
            await session.serve(await sandbox.listen(PORT))
            launch = harness.launch(task, session.endpoint)
            await sandbox.write(launch.files)
            result = await sandbox.exec(
                launch.command,
                environment=launch.environment,
                cwd=launch.cwd,
                timeout_s=120,
                stdin=b"",
                warm=launch.warm,
            )
            exchanges, segments, termination = await session.close()
    finally:
        await proxy.stop()
    return exchanges, segments, termination, result, engine


async def test_whatever_the_policy_writes_the_trial_is_one_segment(tmp_path: Path) -> None:
    script: list[Step] = [
        "I look first. \n\n" + tool("terminal", {"command": "ls -la", "security_risk": "LOW"}),
        "<think>\nhm\n</think>\n\n"
        + tool("terminal", {"command": "cat calc.py"})
        + tool("terminal", {"command": "pwd"}),
        tool("terminal", '{"name": "terminal", "arguments": {"command": "l'),
        tool("nonesuch", {"x": 1.0}),
        tool("terminal", {"comand": "ls"}),
        "Done.",
    ]
    exchanges, segments, termination, result, engine = await converse(script, tmp_path)
    assert result.exit_code == 0, result.stderr.decode()[-2000:]
    assert termination is None
    assert [exchange.kind for exchange in exchanges] == ["policy"] * 6
    (segment,) = segments
    stream = engine.calls[-1].prompt + engine.sampled[-1]
    assert segment.token_ids.tolist() == stream
    assert segment.token_ids[segment.target].tolist() == [token for ids in engine.sampled for token in ids]
    np.testing.assert_array_equal(segment.routed_experts, routing(stream, 0))


@pytest.mark.slow
async def test_a_limit_ends_the_trial_without_a_retry(tmp_path: Path) -> None:
    script: list[Step] = [tool("terminal", {"command": "seq 3000"})] * 8
    exchanges, segments, termination, result, _ = await converse(script, tmp_path, max_response_tokens=3000)
    assert termination in (Termination.TOKEN_BUDGET, Termination.CONTEXT_OVERFLOW)
    assert [bool(exchange.error) for exchange in exchanges] == [False, True], "one refusal, not retried"
    assert result.exit_code != 0 and len(segments) == 1


@pytest.mark.slow
async def test_an_engine_that_recovers_costs_nothing(tmp_path: Path) -> None:
    exchanges, segments, termination, result, _ = await converse([engine_failure(), "Done."], tmp_path)
    assert result.exit_code == 0 and termination is None and len(segments) == 1
    assert [exchange.kind for exchange in exchanges] == ["discarded", "policy"]
