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

from proxy_client import Connection, Endpoint, process_s, tree_s
from proxy_peers import Peer, Place
from proxy_texts import checkpoint

HERE = Path(__file__).parent
START_S = 300.0
"""A gateway imports for long on a busy machine."""


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
        return tree_s(self.pid) if self.whole_tree else process_s(self.pid)


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
        await answering(port, START_S, process)
        endpoint = Endpoint(url=f"http://127.0.0.1:{port}/v1", key="none", model="model")
        yield Running(pid=process.pid, engine=port, endpoints=[endpoint])
    finally:
        process.kill()
        await process.wait()


async def answering(port: int, within_s: float, process: asyncio.subprocess.Process) -> None:
    """Until something listens. Raises TimeoutError, or ChildProcessError when the process has ended."""
    async with asyncio.timeout(within_s):
        while process.returncode is None:
            with contextlib.suppress(OSError):
                (await Connection.to(port)).close()
                return
            await asyncio.sleep(0.1)
    raise ChildProcessError


@contextlib.asynccontextmanager
async def before_engine(peer: Peer, *, sessions: int) -> AsyncIterator[Running]:
    """A peer in front of an engine; what it says goes to a file that is shown when it does not start."""
    async with directly() as engine:
        with tempfile.TemporaryDirectory(prefix="lego-rl-peer-") as name:
            folder = Path(name)
            place = Place(python=peer.python, port=free_port(), engine=engine.engine, scratch=folder, sessions=sessions)
            log = folder / "log"
            with log.open("wb") as output:
                process = await asyncio.create_subprocess_exec(
                    *peer.launch(place),
                    cwd=folder,
                    env=os.environ | peer.environment,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
            try:
                try:
                    await answering(place.port, START_S, process)
                except (TimeoutError, ChildProcessError):
                    raise RuntimeError(f"does not serve: {log.read_text()[-300:]!r}") from None
                if peer.prepare is not None:
                    await peer.prepare(place)
                endpoints = peer.endpoints(place)
                yield Running(pid=process.pid, engine=engine.engine, endpoints=endpoints)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                await process.wait()
