"""A started pod as a sandbox: commands in the task's container, files through the keeper, the end.

Invariants: an exit code is only what the pod's own process told over a whole stream; a pod that is evicted, deleted or
cut off while a command runs raises SandboxError with the cluster's reason; a command that is cancelled or over its time
is killed with all it started. Running out of memory ends the task's container, as the kernel's group kill does: that is
the command's result, and the files can still be had.
Refuses paths outside the folders that may be written: the rest of the root is the image's, and none but the task's
container sees it.
"""

import asyncio
import json
import logging
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from engine.core.errors import SandboxError
from engine.core.specs import ExecResult, Phase, SandboxSpec, WarmStart
from engine.core.threads import to_the_end
from engine.sandbox.files import MAX_DEPTH, parts
from engine.sandbox.kubernetes.api import Api
from engine.sandbox.kubernetes.exec import Cut, Ended, Execution, start
from engine.sandbox.kubernetes.gateway import RelayGateway
from engine.sandbox.kubernetes.inpod import archive
from engine.sandbox.kubernetes.manifests import HOME, OWN_INTERPRETER, USER
from engine.sandbox.kubernetes.pods import Pods

_log = logging.getLogger(__name__)
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_GRACE_S = 30.0
"""How much later than the pod's own process this one gives a command up."""
_SETTLE_S = 5.0
"""How long the cluster may take to tell why a stream was cut off."""
_KEEPER_S = 600.0
_END_S = 60.0
_PIECE = 1 << 16
_SIGNALLED, _KILLED = 128, 137


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the runtime hands over when it has started a pod."""

    spec: SandboxSpec
    pod: str
    namespace: str
    uid: int
    writable: tuple[str, ...]
    interpreter: tuple[str, ...]
    """Starts our code in the task's container."""
    limit_processes: bool
    """Whether the kernel counts this pod's processes by themselves (a user namespace of its own)."""
    output_limit: int
    api: Api
    pods: Pods
    gateway: RelayGateway
    token: str
    remove: Callable[[], Coroutine[Any, Any, None]]
    """Deletes the pod and waits until it is gone."""


class KubernetesSandbox:
    """The Sandbox of contracts.py for a pod."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._stopping: asyncio.Task[None] | None = None

    @property
    def pod(self) -> str:
        """Name of its pod."""
        return self._parts.pod

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

        Raises SandboxError when the pod is gone, and for `warm`: nothing can be forked into a pod."""
        if warm is not None:
            raise SandboxError("no process can be forked into a pod: start it cold")
        self._require_life()
        request = self._request(command, environment, cwd) | {"stdin": len(stdin), "timeout_s": timeout_s}
        begun = time.monotonic()
        running = await self._start("task", [*self._parts.interpreter, "run"])
        reading = asyncio.create_task(running.ended())
        try:
            await running.send(json.dumps(request).encode() + b"\n" + stdin)
            ended = await self._attend(reading, timeout_s + _GRACE_S)
        except asyncio.CancelledError:
            await to_the_end(self._cut_short(running, reading))
            raise
        finally:
            await to_the_end(_let_go(running, reading))
        return await self._result(ended, time.monotonic() - begun)

    def _request(self, command: Sequence[str], environment: Mapping[str, str], cwd: str) -> dict[str, Any]:
        spec = self._parts.spec
        limits = {"RLIMIT_CORE": 0} | ({"RLIMIT_FSIZE": spec.disk_mb << 20} if spec.disk_mb else {})
        if self._parts.limit_processes and spec.pids:
            limits["RLIMIT_NPROC"] = spec.pids
        return {
            "command": list(command),
            "environment": {"PATH": _DEFAULT_PATH, "HOME": HOME, "USER": USER, **spec.environment, **environment},
            "cwd": cwd,
            "uid": self._parts.uid,
            "gid": self._parts.uid,
            "limits": limits,
            "output_limit": self._parts.output_limit,
        }

    async def _attend(self, reading: "asyncio.Task[Ended]", patience_s: float) -> Ended | None:
        """Wait for a command's end, or the pod's; None: it does not end, whatever it was told."""
        over = asyncio.create_task(self._parts.pods.until(lambda: self._state() in ("over", "lost"), None))
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
        """Why there is no end of a command: the container's memory was, which is a result, or the pod's end."""
        await self._parts.pods.until(lambda: self._state() in ("over", "lost"), _SETTLE_S)
        fate = self._parts.pods.fate(self._parts.pod)
        if fate.oom:
            return Ended(exit_code=_KILLED, output=b"", errors=b"")
        reason = fate.reason or problem
        raise SandboxError(f"sandbox {self._parts.spec.name} ended while a command ran: {reason}")

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
            problem = f"sandbox {self._parts.spec.name} cannot be entered ({ended.exit_code}): {_last(ended.errors)}"
            raise SandboxError(problem)
        else:  # the command, or the kernel, killed the process that waits for it
            await self._parts.pods.until(lambda: self._state() in ("over", "lost"), _SETTLE_S)
            fate = self._parts.pods.fate(self._parts.pod)
            oom = fate.oom
            if fate.state in ("over", "lost") and not oom:
                raise SandboxError(f"sandbox {self._parts.spec.name} ended while a command ran: {fate.reason}")
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
            await self._finish(await self._start("task", [*self._parts.interpreter, "sweep"]), _GRACE_S)
        except (SandboxError, TimeoutError) as error:
            _log.warning("sandbox %s: %s", self._parts.spec.name, error)

    async def _start(
        self, container: str, command: Sequence[str], on_output: Callable[[bytes], object] | None = None
    ) -> Execution:
        where = self._parts.namespace, self._parts.pod
        try:
            return await start(self._parts.api, *where, container, command, on_output)
        except SandboxError as error:
            fate = self._parts.pods.fate(self._parts.pod)
            if fate.state in ("over", "lost"):
                name = self._parts.spec.name
                raise SandboxError(f"sandbox {name} is gone: no command can run in it: {fate.reason}") from error
            raise

    async def _finish(self, running: Execution, patience_s: float) -> Ended:
        try:
            return await asyncio.wait_for(running.ended(), patience_s)
        finally:
            await to_the_end(running.close())

    def _state(self) -> str:
        return self._parts.pods.fate(self._parts.pod).state

    # ------------------------------------------------------------ files

    async def write(self, contents: Mapping[str, bytes]) -> None:
        """Write files (absolute sandbox path → contents), making parent folders; owned by the sandbox's user."""
        for path in contents:
            self._inside(path)
        listed = [[path, len(content)] for path, content in contents.items()]
        await self._keep("write", {"files": listed}, _pieces(b"".join(contents.values())))

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host folder's contents into a sandbox folder, owned by the sandbox's user."""
        self._inside(target)
        with tempfile.TemporaryFile() as packed:
            await to_the_end(asyncio.to_thread(_pack, source, packed))
            length = packed.tell()
            packed.seek(0)
            await self._keep("upload", {"target": target, "length": length}, _read(packed))

    async def download(self, source: str, target: Path) -> None:
        """Copy a sandbox folder's contents into a new host folder; links stay links, special files stay behind."""
        self._inside(source)
        with tempfile.TemporaryFile() as packed:
            await self._keep("download", {"source": source}, on_output=packed.write)
            packed.seek(0)
            await to_the_end(asyncio.to_thread(_unpack, packed, target))

    async def read(self, path: str, limit: int) -> bytes | None:
        """At most `limit` bytes of a regular file, never through a link; None when there is none."""
        self._inside(path)
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
            raise SandboxError(f"sandbox {self._parts.spec.name} is stopped: its files are gone")
        running = await self._start("keeper", [*OWN_INTERPRETER, "keep", operation], on_output)
        sending = asyncio.create_task(self._give(running, json.dumps(request).encode() + b"\n", more))
        try:
            ended = await self._finish(running, _KEEPER_S)
        except (Cut, TimeoutError) as error:
            await self._parts.pods.until(lambda: self._state() == "lost", _SETTLE_S)
            reason = self._parts.pods.fate(self._parts.pod).reason or str(error) or "it does not answer"
            raise SandboxError(f"the files of {self._parts.spec.name} cannot be reached: {reason}") from error
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

    def _inside(self, path: str) -> None:
        """Raises SandboxError unless a path lies where the sandbox may write."""
        plain = f"/{'/'.join(parts(path))}"
        if not any(plain == folder or plain.startswith(f"{folder}/") for folder in self._parts.writable):
            problem = f"{path} lies outside of what a pod may write ({', '.join(self._parts.writable)})"
            raise SandboxError(f"{problem}; add its folder to sandbox.writable")

    # ------------------------------------------------------------ network

    async def listen(self, port: int) -> socket.socket:
        """A listening socket that stands for 127.0.0.1:port in the pod, served by the caller, who closes it."""
        self._require_life()
        return await self._parts.gateway.listen(self._parts.token, port)

    async def attach(self, *_: object, **__: object) -> int:
        """No terminal is opened in a pod (`Capabilities.by_hand`). Raises SandboxError."""
        raise SandboxError("a pod has no terminal for a person")

    async def leave(self, *_: object) -> str:
        """A pod ends with its session. Raises SandboxError."""
        raise SandboxError("a pod cannot be left running")

    async def phase(self, name: Phase) -> None:
        """Nothing changes: in every phase a pod reaches its relay alone (`Capabilities.network_by_phase`)."""

    def denied(self) -> Sequence[str]:
        """Nothing: what a pod tries to reach ends at the cluster's network policy, which tells nobody."""
        return ()

    def reached(self) -> Sequence[str]:
        """Nothing: a pod reaches its relay alone."""
        return ()

    # ------------------------------------------------------------ the end

    async def kill(self) -> int:
        """End process 1 of the task's container, and with it all others; how many there were. Files stay."""
        if self._state() != "ready":
            return 0
        await self._keep("end", {})
        if not await self._parts.pods.until(lambda: self._state() != "ready", _END_S):
            raise SandboxError(f"sandbox {self._parts.spec.name} does not end")
        fate = self._parts.pods.fate(self._parts.pod)
        return 0 if fate.oom or fate.state == "lost" else fate.exit_code

    async def stop(self) -> None:
        """Delete the pod. Safe to call again and to be cancelled.

        What fails is logged, and tried again by the runtime's `stop`."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await to_the_end(_join(self._stopping))

    async def _stop(self) -> None:
        self._parts.gateway.dismiss(self._parts.token)
        try:
            await self._parts.remove()
        except SandboxError as error:
            _log.warning("sandbox %s is not wholly removed yet: %s", self._parts.spec.name, error)

    def _require_life(self) -> None:
        fate = self._parts.pods.fate(self._parts.pod)
        if self._stopping is not None or fate.state != "ready":
            reason = f": {fate.reason}" if fate.reason else ""
            raise SandboxError(f"sandbox {self._parts.spec.name} is gone: no command can run in it{reason}")


async def _join(task: "asyncio.Task[None]") -> None:
    await task


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
