"""verifiers as `benchmarks/proxy.py` measures it: its interception server with its renderer client.

    PYTHON_OF_ITS_OWN benchmarks/proxy_verifiers.py --port P --engine-port P --sessions N --model FOLDER --keys FILE

As in its rollouts one server serves many sessions, renders by Qwen3's renderer, samples by ids and keeps a graph of
each session's messages. Each session's key stands in `--keys` before it serves on `--port`.
"""

import argparse
import asyncio
import json
from pathlib import Path

from aiohttp import web
from verifiers.v1.clients import ModelContext, TrainClientConfig
from verifiers.v1.clients.train import ElasticRendererPool
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.interception import InterceptionServer
from verifiers.v1.session import RolloutSession
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask
from verifiers.v1.types import SamplingConfig

LONGEST = 1 << 23
"""Tokens of an answer: more than any here."""


def session(client: TrainClientConfig) -> RolloutSession:
    trace = Trace(task=TraceTask(type="Task", data=TaskData(prompt="")), agent=AgentInfo(config=AgentConfig()))
    sampling = SamplingConfig(temperature=1.0, top_p=1.0, max_tokens=LONGEST)
    return RolloutSession(ctx=ModelContext(model="model", client=client, sampling=sampling), trace=trace)


async def serve(options: argparse.Namespace) -> None:
    client = TrainClientConfig(
        base_url=f"http://127.0.0.1:{options.engine_port}/v1",
        api_key_var="BENCHMARK_KEY",
        renderer={"name": "qwen3"},
        renderer_model_name=str(options.model),
    )
    # A renderer that its sessions share is there before the first request, as in a run that is under way.
    await ElasticRendererPool(str(options.model), client.renderer, multiplex=client.multiplex).grow()
    async with InterceptionServer() as server:
        keys = [server.register(session(client))[0] for _ in range(options.sessions)]
        assert server.runner is not None
        options.keys.write_text(json.dumps(keys))
        await web.TCPSite(server.runner, "127.0.0.1", options.port, backlog=2048).start()  # beside one of its choice
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine-port", type=int, required=True)
    parser.add_argument("--sessions", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--keys", type=Path, required=True)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
