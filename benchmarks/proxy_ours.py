"""This project's proxy as `benchmarks/proxy.py` measures it: the real classes in a process of their own.

    python benchmarks/proxy_ours.py --model FOLDER --engine-port PORT --sessions N

The engine's client is the real one (`engine.inference.vllm_http`); the server that it starts is `proxy_engine.py` in
vLLM's place. Prints one JSON line when it serves, then answers each line `close` with what the first session captured.
"""

import argparse
import asyncio
import json
import socket
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from engine.core.records import ImageSpec, ModelInfo, Task, Trial, TrialKey
from engine.inference.probe import WeightProbe
from engine.inference.vllm_http import VllmServer
from engine.proxy.app import LlmProxy

ROOT = Path(__file__).parents[1]
MODEL = "model"
ROOM = 1 << 20
"""Tokens: more than any conversation here."""


def engine(folder: Path, port: int) -> VllmServer:
    """The real client, with a stand-in for the server's interpreter."""
    stand_in = folder / "python"
    stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT / "benchmarks/proxy_engine.py"} "$@"\n')
    stand_in.chmod(0o755)
    values = yaml.safe_load((ROOT / "configs/inference/vllm.yaml").read_text())
    values.pop("_target_")
    values["probe"].pop("_target_")
    changed = {"python": str(stand_in), "port": port, "max_concurrency": 512, "probe": WeightProbe(**values["probe"])}
    return VllmServer(**values | changed)


def proxy() -> LlmProxy:
    return LlmProxy(
        temperature=1.0,
        top_p=1.0,
        max_prompt_tokens=ROOM - 1,
        max_response_tokens=ROOM,
        max_tokens_per_turn=ROOM,
        max_body_mb=64,
    )


def model(folder: Path, *, layers: int = 0, top_k: int = 0, thinking: bool = False) -> ModelInfo:
    return ModelInfo(
        name=MODEL,
        path=folder,
        renderer="qwen3-thinking" if thinking else "qwen3",
        max_context=2 * ROOM,
        num_layers=layers,
        top_k=top_k,
        dtype="bfloat16",
    )


def harness() -> Any:
    client = SimpleNamespace(volatile=(), side_calls=(), hold_back="none")
    return SimpleNamespace(name="benchmark", max_turns=1 << 20, client=client)


def trial(number: int) -> Trial:
    nowhere = Path("/nonexistent")
    task = Task(
        id="benchmark",
        directory=nowhere,
        instruction="",
        split="train",
        fingerprint="0",
        image=ImageSpec(name="none", suite=None, packages=(), pip=()),
        workdir="/",
        repository=nowhere,
        tests=nowhere,
        test_paths=(),
        python_path=(),
        fail_to_pass=(),
        pass_to_pass=(),
        reference=None,
        agent_timeout_s=1.0,
        grade_timeout_s=1.0,
        memory_mb=1,
        cpus=1.0,
    )
    return Trial(
        key=TrialKey(run="benchmark", epoch=0, task="benchmark", sample=number, attempt=0),
        task=task,
        harness="benchmark",
        policy_version=0,
        seed=number,
        temperature=1.0,
        top_p=1.0,
        split="train",
    )


async def opened(served: LlmProxy, count: int) -> list[Any]:
    """Sessions, each on a loopback port of its own."""
    sessions = []
    for number in range(count):
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        session = served.open(trial(number), harness(), listener.getsockname()[1])
        await session.serve(listener)
        sessions.append(session)
    return sessions


def said(session: Any) -> dict[str, str]:
    endpoint = session.endpoint
    return {"url": f"{endpoint.base_url}/v1", "key": endpoint.api_key, "model": endpoint.model}


async def serve(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="lego-rl-proxy-") as name:
        folder = Path(name)
        behind, served = engine(folder, options.engine_port), proxy()
        info = model(options.model, thinking=options.thinking)
        try:
            await behind.start(info, folder)
            await served.start(info, behind)
            sessions = await opened(served, options.sessions)
            print(json.dumps([said(session) for session in sessions]), flush=True)
            for line in iter(lambda: asyncio.to_thread(sys.stdin.readline), None):
                if not (await line).strip():
                    break
                _, segments, _ = await sessions[0].close()
                told = [[len(segment.token_ids), int(segment.target.sum())] for segment in segments]
                print(json.dumps(told), flush=True)
        finally:
            await served.stop()
            await behind.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--engine-port", type=int, required=True)
    parser.add_argument("--sessions", type=int, required=True)
    parser.add_argument("--thinking", action="store_true")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
