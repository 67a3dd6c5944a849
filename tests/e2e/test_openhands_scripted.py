"""The real SDK, proxy, renderer and tokenizer with scripted tokens: what is trained is what was played."""

import asyncio
from pathlib import Path

import pytest
from harness_pieces import build_images, options
from openhands_pieces import make_harness
from scripted_pieces import play, script_ids

from engine.core.records import Termination
from engine.train.models import TinyQwen3Moe

SCRIPT = [
    {
        "text": "I mend it.",
        "calls": [{"name": "terminal", "arguments": {"command": "sed -i 's/a - b/a + b/' calc.py; python3 check.py"}}],
    },
    {"calls": [{"name": "finish", "arguments": {"message": "Mended."}}]},
]


@pytest.fixture(scope="module")
def model() -> TinyQwen3Moe:
    build_images(make_harness())
    made = TinyQwen3Moe(**options("model/tiny_qwen3_moe.yaml"))
    asyncio.run(made.prepare(print))
    return made


async def test_trained_ids_are_the_scripted_ids(model: TinyQwen3Moe, tmp_path: Path) -> None:
    played = await play(make_harness(), SCRIPT, model, tmp_path)
    assert make_harness().judge(played.result, played.report)[0] is Termination.AGENT_COMPLETED
    assert played.ended_by_proxy is None
    assert "a + b" in (played.tree / "calc.py").read_text()
    assert [exchange.kind for exchange in played.exchanges] == ["policy", "policy"]
    assert played.targets() == [played.sampled()]
    assert played.sampled() == script_ids(model, SCRIPT)
