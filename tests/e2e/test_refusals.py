"""Bad input through the command line: one line a problem with key, value and way out, exit code 2, nothing started."""

import os
import socket
import subprocess
import sys
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
PLAIN = WITHOUT_SYSTEM_PATH.replace('tools.SYSTEM_PATH = ""\n', "")


def refused(script: str, runs: Path, *overrides: str, **environment: str) -> list[str]:
    """The lines on standard error of a command that must be refused."""
    command = [sys.executable, "-c", script.format(heavy=set(HEAVY)), "experiment=openhands_gspo", f"run.root={runs}"]
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
        ("sandbox=docker", "sandbox='docker': unknown option; allowed: bubblewrap, podman"),
        ("train.learning_rate=nan", "train.learning_rate=nan: not a finite number; give a number > 0"),
        ("tasks.workdir=/testbed/../etc", "tasks.workdir='/testbed/../etc': wrong form; give a string that matches"),
    ],
)
def test_a_wrong_value_is_one_line(tmp_path: Path, override: str, line: str) -> None:
    lines = refused(PLAIN, tmp_path / "runs", override)
    assert len(lines) == 1
    assert lines[0].startswith(line)
