"""Runs one command in the task's container and tells its end: the process that an exec through the API starts.

Standard input holds a line of JSON (the request, as `enter` takes it, and `stdin`, `timeout_s`, `output_limit`), then
`stdin` bytes; anything after them, its end included, asks for the command to be killed. Standard output gets a line of
JSON (`exit`, `timed_out`, `oom_kills`, `duration_s`, and the lengths `out` and `err`), then both outputs.

Invariants: the command is told apart from this process by pipes, so that it never writes on the channel by which its
end is told; whoever is orphaned while it runs becomes this process's child, so that a timeout kills the whole tree,
whatever sessions it opened; what is left in the background when it ends by itself goes on.
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import time
from pathlib import Path
from typing import Any

from engine.sandbox import enter, seccomp
from engine.sandbox.remote.within.processes import close_to_neighbours

_PR_SET_CHILD_SUBREAPER = 36
_CHUNK = 1 << 16
_OOM_SCORE = 500
_EVENTS = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))


class Kept:
    """An output stream: its beginning and its end, with a mark where bytes were dropped."""

    def __init__(self, limit: int) -> None:
        self._limit, self._dropped = limit, 0
        self._head, self._tail = bytearray(), bytearray()
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)

    def take(self) -> bool:
        """Read once; False when there is nothing (more) at the moment."""
        try:
            chunk = os.read(self.read, _CHUNK)
        except BlockingIOError:
            return False
        room = max(0, self._limit // 2 - len(self._head))
        self._head += chunk[:room]
        self._tail += chunk[room:]
        excess = len(self._tail) - (self._limit - self._limit // 2)
        if excess > 0:
            del self._tail[:excess]
            self._dropped += excess
        return bool(chunk)

    def finish(self) -> bytes:
        """What is in the pipe, but no more than it can hold: a process that was left behind may write for ever."""
        for _ in range(1 << 5):
            if not self.take():
                break
        mark = b"\n[%d bytes dropped]\n" % self._dropped if self._dropped else b""
        return bytes(self._head) + mark + bytes(self._tail)


def main() -> None:
    with contextlib.suppress(OSError):  # before it closes: after that its own settings are out of its reach too
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    close_to_neighbours()
    with os.fdopen(os.dup(0), "rb", buffering=0) as given:
        request = json.loads(_line(given))
        contents = _exactly(given, request["stdin"])
    begun, ooms = time.monotonic(), oom_kills()
    out, err = Kept(request["output_limit"]), Kept(request["output_limit"])
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = _start(request, contents, out.write, err.write)
    for stream in (out, err):
        os.close(stream.write)
    code, timed_out = _attend(child, out, err, begun + request["timeout_s"])
    outputs = out.finish(), err.finish()
    answer = {
        "exit": code,
        "timed_out": timed_out,
        "oom_kills": oom_kills() - ooms,
        "duration_s": time.monotonic() - begun,
        "out": len(outputs[0]),
        "err": len(outputs[1]),
    }
    with os.fdopen(os.dup(1), "wb") as told:
        told.write(json.dumps(answer).encode() + b"\n" + outputs[0] + outputs[1])


def _start(request: dict[str, Any], contents: bytes, out: int, err: int) -> int:
    """Fork the command, which is as closed as this process until it executes."""
    child = os.fork()
    if child == 0:
        for number, descriptor in enumerate((_source(contents), out, err)):
            os.dup2(descriptor, number)
        enter.become({**request, "groups": [], "seccomp": seccomp.program().hex()}, enter.execute)
    return child


def _source(contents: bytes) -> int:
    """Nothing given is the null device: some programs search whatever file stands there, even empty."""
    if not contents:
        return os.open(os.devnull, os.O_RDONLY)
    descriptor = os.memfd_create("input")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(contents)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _attend(child: int, out: Kept, err: Kept, deadline: float) -> tuple[int, bool]:
    """Take what the command writes until it ends, its time is over, or it is no longer wanted."""
    selector = selectors.DefaultSelector()
    waiting = os.pidfd_open(child)
    for descriptor, what in ((waiting, None), (0, None), (out.read, out), (err.read, err)):
        selector.register(descriptor, selectors.EVENT_READ, what)
    try:
        while True:
            left = deadline - time.monotonic()
            events = selector.select(max(left, 0))
            ready = {key.fd for key, _ in events}
            for key, _ in events:
                if key.data is not None and not key.data.take():
                    selector.unregister(key.fd)
            if waiting in ready:
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                return (code if code >= 0 else 128 - code), False
            if 0 in ready or left <= 0:
                _kill_tree()
                return -1, 0 not in ready
    finally:
        selector.close()
        os.close(waiting)


def _kill_tree() -> None:
    """Kill all descendants. They are stopped first, since what is stopped starts no others."""
    seen: set[int] = set()
    while (found := _descendants()) - seen:
        for pid in found:
            _send(pid, signal.SIGSTOP)
        seen |= found
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in _descendants():
                _send(pid, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.002)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _descendants() -> set[int]:
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
    found, size = {os.getpid()}, 0
    while len(found) > size:
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {os.getpid()}


def oom_kills() -> int:
    """How many processes of the container the kernel has killed for want of memory; 0 where that cannot be read."""
    for file in _EVENTS:
        with contextlib.suppress(OSError):
            for line in file.read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def _line(stream: Any) -> bytes:
    """A line, and not a byte of what follows it."""
    found = bytearray()
    while not found.endswith(b"\n"):
        byte = stream.read(1)
        if not byte:
            raise SystemExit("the request was cut off")
        found += byte
    return bytes(found)


def _exactly(stream: Any, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        chunk = stream.read(min(_CHUNK, length - len(found)))
        if not chunk:
            raise SystemExit("the input was cut off")
        found += chunk
    return bytes(found)
