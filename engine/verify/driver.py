"""Runs named tests inside a grading sandbox and reports each phase of each. Standard library and pytest alone.

The engine imports nothing but constants from this file: it runs in the sandbox, by the task's own interpreter. Either
that is started there (`python3 -s -S -B -u FILE`), or a warm process that has done `load` is forked into it (`run`).
Two processes: the supervisor, which never imports
tested code, holds the way out (its own stdout, sealed by a text that the tested process is not given), and the runner,
forked from it before it has read the seal, which has pytest imported, says that it is ready, and only then runs tests.

    stdin of the supervisor: `SEAL MARK TIMEOUT_S OUTPUT_BYTES`, then one JSON object for the runner, which gets it
                             once its readiness was told, and gets no more
    stdout of the supervisor: `SEAL ready`, then `SEAL result PACKED`: base64 of zlib of `ENDED EXIT_CODE REPORT_BYTES`,
                              the report and the end of the output
    report of the runner, on a descriptor of its own: one byte when it is ready, then lines `MARK {record}`, numbered
                             from 0

Invariant: once `ready` is said the toolchain works here, so whatever goes wrong later is the tested code's doing; and
no tested code runs before it is said, so none can keep it from being said.
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

TOOLCHAIN = "/opt/grader"
"""Where pytest and what it needs lie."""
REPORT_LIMIT = 16 << 20
"""Bytes of report beyond which the runner is stopped."""
CODE_LIMIT = 200
"""Exit codes up to here count failed reports; `210 + status` is a pytest status other than passed or failed."""
DRAIN_S = 2.0
"""Seconds for which pipes are still read after the runner is gone, should something hold them open."""
PR_SET_DUMPABLE = 4
SIGKILL = 9
"""As numbers: the modules that name them take longer to import than all that the supervisor does."""


def load() -> None:
    """In a warm process: import pytest with all that it imports when it starts, and let the library note what it looks
    up once for showing failures: the files of all modules, and what Python's tokens are."""
    find_toolchain()
    import inspect
    import tokenize

    import pytest

    pytest.main(["--version", "--noconftest", "-c", os.devnull])
    inspect.getmodule(load.__code__)
    list(tokenize.generate_tokens(iter(["pass\n"]).__next__))


def run(_: "Any", environment: "Any") -> None:
    """In what was forked from a warm process, inside its sandbox: never returns."""
    import ctypes

    # A change of user leaves a process closed to itself (/proc/self); the start of an interpreter would open it.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    for name in [name for name, module in sys.modules.items() if is_foreign(module)]:
        del sys.modules[name]
    os.environ.clear()
    os.environ.update(environment)
    main()


def is_foreign(module: "Any") -> bool:
    """Whether a module belongs to the warm process: tested code may have one of that name."""
    return str(getattr(module, "__file__", "")).startswith("/run/") and module.__name__ != "__main__"


def find_toolchain() -> None:
    """Make pytest importable, in the place of this file's own folder.

    Nothing that imports and collection make is garbage: until the first test no time is spent looking for it."""
    import gc

    gc.disable()
    sys.path[0] = TOOLCHAIN


def main() -> None:
    """Fork, then supervise in the parent and run tests in the child, each with its ends of three pipes alone."""
    spec, report, output = os.pipe(), os.pipe(), os.pipe()
    runner = os.fork()
    if runner:
        for pipe, end in ((spec, 0), (report, 1), (output, 1)):
            os.close(pipe[end])
        supervise(runner, spec[1], report[0], output[0])
        os._exit(0)
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output[1], 1)
        os.dup2(output[1], 2)
        for descriptor in (*output, report[0], spec[1]):
            os.close(descriptor)
        run_tests(spec[0], report[1])
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def supervise(runner: int, spec: int, report: int, output: int) -> None:
    """Tell the runner what to run, gather its report and output until it ends or its time is over, print the result."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # other processes of this user cannot look in here
    with open(0, "rb", closefd=False) as stdin:
        head, _, rest = stdin.read().partition(b"\n")
    seal, _, timeout_s, output_bytes = head.split()
    deadline = time.monotonic() + float(timeout_s)
    if os.read(report, 1):  # a runner that died at its start says why by its output
        say(seal, b"ready")
    try:
        with os.fdopen(spec, "wb") as file:
            file.write(rest)
    except BrokenPipeError:
        pass
    pipes = Pipes(report, output, int(output_bytes))
    ended, status = attend(runner, pipes, deadline)
    parts = (pipes.report[:REPORT_LIMIT], pipes.output)
    head = b"%s %d %d\n" % (ended, os.waitstatus_to_exitcode(status), len(parts[0]))
    say(seal, b"result " + b2a_base64(zlib.compress(head + b"".join(parts)), newline=False))


def attend(runner: int, pipes: "Pipes", deadline: float) -> "tuple[bytes, int]":
    """Read until the runner is gone; returns `exited`, `timeout` or `flooded` (too long a report), and its status."""
    gone, ended = os.pidfd_open(runner), b""
    pipes.poll.register(gone, select.POLLIN)
    while not ended:
        pipes.read(max(0.0, deadline - time.monotonic()))
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


def run_tests(source: int, report: int) -> None:
    """Import pytest, say so, and run the selected tests of the specification with their reports going to `report`."""
    find_toolchain()
    import json
    import site

    import pytest

    os.write(report, b"\n")
    with os.fdopen(source, "rb") as file:
        spec = json.load(file)
    send, leave = sender(report, spec.pop("mark"), json.dumps), os._exit
    os.chdir(spec["root"])
    for name in ("setquit", "setcopyright", "sethelper"):  # what `-S` leaves out and programs expect
        getattr(site, name)()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    sys.path[:0] = spec["python_path"]
    sys.path += [folder.format(version=version) for folder in spec["sites"]]
    sys.argv[:] = ["pytest"]
    recorder = make_recorder(pytest, send, frozenset(spec["select"]), spec["order"])
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


def make_recorder(pytest: "Any", send: "Any", select: "Any", order: "int | None") -> "Any":
    """The pytest plugin that keeps the selected tests alone, shuffled by `order` if any, and reports each phase."""
    import gc

    class Recorder:
        failed = 0

        @pytest.hookimpl(trylast=True)  # type: ignore[untyped-decorator]
        def pytest_collection_modifyitems(self, config: "Any", items: "Any") -> None:
            left_out = [item for item in items if item.nodeid not in select]
            items[:] = [item for item in items if item.nodeid in select]
            if order is not None:
                import random

                random.Random(order).shuffle(items)  # noqa: S311
            config.hook.pytest_deselected(items=left_out)
            send({"kind": "collected", "ids": [item.nodeid for item in items]})

        def pytest_collectreport(self, report: "Any") -> None:
            if report.failed:
                send({"kind": "collect_error", "id": report.nodeid})

        @pytest.hookimpl(tryfirst=True)  # type: ignore[untyped-decorator]
        def pytest_runtestloop(self) -> None:
            gc.freeze()
            gc.enable()

        def pytest_runtest_logreport(self, report: "Any") -> None:
            xfail = hasattr(report, "wasxfail")
            send({"kind": "phase", "id": report.nodeid, "when": report.when, "outcome": report.outcome, "xfail": xfail})

        def pytest_sessionfinish(self, session: "Any") -> None:
            self.failed = session.testsfailed

    return Recorder()


if __name__ == "__main__":
    main()
