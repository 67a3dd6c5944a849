"""The real Claude Code, proxy, renderer and tokenizer with scripted tokens: what is trained is what was played."""

import asyncio
from pathlib import Path

import pytest
from command_pieces import DONE, FIX, claude_bash, make_claude_code, outputs
from harness_pieces import build_images, options
from scripted_pieces import play, script_ids

from engine.core.records import Termination
from engine.train.models import TinyQwen3Moe


@pytest.fixture(scope="module")
def model() -> TinyQwen3Moe:
    build_images(make_claude_code())
    made = TinyQwen3Moe(**options("model/tiny_qwen3_moe.yaml"))
    asyncio.run(made.prepare(print))
    return made


@pytest.mark.parametrize("bare", [True, False])
async def test_several_turns_are_one_segment_of_the_scripted_ids(
    model: TinyQwen3Moe, tmp_path: Path, bare: bool
) -> None:
    look = "env; cat /proc/$PPID/environ"
    script = [claude_bash(look, "I look. "), claude_bash("ls nowhere"), claude_bash(FIX), DONE]
    harness = make_claude_code(bare=bare, system_prompt="You mend code." if bare else None)
    played = await play(harness, script, model, tmp_path)
    assert harness.judge(played.result, played.report)[0] is Termination.AGENT_COMPLETED
    assert played.ended_by_proxy is None
    assert "a + b" in (played.tree / "calc.py").read_text()
    assert [exchange.kind for exchange in played.exchanges] == ["policy"] * 4
    assert played.targets() == [played.sampled()], "one segment"
    assert played.sampled() == script_ids(model, script)
    seen = outputs(played.exchanges)
    assert "the check passes" in seen
    assert "Permission denied" in seen, "the process that knows the key is closed to the agent's commands"
    assert "sk-trial" not in seen
    assert "ANTHROPIC_" not in seen
