"""Runs named tests inside a grading sandbox and reports each phase of each. Standard library and pytest alone.

The engine never imports this file: it is copied into the sandbox and started by the task's own interpreter, isolated.
Two processes: the supervisor, which never imports tested code, holds the way out (its own stdout, sealed by a text that
the tested process is not given), and the runner, which imports pytest, says that it is ready, and only then runs tests.

    stdin of the supervisor: one JSON object       stdout: `SEAL ready`, then `SEAL result PACKED`
    stdin of the runner: the same less the seal    descriptor named in argv: lines `MARK {record}`, numbered from 0

Invariant: once `ready` is said the toolchain works here, so whatever goes wrong later is the tested code's doing.
"""

import base64
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from typing import Any

REPORT_LIMIT = 16 << 20
"""Bytes of report beyond which the runner is stopped."""
CODE_LIMIT = 200
"""Exit codes up to here count failed reports; `210 + status` is a pytest status other than passed or failed."""
DRAIN_S = 2.0
"""Seconds for which pipes are still read after the runner is gone, should something hold them open."""


def supervise() -> None:
    """Start the runner, gather its report and output until it ends or its time is over, and print the sealed result."""
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE 0: other processes of this user cannot look in here
    spec = json.load(sys.stdin)
    seal = spec.pop("seal")
    report_in, report_out = os.pipe()
    output_in, output_out = os.pipe()
    deadline = time.monotonic() + spec["timeout_s"]
    runner = subprocess.Popen(
        [sys.executable, "-s", "-S", "-B", "-u", __file__, str(report_out)],
        stdin=subprocess.PIPE,
        stdout=output_out,
        stderr=output_out,
        pass_fds=(report_out,),
        env=spec["environment"],
        cwd=spec["root"],
        start_new_session=True,
    )
    os.close(report_out)
    os.close(output_out)
    assert runner.stdin is not None
    with suppress(BrokenPipeError), runner.stdin as stdin:  # one that died at its start says why by its output
        stdin.write(json.dumps(spec).encode())
    pipes = Pipes(report_in, output_in, spec["output_bytes"])
    ended = attend(runner, pipes, (spec["mark"] + " ").encode(), deadline, seal)
    result = {"ended": ended, "exit_code": runner.wait(), "report": pipes.text(0), "output": pipes.text(1)}
    packed = base64.b64encode(zlib.compress(json.dumps(result).encode())).decode()  # small, whatever the exec limit
    print(seal, "result", packed, flush=True)


def attend(runner: "subprocess.Popen[bytes]", pipes: "Pipes", mark: bytes, deadline: float, seal: str) -> str:
    """Read until the runner is gone; returns `exited`, `timeout` or `flooded` (too long a report)."""
    ended, ready = "", False
    while not ended:
        pipes.read(0.05)
        if not ready and pipes.report.startswith(mark):
            ready = True
            print(seal, "ready", flush=True)
        if runner.poll() is not None:
            ended = "exited"
        elif time.monotonic() > deadline:
            ended = "timeout"
        elif len(pipes.report) > REPORT_LIMIT:
            ended = "flooded"
    with suppress(ProcessLookupError):
        os.killpg(runner.pid, signal.SIGKILL)
    over = time.monotonic() + DRAIN_S
    while pipes.read(0.0) and time.monotonic() < over and len(pipes.report) <= REPORT_LIMIT:
        pass
    if not ready and pipes.report.startswith(mark):
        print(seal, "ready", flush=True)
    return ended


class Pipes:
    """What the runner writes: its report, and the last bytes of its output."""

    def __init__(self, report: int, output: int, output_bytes: int) -> None:
        self.report, self.output = bytearray(), bytearray()
        self.output_bytes = output_bytes
        self.reader = selectors.DefaultSelector()
        for descriptor, buffer in ((report, self.report), (output, self.output)):
            os.set_blocking(descriptor, False)
            self.reader.register(descriptor, selectors.EVENT_READ, buffer)

    def read(self, wait_s: float) -> int:
        """Read what is there, or comes within `wait_s`; returns the number of bytes."""
        taken = 0
        for key, _ in self.reader.select(wait_s):
            chunk = os.read(key.fd, 1 << 16)
            taken += len(chunk)
            key.data.extend(chunk)
            if not chunk:
                self.reader.unregister(key.fd)
        del self.output[: -self.output_bytes]
        return taken

    def text(self, index: int) -> str:
        """The report (0) or the output (1) as text."""
        return (self.report[:REPORT_LIMIT], self.output)[index].decode("utf-8", "replace")


def run(descriptor: int) -> None:
    """Import pytest, say so, and run the selected tests with their reports going to `descriptor`."""
    spec = json.load(sys.stdin)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.set_inheritable(descriptor, False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    sys.path[0] = spec["toolchain"]
    import site

    import pytest

    send, leave = sender(descriptor, spec.pop("mark")), os._exit
    send({"kind": "ready"})
    for name in ("setquit", "setcopyright", "sethelper"):  # what `-S` leaves out and programs expect
        getattr(site, name)()
    sys.path[:0] = spec["python_path"]
    sys.path += [folder.format(version=version) for folder in spec["sites"]]
    sys.argv[:] = ["pytest"]
    recorder = make_recorder(pytest, send, frozenset(spec["select"]))
    status = int(pytest.main(spec["arguments"], [recorder]))
    failed = recorder.failed
    send({"kind": "end", "status": status, "failed": failed})
    leave(min(failed, CODE_LIMIT) if status in (0, 1) else 210 + status)


def sender(descriptor: int, mark: str) -> Any:
    """A function that writes one record. It holds its own references, which tested code does not replace by name."""
    dumps, write, numbers = json.dumps, os.write, iter(range(1 << 62))

    def send(record: Any) -> None:
        line = (mark + " " + dumps({"n": next(numbers), **record}) + "\n").encode()
        while line:
            line = line[write(descriptor, line) :]

    return send


def make_recorder(pytest: Any, send: Any, select: Any) -> Any:
    """The pytest plugin that keeps the selected tests alone and reports every phase."""

    class Recorder:
        failed = 0

        @pytest.hookimpl(trylast=True)  # type: ignore[untyped-decorator]
        def pytest_collection_modifyitems(self, config: Any, items: Any) -> None:
            left_out = [item for item in items if item.nodeid not in select]
            items[:] = [item for item in items if item.nodeid in select]
            config.hook.pytest_deselected(items=left_out)
            send({"kind": "collected", "ids": [item.nodeid for item in items]})

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                send({"kind": "collect_error", "id": report.nodeid})

        def pytest_runtest_logreport(self, report: Any) -> None:
            xfail = hasattr(report, "wasxfail")
            send({"kind": "phase", "id": report.nodeid, "when": report.when, "outcome": report.outcome, "xfail": xfail})

        def pytest_sessionfinish(self, session: Any) -> None:
            self.failed = session.testsfailed

    return Recorder()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(int(sys.argv[1]))
    else:
        supervise()
