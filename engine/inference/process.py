"""One server process: start, wait until it answers, know when it died and why, stop all of it.

Invariant: after `stop` (or after this process dies, however) nothing of the server is left; `core/supervise.py` sees
to that. A server that dies or never answers is an error that ends with its log's last lines.
"""

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from engine.core.errors import RunError
from engine.core.processes import supervised

_log = logging.getLogger(__name__)
_TAIL_BYTES = 65_536
_LINE = 300
"""Characters of a line of the log that are shown."""
_PREFIX = re.compile(r"^(\(\w+ pid=\d+\) )?([A-Z]+ [\d-]+ [\d:]+ \[[\w.]+:\d+\] )?")
"""Of vLLM's lines: process, level, time and place."""
_HARMLESS = re.compile(r"^(\(\w+ pid=\d+\) )?(DEBUG|INFO|WARNING) ")
_PROGRESS_S = 10.0


def port_taken(port: int) -> bool:
    """Whether a server could not bind this loopback port now."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _short(line: str) -> str:
    return line if len(line) <= _LINE else f"{line[: _LINE - 1]}…"


class ServerProcess:
    """A command under supervision; its output goes to a file."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """`environment` is laid over this process's own; `name` is for messages."""
        self.name = name
        self.log = log
        self._command = tuple(command)
        self._environment = {**os.environ, **environment}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, grace_s: float, folder: Path | None = None) -> None:
        """Start it. `grace_s`: seconds between asking it to end and killing it; `folder` is removed at its end."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists():  # of the process before, which may tell why it ended
            self.log.replace(self.log.with_name(f"{self.log.name}.1"))
        with self.log.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                *supervised(self._command, grace_s, folder),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def wait_until(self, ready: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
        """Poll `ready` until it is true. Raises RunError when the server dies, TimeoutError when the time is over."""
        loop = asyncio.get_running_loop()
        started = told = loop.time()
        while not await ready():
            now = loop.time()
            if not self.alive:
                raise RunError(f"{self.name} died at start ({self.status()}): {self.tail()}")
            if now - started > timeout_s:
                raise TimeoutError(f"{self.name} was not ready after {timeout_s:g} s: {self.tail()}")
            if now - told >= _PROGRESS_S:
                told = now
                _log.info("%s: starting, %.0f s so far, log in %s", self.name, now - started, self.log)
            await asyncio.sleep(0.2)
        _log.info("%s: ready after %.1f s", self.name, loop.time() - started)

    def status(self) -> str:
        """`running`, or how it ended."""
        if self._process is None:
            return "not started"
        code = self._process.returncode
        if code is None:
            return "running"
        number = -code if code < 0 else code - 128  # the supervisor's own death, or as it tells its command's
        killed = f", killed by {signal.Signals(number).name}" if number in set(signal.Signals) else ""
        return f"exit code {code}{killed}"

    def tail(self, lines: int = 3) -> str:
        """The log's last lines on one line: those of errors if there is one, each without its prefix, and none that
        only says an earlier one again."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                text = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return "no log"
        told = [plain for line in text if (plain := _PREFIX.sub("", line).strip())]
        grave = [_PREFIX.sub("", line).strip() for line in text if not _HARMLESS.match(line)]
        wanted = [line for line in grave if "Error:" in line or "error:" in line] or told
        new: list[str] = []
        for line in wanted:
            said = line.partition("Error: ")[2] or line
            if not any(said in other or (other.partition("Error: ")[2] or other) in line for other in new):
                new.append(line)
        return " | ".join(_short(line) for line in new[-lines:]) or "empty log"

    async def stop(self) -> None:
        """End it and all it started; safe to call at any time and again."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        waiting = asyncio.ensure_future(process.wait())
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            await waiting
            raise
