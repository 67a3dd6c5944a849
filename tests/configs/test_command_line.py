"""`python -m engine` as a person meets it: exit codes, streams, help, completion, no files left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.config.schemas import ROOT


def engine(cwd: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "engine", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        timeout=120,
        check=False,
    )


def test_bad_configuration_is_one_line_a_problem_and_exit_code_2(tmp_path: Path) -> None:
    done = engine(tmp_path, "harness=openhand", "algorithm.clip_lo=1", "schedule.epochs=0")
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0].startswith("harness='openhand': unknown option; did you mean openhands? allowed: ")
    assert lines[1].startswith("algorithm.clip_lo=1: unknown key; did you mean algorithm.clip_low? allowed: ")
    assert lines[2].startswith("schedule.epochs=0: out of range; give an integer ≥ 1: ")
    assert len(lines) == 3
    assert list(tmp_path.iterdir()) == []


def test_missing_values_of_a_scale(tmp_path: Path) -> None:
    done = engine(tmp_path, "experiment=openhands_gspo", "scale=paper")
    assert done.returncode == 2
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["model.path='???'", "tasks.path='???'"]


def test_help_names_groups_options_flags_and_examples(tmp_path: Path) -> None:
    done = engine(tmp_path, "--help")
    assert done.returncode == 0
    assert done.stderr == ""
    for text in (
        "python -m engine experiment=openhands_gspo",
        "scale: laptop, node, paper",
        "experiment: claude_code_gspo, codex_gspo, defense_incidence, image_delivery, ",
        "--multirun",
        'eval "$(python -m engine -sc install=bash)"',
    ):
        assert text in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_show_tells_where_each_value_came_from(tmp_path: Path) -> None:
    done = engine(tmp_path, "job=show", "scale=paper", "model.path=/m", "tasks.path=/t", "seed=7")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    for text in (
        "seed: 7  # command line",
        "prompts_per_step: 64  # schedule/paper.yaml (scale=paper)",
        "max_turns: 200  # harness/openhands.yaml (experiment=openhands_gspo) → ${schedule.max_turns}",
        "clip_low: 0.0003  # algorithm/gspo.yaml (experiment=openhands_gspo)",
        "path: /m  # command line",
    ):
        assert text in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_of_shows(tmp_path: Path) -> None:
    done = engine(tmp_path, "-m", "job=show", "seed=1,2", "harnesses.openhands.max_turns=3")
    assert done.returncode == 0, done.stderr
    seeds = [line for line in done.stdout.splitlines() if line.endswith("# command line") and "seed: " in line]
    assert seeds == ["├── seed: 1  # command line", "├── seed: 2  # command line"]
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_completion_of_groups_options_and_keys(tmp_path: Path) -> None:
    script = engine(tmp_path, "-sc", "install=bash").stdout
    probe = """
complete_line() {
    COMP_LINE="$1"; COMP_WORDS=($1); [ "${1: -1}" = " " ] && COMP_WORDS+=("")
    COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); COMPREPLY=()
    _lego_rl_completion; echo "${COMPREPLY[@]}"
}
"""
    python = sys.executable
    lines = f'complete_line "{python} -m engine scale="\ncomplete_line "{python} -m engine scale=paper schedule.epo"\n'
    done = subprocess.run(
        ["bash", "-c", script + probe + lines],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == ["scale=laptop scale=node scale=paper", "schedule.epochs="], done.stderr


INTERRUPTED = """
import asyncio, os, signal, sys
from engine import __main__ as program
from engine.core.errors import RunError, ConfigError

class Job:
    async def run(self, run):
        KIND

class Built:
    job = Job()
    directory = __import__("pathlib").Path("no-such-directory")

program.assemble = lambda composed: Built()
sys.exit(program.main(["seed=1"]))
"""

GOES_ON = "stopping\ninterrupted; the same command goes on"
ENDINGS = {
    "done": ("return 0", 0, ""),
    "interrupted": ("os.kill(os.getpid(), signal.SIGINT); await asyncio.sleep(60)", 130, GOES_ON),
    "terminated": ("os.kill(os.getpid(), signal.SIGTERM); await asyncio.sleep(60)", 130, GOES_ON),
    "failed": ("raise RunError('the engine is gone')", 3, "the engine is gone"),
    "bad machine": ("raise ConfigError('a.port', 80, 'taken', 'free it')", 2, "a.port=80: taken; free it"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_exit_code(tmp_path: Path, ending: str) -> None:
    kind, code, message = ENDINGS[ending]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.replace("KIND", kind)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr.strip()) == (code, message)


def test_a_defect_keeps_its_traceback_beside_the_run(tmp_path: Path) -> None:
    script = INTERRUPTED.replace("no-such-directory", ".").replace("KIND", "raise KeyError('x')")
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.splitlines() == ["KeyError: 'x' (a defect of the program; traceback in logs/traceback.txt)"]
    assert "KeyError: 'x'" in (tmp_path / "logs" / "traceback.txt").read_text()
