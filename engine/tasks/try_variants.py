"""Runs tests on variants of one tree, each in a forked process with limits. Standard library and pytest alone.

The engine never imports this file: it is copied into a sandbox and started there by the image's own interpreter.
pytest is imported once; each variant's files are written, its tests run in a fork, and the files put back. Bytecode of
the unchanged tree may be kept; each written file gets a time of its own, so none is mistaken.

    stdin: one JSON object (`root`, `toolchain`, `sites`, `python_path`, `arguments`, `memory_mb`, `keep_bytecode`,
           `variants`)
    a variant: {"write": {path: text}, "tests": [file, …], "select": [id, …] or empty for all, "trace": path or "",
                "most": failures after which the run stops, "cpu_s": processor seconds (whole), "wall_s": seconds}
    stdout: `RESULT PACKED`, a list with one object a variant, base64 of zlib of JSON:
            {"ended": "exited" | "timeout" | "died", "outcomes": {id: outcome}, "messages": {id: text},
             "broken": number of collection errors,
             "lines": {executed line of the traced file: [places in `outcomes` of the tests that ran it; -1: import]}}

Candidates are a real package with one line changed: they may hang, fork or eat memory, they do not attack.
"""

import base64
import gc
import itertools
import json
import os
import resource
import select
import signal
import sys
import threading
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

MESSAGE_CHARS = 300
FILE_BYTES = 16 << 20
"""Largest file that tested code may write."""
MOMENTS = itertools.count(1_000_000_000)
"""Times of written files, in seconds: long before those of any tree that is unpacked today."""


def main() -> None:
    """Read the specification, try every variant, print the result."""
    spec = json.load(sys.stdin)
    sys.path[0] = spec["toolchain"]
    gc.disable()  # nothing that the imports make is garbage
    import site

    import pytest

    for name in ("setquit", "setcopyright", "sethelper"):
        getattr(site, name)()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    sys.path[:0] = spec["python_path"]
    sys.path += [folder.format(version=version) for folder in spec["sites"]]
    gc.freeze()
    gc.enable()
    results = [attempt(pytest, spec, variant) for variant in spec["variants"]]
    print("RESULT", base64.b64encode(zlib.compress(json.dumps(results).encode())).decode(), flush=True)


def attempt(pytest: Any, spec: Any, variant: Any) -> Any:
    """Try one variant; the tree is as before afterwards."""
    root = Path(spec["root"])
    before = {path: ((root / path).read_bytes(), (root / path).stat().st_mtime_ns) for path in variant["write"]}
    for path, text in variant["write"].items():
        (root / path).write_bytes(text.encode())
        moment = next(MOMENTS)
        os.utime(root / path, (moment, moment))
    try:
        return watch(pytest, spec, variant)
    finally:
        for path, (data, moment) in before.items():
            (root / path).write_bytes(data)
            os.utime(root / path, ns=(moment, moment))


def watch(pytest: Any, spec: Any, variant: Any) -> Any:
    """Run the tests in a process group of their own until they end or their time is over."""
    inlet, outlet = os.pipe()
    process = os.fork()
    if not process:
        os.close(inlet)
        inside(pytest, spec, variant, outlet)
    os.close(outlet)
    os.set_blocking(inlet, False)
    report, ended, status = bytearray(), "", None
    deadline = time.monotonic() + variant["wall_s"]
    while not ended:
        read(inlet, report, 0.02)
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            ended = "exited"
        elif time.monotonic() > deadline:
            ended = "timeout"
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            kill(process, signal.SIGKILL)
    if ended == "timeout":
        os.waitpid(process, 0)
    while read(inlet, report, 0.0):
        pass
    os.close(inlet)
    nothing = {"outcomes": {}, "messages": {}, "broken": 0, "lines": {}}
    if ended == "timeout" or status:
        return {"ended": "timeout" if ended == "timeout" else "died", **nothing}
    try:
        return {"ended": "exited", **json.loads(report)}
    except ValueError:
        return {"ended": "died", **nothing}


def read(inlet: int, report: bytearray, wait_s: float) -> int:
    """Append what is in the pipe; returns the number of bytes."""
    if not select.select([inlet], [], [], wait_s)[0]:
        return 0
    chunk = os.read(inlet, 1 << 16)
    if not chunk and wait_s:
        time.sleep(wait_s)  # closed by a process that still runs
    report.extend(chunk)
    return len(chunk)


def inside(pytest: Any, spec: Any, variant: Any, outlet: int) -> None:
    """The forked process: limits, tests, report; never returns."""
    leave, write, dumps = os._exit, os.write, json.dumps
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        memory, seconds = spec["memory_mb"] << 20, variant["cpu_s"]
        for limit, value in (
            (resource.RLIMIT_AS, memory),
            (resource.RLIMIT_CPU, seconds),
            (resource.RLIMIT_FSIZE, FILE_BYTES),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(limit, (value, value))
        os.chdir(spec["root"])
        sys.argv[:] = ["pytest"]
        sys.dont_write_bytecode = not spec["keep_bytecode"]
        recorder = make_recorder(pytest, frozenset(variant["select"]))
        if variant["trace"]:
            trace(str(Path(spec["root"]) / variant["trace"]), recorder)
        pytest.main([*spec["arguments"], f"--maxfail={variant['most']}", *variant["tests"]], [recorder])
        sys.settrace(None)
        data = dumps(recorder.answer()).encode()
        while data:
            data = data[write(outlet, data) :]
        leave(0)
    finally:
        leave(1)


def trace(path: str, recorder: Any) -> None:
    """Note the executed lines of one file with the test that runs, in every thread."""

    def local(frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            recorder.lines.setdefault(frame.f_lineno, set()).add(recorder.current)
        return local

    def start(frame: Any, *_: Any) -> Any:
        return local if frame.f_code.co_filename == path else None

    threading.settrace(start)
    sys.settrace(start)


def make_recorder(pytest: Any, select: frozenset[str]) -> Any:
    """The pytest plugin that keeps one outcome and one message a test, and knows which test runs."""

    class Recorder:
        def __init__(self) -> None:
            self.outcomes: dict[str, str] = {}
            self.messages: dict[str, str] = {}
            self.lines: dict[int, set[str]] = {}
            self.broken = 0
            self.current = ""

        def answer(self) -> Any:
            places = {test: place for place, test in enumerate(self.outcomes)}
            lines = {line: sorted(places.get(test, -1) for test in tests) for line, tests in self.lines.items()}
            return {"outcomes": self.outcomes, "messages": self.messages, "broken": self.broken, "lines": lines}

        def pytest_collectreport(self, report: Any) -> None:
            self.broken += bool(report.failed)

        def pytest_collection_modifyitems(self, items: Any) -> None:
            if select:
                items[:] = [item for item in items if item.nodeid in select]

        @pytest.hookimpl(wrapper=True)  # type: ignore[untyped-decorator]
        def pytest_runtest_protocol(self, item: Any) -> Any:
            self.current = item.nodeid
            try:
                return (yield)
            finally:
                self.current = ""

        def pytest_runtest_logreport(self, report: Any) -> None:
            kind = report.outcome
            if hasattr(report, "wasxfail"):
                kind = "xfailed" if report.outcome == "skipped" else "xpassed"
            if report.when == "call" or report.outcome != "passed":
                failed = self.outcomes.get(report.nodeid) == "failed"
                self.outcomes[report.nodeid] = "failed" if failed else kind
            crash = getattr(report.longrepr, "reprcrash", None)
            if report.failed and crash is not None:
                self.messages.setdefault(report.nodeid, str(crash.message)[:MESSAGE_CHARS])

    return Recorder()


if __name__ == "__main__":
    main()
