"""A registry of images on this machine's loopback, for measurements and tests: Debian's `docker-registry`, and a relay
in front of it that counts what passes.

Invariant: it serves what its folder holds, on a port that was free, to this machine alone; it ends with the block that
opened it, and with this process however that ends.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from engine.core.errors import ConfigError, SandboxError
from engine.core.processes import end, supervised
from engine.core.threads import to_the_end
from engine.sandbox.tools import find

PROGRAM = "docker-registry"
"""Program and Debian package."""
_START_S = 30.0
_LISTENS = re.compile(r"listening on (127\.0\.0\.1:\d+)")
_CHUNK = 1 << 16


def missing_registry(key: str, value: object) -> list[ConfigError]:
    """What keeps this machine from serving one."""
    if find(PROGRAM):
        return []
    way_out = f"apt-get install -y --no-install-recommends {PROGRAM}, or name a registry with {key}"
    return [ConfigError(key, value, f"{PROGRAM} is not installed", way_out)]


@contextlib.asynccontextmanager
async def loopback_registry(folder: Path) -> AsyncIterator[str]:
    """Serve a registry whose blobs lie in `folder`; gives its `127.0.0.1:PORT`. Raises SandboxError."""
    program = find(PROGRAM)
    if program is None:
        raise missing_registry("job.registry", None)[0]
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "version": 0.1,
        "log": {"level": "info", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}, "delete": {"enabled": True}},
        "http": {"addr": "127.0.0.1:0", "secret": "of no use, there is one registry"},
    }
    (folder / "config.yml").write_text(json.dumps(settings))
    process = await asyncio.create_subprocess_exec(
        *supervised([program, "serve", str(folder / "config.yml")]),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    reading = None
    try:
        assert process.stderr is not None
        address = await _address(process.stderr)
        reading = asyncio.create_task(_drain(process.stderr))  # a full pipe would hold the registry up
        yield address
    finally:
        await to_the_end(_stopped(process))
        if reading is not None:
            await reading


async def _stopped(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(15)  # the supervisor ends all that stems from it
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _START_S)
    await end(process)


async def _address(output: asyncio.StreamReader) -> str:
    said = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_START_S):
            async for raw in output:
                said.append(raw.decode(errors="replace").strip())
                if found := _LISTENS.search(said[-1]):
                    return found[1]
    raise SandboxError(f"{PROGRAM} does not start: {' '.join(said)[-500:] or 'it said nothing'}")


async def _drain(output: asyncio.StreamReader) -> None:
    while await output.read(_CHUNK):
        pass


@dataclass(kw_only=True)
class Counted:
    """What has passed a relay, both ways together."""

    address: str
    """`127.0.0.1:PORT`, where it listens."""
    passed: int = 0
    """Bytes, those of HTTP's heads included."""


@contextlib.asynccontextmanager
async def counting_relay(target: str) -> AsyncIterator[Counted]:
    """Pass connections on to `target` (`HOST:PORT`) and count their bytes."""
    host, _, port = target.rpartition(":")
    counted = Counted(address="")
    running: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_CHUNK):
                counted.passed += len(data)
                writer.write(data)
                await writer.drain()
        except OSError:  # who broke it off is not told twice
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            there, back = await asyncio.open_connection(host.strip("[]"), int(port))
            await asyncio.gather(copy(reader, back), copy(there, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            running.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    counted.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield counted
    finally:
        server.close()
        for task in tuple(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await server.wait_closed()
