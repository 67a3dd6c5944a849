"""Runs named tests inside a grading sandbox and reports each phase of each. Standard library and pytest alone.

The engine never imports this file for more than its constants: it is copied into the sandbox and started there by the
task's own interpreter, as `python3 -s -S -B -u driver.py TOOLCHAIN`. Two processes: the supervisor, which never imports
tested code, holds the way out (its own stdout, sealed by a text that the tested process is not given), and the runner,
forked from it before it has read the seal, which imports pytest, says that it is ready, and only then runs tests.

    stdin of the supervisor: `SEAL MARK TIMEOUT_S OUTPUT_BYTES`, then one JSON object for the runner, which gets no more
    stdout of the supervisor: `SEAL ready`, then `SEAL result PACKED`: base64 of zlib of `ENDED EXIT_CODE REPORT_BYTES`,
                              the report and the end of the output
    report of the runner, on a descriptor of its own: lines `MARK {record}`, numbered from 0

Invariant: once `ready` is said the toolchain works here, so whatever goes wrong later is the tested code's doing.
Each start costs every trial: so the supervisor imports next to nothing, and one interpreter serves both.
"""

import os
import select
import sys
import time
import zlib
from binascii import b2a_base64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REPORT_LIMIT = 16 << 20
"""Bytes of report beyond which the runner is stopped."""
CODE_LIMIT = 200
"""Exit codes up to here count failed reports; `210 + status` is a pytest status other than passed or failed."""
DRAIN_S = 2.0
"""Seconds for which pipes are still read after the runner is gone, should something hold them open."""
PR_SET_DUMPABLE = 4
SIGKILL = 9
"""As numbers: the modules that name them take longer to import than all that the supervisor does."""


def main(toolchain: str) -> None:
    """Fork, then supervise in the parent and run tests in the child, each with its ends of three pipes alone."""
    spec, report, output = os.pipe(), os.pipe(), os.pipe()
    runner = os.fork()
    if runner:
        for pipe, end in ((spec, 0), (report, 1), (output, 1)):
            os.close(pipe[end])
        supervise(runner, spec[1], report[0], output[0])
        return
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output[1], 1)
    os.dup2(output[1], 2)
    for descriptor in (*output, report[0], spec[1]):
        os.close(descriptor)
    run(toolchain, spec[0], report[1])


def supervise(runner: int, spec: int, report: int, output: int) -> None:
    """Tell the runner what to run, gather its report and output until it ends or its time is over, print the result."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # other processes of this user cannot look in here
    head, _, rest = sys.stdin.buffer.read().partition(b"\n")
    seal, mark, timeout_s, output_bytes = head.split()
    deadline = time.monotonic() + float(timeout_s)
    try:
        with os.fdopen(spec, "wb") as file:
            file.write(rest)
    except BrokenPipeError:
        pass  # a runner that died at its start says why by its output
    pipes = Pipes(report, output, int(output_bytes))
    ended, status = attend(runner, pipes, mark + b" ", deadline, seal)
    parts = (pipes.report[:REPORT_LIMIT], pipes.output)
    head = b"%s %d %d\n" % (ended, os.waitstatus_to_exitcode(status), len(parts[0]))
    say(seal, b"result " + b2a_base64(zlib.compress(head + b"".join(parts)), newline=False))


def attend(runner: int, pipes: "Pipes", mark: bytes, deadline: float, seal: bytes) -> "tuple[bytes, int]":
    """Read until the runner is gone; returns `exited`, `timeout` or `flooded` (too long a report), and its status."""
    gone, ended, ready = os.pidfd_open(runner), b"", False
    pipes.poll.register(gone, select.POLLIN)
    while not ended:
        pipes.read(max(0.0, deadline - time.monotonic()))
        if not ready and pipes.report.startswith(mark):
            ready = True
            say(seal, b"ready")
        if gone in pipes.seen:
            ended = b"exited"
        elif time.monotonic() > deadline:
            ended = b"timeout"
        elif len(pipes.report) > REPORT_LIMIT:
            ended = b"flooded"
    pipes.poll.unregister(gone)
    try:  # noqa: SIM105 - `contextlib` is a slow import
        os.killpg(runner, SIGKILL)
    except ProcessLookupError:
        pass
    over = time.monotonic() + DRAIN_S
    while pipes.read(0.0) and time.monotonic() < over and len(pipes.report) <= REPORT_LIMIT:
        pass
    if not ready and pipes.report.startswith(mark):
        say(seal, b"ready")
    return ended, os.waitpid(runner, 0)[1]


def say(seal: bytes, text: bytes) -> None:
    """Print one sealed line."""
    line = seal + b" " + text + b"\n"
    while line:
        line = line[os.write(1, line) :]


class Pipes:
    """What the runner writes: its report, and the last bytes of its output."""

    def __init__(self, report: int, output: int, output_bytes: int) -> None:
        self.report, self.output = bytearray(), bytearray()
        self.output_bytes = output_bytes
        self.seen: set[int] = set()
        """Descriptors that were ready at the last reading."""
        self.poll = select.poll()
        self.buffers = {report: self.report, output: self.output}
        for descriptor in self.buffers:
            os.set_blocking(descriptor, False)
            self.poll.register(descriptor, select.POLLIN)

    def read(self, wait_s: float) -> int:
        """Read what is there, or comes within `wait_s`; returns the number of bytes."""
        taken = 0
        self.seen = {descriptor for descriptor, _ in self.poll.poll(wait_s * 1000)}
        for descriptor in self.seen & self.buffers.keys():
            chunk = os.read(descriptor, 1 << 16)
            taken += len(chunk)
            self.buffers[descriptor].extend(chunk)
            if not chunk:
                self.poll.unregister(descriptor)
        del self.output[: -self.output_bytes]
        return taken


def run(toolchain: str, source: int, report: int) -> None:
    """Import pytest, say so, and run the selected tests of the specification with their reports going to `report`."""
    import gc

    gc.disable()  # nothing that the imports make is garbage
    sys.path[0] = toolchain
    import json
    import site

    import pytest

    gc.freeze()
    gc.enable()
    with os.fdopen(source, "rb") as file:
        spec = json.load(file)
    send, leave = sender(report, spec.pop("mark"), json.dumps), os._exit
    send({"kind": "ready"})
    os.chdir(spec["root"])
    for name in ("setquit", "setcopyright", "sethelper"):  # what `-S` leaves out and programs expect
        getattr(site, name)()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    sys.path[:0] = spec["python_path"]
    sys.path += [folder.format(version=version) for folder in spec["sites"]]
    sys.argv[:] = ["pytest"]
    recorder = make_recorder(pytest, send, frozenset(spec["select"]))
    status = int(pytest.main(spec["arguments"], [recorder]))
    failed = recorder.failed
    send({"kind": "end", "status": status, "failed": failed})
    leave(min(failed, CODE_LIMIT) if status in (0, 1) else 210 + status)


def sender(descriptor: int, mark: str, dumps: "Any") -> "Any":
    """A function that writes one record. It holds its own references, which tested code does not replace by name."""
    write, numbers = os.write, iter(range(1 << 62))

    def send(record: "Any") -> None:
        line = (mark + " " + dumps({"n": next(numbers), **record}) + "\n").encode()
        while line:
            line = line[write(descriptor, line) :]

    return send


def make_recorder(pytest: "Any", send: "Any", select: "Any") -> "Any":
    """The pytest plugin that keeps the selected tests alone and reports every phase."""

    class Recorder:
        failed = 0

        @pytest.hookimpl(trylast=True)  # type: ignore[untyped-decorator]
        def pytest_collection_modifyitems(self, config: "Any", items: "Any") -> None:
            left_out = [item for item in items if item.nodeid not in select]
            items[:] = [item for item in items if item.nodeid in select]
            config.hook.pytest_deselected(items=left_out)
            send({"kind": "collected", "ids": [item.nodeid for item in items]})

        def pytest_collectreport(self, report: "Any") -> None:
            if report.failed:
                send({"kind": "collect_error", "id": report.nodeid})

        def pytest_runtest_logreport(self, report: "Any") -> None:
            xfail = hasattr(report, "wasxfail")
            send({"kind": "phase", "id": report.nodeid, "when": report.when, "outcome": report.outcome, "xfail": xfail})

        def pytest_sessionfinish(self, session: "Any") -> None:
            self.failed = session.testsfailed

    return Recorder()


if __name__ == "__main__":
    main(sys.argv[1])
