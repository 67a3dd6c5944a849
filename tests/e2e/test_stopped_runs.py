"""What stops a real run is its last line, in keys of the configuration: exit code 3, no traceback, nothing left."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from whole_runs import directory, kill_all, prepare, processes_naming, start, tree

from engine.store.layout import Layout
from engine.store.state import read_state

pytestmark = pytest.mark.slow

Act = Callable[["subprocess.Popen[bytes]", Path], None]


@pytest.fixture
def root(tmp_path: Path, short_tmp: Path) -> Path:
    prepare()
    return tmp_path / "runs"


def stopped(root: Path, overrides: Sequence[str], act: Act) -> str:
    """The last line of a run that must stop; `act` is done to it once it is started."""
    process = start(root, *overrides)
    try:
        act(process, root)
        code = process.wait(timeout=900)
    finally:
        kill_all(process)
    words = (root.parent / "log.txt").read_text()
    assert code == 3, words[-3000:]
    assert "Traceback" not in words
    last = words.strip().splitlines()[-1]
    folder = directory(root)
    assert folder is not None
    state = read_state(Layout(root=folder))
    assert state is not None
    assert (state["phase"], state["reason"]) == ("failed", last)
    assert processes_naming(str(root)) == []
    return last


def nothing(process: "subprocess.Popen[bytes]", root: Path) -> None:
    pass


def kill_the_server_in(phase: str) -> Act:
    def act(process: "subprocess.Popen[bytes]", root: Path) -> None:
        deadline = time.monotonic() + 900
        while not ((servers := server_of(process.pid)) and state_of(root) == phase):
            assert process.poll() is None and time.monotonic() < deadline, (root.parent / "log.txt").read_text()[-3000:]
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(servers[0], signal.SIGKILL)

    return act


def server_of(pid: int) -> list[int]:
    found = []
    for child in tree(pid):
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if b"vllm.entrypoints" in words and b"supervise.py" not in words:
            found.append(child)
    return found


def state_of(root: Path) -> str:
    folder = directory(root)
    state = read_state(Layout(root=folder)) if folder else None
    return state["phase"] if state else ""


CASES: dict[str, tuple[list[str], Act, str, str]] = {
    "vLLM exits at once": (
        ["+inference.arguments.max-model-lenn=3"],
        nothing,
        "vLLM died at start (exit code 2): api_server.py: error: unrecognized arguments: --max-model-lenn",
        "; mend inference.arguments={",
    ),
    "vLLM is killed while it loads": (
        [],
        kill_the_server_in("starting"),
        "vLLM died at start (exit code 137, killed by SIGKILL): ",
        "; it took more memory than there is, or was killed: end other programs, or lower inference.cpu_kv_cache_gb=1, "
        "inference.max_concurrency=8 or model.max_context; its log is ",
    ),
    "not enough memory for vLLM": (
        ["inference.cpu_kv_cache_gb=50000"],
        nothing,
        "vLLM died at start (exit code 1): ValueError: ",
        "; lower inference.cpu_kv_cache_gb=50000 or model.max_context, or end what else takes the memory; its log is ",
    ),
    "vLLM dies in a rollout and is not to be started again": (
        ["schedule.engine_restarts=0"],
        kill_the_server_in("rollout"),
        "vLLM ended by itself (exit code 137, killed by SIGKILL; ",
        "; read its log, then the same command goes on where this run stopped",
    ),
    "every trial of a step is excluded": (
        ["tasks.agent_timeout_s=0.01", "schedule.max_attempts=1"],
        nothing,
        "step 0: 0 kept and 4 excluded trajectories (agent_timeout 4) hold no sampled token, so nothing can be trained",
        "/step=0.jsonl names as reasons, or raise tasks.agent_timeout_s, the agent's wall clock, or the harness's rule",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_last_line(root: Path, case: str) -> None:
    overrides, act, begin, part = CASES[case]
    last = stopped(root, overrides, act)
    assert last.startswith(begin)
    assert part in last
