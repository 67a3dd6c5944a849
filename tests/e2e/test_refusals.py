"""Bad input through the command line: one line a problem with key, value and way out, exit code 2, nothing started."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.sandbox.tools import SYSTEM_PATH

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "vllm", "megatron", "transformers", "ray", "podman", "tensorboard", "renderers", "tokenizers")
WITHOUT_SYSTEM_PATH = """
import sys
from engine.__main__ import main
from engine.sandbox import tools
tools.SYSTEM_PATH = ""
code = main(sys.argv[1:])
print("LOADED", *sorted({heavy!r} & {{name.partition(".")[0] for name in sys.modules}}))
sys.exit(code)
"""
BASE = ("experiment=openhands_gspo", "model=tiny_qwen3_moe", "tasks=release_pairs")
PLAIN = WITHOUT_SYSTEM_PATH.replace('tools.SYSTEM_PATH = ""\n', "")


def refused(script: str, runs: Path, *overrides: str, base: Sequence[str] = BASE, **environment: str) -> list[str]:
    """The lines on standard error of a command that must be refused."""
    command = [sys.executable, "-c", script.format(heavy=set(HEAVY)), *base, f"run.root={runs}"]
    done = subprocess.run(
        [*command, *overrides],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == "LOADED\n", "nothing is printed, nothing heavy is imported"
    assert not runs.exists()
    return done.stderr.splitlines()


def test_what_is_not_built_is_named_with_the_way_out(tmp_path: Path) -> None:
    lines = refused(PLAIN, tmp_path / "runs", LEGO_RL_CACHE=str(tmp_path / "cache"))
    way_out = "run the same command with job=prepare"
    assert [line for line in lines if not line.startswith(("sandbox", "inference"))] == [
        f"model.name='tiny-qwen3-moe': not built yet; {way_out}",
        f"tasks='release_pairs': 12 tasks are not built here; {way_out}",
        f"harnesses.openhands.version='1.58.2': its runtime is not built; {way_out}",
        f"tasks (image task-base)='task-base': is not built on this machine; {way_out}",
        f"verify (toolchain)='grader': is not built on this machine; {way_out}",
    ]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("sandbox", "tool", "package"), [("bubblewrap", "bwrap", "bubblewrap"), ("podman", "podman", "podman")]
)
def test_a_sandbox_without_its_tool_is_named_with_its_package(
    tmp_path: Path, sandbox: str, tool: str, package: str
) -> None:
    for folder in SYSTEM_PATH.split(":"):
        for program in Path(folder).glob("*"):
            if program.name != tool and not (tmp_path / program.name).is_symlink():
                (tmp_path / program.name).symlink_to(program)
    lines = refused(WITHOUT_SYSTEM_PATH, tmp_path / "runs", f"sandbox={sandbox}", PATH=str(tmp_path))
    way_out = f"apt-get install -y --no-install-recommends {package}"
    assert f"sandbox='{sandbox}': {tool} is not installed; {way_out}" in lines


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        lines = refused(PLAIN, tmp_path / "runs", f"inference.port={port}")
    way_out = "choose another port, or null for a private Unix socket"
    assert f"inference.port={port}: the port is taken on 127.0.0.1; {way_out}" in lines


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("schedule.stepz=2", "schedule.stepz=2: unknown key; did you mean schedule.steps?"),
        ("schedule.steps=two", "schedule.steps='two': wrong type, a string; give an integer or null ≥ 1"),
        ("schedule.steps=???", "schedule.steps='???': missing value; set schedule.steps=VALUE"),
        ("sandbox=docker", "sandbox='docker': unknown option; allowed: bubblewrap, kubernetes, podman"),
        ("compute.device=gpu", "compute.device='gpu': unknown choice; did you mean cpu? allowed: cpu, cuda"),
        (
            "schedule.rollouts_per_prompt=1",
            "schedule.rollouts_per_prompt=1: a group of one has nothing to be compared with, so every advantage would "
            "be 0; set it to at least 2",
        ),
        ("train.learning_rate=nan", "train.learning_rate=nan: not a finite number; give a number > 0"),
        ("job=view job.port=soon", "job.port='soon': wrong type, a string; give an integer ≥ 0 and ≤ 65535: "),
        ("job=view job.port=70000", "job.port=70000: out of range; give an integer ≥ 0 and ≤ 65535: "),
        ("job=view job.prt=3", "job.prt=3: unknown key; did you mean job.port? allowed: port"),
        ("job=reap job.all=3", "job.all=3: unknown key; allowed: kept"),
        ("job=report job.runs=a", "job.runs='a': wrong type, a string; give a list: "),
        ("job=report job.runs=[none]", "job.runs='none': there is no such folder; name a run's folder (the last"),
        ("job=report job.runs=[docs]", "job.runs='docs': this folder holds no run (neither state.json nor a run's"),
        ("job=rep", "job='rep': unknown option; did you mean reap? allowed: ablation, audit, convert,"),
        ("schedule.stepz.x=2", "schedule.stepz.x=2: unknown key; allowed: epochs, steps, "),
        (
            "schedule.harness_mix.weights.openhands=3",
            "schedule.harness_mix.weights.openhands=3: schedule.harness_mix.weights is null, no map yet; write "
            "'schedule.harness_mix.weights={openhands: 3}'",
        ),
        ("inference.python=/bin/false", "inference.python='/bin/false': is no Python interpreter (exit code 1); name "),
        ("-m seed=1,-2", "seed=-2: out of range; give an integer ≥ 0 and ≤ 2147483647: "),
        ("-m seed=1,2 schedule.stepz=3", "schedule.stepz=3: unknown key; did you mean schedule.steps? allowed: "),
        ("-m scale=laptop,laptob", "scale='laptob': unknown option; did you mean laptop? allowed: laptop, node, paper"),
        ("-m seed=1,2 nosuch=3", "nosuch=3: unknown key or group; allowed: algorithm, "),
        ("-m seed=1, ", "seed='1,': cannot be parsed; write key=value, or key=a,b for a sweep"),
        ("tasks.workdir=/testbed/../etc", "tasks.workdir='/testbed/../etc': wrong form; give a string that matches"),
    ],
)
def test_a_wrong_value_is_one_line(tmp_path: Path, override: str, line: str) -> None:
    lines = refused(PLAIN, tmp_path / "runs", *override.split())
    lines = [text for text in lines if not text.endswith("job=prepare")]  # of a machine where nothing is built
    assert len(lines) == 1
    assert lines[0].startswith(line)


def test_an_empty_pool_is_named(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    lines = refused(PLAIN, tmp_path / "runs", "tasks=harbor", f"tasks.path={tmp_path / 'tasks'}", base=BASE[:2])
    way_out = "name the parent folder of Harbor task directories"
    assert f"tasks.path='{tmp_path / 'tasks'}': no folder in it holds a task.toml; {way_out}" in lines


def test_a_pool_that_is_asked_for_nothing_is_named(tmp_path: Path) -> None:
    nothing = "{warm_start: 0, train: 0, validation: 0}"
    numbers = [f"tasks.{kind}={nothing}" for kind in ("real", "generated")]
    (line,) = refused(PLAIN, tmp_path / "runs", "tasks=laptop", *numbers, base=BASE[:2])
    problem = "with tasks.generated.train=0 fewer tasks than the 8 that this job takes"
    assert line == f"tasks.real.train=0: {problem}; set it to at least 8"


def test_what_a_point_of_a_sweep_lacks_is_told_before_the_first_starts(tmp_path: Path) -> None:
    overrides = ("-m", "seed=1,2", "harness=openhands,mini_swe_agent")
    lines = refused(PLAIN, tmp_path / "runs", *overrides, LEGO_RL_CACHE=str(tmp_path / "cache"))
    way_out = "run the same command with job=prepare"
    assert f"model.name='tiny-qwen3-moe': not built yet; {way_out}" in lines
    some = "in seed=1 harness=openhands, seed=2 harness=openhands"
    assert f"harnesses.openhands.version='1.58.2': its runtime is not built ({some}); {way_out}" in lines
    assert len(lines) == len(set(lines))
