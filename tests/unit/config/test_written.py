"""`from=RUN`: what a run wrote composes again, with all that the command line can do, and refuses what no run wrote."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_command import Recorder

from engine.config.command import run_command
from engine.config.compose import compose
from engine.config.composed import Composed
from engine.config.schemas import Tree, load_registry
from engine.config.validate import problems
from engine.config.written import explained, read_written, written_tree
from engine.core.errors import ConfigError, ConfigErrors

GIVEN = [
    "scale=node",
    "experiment=exotic",
    "engine.threads=3",
    "+engine.arguments.block='2e-4'",
    "harness=[agent,other]",
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(tree: Tree, folder: Path, *overrides: str, **more: Any) -> Composed:
    """Let a run of `overrides` write its configuration."""
    composed = compose(overrides, tree)
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "configuration": composed.config,
        "configuration_hash": "0" * 12,
        "interpolated": composed.interpolated,
        "code": {"commit": "abc", "fingerprint": "other"},
        **more,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(record))
    return composed


def again(tree: Tree, given: str | Path, *overrides: str) -> Composed:
    recorder = Recorder()
    assert run_command([f"from={given}", *overrides], recorder, tree) == 0
    (composed,) = recorder.seen
    return composed


def test_what_was_written_is_composed_again_to_the_letter(tree: Tree, elsewhere: Path) -> None:
    first = written(tree, elsewhere / "run", *GIVEN)
    assert first.config["engine"]["arguments"] == {"block": "2e-4"}
    for given in ("run", "run/config.yaml", "'run'", elsewhere / "run"):
        composed = again(tree, given)
        assert composed.config == first.config
        assert composed.written is not None
        assert problems(composed, load_registry(tree.schemas)) == []
    assert composed.command_line == (f"from={elsewhere / 'run'}",)
    assert again(tree, "run", "seed=0").config == first.config


def test_a_run_that_was_run_again_can_be_run_again(tree: Tree, elsewhere: Path) -> None:
    first = written(tree, elsewhere / "one", *GIVEN)
    second = again(tree, "one")
    record = {"configuration": second.config, "configuration_hash": "1" * 12, "interpolated": second.interpolated}
    (elsewhere / "two.yaml").write_text(yaml.safe_dump(record))
    assert again(tree, "two.yaml").config == first.config


def test_overrides_follow_values_options_and_what_chooses_them(tree: Tree, elsewhere: Path) -> None:
    written(tree, elsewhere / "run", *GIVEN)
    assert again(tree, "run", "seed=7", "run.root=there").config["run"]["root"] == "there"
    changed = again(tree, "run", "engine.threads=5").config
    assert changed["sandbox"]["limits"]["memory_mb"] == 5, "a key that was an interpolation follows"
    assert again(tree, "run", "engine=small").config["engine"]["path"] == "small"
    assert list(again(tree, "run", "harness=other").config["harnesses"]) == ["other"]
    assert again(tree, "run", "scale=laptop").config["engine"] == compose(["scale=laptop"], tree).config["engine"]
    same = again(tree, "run", "experiment=exotic").config
    assert same["engine"]["threads"] == 3, "the experiment that it was of already changes nothing"


def test_it_shows_where_each_value_came_from(tree: Tree, elsewhere: Path) -> None:
    written(tree, elsewhere / "run", *GIVEN)
    origins = again(tree, "run", "seed=7", "harness=other").origins()
    assert origins["engine.threads"] == origins["run.root"] == "run/config.yaml"
    assert origins["sandbox.limits.memory_mb"] == "run/config.yaml → ${engine.threads}"
    assert origins["seed"] == "command line"
    assert origins["harnesses.other.max_turns"] == "harness/other.yaml (command line)"


def test_cfg_job_prints_it(tree: Tree, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = written(tree, elsewhere / "run", *GIVEN)
    recorder = Recorder()
    assert run_command(["--cfg", "job", "--resolve", "from=run", "seed=7"], recorder, tree) == 0
    assert recorder.seen == []
    assert yaml.safe_load(capsys.readouterr().out) == {**first.config, "seed": 7}


def test_a_sweep_over_a_written_run(tree: Tree, elsewhere: Path) -> None:
    first = written(tree, elsewhere / "run", *GIVEN)
    own = elsewhere / "it's mine" / "engine"
    own.mkdir(parents=True)
    (own / "guest.yaml").write_text(
        "_target_: config_pieces.FastEngine\nthreads: 9\ndevice: cpu\npath: g\narguments: {}\n"
    )
    recorder = Recorder()
    arguments = ["-m", "-cd", "it's mine", "from=run", "seed=1,2", "engine=written,guest"]
    assert run_command(arguments, recorder, tree) == 0
    found = [(c.config["seed"], c.config["engine"]["threads"], c.config["harnesses"]) for c in recorder.seen]
    assert found == [(seed, threads, first.config["harnesses"]) for seed in (1, 2) for threads in (3, 9)]
    with pytest.raises(ConfigError, match=r"^engine\.thread=1: unknown key; did you mean engine\.threads\?"):
        run_command(["-m", "from=run", "seed=1,2", "engine.thread=1"], Recorder(), tree)


@pytest.mark.parametrize("value", ["${seed}", "\\${seed}", "\\\\${seed} \\", "a'b\"c", "1e-3", "yes", " ", "ü\t→"])
def test_text_stays_text(tree: Tree, elsewhere: Path, value: str) -> None:
    first = written(tree, elsewhere / "run")
    config = {**first.config, "engine": {**first.config["engine"], "path": value}}
    record = {"configuration": config, "configuration_hash": "0" * 12}
    (elsewhere / "run" / "config.yaml").write_text(yaml.safe_dump(record, allow_unicode=True))
    assert again(tree, "run").config == config


def test_what_the_environment_had_set_stays(tree: Tree, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "there")
    written(tree, elsewhere / "run", "engine.path=${oc.env:PLACE}", "seed=4", "harnesses.agent.max_turns=${seed}")
    monkeypatch.setenv("PLACE", "here")
    found = again(tree, "run", "seed=5").config
    assert (found["engine"]["path"], found["harnesses"]["agent"]["max_turns"]) == ("there", 5)


TEXTS = {
    "no run": ("nothing", None, "from='nothing': there is no such folder or file; name a run's directory"),
    "empty": ("", None, "from='': there is no such folder or file; "),
    "never started": ("folder", None, "from='folder': holds no config.yaml, so no run was started in this folder; "),
    "no yaml": ("f.yaml", "[", "from='f.yaml': f.yaml cannot be read (while parsing"),
    "binary": ("f.yaml", b"\xff\xfe\x00", "from='f.yaml': f.yaml cannot be read ("),
    "another program's": ("f.yaml", "model: x\n", "from='f.yaml': f.yaml was written by no run of this program"),
    "a list": ("f.yaml", "[1]", "from='f.yaml': f.yaml was written by no run of this program"),
    "a hash alone": (
        "f.yaml",
        "configuration_hash: a\nconfiguration: 3",
        "from='f.yaml': f.yaml was written by no run",
    ),
    "no configuration": (
        "f.yaml",
        "configuration_hash: a\nconfiguration: {run: 3, seed: 2020-01-01}",
        "from='f.yaml': f.yaml holds no configuration (",
    ),
    "a name that leads elsewhere": (
        "f.yaml",
        "configuration_hash: a\nconfiguration: {experiment: ../x}",
        "from='f.yaml': experiment='../x' is no name of an option; ",
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_what_no_run_wrote_is_one_line(tree: Tree, elsewhere: Path, case: str) -> None:
    given, text, start = TEXTS[case]
    (elsewhere / "folder").mkdir()
    if text is not None:
        (elsewhere / given).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        run_command([f"from={given}"], Recorder(), tree)
    assert str(caught.value).startswith(start)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.exit_code == 2


def test_two_runs_at_once_are_refused(tree: Tree) -> None:
    with pytest.raises(ConfigError, match=r"^from='b': given twice \(a and b\); one run is run again at a time$"):
        run_command(["from=a", "from=b"], Recorder(), tree)


def refused(tree: Tree, given: str, overrides: Sequence[str] = ()) -> list[str]:
    composed = again(tree, given, *overrides)
    found = problems(composed, load_registry(tree.schemas))
    return str(explained(composed, ConfigErrors(found))).splitlines() if found else []


def test_the_configuration_of_other_code_is_told_to_be_that(tree: Tree, elsewhere: Path) -> None:
    first = written(tree, elsewhere / "run", *GIVEN)
    engine = {key: value for key, value in first.config["engine"].items() if key != "device"}
    config = {**first.config, "engine": {**engine, "speed": 3}, "extra": 1}
    del config["sandbox"]
    record = {"configuration": config, "configuration_hash": "0" * 12, "code": {"commit": "abc"}}
    (elsewhere / "run" / "config.yaml").write_text(yaml.safe_dump(record))
    head = (
        "from='run': run/config.yaml was written by other code (commit abc), whose keys are not all those of this "
        "code; set or choose what is named below, leave out with ~KEY what is unknown, or use that code"
    )
    lines = refused(tree, "run")
    assert lines[0] == head
    assert sorted(line.partition(":")[0] for line in lines[1:]) == [
        "engine.device='???'",
        "engine.speed=3",
        "extra=1",
        "sandbox='???'",
    ]
    way_out = ("engine.device=cpu", "~engine.speed", "~extra", "sandbox=box")
    assert refused(tree, "run", way_out) == []
    assert refused(tree, "run", [*way_out, "seed=-1"]) == ["seed=-1: out of range; give an integer ≥ 0: Seed"]


def test_the_files_lie_in_the_cache_once(tree: Tree, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tree, elsewhere / "run", *GIVEN)
    for _ in range(2):
        made = written_tree(read_written("run"), tree)
    assert [path.name for path in (elsewhere / "cache" / "written").iterdir()] == [made.configs.name]
    assert json.loads((made.configs / "engine" / "written.yaml").read_text().split("\n", 1)[1])["threads"] == 3
    monkeypatch.setenv("LEGO_RL_CACHE", str(elsewhere / "run" / "config.yaml"))
    with pytest.raises(
        ConfigError, match=r"^LEGO_RL_CACHE='\S+': \S+ cannot be written \(Not a directory\); set it to"
    ):
        written_tree(read_written("run"), tree)
