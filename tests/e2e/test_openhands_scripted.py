"""The real SDK, proxy, renderer and tokenizer with scripted tokens: what is trained is what was played."""

import asyncio
import sys
from pathlib import Path

import pytest
from openhands_pieces import PORT, make_harness, make_runtime, make_task, options, sandbox_of, task_image

from engine.core.records import Termination, Trial, TrialKey
from engine.inference.scripted import ScriptedEngine
from engine.proxy.app import LlmProxy
from engine.sandbox.images import DebianImageStore
from engine.train.models import TinyQwen3Moe

SCRIPT = {
    "*": [
        {
            "text": "I mend it.",
            "calls": [
                {"name": "terminal", "arguments": {"command": "sed -i 's/a - b/a + b/' calc.py; python3 check.py"}}
            ],
        },
        {"calls": [{"name": "finish", "arguments": {"message": "Mended."}}]},
    ]
}


@pytest.fixture(scope="module")
def model() -> TinyQwen3Moe:
    """Model and images are built (minutes, once per machine)."""
    missing = make_runtime().problems()
    if missing:
        pytest.skip(f"this machine cannot run sandboxes: {missing[0]}")
    made = TinyQwen3Moe(**options("model/tiny_qwen3_moe.yaml"))

    async def build() -> None:
        for image in (task_image(), make_harness().runtime()):
            await DebianImageStore().build(image, lambda line: print(line, file=sys.stderr))
        await made.prepare(lambda line: print(line, file=sys.stderr))

    asyncio.run(build())
    return made


async def test_trained_ids_are_the_scripted_ids(model: TinyQwen3Moe, tmp_path: Path) -> None:
    task, harness = make_task(tmp_path), make_harness()
    engine = ScriptedEngine(script=SCRIPT, final_text="", seed=0, probe=None)
    proxy = LlmProxy(**options("proxy/laptop.yaml"))
    trial = Trial(
        key=TrialKey(run="test", epoch=0, task=task.id, sample=0, attempt=0),
        task=task,
        harness="openhands",
        policy_version=0,
        seed=0,
        temperature=1.0,
        top_p=1.0,
        split="train",
    )
    await engine.start(model.info(), tmp_path / "engine")
    await proxy.start(model.info(), engine)
    try:
        session = proxy.open(trial, harness, PORT)
        async with sandbox_of(task, harness, tmp_path) as sandbox:
            await session.serve(await sandbox.listen(PORT))
            launch = harness.launch(task, session.endpoint)
            await sandbox.write(launch.files)
            result = await sandbox.exec(
                launch.command, environment=launch.environment, cwd=launch.cwd, timeout_s=300, stdin=b""
            )
            report = await sandbox.read(harness.report_path, 1 << 20)
            await sandbox.kill()
            await sandbox.download(task.workdir, tmp_path / "tree")
            exchanges, segments, ended_by_proxy = await session.close()
    finally:
        await proxy.stop()
        await engine.stop()

    assert harness.judge(result, report)[0] is Termination.AGENT_COMPLETED
    assert ended_by_proxy is None
    assert "a + b" in (tmp_path / "tree" / "calc.py").read_text()
    assert [exchange.kind for exchange in exchanges] == ["policy", "policy"]
    (segment,) = segments
    sampled = [token for exchange in exchanges for token in exchange.sampled_ids.tolist()]
    assert segment.token_ids[segment.target].tolist() == sampled
    assert sampled == _played(model)


def _played(model: TinyQwen3Moe) -> list[int]:
    """The script's own ids, from the tokenizer on disk."""
    from tokenizers import Tokenizer

    from engine.inference.script import read_script

    tokenizer = Tokenizer.from_file(str(model.info().path / "tokenizer.json"))
    stop = tokenizer.token_to_id("<|im_end|>")
    turns = read_script(SCRIPT)["*"]
    return [
        token for turn in turns for token in (*tokenizer.encode(turn.written(), add_special_tokens=False).ids, stop)
    ]
