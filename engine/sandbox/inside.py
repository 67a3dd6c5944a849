"""A started sandbox, whichever runtime made its namespaces: commands, files, a listening socket, the end.

Commands enter through the namespaces of the sandbox's first process (see enter); files are touched from outside (see
files). Invariants: nothing that was started outlives `stop`, also when a call is cancelled; what a command does to
its sandbox is that command's result, and only a sandbox that is gone raises SandboxError.
"""

import asyncio
import logging
import marshal
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from engine.core.contracts import Talk
from engine.core.errors import SandboxError
from engine.core.specs import ExecResult, Phase, WarmStart
from engine.core.threads import in_thread, to_the_end
from engine.sandbox import files, seccomp
from engine.sandbox.capture import Capture
from engine.sandbox.cgroups import CommandGroup
from engine.sandbox.commands import Entered, kill_command, memory_file, standard_input, start_cold
from engine.sandbox.egress import within
from engine.sandbox.endings import ended, exiting, wait_for_end
from engine.sandbox.left import Left, note_left
from engine.sandbox.network.openings import listener
from engine.sandbox.network.phases import PhasedNetwork
from engine.sandbox.parts import Parts
from engine.sandbox.rooms import HOME, USER, Room
from engine.sandbox.terminals import Terminal
from engine.sandbox.tools import SYSTEM_PATH
from engine.sandbox.warm import Place, WarmProcesses

T = TypeVar("T")
_log = logging.getLogger(__name__)

_NAMESPACES = ("ipc", "uts", "net", "pid", "cgroup", "mnt")
"""In the order of entering: the file system last, because the others are named by paths of the host's."""
_OOM_SCORE = 500
_STATUS_LIMIT = 1 << 16
_LAST_WORDS_S = 1.0
"""Between the end of a terminal's command and the end of what is read from it, whichever is first."""


class ContainedSandbox:
    """The Sandbox of contracts.py for runtimes of this machine."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._init = os.pidfd_open(parts.init)
        self._namespaces: dict[str, int] = {}
        self._stopping: asyncio.Task[None] | None = None
        self._network: PhasedNetwork | None = None
        self._left, self._over = False, ""
        try:
            for name in _NAMESPACES:
                self._namespaces[name] = os.open(f"/proc/{parts.init}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._close_descriptors()
            raise SandboxError(f"sandbox {parts.spec.name} ended as it started") from error
        try:
            self._network = PhasedNetwork(self._namespaces["net"], parts.network, parts.spec.phase, parts.hosts)
        except OSError as error:
            self._close_descriptors()
            problem = f"attempts to reach the network cannot be heard in {parts.spec.name}: {error.strerror}"
            raise SandboxError(problem) from error

    @property
    def room(self) -> Room:
        """Where it lives on the host."""
        return self._parts.room

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
        """Run a command as the sandbox's user, to its end or its timeout, when it is killed with all it started.

        Exit codes as a shell gives them: 127 not found, 126 not executable or no such `cwd`, 128+n killed by signal n.
        `environment` adds to the specification's; PATH and HOME are set where neither names them. Processes that it
        leaves in the background go on. `warm`: see contracts.py. Raises SandboxError when the sandbox is gone."""
        await self._ready()
        request = self._request(command, environment, cwd)
        if warm is not None:
            await self._warm().ready(warm, self._place(request))  # seconds, at first: may be cancelled
        begun, ooms = time.monotonic(), self._parts.cgroup.oom_kills()
        group = self._parts.cgroup.command_group()
        out, err = (Capture(self._parts.output_limit, self._parts.owner.uid) for _ in range(2))
        status, timed_out = Capture(_STATUS_LIMIT, 0), False
        try:
            with standard_input(stdin, self._parts.owner.uid) as source:
                entering = self._enter(request, warm, group, (status.write, source, out.write, err.write))
                entered = await to_the_end(entering, undo=lambda late: kill_command(late, group))
            for stream in (status, out, err):
                stream.started()
            try:
                await asyncio.wait_for(entered.wait(), timeout_s)
            except TimeoutError:
                timed_out = True
            finally:
                await to_the_end(entered.end() if entered.ended else kill_command(entered, group))
            return self._result(
                status.finish(),
                outputs=(out.finish(), err.finish()),
                timed_out=timed_out,
                oom_killed=self._parts.cgroup.oom_kills() > ooms,
                duration_s=time.monotonic() - begun,
            )
        finally:
            for stream in (status, out, err):
                stream.finish()
            group.close()

    async def attach(self, command: Sequence[str], *, environment: Mapping[str, str], cwd: str, talk: Talk) -> int:
        """Run a command on a terminal of the sandbox's own; see contracts.py. Raises SandboxError as `exec`."""
        await self._ready()
        request = self._request(command, environment, cwd) | {"terminal": True}
        begun, terminal = time.monotonic(), Terminal(self._parts.init, self._parts.owner)
        group, status = self._parts.cgroup.command_group(), Capture(_STATUS_LIMIT, 0)
        try:
            entering = self._enter(request, None, group, (status.write, *(terminal.far,) * 3))
            entered = await to_the_end(entering, undo=lambda late: kill_command(late, group))
            status.started()
            terminal.started()
            talking = asyncio.ensure_future(talk(terminal.near))
            waiting = asyncio.ensure_future(entered.wait())
            try:
                await asyncio.wait({talking, waiting}, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait({talking, waiting}, timeout=_LAST_WORDS_S)
            finally:
                talking.cancel()
                gone = not entered.ended  # the person, or this call
                await to_the_end(kill_command(entered, group) if gone else entered.end())
                await to_the_end(waiting)
                await asyncio.gather(talking, return_exceptions=True)
            took = time.monotonic() - begun
            said = status.finish()
            return self._result(said, outputs=(b"", b""), timed_out=gone, oom_killed=False, duration_s=took).exit_code
        finally:
            terminal.close()
            status.finish()
            group.close()

    def _request(self, command: Sequence[str], environment: Mapping[str, str], cwd: str) -> dict[str, Any]:
        spec, owner = self._parts.spec, self._parts.owner
        limits = {"RLIMIT_CORE": 0} | ({"RLIMIT_FSIZE": spec.disk_mb << 20} if spec.disk_mb else {})
        return {
            "command": list(command),
            "environment": {"PATH": SYSTEM_PATH, "HOME": HOME, "USER": USER}
            | dict(spec.environment)
            | dict(environment),
            "cwd": cwd,
            "uid": owner.uid,
            "gid": owner.gid,
            "limits": limits,
            "oom_score_adj": _OOM_SCORE,
            "seccomp": seccomp.program().hex(),
        }

    async def _enter(
        self,
        request: dict[str, Any],
        warm: WarmStart | None,
        group: CommandGroup,
        streams: tuple[int, int, int, int],
    ) -> Entered:
        """Start what enters, over the request, where it tells the end, the command's three streams, the namespaces and
        the control groups."""
        status, source, out, err = streams
        namespaces = [self._namespaces[name] for name in _NAMESPACES]
        entered: Entered
        with group.joining() as joins:
            forked = self._parts.warm is not None
            given = request if forked else request | {"namespaces": namespaces, "groups": joins}
            with memory_file(marshal.dumps(given), 0) as wanted:
                descriptors = [wanted, status, source, out, err, *namespaces, *joins]
                if warm is not None:
                    entered = await self._warm().fork(warm, self._place(request), descriptors)
                elif self._parts.warm is not None:
                    entered = await self._parts.warm.porter.fork(descriptors)
                else:
                    entered = await start_cold(wanted, status, (source, out, err), [*namespaces, *joins])
        return entered

    def _warm(self) -> WarmProcesses:
        if self._parts.warm is None:
            raise SandboxError(f"sandbox {self._parts.spec.name} has no runtime that could start a warm process")
        return self._parts.warm

    def _place(self, request: Mapping[str, Any]) -> Place:
        return Place(
            image=self._parts.room.image,
            mounts=self._parts.spec.mounts,
            environment=request["environment"],
            cwd=request["cwd"],
        )

    def _result(
        self,
        answer: bytes,
        *,
        outputs: tuple[bytes, bytes],
        timed_out: bool,
        oom_killed: bool,
        duration_s: float,
    ) -> ExecResult:
        name = self._parts.spec.name
        kind, _, text = (answer.decode() or "error the process that entered was killed").partition(" ")
        if not timed_out and (not self._alive() or exiting(self._parts.init)):
            raise SandboxError(self._over or f"sandbox {name} ended while a command ran")
        if not timed_out and kind == "error":
            raise SandboxError(f"sandbox {name} cannot be entered: {text}")
        if self._network is not None:
            self._network.require()
        return ExecResult(
            exit_code=-1 if timed_out else int(text),
            stdout=outputs[0],
            stderr=outputs[1],
            timed_out=timed_out,
            oom_killed=oom_killed,
            duration_s=duration_s,
        )

    # ------------------------------------------------------------ files

    async def write(self, contents: Mapping[str, bytes]) -> None:
        """Write files (absolute sandbox path → contents), making parent folders; owned by the sandbox's user."""
        await self._outside(files.write, dict(contents), self._parts.owner)

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host folder's contents into a sandbox folder, owned by the sandbox's user."""
        await in_thread(files.upload, source, self._root(), target, self._parts.owner)

    async def download(self, source: str, target: Path) -> None:
        """Copy a sandbox folder's contents into a new host folder; links stay links, special files stay behind."""
        await self._outside(files.download, source, target)

    async def read(self, path: str, limit: int) -> bytes | None:
        """At most `limit` bytes of a regular file, never through a link; None when there is none."""
        return await self._outside(files.read, path, limit)

    async def _outside(self, operation: Callable[..., T], *arguments: object) -> T:
        return await in_thread(operation, self._root(), *arguments)

    def _root(self) -> Path:
        if self._stopping is not None:
            raise SandboxError(f"sandbox {self._parts.spec.name} is stopped: its files are gone")
        if self._over:
            raise SandboxError(self._over)
        return self._parts.room.root

    # ------------------------------------------------------------ network

    async def listen(self, port: int) -> socket.socket:
        """A listening socket on 127.0.0.1:port inside the sandbox, served by the caller, who closes it."""
        self._require_life()
        work = partial(listener, socket.AF_INET, "127.0.0.1", port, shared=self.network.lists(port))
        try:
            return await in_thread(within, self._namespaces["net"], work)
        except OSError as error:
            raise SandboxError(f"cannot listen on port {port} in {self._parts.spec.name}: {error.strerror}") from error

    @property
    def network(self) -> PhasedNetwork:
        """What it reaches. Raises SandboxError when it is stopped."""
        if self._network is None:
            raise SandboxError(f"sandbox {self._parts.spec.name} is stopped: it has no network")
        return self._network

    async def phase(self, name: Phase) -> None:
        """Cut every connection, then reach what this phase's list allows; see contracts.py. Raises SandboxError."""
        self._require_life()
        await to_the_end(self.network.enter(name))

    def denied(self) -> Sequence[str]:
        """Names and addresses beyond it that its processes tried to reach since the last call; also after `kill`."""
        return () if self._network is None else self._network.denied()

    def reached(self) -> Sequence[str]:
        """What its processes did reach beyond it, in phases that are over; see contracts.py."""
        return () if self._network is None else self._network.reached()

    # ------------------------------------------------------------ the end

    async def kill(self) -> int:
        """Kill every process of the sandbox; returns how many outlived the last command. Files stay.

        The first process of a lasting sandbox lives on; nothing is reached any more."""
        left = await self._kill()
        if self._network is not None:
            await to_the_end(self._network.enter(None))
        return left

    async def _kill(self) -> int:
        if not self._alive():
            return 0
        left = len(self._parts.cgroup.processes() - {self._parts.init})
        if self._parts.spec.lasting and self._stopping is None:
            await in_thread(self._parts.cgroup.kill_commands)
            return left
        # The kernel kills a process namespace with its first process, and lets nothing new start in it.
        signal.pidfd_send_signal(self._init, signal.SIGKILL)
        await wait_for_end(self._init, self._parts.spec.name)
        return left

    async def leave(self, environment: Mapping[str, str], cwd: str) -> str:
        """Leave it running, without a process but its first; see contracts.py. Raises SandboxError when it is gone."""
        self._require_life()
        await self.kill()
        left = Left(
            name=self._parts.room.folder.name,
            workdir=cwd,
            environment=dict(self._parts.spec.environment) | dict(environment),
            uid=self._parts.owner.uid,
            disk_mb=self._parts.spec.disk_mb,
            until_s=time.time() + self._parts.keep_s,
        )
        await in_thread(note_left, self._parts.room, left)
        self._left = True
        return left.name

    async def stop(self) -> None:
        """Remove all of it: processes, mounts, files. Safe to call again and to be cancelled.

        What cannot be removed now is logged, and the runtime's `stop` tries again: a trial that is over stays good."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await to_the_end(self._stopping)

    async def expire(self, granted: str) -> None:
        """End it because its time is over, which was `granted`: what it is asked for from now on is refused, files too,
        so that no half of a trial is taken for a whole one. One that is being stopped, or was left, is let be."""
        if self._stopping is not None or self._left or self._over:
            return
        self._over = f"sandbox {self._parts.spec.name} was ended: its time was over ({granted})"
        _log.warning("%s", self._over)
        if self._alive():
            signal.pidfd_send_signal(self._init, signal.SIGKILL)
            await wait_for_end(self._init, self._parts.spec.name)

    def release(self) -> None:
        """Let go of a sandbox that goes on without this process."""
        self._close_descriptors()

    async def _stop(self) -> None:
        if self._left:
            self.release()
            return
        try:
            await self.kill()
        except SandboxError as error:
            _log.warning("%s", error)
        if self._network is not None:
            await self._network.close()
        self._close_descriptors()
        try:
            await self._parts.remove()
        except (SandboxError, OSError) as error:
            _log.warning("sandbox %s is not wholly removed yet: %s", self._parts.spec.name, error)

    async def _ready(self) -> None:
        self._require_life()
        try:
            await self.network.ready()
        except SandboxError as error:
            raise SandboxError(f"sandbox {self._parts.spec.name}: {error}") from error

    def _alive(self) -> bool:
        return self._init >= 0 and not ended(self._init)

    def _require_life(self) -> None:
        if not self._alive():
            raise SandboxError(self._over or f"sandbox {self._parts.spec.name} is gone: no command can run in it")

    def _close_descriptors(self) -> None:
        for descriptor in (self._init, *self._namespaces.values()):
            if descriptor >= 0:
                os.close(descriptor)
        self._init = -1
        self._namespaces.clear()
        network, self._network = self._network, None
        if network is not None:
            # The kernel then waits until all processors of the machine have taken note: nobody waits with it, and the
            # loop's end sees to it that it comes to its own.
            asyncio.get_running_loop().run_in_executor(None, network.forget)
