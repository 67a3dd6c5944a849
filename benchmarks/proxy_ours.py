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

import numpy as np
import yaml

from engine.core.garbage import look_seldom
from engine.core.records import Generation, Task, Trial, TrialKey
from engine.core.specs import ImageSpec, ModelInfo
from engine.inference.probe import WeightProbe
from engine.inference.vllm_http import VllmServer
from engine.proxy.app import LlmProxy

ROOT = Path(__file__).parents[1]
MODEL = "model"
ROOM = 1 << 23
"""Tokens: more than any conversation here."""
LAYERS, TOP_K = 40, 8


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


class Routed:
    """An engine in this process whose answers carry the routed experts of a 40-layer top-8 model."""

    def __init__(self, tokens: int) -> None:
        self._random = np.random.default_rng(0)
        self._tokens = tokens

    async def generate(self, prompt_ids: Any, *, routed_start: int, stop_token_ids: Any, **_: Any) -> Generation:
        ids = np.full(self._tokens, 1000, np.int32)
        ids[-1] = stop_token_ids[0]
        rows = len(prompt_ids) + len(ids) - 1 - routed_start
        return Generation(
            token_ids=ids,
            logprobs=np.full(len(ids), -0.25, np.float32),
            finish_reason="stop",
            policy_versions=np.zeros(len(ids), np.int32),
            routed_experts=self._random.integers(0, 128, (rows, LAYERS, TOP_K), dtype=np.uint8),
            routed_start=routed_start,
            cached_tokens=0,
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


async def opened(served: LlmProxy, count: int, folder: Path) -> list[Any]:
    """Sessions, each on a loopback port of its own."""
    sessions = []
    for number in range(count):
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        session = served.open(trial(number), harness(), listener.getsockname()[1], folder)
        await session.serve(listener)
        sessions.append(session)
    return sessions


def said(session: Any) -> dict[str, str]:
    endpoint = session.endpoint
    return {"url": f"{endpoint.base_url}/v1", "key": endpoint.api_key, "model": endpoint.model}


async def serve(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="lego-rl-proxy-", dir=options.spill) as name:
        folder = Path(name)
        served = proxy()
        behind: Any = Routed(tokens=160) if options.routed else engine(folder, options.engine_port)
        info = model(options.model, thinking=options.thinking)
        try:
            if not options.routed:
                await behind.start(info, folder)
            await served.start(info, behind)
            look_seldom()
            sessions = await opened(served, options.sessions, folder)
            print(json.dumps([said(session) for session in sessions]), flush=True)
            for line in iter(lambda: asyncio.to_thread(sys.stdin.readline), None):
                if not (await line).strip():
                    break
                _, segments, _ = await sessions[0].close()
                told = [[len(segment.token_ids), int(segment.target.sum())] for segment in segments]
                print(json.dumps(told), flush=True)
        finally:
            await served.stop()
            if not options.routed:
                await behind.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--engine-port", type=int, required=True)
    parser.add_argument("--sessions", type=int, required=True)
    parser.add_argument("--thinking", action="store_true")
    parser.add_argument("--routed", action="store_true", help="routed experts, from an engine in this process")
    parser.add_argument("--spill", type=Path, help="folder that they are spilled below")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
