"""What the suites of networks by phase share: a server of the host's, and programs that try to reach places."""

import asyncio
import json
import socket
import textwrap
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from sandbox_cases import WORKDIR

from engine.sandbox.inside import ContainedSandbox

_TRIES = """
import json, socket, sys
def reach(host, port, say):
    try:
        with socket.create_connection((host, port), 20) as there:
            there.sendall(say.encode() + b"\\n")
            there.shutdown(socket.SHUT_WR)
            text = b""
            while piece := there.recv(65536):
                text += piece
        return text.decode()
    except OSError as error:
        return type(error).__name__
print(json.dumps([reach(*one) for one in json.loads(sys.stdin.read())]))
"""


class Host:
    """A server of this machine's that answers each connection with its own words, and keeps what it heard."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.heard = b""
        self.open: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.append(writer)
        try:
            while piece := await reader.read(1 << 16):
                self.heard += piece
                writer.write(b"heard " + piece)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def host(address: str = "127.0.0.1") -> AsyncIterator[Host]:
    """It, at an address of this machine."""
    made = Host(0)
    server = await asyncio.start_server(lambda *both: made.serve(*both), address, 0, backlog=512)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for writer in made.open:
            writer.close()
        await asyncio.sleep(0)


async def reach(sandbox: ContainedSandbox, *places: tuple[str, int]) -> list[str]:
    """What each place answered, or the name of the error."""
    wanted = json.dumps([(name, port, "hello") for name, port in places]).encode()
    command = ["python3", "-c", _TRIES]
    result = await sandbox.exec(command, environment={}, cwd=WORKDIR, timeout_s=60, stdin=wanted)
    assert result.exit_code == 0, result.stderr.decode()
    answers: list[str] = json.loads(result.stdout)
    return answers


async def background(sandbox: ContainedSandbox, script: str) -> None:
    """Start a program that outlives its command."""
    await sandbox.write({"/tmp/background.py": textwrap.dedent(script).encode()})
    command = ["/bin/sh", "-c", "python3 /tmp/background.py </dev/null >/tmp/said 2>&1 &"]
    result = await sandbox.exec(command, environment={}, cwd=WORKDIR, timeout_s=60, stdin=b"")
    assert result.exit_code == 0


async def said(sandbox: ContainedSandbox, lines: int) -> list[str]:
    """What it has said, as soon as that is so many lines."""
    async with asyncio.timeout(30):
        while True:
            text = (await sandbox.read("/tmp/said", 1 << 16) or b"").decode()
            if text.count("\n") >= lines:
                return text.splitlines()
            await asyncio.sleep(0.02)


def lists(**phases: Sequence[str]) -> Mapping[str, Sequence[str]]:
    return {"build": [], "setup": [], "agent": [], "grade": []} | phases


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True
