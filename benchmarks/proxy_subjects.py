"""What `benchmarks/proxy.py` measures: the engine alone, this project's proxy, a peer; each in front of an engine."""

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy_client import Connection, Endpoint, threads_s, tree_s
from proxy_peers import Peer
from proxy_texts import checkpoint

HERE = Path(__file__).parent
START_S = 120.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass(kw_only=True)
class Running:
    """A proxy that serves."""

    pid: int
    engine: int
    """The engine's port."""
    endpoints: list[Endpoint]
    whole_tree: bool = True
    """Whether what the process started is part of it (this project's starts the engine itself)."""
    process: Any = None

    def cpu_s(self) -> float:
        return tree_s(self.pid) if self.whole_tree else threads_s(self.pid)


@contextlib.asynccontextmanager
async def ours(*, sessions: int, thinking: bool = False, spill: Path | None = None) -> AsyncIterator[Running]:
    port = free_port()
    command = [sys.executable, str(HERE / "proxy_ours.py"), "--model", str(checkpoint()), "--engine-port", str(port)]
    command += ["--sessions", str(sessions), *(["--thinking"] if thinking else [])]
    command += [] if spill is None else ["--routed", "--spill", str(spill)]
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdin=pipe, stdout=pipe, limit=1 << 24)
    assert process.stdin is not None and process.stdout is not None
    try:
        line = await process.stdout.readline()
        if not line:
            raise RuntimeError("the proxy did not start")
        endpoints = [Endpoint(**each) for each in json.loads(line)]
        yield Running(pid=process.pid, engine=port, endpoints=endpoints, whole_tree=False, process=process)
    finally:
        process.stdin.close()
        await process.wait()


@contextlib.asynccontextmanager
async def directly() -> AsyncIterator[Running]:
    """The engine without a proxy before it."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(sys.executable, str(HERE / "proxy_engine.py"), "--port", str(port))
    try:
        await answering(port)
        endpoint = Endpoint(url=f"http://127.0.0.1:{port}/v1", key="none", model="model")
        yield Running(pid=process.pid, engine=port, endpoints=[endpoint])
    finally:
        process.kill()
        await process.wait()


async def answering(port: int, within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while True:
            with contextlib.suppress(OSError):
                (await Connection.to(port)).close()
                return
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def before_engine(peer: Peer) -> AsyncIterator[Running]:
    """A peer in front of an engine; what it says goes to a file that is shown when it does not start."""
    port = free_port()
    async with directly() as engine:
        with tempfile.TemporaryDirectory(prefix="lego-rl-peer-") as name:
            folder = Path(name)
            log = folder / "log"
            command = peer.command(port, engine.engine, folder)
            with log.open("wb") as output:
                process = await asyncio.create_subprocess_exec(
                    *command, cwd=folder, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output
                )
            try:
                try:
                    await answering(port, START_S)
                except TimeoutError:
                    raise RuntimeError(f"did not serve within {START_S:.0f} s: {log.read_text()[-300:]!r}") from None
                endpoint = Endpoint(url=f"http://127.0.0.1:{port}{peer.path}", key="sk-none", model="model")
                yield Running(pid=process.pid, engine=engine.engine, endpoints=[endpoint])
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                await process.wait()
