"""The way from a pod's loopback to the model's proxy, and the proof that there is no other.

It makes the room's folders, then waits until the gateway answers and the cluster's own API does not: a network policy
may take its time after a pod has begun, and some networks keep none. Only then the task's container is started. Where
the network stays open it ends with its reason, and the sandbox with it.

To the gateway (see gateway) it speaks lines: `control TOKEN`, after which it is told `listen PORT` and
answers `bound PORT` or `failed PORT REASON`; and for each connection that it takes `stream TOKEN PORT`, then its bytes.
The task shares this pod's network, so it reaches the gateway too; without the token it gets nothing there.
"""

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOM = Path("/room")
_CONNECT_S = 2.0
_PAUSE_S = 0.2
_CHUNK = 1 << 16


def main(ready: Path) -> None:
    settings = json.loads(os.environ["LEGO_RELAY"])
    for folder in settings["folders"]:
        (ROOM / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Relay(settings).run(ready))


class Relay:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._host, self._port = settings["gateway"]
        self._token, self._patience_s = settings["token"], settings["patience_s"]
        self._servers: dict[int, asyncio.Server] = {}

    async def run(self, ready: Path) -> None:
        await self._prove()
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._control(ready)
            await asyncio.sleep(_PAUSE_S)

    async def _prove(self) -> None:
        """Return once the gateway can be reached and the cluster's API cannot."""
        api = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not api[0]:
            sys.exit("cannot prove that the network is closed: KUBERNETES_SERVICE_HOST is not set in the pod")
        clock = asyncio.get_running_loop().time
        deadline, why = clock() + self._patience_s, ""
        while clock() < deadline:
            if not await _answers(self._host, self._port):
                why = f"the gateway {self._host}:{self._port} cannot be reached: see sandbox.gateway"
            elif await _answers(api[0], int(api[1])):
                why = f"the network is open (the API at {api[0]}:{api[1]} answers): the cluster keeps no network policy"
            else:
                return
            await asyncio.sleep(_PAUSE_S)
        sys.exit(why)

    async def _control(self, ready: Path) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(f"control {self._token}\n".encode())
            if await reader.readline() != b"ok\n":
                raise OSError("the gateway knows nothing of this pod")
            ready.touch()
            while line := await reader.readline():
                _, _, port = line.decode().partition(" ")
                writer.write(await self._listen(int(port)))
                await writer.drain()
        finally:
            writer.close()

    async def _listen(self, port: int) -> bytes:
        try:
            self._servers[port] = await asyncio.start_server(
                lambda reader, writer: self._carry(port, reader, writer), "127.0.0.1", port
            )
        except OSError as error:
            return f"failed {port} {error.strerror}\n".encode()
        return f"bound {port}\n".encode()

    async def _carry(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection(self._host, self._port)
                try:
                    back.write(f"stream {self._token} {port}\n".encode())
                    await asyncio.gather(pump(reader, back), pump(there, writer))
                finally:
                    back.close()
        finally:
            writer.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes one way to their end. Raises OSError where the connection breaks."""
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()


async def _answers(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:  # TimeoutError is one
        return False
    writer.close()
    return True
