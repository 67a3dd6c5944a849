"""The real mini-swe-agent, proxy, renderer and tokenizer with scripted tokens: what is trained is what was played."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from harness_pieces import build_images, options
from mini_pieces import SUBMIT, make_harness
from scripted_pieces import play, script_ids

from engine.core.records import Termination
from engine.train.models import TinyQwen3Moe

FIX = "sed -i 's/a - b/a + b/' calc.py; python3 check.py"
STRAY = {"text": "I would rather talk."}


def tool(command: str, text: str = "") -> dict[str, Any]:
    return {"text": text, "calls": [{"name": "bash", "arguments": {"command": command}}]}


def fenced(command: str) -> dict[str, Any]:
    return {"text": f"THOUGHT: \n so.  \n\n```mswea_bash_command\n{command}\n```\n"}


@pytest.fixture(scope="module")
def model() -> TinyQwen3Moe:
    build_images(make_harness())
    made = TinyQwen3Moe(**options("model/tiny_qwen3_moe.yaml"))
    asyncio.run(made.prepare(print))
    return made


@pytest.mark.parametrize("native", [True, False])
async def test_several_turns_are_one_segment_of_the_scripted_ids(
    model: TinyQwen3Moe, tmp_path: Path, native: bool
) -> None:
    write = tool if native else fenced
    two = {"text": "I look twice. ", "calls": [*tool("ls -la")["calls"], *tool("cat calc.py")["calls"]]}
    script = [two if native else fenced("ls -la && cat calc.py"), write("git status"), write(FIX), write(SUBMIT)]
    harness = make_harness(native_tool_calling=native)
    played = await play(harness, script, model, tmp_path)
    assert harness.judge(played.result, played.report)[0] is Termination.AGENT_COMPLETED
    assert played.ended_by_proxy is None
    assert "a + b" in (played.tree / "calc.py").read_text()
    assert [exchange.kind for exchange in played.exchanges] == ["policy"] * 4
    assert played.targets() == [played.sampled()], "one segment"
    assert played.sampled() == script_ids(model, script)


@pytest.mark.parametrize("native", [True, False])
async def test_an_answer_that_the_harness_drops_is_trained_on_a_branch_of_its_own(
    model: TinyQwen3Moe, tmp_path: Path, native: bool
) -> None:
    write = tool if native else fenced
    script = [write("ls"), STRAY, write(FIX), write(SUBMIT)]
    harness = make_harness(native_tool_calling=native)
    played = await play(harness, script, model, tmp_path)
    assert harness.judge(played.result, played.report)[0] is Termination.AGENT_COMPLETED
    assert [exchange.kind for exchange in played.exchanges] == ["policy"] * 4
    assert "rather talk" not in json.dumps([json.loads(exchange.request) for exchange in played.exchanges])
    assert len(played.segments) == 2
    stray = played.exchanges[1].sampled_ids.tolist()
    assert [ids[-len(stray) :] == stray for ids in played.targets()].count(True) == 1
    trained = [token for ids in played.targets() for token in ids]
    assert sorted(trained) == sorted(played.sampled())
    assert played.sampled() == script_ids(model, script)
