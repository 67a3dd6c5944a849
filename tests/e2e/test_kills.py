"""Killed at any moment, the same command completes the run: nothing lost, nothing twice, the same weights to the bit."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rewarded_run import rewarded

from engine.config.compose import compose
from engine.core.errors import RunError
from engine.core.records import Scored
from engine.run.plan import Plan, Sampling
from engine.samples.groups import make_groups
from engine.samples.rows import make_batch
from engine.store.layout import Layout
from engine.store.ledger import Ledger, count_states, read_ledger
from engine.store.reader import Reader
from engine.store.state import read_state

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
STEPS, TASKS, SAMPLES, HELD_OUT = 3, 2, 2, 2
OVERRIDES = (
    "experiment=openhands_gspo",
    "model=tiny_qwen3_moe",
    "tasks=release_pairs",
    "schedule=proof",
    f"schedule.steps={STEPS}",
    f"schedule.prompts_per_step={TASKS}",
    f"schedule.rollouts_per_prompt={SAMPLES}",
    "schedule.validation_every=3",
    f"schedule.validation_prompts={HELD_OUT}",
    "schedule.checkpoints_kept=null",
    "proxy.max_tokens_per_turn=24",
    "train.mini_batches=1",
    "train.learning_rate=1e-2",
    "routing_replay=none",  # what is replayed is deleted once trained, and these steps are trained again below
    "observe.tensorboard=false",
)
MOMENTS = (
    "starting",
    "rollout",
    "train",
    "sync",
    "checkpoint",
    "rollout",
    "train",
    "checkpoint",
    "rollout",
    "validation",
)
"""Where each kill strikes; exactly when within it is drawn."""


def command(root: Path) -> list[str]:
    return [sys.executable, str(ROOT / "tests/fixtures/rewarded_run.py"), *OVERRIDES, f"run.root={root}"]


def start(root: Path) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    log = (root.parent / "log.txt").open("ab")
    return subprocess.Popen(command(root), cwd=ROOT, env=environment, stdout=log, stderr=log)


def tree(pid: int) -> Iterator[int]:
    """A process and all that stem from it, the parent first."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            yield from tree(int(child))


def kill_all(process: "subprocess.Popen[bytes]") -> None:
    os.kill(process.pid, signal.SIGSTOP)  # it must not see its children die first
    for pid in reversed(list(tree(process.pid))):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def directory(root: Path) -> Path | None:
    return next(root.glob("openhands_gspo-*"), None)


def phase(root: Path) -> str:
    folder = directory(root)
    state = read_state(Layout(root=folder)) if folder else None
    return state["phase"] if state else ""


def wait_for(moment: str, process: "subprocess.Popen[bytes]", root: Path) -> bool:
    """Whether the run came to that phase; a run that ended before did not."""
    deadline = time.monotonic() + 300
    while phase(root) != moment:
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline, f"the run never came to {moment}, it is in {phase(root)}"
        time.sleep(0.005)
    return True


def processes_naming(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in line:
                found.append(line.decode(errors="replace"))
    return found


@pytest.fixture(scope="module")
def prepared() -> None:
    job = [sys.executable, "-m", "engine", *OVERRIDES, "job=prepare"]
    subprocess.run(job, cwd=ROOT, check=True, timeout=1200)


@pytest.fixture
def root(tmp_path: Path, prepared: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path / "runs"


def test_ten_kills_lose_nothing_and_train_nothing_twice(root: Path) -> None:
    draw = random.Random(20)
    struck: Counter[str] = Counter()
    for moment in MOMENTS:
        process = start(root)
        try:
            if wait_for(moment, process, root):
                time.sleep(draw.uniform(0, 3.0 if moment in ("starting", "rollout", "validation") else 0.3))
                struck[phase(root)] += 1
        finally:
            kill_all(process)
    assert sum(struck.values()) >= 8, struck
    last = start(root)
    assert last.wait(timeout=600) == 0, (root.parent / "log.txt").read_text()[-3000:]
    layout = complete(root)
    trained_again(layout)
    reaped = subprocess.run(
        [sys.executable, "-m", "engine", *OVERRIDES, f"run.root={root}", "job=reap"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "removed" not in reaped.stdout or "sandbox" not in reaped.stdout, reaped.stdout
    assert list((root.parent / "tmp").iterdir()) == []
    assert processes_naming(str(root)) == []
    assert str(root) not in Path("/proc/self/mountinfo").read_text()
    print(f"struck {dict(struck)}; {(layout.root / 'summary.json').read_text()}")


def test_an_engine_that_is_killed_three_times_is_started_again(root: Path) -> None:
    process = start(root)
    try:
        for moment in ("rollout", "sync", "rollout"):
            assert wait_for(moment, process, root)
            time.sleep(0.5 if moment == "rollout" else 0)
            servers = [pid for pid in tree(process.pid) if b"vllm.entrypoints" in cmdline(pid) and is_server(pid)]
            assert servers
            os.kill(servers[-1], signal.SIGKILL)
            while phase(root) == moment and process.poll() is None:
                time.sleep(0.02)
        assert process.wait(timeout=600) == 0, (root.parent / "log.txt").read_text()[-3000:]
    finally:
        kill_all(process)
    log = (root.parent / "log.txt").read_text()
    assert "starting it again (3 of 5)" in log, log[-3000:]
    layout = complete(root)
    trained_again(layout)
    for step in range(STEPS):
        for (split, trial), state in read_ledger(layout, step).items():
            if state == "excluded":
                assert "engine_error" in layout.ledger(step).read_text(), (split, trial)


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_server(pid: int) -> bool:
    return b"supervise.py" not in cmdline(pid)


def complete(root: Path) -> Layout:
    """All steps are there, and of every planned trial exactly one attempt was trained, or validated."""
    folder = directory(root)
    assert folder is not None
    layout = Layout(root=folder)
    assert read_state(layout)["phase"] == "finished"  # type: ignore[index]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == STEPS
    assert summary["tokens"]["sampled"] == summary["tokens"]["trained"] > 0
    assert summary["alignment"]["max_abs_dlogp"] <= 1e-3
    counts = count_states(layout)
    assert counts["train"].pop("trained") == STEPS * TASKS * SAMPLES
    assert counts["validation"].pop("finished") == 2 * HELD_OUT
    assert set(counts["train"]) | set(counts["validation"]) <= {"excluded"}
    for step in range(STEPS):
        trained = [key for (split, key), state in read_ledger(layout, step).items() if state == "trained"]
        assert len({key.rpartition("-a")[0] for key in trained}) == len(trained) == TASKS * SAMPLES
    assert Reader(layout).checkpoints() == list(range(1, STEPS + 1))
    assert not any(layout.scratch.iterdir())
    return layout


def trained_again(layout: Layout) -> None:
    """An undisturbed trainer on the very trajectories of the run has its weights after each step, to the bit."""
    built: Any = rewarded(compose([*OVERRIDES, f"run.root={layout.root.parent}"]))
    assert built.directory == layout.root
    plan = Plan(
        run=layout.root.name,
        seed=built.seed,
        schedule=built.schedule,
        tasks=built.tasks.load(),
        harnesses=tuple(built.harnesses),
        rollout=Sampling(temperature=built.proxy.temperature, top_p=built.proxy.top_p),
    )
    built.train.start(built.model.info(), built.algorithm, built.routing_replay, built.seed)
    mine = layout.root.parent.parent / "mine"
    try:
        for step in range(STEPS):
            trials = [trained_attempt(layout, step, trial) for trial in plan.trials(step, step)]
            groups = make_groups(trials, built.algorithm.advantage)
            built.train.step(make_batch(groups, step=step, policy_version=step))
            built.train.save(mine / f"version={step + 1}")
            theirs = layout.checkpoint(step + 1)
            weights = sorted(theirs.glob("*.safetensors"))
            assert weights
            for file in weights:
                assert (mine / f"version={step + 1}" / file.name).read_bytes() == file.read_bytes(), (step, file.name)
    finally:
        built.train.stop()


def trained_attempt(layout: Layout, step: int, trial: Any) -> Scored:
    for attempt in range(20):
        tried = dataclasses.replace(trial, key=dataclasses.replace(trial.key, attempt=attempt))
        if Ledger(layout).state(step, ("train", str(tried.key))) == "trained":
            scored = Reader(layout).trial(step, tried)
            assert scored is not None
            return scored
    raise RunError(f"no attempt of {trial.key} was trained")
