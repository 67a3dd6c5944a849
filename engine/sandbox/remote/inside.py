"""A started sandbox on another machine: commands among its own processes, files through a keeper, the end.

Invariants: an exit code is only what our own process there told over a whole stream; a sandbox that is removed or cut
off while a command runs raises SandboxError with the reason; a command that is cancelled or over its time is killed
with all it started. Where running out of memory ended the whole container, as the kernel's group kill does, that is
the command's result, and the files can still be had.
Refuses paths that its place cannot write.
"""

import asyncio
import json
import logging
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from engine.core.errors import SandboxError
from engine.core.specs import ExecResult, Phase, SandboxSpec, WarmStart
from engine.core.threads import to_the_end
from engine.sandbox.files import MAX_DEPTH
from engine.sandbox.remote.execution import Cut, Ended, Execution
from engine.sandbox.remote.place import Place
from engine.sandbox.remote.within import HOME, USER, archive
from engine.sandbox.tools import SYSTEM_PATH

_log = logging.getLogger(__name__)
_GRACE_S = 30.0
"""How much later than our own process there this one gives a command up."""
_SETTLE_S = 5.0
"""How long the other side may take to tell why a stream was cut off."""
_KEEPER_S = 600.0
_PIECE = 1 << 16
_SIGNALLED, _KILLED = 128, 137


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What is the same for all sandboxes of a run."""

    uid: int
    """User and group of every command."""
    limit_processes: bool
    """Whether the kernel counts its user's processes by themselves (a user namespace of its own)."""
    output_limit: int


class RemoteSandbox:
    """The Sandbox of contracts.py on another machine."""

    def __init__(self, spec: SandboxSpec, place: Place, rules: Rules) -> None:
        self.spec, self.place, self._rules = spec, place, rules
        self._stopping: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ commands

    async def exec(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: str,
        timeout_s: float,
        stdin: bytes,
        warm: WarmStart | None = None,
    ) -> ExecResult:
        """Run a command as the sandbox's user, to its end or its timeout; as `ContainedSandbox.exec`.

        Raises SandboxError when the sandbox is gone, and for `warm`: nothing can be forked into it."""
        if warm is not None:
            raise SandboxError(f"no process can be forked into {self.place.kind}: start it cold")
        self._require_life()
        request = self._request(command, environment, cwd) | {"stdin": len(stdin), "timeout_s": timeout_s}
        begun = time.monotonic()
        running = await self.place.start(["run"], None)
        reading = asyncio.create_task(running.ended())
        try:
            await running.send(json.dumps(request).encode() + b"\n" + stdin)
            ended = await self._attend(reading, timeout_s + _GRACE_S)
        except asyncio.CancelledError:
            await to_the_end(self._cut_short(running, reading))
            raise
        finally:
            await to_the_end(_let_go(running, reading))
        await self.place.settle()
        return await self._result(ended, time.monotonic() - begun)

    def _request(self, command: Sequence[str], environment: Mapping[str, str], cwd: str) -> dict[str, Any]:
        spec = self.spec
        limits = {"RLIMIT_CORE": 0} | ({"RLIMIT_FSIZE": spec.disk_mb << 20} if spec.disk_mb else {})
        if self._rules.limit_processes and spec.pids:
            limits["RLIMIT_NPROC"] = spec.pids
        return {
            "command": list(command),
            "environment": {"PATH": SYSTEM_PATH, "HOME": HOME, "USER": USER, **spec.environment, **environment},
            "cwd": cwd,
            "uid": self._rules.uid,
            "gid": self._rules.uid,
            "limits": limits,
            "output_limit": self._rules.output_limit,
        }

    async def _attend(self, reading: "asyncio.Task[Ended]", patience_s: float) -> Ended | None:
        """Wait for a command's end, or the pod's; None: it does not end, whatever it was told."""
        over = asyncio.create_task(self.place.until(lambda: self._state() in ("over", "lost"), None))
        try:
            await asyncio.wait([reading, over], timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done() and over.done():  # the last words may be on their way
                await asyncio.wait([reading], timeout=_SETTLE_S)
        finally:
            over.cancel()
            await asyncio.gather(over, return_exceptions=True)
        if reading.done():
            try:
                return reading.result()
            except Cut as cut:
                return await self._after_cut(str(cut))
        return await self._after_cut("") if self._state() in ("over", "lost") else None

    async def _after_cut(self, problem: str) -> Ended:
        """Why there is no end of a command: the container's memory was, which is a result, or the sandbox's end."""
        await self.place.until(lambda: self._state() in ("over", "lost"), _SETTLE_S)
        fate = self.place.fate()
        if fate.oom:
            return Ended(exit_code=_KILLED, output=b"", errors=b"")
        reason = fate.reason or problem
        raise SandboxError(f"sandbox {self.spec.name} ended while a command ran: {reason}")

    async def _result(self, ended: Ended | None, duration_s: float) -> ExecResult:
        out, err, oom = b"", b"", False
        if ended is None:  # the agent holds our process up: it is ended with all others
            await self._sweep()
            code, timed_out = -1, True
        elif ended.exit_code == 0:
            head, _, body = ended.output.partition(b"\n")
            told = json.loads(head)
            out, err = body[: told["out"]], body[told["out"] : told["out"] + told["err"]]
            code, timed_out, oom = told["exit"], told["timed_out"], told["oom_kills"] > 0
            duration_s = told["duration_s"]
        elif ended.exit_code <= _SIGNALLED:
            problem = f"sandbox {self.spec.name} cannot be entered ({ended.exit_code}): {_last(ended.errors)}"
            raise SandboxError(problem)
        else:  # the command, or the kernel, killed the process that waits for it
            await self.place.until(lambda: self._state() in ("over", "lost"), _SETTLE_S)
            fate = self.place.fate()
            oom = fate.oom
            if fate.state in ("over", "lost") and not oom:
                raise SandboxError(f"sandbox {self.spec.name} ended while a command ran: {fate.reason}")
            code, timed_out, err = ended.exit_code, False, ended.errors
        return ExecResult(
            exit_code=code, stdout=out, stderr=err, timed_out=timed_out, oom_killed=oom, duration_s=duration_s
        )

    async def _cut_short(self, running: Execution, reading: "asyncio.Task[Ended]") -> None:
        """Have a command killed with all it started, by the process that waits for it, or in spite of it."""
        await running.send(b"end\n")
        done, _ = await asyncio.wait([reading], timeout=_GRACE_S)
        if not done and self._state() == "ready":
            await self._sweep()

    async def _sweep(self) -> None:
        try:
            await self._finish(await self.place.start(["sweep"], None), _GRACE_S)
        except (SandboxError, TimeoutError) as error:
            _log.warning("sandbox %s: %s", self.spec.name, error)

    async def _finish(self, running: Execution, patience_s: float) -> Ended:
        try:
            return await asyncio.wait_for(running.ended(), patience_s)
        finally:
            await to_the_end(running.close())

    def _state(self) -> str:
        return self.place.fate().state

    # ------------------------------------------------------------ files

    async def write(self, contents: Mapping[str, bytes]) -> None:
        """Write files (absolute sandbox path → contents), making parent folders; owned by the sandbox's user."""
        for path in contents:
            self.place.check(path)
        listed = [[path, len(content)] for path, content in contents.items()]
        await self._keep("write", {"files": listed}, _pieces(b"".join(contents.values())))

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host folder's contents into a sandbox folder, owned by the sandbox's user."""
        self.place.check(target)
        with tempfile.TemporaryFile() as packed:
            await to_the_end(asyncio.to_thread(_pack, source, packed))
            length = packed.tell()
            packed.seek(0)
            await self._keep("upload", {"target": target, "length": length}, _read(packed))

    async def download(self, source: str, target: Path) -> None:
        """Copy a sandbox folder's contents into a new host folder; links stay links, special files stay behind."""
        self.place.check(source)
        with tempfile.TemporaryFile() as packed:
            await self._keep("download", {"source": source}, on_output=packed.write)
            packed.seek(0)
            await to_the_end(asyncio.to_thread(_unpack, packed, target))

    async def read(self, path: str, limit: int) -> bytes | None:
        """At most `limit` bytes of a regular file, never through a link; None when there is none."""
        self.place.check(path)
        found = await self._keep("read", {"path": path, "limit": limit})
        return found[1:] if found[:1] == b"1" else None

    async def _keep(
        self,
        operation: str,
        request: dict[str, Any],
        more: AsyncIterator[bytes] | None = None,
        on_output: Callable[[bytes], object] | None = None,
    ) -> bytes:
        """One operation of the keeper's, and what it gives. Raises SandboxError."""
        if self._stopping is not None:
            raise SandboxError(f"sandbox {self.spec.name} is stopped: its files are gone")
        running = await self.place.start(["keep", operation], on_output)
        sending = asyncio.create_task(self._give(running, json.dumps(request).encode() + b"\n", more))
        try:
            ended = await self._finish(running, _KEEPER_S)
        except (Cut, TimeoutError) as error:
            await self.place.until(lambda: self._state() == "lost", _SETTLE_S)
            reason = self.place.fate().reason or str(error) or "it does not answer"
            raise SandboxError(f"the files of {self.spec.name} cannot be reached: {reason}") from error
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        if ended.exit_code != 0:
            raise SandboxError(_problem(ended))
        return ended.output

    async def _give(self, running: Execution, request: bytes, more: AsyncIterator[bytes] | None) -> None:
        await running.send(request)
        if more is not None:
            await running.send_all(more)

    # ------------------------------------------------------------ network

    async def listen(self, port: int) -> socket.socket:
        """A listening socket that stands for 127.0.0.1:port in the sandbox, served by the caller, who closes it."""
        self._require_life()
        return await self.place.listen(port)

    async def attach(self, *_: object, **__: object) -> int:
        """No terminal is opened on another machine (`Capabilities.by_hand`). Raises SandboxError."""
        raise SandboxError(f"{self.place.kind} has no terminal for a person")

    async def leave(self, *_: object) -> str:
        """It ends with its session. Raises SandboxError."""
        raise SandboxError(f"{self.place.kind} cannot be left running")

    async def phase(self, name: Phase) -> None:
        """Nothing changes: in every phase its relay is all that it reaches (`Capabilities.network_by_phase`)."""

    def denied(self) -> Sequence[str]:
        """What was tried in vain since the last call, where its place hears of that."""
        return self.place.denied()

    def reached(self) -> Sequence[str]:
        """Nothing: its relay is all that it reaches."""
        return ()

    # ------------------------------------------------------------ the end

    async def kill(self) -> int:
        """End every process of the sandbox; how many there were. Files stay."""
        if self._state() != "ready":
            return 0
        return await self.place.end()

    async def stop(self) -> None:
        """Remove it. Safe to call again and to be cancelled.

        What fails is logged, and tried again by the runtime's `stop`."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await to_the_end(self._stopping)

    async def _stop(self) -> None:
        try:
            await self.place.remove()
        except SandboxError as error:
            _log.warning("sandbox %s is not wholly removed yet: %s", self.spec.name, error)

    def _require_life(self) -> None:
        fate = self.place.fate()
        if self._stopping is not None or fate.state != "ready":
            reason = f": {fate.reason}" if fate.reason else ""
            raise SandboxError(f"sandbox {self.spec.name} is gone: no command can run in it{reason}")


async def _let_go(running: Execution, reading: "asyncio.Task[Ended]") -> None:
    await running.close()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


async def _pieces(contents: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(contents), _PIECE):
        yield contents[begin : begin + _PIECE]


async def _read(file: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece


def _pack(source: Path, packed: IO[bytes]) -> None:
    """Raises SandboxError for what a sandbox cannot be given."""
    for path in source.rglob("*"):
        deep = len(path.relative_to(source).parts) > MAX_DEPTH
        if deep or not (path.is_symlink() or path.is_dir() or path.is_file()):
            raise SandboxError(f"{path.name!r} is no file, folder or link, or lies more than {MAX_DEPTH} folders deep")
    try:
        archive.pack_tree(source, packed)
    except OSError as error:
        raise SandboxError(f"cannot read {source}: {error.strerror}") from error


def _unpack(packed: IO[bytes], target: Path) -> None:
    try:
        target.mkdir(parents=True)
    except OSError as error:
        raise SandboxError(f"cannot make {target}: {error.strerror}") from error
    archive.unpack(packed, target)


def _problem(ended: Ended) -> str:
    """What the keeper said of its failure."""
    said = _last(ended.errors)
    try:
        return str(json.loads(said)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the keeper failed ({ended.exit_code}): {said}"


def _last(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1][:1000] if lines else "it said nothing"
