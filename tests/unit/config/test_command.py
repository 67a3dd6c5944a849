"""Hydra's habits on the command line, with this project's errors; sweeps are checked whole before they start."""

import re
from pathlib import Path

import pytest

from engine.config.command import NOTHING_TO_DO, run_command
from engine.config.composed import Composed
from engine.config.schemas import TREE, Tree
from engine.core.errors import ConfigError, ConfigErrors


class Recorder:
    """Takes the place of the program."""

    def __init__(self, *codes: int) -> None:
        self.seen: list[Composed] = []
        self.codes = list(codes)
        self.points: list[str] = []
        self.refused: dict[str, ConfigError] = {}

    def take_point(self, name: str, composed: Composed) -> None:
        self.points.append(name)
        if name in self.refused:
            raise self.refused[name]

    def begin_sweep(self) -> Path:
        return Path("here") / "sweeps" / "it's mine"

    def run_point(self, index: int, composed: Composed) -> int:
        assert self.points[index] in " ".join(composed.command_line)
        return self(composed)

    def __call__(self, composed: Composed) -> int:
        self.seen.append(composed)
        return self.codes.pop(0) if self.codes else 0


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_gets_its_configuration_and_leaves_no_file(tree: Tree, elsewhere: Path) -> None:
    recorder = Recorder(3)
    assert run_command(["scale=node", "engine.path=/m"], recorder, tree) == 3
    (composed,) = recorder.seen
    assert composed.config["engine"]["path"] == "/m"
    assert composed.command_line == ("scale=node", "engine.path=/m")
    assert list(elsewhere.iterdir()) == []
    assert Path.cwd() == elsewhere


@pytest.mark.parametrize("arguments", [[], ["-m"]])
def test_without_arguments_it_says_what_to_do(
    tree: Tree, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    recorder = Recorder()
    assert run_command(arguments, recorder, tree) == 2
    assert recorder.seen == []
    assert capsys.readouterr().err.strip() == NOTHING_TO_DO


def test_flags_and_overrides_in_any_order(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["seed=7", "--cfg", "job", "run.root=here"], Recorder(), tree) == 0
    assert "\nseed: 7\nrun:\n  root: here\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["--inf", "--foo=1", "seed=1"], "--foo='1': unknown flag; did you mean --info? allowed: --help, "),
        (["--cfg", "jobs"], "--cfg/-c='': invalid choice: 'jobs' (choose from 'job', 'hydra', 'all'); see --help"),
    ],
)
def test_unknown_flags_are_one_line(tree: Tree, arguments: list[str], start: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_command(arguments, Recorder(), tree)
    assert str(caught.value).startswith(start)
    assert len(str(caught.value).splitlines()) == 1


def test_errors_of_hydra_are_told_by_this_project(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        run_command(["engine=smal", "engine.thread=2"], Recorder(), tree)
    assert str(caught.value).splitlines() == [
        "engine='smal': unknown option; did you mean small? allowed: exotic, large, small",
        "engine.thread=2: unknown key; did you mean engine.threads? allowed: threads, device, path, arguments",
    ]
    assert capsys.readouterr().err == ""


def test_a_folder_of_ones_own_options(tree: Tree, elsewhere: Path) -> None:
    (elsewhere / "mine" / "experiment").mkdir(parents=True)
    text = "# @package _global_\ndefaults:\n  - override /engine: exotic\n"
    (elsewhere / "mine" / "experiment" / "mine.yaml").write_text(text)
    recorder = Recorder()
    assert run_command(["-cd", "mine", "experiment=mine"], recorder, tree) == 0
    assert recorder.seen[0].config["engine"]["path"] == "exotic"
    assert recorder.seen[0].origins()["engine.path"] == "engine/exotic.yaml (experiment=mine)"
    with pytest.raises(ConfigError, match=r"^engine\.thread=2: unknown key; did you mean engine\.threads\?[^\n]*$"):
        run_command(["-cd", "mine", "experiment=mine", "engine.thread=2"], Recorder(), tree)
    with pytest.raises(ConfigError, match=r"^experiment='min': unknown option; did you mean mine\?"):
        run_command(["-m", "-cd", "mine", "experiment=min", "seed=1,2"], Recorder(), tree)


def test_cfg_job_prints_yaml(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--cfg", "job", "seed=7"], Recorder(), tree) == 0
    assert "\nseed: 7\n" in capsys.readouterr().out


def test_a_sweep_runs_every_combination(tree: Tree) -> None:
    recorder = Recorder(0, 3, 0, 0)
    assert run_command(["-m", "seed=1,2", "engine=small,exotic", "engine.threads=5"], recorder, tree) == 3
    found = [(c.config["seed"], c.config["engine"]["path"], c.config["engine"]["threads"]) for c in recorder.seen]
    assert found == [(1, "small", 5), (1, "exotic", 5), (2, "small", 5), (2, "exotic", 5)]
    assert recorder.seen[0].command_line == ("seed=1", "engine=small", "engine.threads=5")


def test_a_sweep_writes_below_the_runs_folder_only(tree: Tree, elsewhere: Path) -> None:
    run_command(["-m", "seed=1,2", "run.root=here"], Recorder(), tree)
    assert [str(path.relative_to(elsewhere)) for path in elsewhere.rglob("*") if path.is_file()] == [
        "here/sweeps/it's mine/multirun.yaml"
    ]


def test_a_sweep_s_record_lies_where_a_person_wants_it(tree: Tree, elsewhere: Path) -> None:
    run_command(["-m", "seed=1,2", "hydra.sweep.dir=there"], Recorder(), tree)
    assert [str(path.relative_to(elsewhere)) for path in elsewhere.rglob("*") if path.is_file()] == [
        "there/multirun.yaml"
    ]


def test_a_record_that_cannot_be_written_is_one_line(tree: Tree, elsewhere: Path) -> None:
    (elsewhere / "here").write_text("")
    with pytest.raises(ConfigError, match=r"^run\.root=.*: the sweep's record cannot be written \(Not a") as caught:
        run_command(["-m", "seed=1,2"], Recorder(), tree)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("swept", ["harness=other,[agent,other]", "harness=choice(other)"])
def test_a_fixed_key_may_exist_in_the_swept_option_only(tree: Tree, swept: str) -> None:
    """The kind of hydra#2888."""
    recorder = Recorder()
    arguments = ["--multirun", swept, "seed=1,2", "harnesses.other.max_turns=3", "engine.path='a b'"]
    assert run_command(arguments, recorder, tree) == 0
    assert len(recorder.seen) == 2 * (1 + swept.count("agent"))
    assert {c.config["harnesses"]["other"]["max_turns"] for c in recorder.seen} == {3}
    assert {c.config["engine"]["path"] for c in recorder.seen} == {"a b"}


def test_a_fixed_null_is_taken_into_each_point() -> None:
    """Hydra's `choice` takes no null; the key is one of an option that the sweep chooses."""
    recorder = Recorder()
    fixed = ["experiment=mini_swe_agent_gspo", "harness=openhands", "harnesses.openhands.max_output_tokens=null"]
    assert run_command([*fixed, "-m", "seed=1,2", "schedule.steps=null"], recorder, TREE) == 0
    found = [(c.config["seed"], c.config["schedule"]["steps"], *c.config["harnesses"]) for c in recorder.seen]
    assert found == [(1, None, "openhands"), (2, None, "openhands")]


def test_a_fixed_interpolation_stays_one_in_each_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADS", "7")
    recorder = Recorder()
    fixed = "inference.environment.OMP_NUM_THREADS=${oc.env:THREADS}"
    assert run_command(["-m", "seed=1,2", fixed, "schedule.steps=3"], recorder) == 0
    assert [one.config["inference"]["environment"]["OMP_NUM_THREADS"] for one in recorder.seen] == ["7", "7"]


def test_what_hydra_refuses_in_a_sweep_is_told_as_what_it_is(tree: Tree) -> None:
    line = r"^hydra/launcher='nonesuch': no such file \(In 'hydra/config'\); allowed: basic$"
    with pytest.raises(ConfigError, match=line):
        run_command(["-m", "seed=1,2", "hydra/launcher=nonesuch"], Recorder(), tree)


def test_a_sweep_over_all_options_of_a_group(tree: Tree) -> None:
    recorder = Recorder()
    assert run_command(["-m", "engine=glob(*,exclude=large)", "seed=range(1,3)"], recorder, tree) == 0
    found = [(c.config["engine"]["path"], c.config["seed"]) for c in recorder.seen]
    assert found == [("exotic", 1), ("exotic", 2), ("small", 1), ("small", 2)]


def test_a_key_given_twice_is_refused_in_a_sweep(tree: Tree) -> None:
    """The kind of hydra#3106."""
    recorder = Recorder()
    with pytest.raises(ConfigError, match=r"^seed='3,4': given twice \(seed=1,2 and seed=3,4\); give a key once$"):
        run_command(["-m", "seed=1,2", "seed=3,4"], recorder, tree)
    assert recorder.seen == []


@pytest.mark.parametrize("again", ["++seed=3", "+seed=3", "seed=3", "~seed"])
def test_a_swept_key_that_is_fixed_as_well_is_refused(tree: Tree, again: str) -> None:
    """Hydra would run all points with the fixed value, or drop it, by their order."""
    recorder = Recorder()
    for lines in (["seed=1,2", again], [again, "seed=1,2"]):
        with pytest.raises(ConfigError, match=rf"^seed=.*: given twice \({re.escape(' and '.join(lines))}\); "):
            run_command(["-m", *lines], recorder, tree)
    assert recorder.seen == []


def test_what_the_program_refuses_is_told_with_its_points_before_the_first_starts(tree: Tree) -> None:
    recorder = Recorder()
    some, all_of_them = ConfigError("model", "m", "not built", "build it"), ConfigError("port", 1, "taken", "free it")
    recorder.refused = {
        "seed=1 engine=exotic": ConfigErrors([some, all_of_them]),
        "seed=2 engine=exotic": ConfigErrors([some, all_of_them]),
        "seed=1 engine=small": ConfigErrors([all_of_them, ConfigError("seed", 1, "unlucky", "take 2")]),
        "seed=2 engine=small": all_of_them,
    }
    with pytest.raises(ConfigErrors) as caught:
        run_command(["-m", "seed=1,2", "engine=small,exotic", "engine.threads=5"], recorder, tree)
    assert str(caught.value).splitlines() == [
        "port=1: taken; free it",
        "seed=1: unlucky; take 2",
        "model='m': not built (in seed=1 engine=exotic, seed=2 engine=exotic); build it",
    ]
    assert recorder.points == [
        "seed=1 engine=small",
        "seed=1 engine=exotic",
        "seed=2 engine=small",
        "seed=2 engine=exotic",
    ]
    assert recorder.seen == []


def test_a_point_given_twice_is_refused(tree: Tree) -> None:
    with pytest.raises(ConfigError, match=r"^seed='1': names one point twice; give each value once$"):
        run_command(["-m", "seed=1,2,1"], Recorder(), tree)


def test_one_bad_job_keeps_the_whole_sweep_from_starting(tree: Tree) -> None:
    recorder = Recorder()
    with pytest.raises(ConfigError) as caught:
        run_command(["-m", "seed=1,-2", "engine=small,smal"], recorder, tree)
    assert str(caught.value).splitlines() == [
        "engine='smal': unknown option; did you mean small? allowed: exotic, large, small",
        "seed=-2: out of range; give an integer ≥ 0: Seed",
    ]
    assert recorder.seen == []
