"""A podman socket of another machine as one of ours, by the machine's own ssh client: its keys, its known hosts.

Invariants: nobody is asked for anything (`BatchMode`), a host whose key is not known is refused as ssh's own settings
say, and the tunnel ends with this process. The local socket lies in a folder of this process's user.
"""

import asyncio
from asyncio.subprocess import Process
from pathlib import Path

from engine.core.errors import SandboxError
from engine.core.processes import end, supervised
from engine.sandbox.podman_pool.addresses import Address

_START_S = 30.0


class Tunnel:
    """One ssh process."""

    def __init__(self, address: Address, socket: Path) -> None:
        self._address, self.socket = address, socket
        self._process: Process | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def open(self) -> None:
        """Start it, again where it has ended, and wait for its socket. Raises SandboxError with what ssh says."""
        await self.close()
        self.socket.unlink(missing_ok=True)
        where = self._address
        command = ["ssh", "-N", "-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes"]
        command += ["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3", "-o", "ConnectTimeout=15"]
        command += ["-o", "StreamLocalBindMask=0177", *(["-p", str(where.port)] if where.port else [])]
        command += ["-L", f"{self.socket}:{where.path}", f"{where.user}@{where.host}" if where.user else where.host]
        try:
            self._process = await asyncio.create_subprocess_exec(
                *supervised(command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise SandboxError(f"ssh cannot be started: {error.strerror}") from error
        deadline = asyncio.get_running_loop().time() + _START_S
        while not self.socket.exists():
            late = asyncio.get_running_loop().time() > deadline
            if self._process.returncode is not None or late:
                said = "it does not connect" if late else await self._said()
                await self.close()
                raise SandboxError(f"ssh to {where.host}: {said}")
            await asyncio.sleep(0.02)

    async def _said(self) -> str:
        assert self._process is not None and self._process.stderr is not None
        lines = (await self._process.stderr.read(4096)).decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"it ended ({self._process.returncode})"

    async def close(self) -> None:
        """Safe to call again."""
        process, self._process = self._process, None
        if process is not None:
            await end(process)
