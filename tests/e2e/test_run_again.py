"""`from=RUN` from a command line, on another clone and on the same one, with a quick job of another package."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from guest_pieces import install_guest

from engine.config.schemas import ROOT


def clone(target: Path) -> Path:
    """A copy of what a checkout's program consists of."""
    for name in ("engine", "configs", "schemas"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    return target


class Desk:
    """Two clones side by side, each with its own `runs/`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = install_guest(folder)
        self.first, self.second = clone(folder / "first"), clone(folder / "second")

    def engine(self, place: Path, *overrides: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "engine", "-cd", str(self.folder / "options"), *overrides],
            cwd=place,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def steps(self) -> int:
        """How many steps have been made by anyone."""
        return len((self.folder / "journal").read_text().splitlines())


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    made = Desk(tmp_path_factory.mktemp("desk"))
    done = made.engine(made.first, "job=quick", "seed=7", "schedule.max_turns=3", "run.fresh=true")
    assert done.returncode == 0, done.stderr
    return made


def original(desk: Desk) -> Path:
    (run,) = (desk.first / "runs").iterdir()
    return run


def test_another_clone_gives_the_same_configuration_hash_and_name(desk: Desk) -> None:
    run = original(desk)
    done = desk.engine(desk.second, f"from={run}")
    assert (done.returncode, done.stderr) == (0, f"running {run}/config.yaml again: nothing differs here\n")
    assert done.stdout == f"runs/{run.name}\n"
    old, new = (yaml.safe_load((root / "config.yaml").read_text()) for root in (run, desk.second / "runs" / run.name))
    assert new["configuration"] == {**old["configuration"], "run": {**old["configuration"]["run"], "fresh": False}}
    assert new["configuration_hash"] == old["configuration_hash"]
    assert new["command_line"] == [f"from={run}"]

    steps = desk.steps()
    again = desk.engine(desk.second, f"from={run}")
    assert again.stdout == f"this run is finished; run.fresh=true starts it anew\nruns/{run.name}\n"
    assert desk.steps() == steps
    assert desk.engine(desk.second, f"from={run}", "run.fresh=true").returncode == 0
    assert desk.engine(desk.second, f"from={run}", "run.name=other").returncode == 0
    assert desk.steps() == steps + 4
    assert sorted(path.name for path in (desk.second / "runs").iterdir()) == sorted(
        [run.name, f"{run.name}~1", "other"]
    )


def test_the_same_clone_says_that_the_run_is_finished(desk: Desk) -> None:
    run = original(desk)
    steps = desk.steps()
    done = desk.engine(desk.first, f"from=runs/{run.name}/config.yaml")
    assert done.returncode == 0
    assert done.stdout == f"this run is finished; run.fresh=true starts it anew\nruns/{run.name}\n"
    assert desk.steps() == steps


def test_other_overrides_are_applied_and_told(desk: Desk) -> None:
    run = original(desk)
    done = desk.engine(desk.second, f"from={run}", "seed=8", "schedule.max_turns=5")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        f"running {run}/config.yaml again; what differs here:",
        "  configuration  seed: 7 → 8",
        "  configuration  harnesses.openhands.max_turns: 3 → 5",
        "  configuration  schedule.max_turns: 3 → 5",
    ]
    assert done.stdout.startswith("runs/openhands_gspo-")
    assert done.stdout != f"runs/{run.name}\n"


def test_other_data_is_refused_before_anything_is_made(desk: Desk) -> None:
    run = original(desk)
    done = desk.engine(desk.second, f"from={run}", "run.name=data", GUEST_DATA="2")
    assert done.returncode == 2
    assert done.stderr.splitlines()[1:] == [
        "  tasks          1 of 1 differ (t1)",
        f"from='{run}': the same configuration gives other tasks (1 of 1 differ (t1)) here, which is another "
        "experiment; bring that run's tasks and checkpoint here, or set run.other_data=true",
    ]
    assert not (desk.second / "runs" / "data").exists()
    done = desk.engine(desk.second, f"from={run}", "run.name=data", "run.other_data=true", GUEST_DATA="2")
    assert done.returncode == 0
    assert (desk.second / "runs" / "data" / "summary.json").is_file()


def test_changed_code_is_told(desk: Desk) -> None:
    third = clone(desk.folder / "third")
    (third / "engine" / "__init__.py").write_text("# changed\n")
    done = desk.engine(third, f"from={original(desk)}", "job=show")
    assert done.returncode == 0, done.stderr
    assert "  code           no commit, but its files differ" in done.stdout
    assert f"seed: 7  # {original(desk)}/config.yaml" in done.stdout


def test_cfg_job_prints_what_would_be_run(desk: Desk) -> None:
    run = original(desk)
    done = desk.engine(desk.second, f"from={run}", "--cfg", "job", "--resolve", "seed=9")
    assert (done.returncode, done.stderr) == (0, "")
    written = yaml.safe_load((run / "config.yaml").read_text())["configuration"]
    assert yaml.safe_load(done.stdout) == {**written, "seed": 9, "run": {**written["run"], "fresh": False}}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("runs/none", "from='runs/none': there is no such folder or file; name a run's directory"),
        ("configs", "from='configs': holds no config.yaml, so no run was started in this folder; name a run's"),
        (
            "configs/run.yaml",
            "from='configs/run.yaml': configs/run.yaml was written by no run of this program: it has no",
        ),
    ],
)
def test_what_is_no_run_is_refused(desk: Desk, given: str, line: str) -> None:
    done = desk.engine(desk.second, f"from={given}")
    assert (done.returncode, done.stdout) == (2, "")
    (told,) = done.stderr.splitlines()
    assert told.startswith(line)


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        (["schedule.stepz=3"], ["schedule.stepz=3: unknown key; did you mean schedule.steps? allowed: "]),
        (["seed=-1"], ["seed=-1: out of range; give an integer ≥ 0 and ≤ 2147483647: "]),
        (
            ["sandbox=docker"],
            ["sandbox='docker': unknown option; allowed: bubblewrap, kubernetes, podman, podman_pool, written"],
        ),
        (["schedule.rollouts_per_prompt=1"], ["schedule.rollouts_per_prompt=1: a group of one has nothing to be"]),
        (["frm=x"], ["frm='x': unknown key or group; allowed: algorithm, "]),
        (["-m", "seed=1,-2"], ["seed=-2: out of range; give an integer ≥ 0 and ≤ 2147483647: "]),
        (["-m", "nosuch=a,b"], ["nosuch='a': unknown key or group; allowed: ", "nosuch='b': unknown key or group; "]),
        (["-m", "seed=1,2", "schedule.stepz=3"], ["schedule.stepz=3: unknown key; did you mean schedule.steps? "]),
    ],
)
def test_what_is_wrong_beside_it_is_told_as_ever(desk: Desk, overrides: list[str], lines: list[str]) -> None:
    """And the run is not told to be one of other code, which it is not."""
    done = desk.engine(desk.first, f"from={original(desk)}", "run.name=wrong", *overrides)
    assert (done.returncode, done.stdout) == (2, "")
    told = done.stderr.splitlines()
    assert len(told) == len(lines)
    assert all(one.startswith(line) for one, line in zip(told, lines, strict=True)), told
    assert not (desk.first / "runs" / "wrong").exists()


def test_a_configuration_of_other_code_names_each_key(desk: Desk) -> None:
    record = yaml.safe_load((original(desk) / "config.yaml").read_text())
    record["code"] = {"commit": "abc", "dirty": False, "fingerprint": "other"}
    record["configuration"]["schedule"] |= {"stepz": 3}
    del record["configuration"]["proxy"]["top_p"]
    (desk.folder / "old.yaml").write_text(yaml.safe_dump(record))
    done = desk.engine(desk.second, f"from={desk.folder / 'old.yaml'}")
    assert (done.returncode, done.stdout) == (2, "")
    head, *keys = done.stderr.splitlines()
    assert head.startswith(
        f"from='{desk.folder / 'old.yaml'}': {desk.folder / 'old.yaml'} was written by other code (commit "
    )
    assert [line.partition(":")[0] for line in keys] == ["proxy.top_p='???'", "schedule.stepz=3"]
    mended = desk.engine(
        desk.second, f"from={desk.folder / 'old.yaml'}", "proxy.top_p=1.0", "~schedule.stepz", "job=show"
    )
    assert mended.returncode == 0, mended.stderr
    assert "  configuration  schedule.stepz: 3 → None" in mended.stdout
