"""A credential reaches the server and nothing else: no file, no line on a terminal, no hash."""

import copy
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_command import Recorder

from engine.config.assemble import assemble
from engine.config.bundle import configuration_hash, describe
from engine.config.command import run_command
from engine.config.composed import Composed
from engine.config.credentials import Secret, conceal, hide
from engine.config.schemas import TREE, load_registry
from engine.core.credentials import is_credential
from engine.core.errors import ConfigError, ConfigErrors
from engine.run.directory import check_directory
from engine.run.jobs.show import ShowJob
from engine.run.reproduce import resumed, told

SECRET = "s3cr3t-of-mine"
KEY = "inference.environment.HF_TOKEN"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def composed(*overrides: str) -> Composed:
    recorder = Recorder()
    assert run_command(["experiment=openhands_gspo", *overrides], recorder) == 0
    (one,) = recorder.seen
    return one


def again(*overrides: str) -> Composed:
    recorder = Recorder()
    assert run_command(["from=run", *overrides], recorder) == 0
    (one,) = recorder.seen
    return one


def write(one: Composed) -> str:
    """As a run does; returns the contents."""
    Path("run").mkdir(exist_ok=True)
    text = yaml.safe_dump(describe(assemble(one), {}, "c0"))
    Path("run/config.yaml").write_text(text)
    return text


def everything_below(folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


GIVEN = {
    "a value": [f"+{KEY}={SECRET}"],
    "in quotes": [f"+{KEY}='{SECRET}'"],
    "a map": [f"++inference.environment={{HF_TOKEN:{SECRET},OMP_NUM_THREADS:'1'}}"],
    "the group": [f"+inference={{environment:{{HF_TOKEN:'{SECRET}'}}}}"],
    "a default": [f"+{KEY}='${{oc.env:HF_TOKEN,{SECRET}}}'"],
    "another variable": [f"+{KEY}=${{oc.env:MINE}}"],
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_it_is_used_and_written_as_the_name_of_a_variable(given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", SECRET)
    one = composed(*given)
    built: Any = assemble(one)
    seen = subprocess.run(["printenv", "HF_TOKEN"], env=dict(built.inference.environment), capture_output=True)
    assert seen.stdout.decode() == f"{SECRET}\n"
    text = write(one)
    assert SECRET not in text
    name = "MINE" if given == GIVEN["another variable"] else "HF_TOKEN"
    assert yaml.safe_load(text)["configuration"]["inference"]["environment"]["HF_TOKEN"] == f"${{oc.env:{name}}}"
    assert built.hash == assemble(composed()).hash
    assert configuration_hash(yaml.safe_load(text)["configuration"]) == built.hash
    assert SECRET not in f"{one} {one.config} {one.command_line} {one.interpolated} {one.origins()}"


def test_what_the_environment_sets_is_the_machines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADS", "7")
    one = composed("inference.environment.OMP_NUM_THREADS='${oc.env:THREADS,4}'")
    assert one.config["inference"]["environment"]["OMP_NUM_THREADS"] == "7"
    write(one)
    monkeypatch.delenv("THREADS")
    assert again().config["inference"]["environment"]["OMP_NUM_THREADS"] == "4"
    assert assemble(again()).hash == assemble(one).hash
    assert assemble(composed("inference.environment.OMP_NUM_THREADS='7'")).hash != assemble(one).hash


def test_a_run_again_takes_it_from_the_variable_or_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    write(composed(f"+{KEY}={SECRET}"))
    with pytest.raises(ConfigErrors) as missing:
        assemble(again())
    assert str(missing.value) == (
        f"{KEY}='${{oc.env:HF_TOKEN}}': the environment variable HF_TOKEN is not set; set it, or give {KEY}=VALUE"
    )
    assert again(f"{KEY}=other").config["inference"]["environment"]["HF_TOKEN"] == "other"
    monkeypatch.setenv("HF_TOKEN", "rotated")
    one = again()
    assert one.config["inference"]["environment"]["HF_TOKEN"] == "rotated"
    built = assemble(one)
    assert built.written is not None
    differing = "\n".join(told(built.written, describe(built, {}, "c0")))
    assert "HF_TOKEN" not in differing
    assert "configuration" not in differing


def test_a_run_of_older_code_that_holds_it_shows_it_nowhere(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = yaml.safe_load(write(composed(f"+{KEY}={SECRET}")))
    record["configuration"]["inference"]["environment"]["HF_TOKEN"] = SECRET
    record |= {"interpolated": {}, "configuration_hash": "0" * 12}
    Path("run/config.yaml").write_text(yaml.safe_dump(record))
    monkeypatch.setenv("HF_TOKEN", "rotated")
    built = assemble(again())
    assert built.written is not None
    assert built.inference.environment["HF_TOKEN"] == "rotated"  # type: ignore[attr-defined]
    assert SECRET not in "\n".join(told(built.written, describe(built, {}, "c0")))
    assert SECRET not in everything_below(elsewhere / "cache")


async def test_what_shows_the_configuration_shows_the_variable(capsys: pytest.CaptureFixture[str]) -> None:
    one = composed(f"+{KEY}={SECRET}")
    await ShowJob().run(assemble(one))
    shown = capsys.readouterr().out
    assert "HF_TOKEN: ${oc.env:HF_TOKEN}  # command line → ${oc.env:HF_TOKEN}" in shown
    assert SECRET not in shown


@pytest.mark.parametrize("flags", [["--cfg", "job"], ["--cfg", "job", "--resolve"], ["--cfg", "all"]])
def test_hydras_flags_show_none(
    flags: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", SECRET)
    given = [f"+{KEY}={SECRET}", "+inference.environment.B_KEY=${oc.env:MY_KEY}"]
    assert run_command(["experiment=openhands_gspo", *given, *flags], Recorder()) == 0
    told_there = capsys.readouterr()
    assert "HF_TOKEN" in told_there.out
    assert SECRET not in told_there.out + told_there.err


class Sweeper(Recorder):
    def begin_sweep(self) -> Path:
        return Path("record")


def test_a_sweeps_record_holds_none(elsewhere: Path) -> None:
    (elsewhere / "own/experiment").mkdir(parents=True)
    (elsewhere / "own/experiment/mine.yaml").write_text(
        f"# @package _global_\ndefaults: [openhands_gspo]\ninference:\n  environment:\n    A_SECRET: {SECRET}\n"
    )
    sweeper = Sweeper()
    given = ["experiment=mine", f"+{KEY}={SECRET}", "seed=1,2"]
    assert run_command(["-m", "--config-dir", "own", *given], sweeper) == 0
    assert [one.config["inference"]["environment"]["HF_TOKEN"] == SECRET for one in sweeper.seen] == [True, True]
    assert [one.config["inference"]["environment"]["A_SECRET"] == SECRET for one in sweeper.seen] == [True, True]
    assert sweeper.points == ["seed=1", "seed=2"]
    assert (elsewhere / "record/multirun.yaml").is_file()
    assert SECRET not in everything_below(elsewhere / "record")


@pytest.mark.parametrize(
    "value", [f"{SECRET},b", f"choice({SECRET},b)", f"'{SECRET}','b'", f"'${{oc.env:A,{SECRET}}}','${{oc.env:B}}'"]
)
def test_it_is_not_swept(value: str) -> None:
    with pytest.raises(ConfigError, match="is no single value") as refused:
        run_command(["-m", "experiment=openhands_gspo", f"+{KEY}={value}"], Recorder())
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        f"+inference.environment={{HF_TOKEN: {SECRET}}},{{HF_TOKEN: b}}",
        f"++inference.environment={{}},{{HF_TOKEN: {SECRET}}}",
        f"+inference.environment=choice({{HF_TOKEN: {SECRET}}})",
        f"+inference=shuffle({{environment: {{A: b}}}},{{environment: {{HF_TOKEN: '{SECRET}'}}}})",
    ],
)
def test_no_map_that_holds_it_is_swept(given: str) -> None:
    with pytest.raises(ConfigError, match=r"environment\.HF_TOKEN='\(hidden\)': is no single value") as refused:
        run_command(["-m", "experiment=openhands_gspo", given, "seed=1,2"], Recorder())
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "given", [f"+{KEY}='{SECRET}${{oc.env:MINE}}'", f"+inference.environment={{HF_TOKEN:'{SECRET}${{oc.env:MINE}}'}}"]
)
def test_the_text_beside_an_interpolation_is_hidden_too(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigErrors, match="the environment variable MINE is not set") as missing:
        assemble(composed(given))
    assert SECRET not in str(missing.value)
    monkeypatch.setenv("MINE", "-and-more")
    one = composed(given)
    assert one.config["inference"]["environment"]["HF_TOKEN"] == f"{SECRET}-and-more"
    assert SECRET not in f"{write(one)} {one.command_line} {one.interpolated} {one.origins()}"


def test_what_is_no_interpolation_is_not_quoted() -> None:
    with pytest.raises(ConfigErrors, match="it is no interpolation") as refused:
        assemble(composed(f"+{KEY}='{SECRET}${{oc.env:'"))
    assert SECRET not in str(refused.value)


def test_it_is_hidden_from_every_error(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("nothing=1", f"+{KEY}.x={SECRET}", "inference.environment=3", "seed=x"):
        with pytest.raises(ConfigError) as refused:
            assemble(composed(f"+{KEY}={SECRET}", wrong))
        assert SECRET not in str(refused.value), wrong
    assert SECRET not in "".join(capsys.readouterr())


BESIDE = (
    f"+inference.enviroment.HF_TOKEN={SECRET}",
    f"inference.enviroment.HF_TOKEN={SECRET}",
    f"+inference.enviroment={{HF_TOKEN: {SECRET}}}",
    f"inference.enviroment={{A: {{HF_TOKEN: {SECRET}}}}}",
    f"+HF_TOKEN={SECRET}",
    f"HF_TOKEN={SECRET}",
    f"+inference.environment={{HF_TOKEN: {SECRET}",
    f"+inference.environment={{'HF_TOKEN' {SECRET}}}",
    f"+inference.environment.HF_TOKEN:{SECRET}",
    f"+seed.HF_TOKEN={SECRET}",
    f"seed={{HF_TOKEN: {SECRET}}}",
    f"inference={{HF_TOKEN: {SECRET}}}",
    f"+HF_TOKEN={SECRET},b",
)


@pytest.mark.parametrize("flags", [[], ["-m", "seed=1,2"]], ids=["run", "sweep"])
@pytest.mark.parametrize("wrong", BESIDE)
def test_a_wrong_key_shows_it_no_more(
    wrong: str, flags: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "__call__", lambda _, one: bool(assemble(one)), raising=True)
    with pytest.raises(ConfigError) as refused:
        run_command([*flags[:1], "experiment=openhands_gspo", *flags[1:], wrong], Recorder())
    assert SECRET not in str(refused.value)
    assert SECRET not in "".join(capsys.readouterr())


def test_a_text_that_looks_like_a_number_is_a_text() -> None:
    assert assemble(composed(f"+{KEY}=0123456")).inference.environment["HF_TOKEN"] == "0123456"  # type: ignore[attr-defined]


def test_a_server_takes_no_credential_on_its_command_line() -> None:
    built = assemble(composed("+inference.arguments.hf_token=x", "+inference.arguments.long_prefill_token_threshold=4"))
    told_there = [str(one) for one in built.inference.problems() if "arguments" in one.key]
    assert told_there == [
        "inference.arguments.hf_token='(hidden)': a credential would stand in the list of processes and in vLLM's log; "
        "leave it out, or set its variable (HF_TOKEN) in the shell or in inference.environment"
    ]


def test_a_secret_is_the_text_and_says_its_reference() -> None:
    made = copy.deepcopy({"a": Secret("abc", "${oc.env:A}")})["a"]
    assert (made, made.encode(), hash(made)) == ("abc", b"abc", hash("abc"))
    assert [str(made), repr(made), f"{made}", f"{[made]}", f"{made:>12}"] == [
        "${oc.env:A}",
        "'${oc.env:A}'",
        "${oc.env:A}",
        "['${oc.env:A}']",
        " ${oc.env:A}",
    ]
    with pytest.raises(yaml.representer.RepresenterError):  # never written by oversight
        yaml.safe_dump([made])


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((name, True) for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "apikey", "PGPASSWORD")),
        *((name, True) for name in ("GOOGLE_APPLICATION_CREDENTIALS", "MY_SECRETS", "hf_token", "TOKEN")),
        *((name, False) for name in ("MAX_TOKENS", "TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS", "KEYBOARD", "PATH")),
    ],
)
def test_names(name: str, is_one: bool) -> None:
    assert is_credential(name) == is_one


def test_every_map_of_environment_variables_is_marked() -> None:
    def maps(schema: Any, name: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
        if isinstance(schema, Mapping):
            if "environment variable" in str(schema.get("description", "")).lower() and schema.get("type") == "object":
                yield name, schema
            for inner_name, inner in schema.items():
                yield from maps(inner, inner_name)

    registry = load_registry(TREE.schemas)
    found = dict(maps({"properties": {**registry.components, "run": registry.run}}))
    assert list(found) == ["environment"]
    assert all(schema.get("x-environment") is True for schema in found.values())


def test_a_map_of_a_component_in_a_map_of_components_counts_too() -> None:
    registry = load_registry(TREE.schemas)
    (target,) = [one for one in registry.components if one.startswith("engine.harness.openhands.") and "Hands" in one]
    schema = copy.deepcopy(dict(registry.components[target]))
    schema["properties"]["variables"] = {"type": "object", "x-environment": True}
    own = replace(registry, components={**registry.components, target: schema})
    config = {"harnesses": {"a": {"_target_": target, "variables": {"A_KEY": SECRET, "LANG": "C"}}}}
    concealed, interpolated = conceal(config, {}, own)
    assert SECRET not in repr(concealed)
    assert concealed["harnesses"]["a"]["variables"]["LANG"] == "C"
    assert interpolated == {"harnesses.a.variables.A_KEY": "${oc.env:A_KEY}"}
    assert SECRET not in repr(hide([f"+harnesses.a.variables.A_KEY={SECRET}"], own))


def test_a_rotated_one_goes_on_in_the_runs_directory(tmp_path: Path) -> None:
    built = assemble(composed("run.name=mine", f"+{KEY}={SECRET}"))
    built.directory.mkdir(parents=True)
    (built.directory / "config.yaml").write_text(yaml.safe_dump(describe(built, {}, "c0")))
    check_directory(assemble(composed("run.name=mine", f"+{KEY}=rotated")))
    record = yaml.safe_load((built.directory / "config.yaml").read_text())
    record["configuration"]["inference"]["environment"]["HF_TOKEN"] = SECRET  # as older code wrote it
    (built.directory / "config.yaml").write_text(yaml.safe_dump(record))
    with pytest.raises(ConfigError, match=r"holds a run with seed=0, this one has 1") as refused:
        check_directory(assemble(composed("run.name=mine", f"+{KEY}=rotated", "seed=1")))
    assert SECRET not in str(refused.value)


def as_older_code_wrote(one: Composed, name: str) -> dict[str, Any]:
    record = describe(assemble(one), {}, "c0")
    record["configuration"]["inference"]["environment"][name] = SECRET
    return record


def test_a_run_of_older_code_with_a_variable_is_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOO", "now")
    one = composed("run.name=mine", "+inference.environment.X=${oc.env:FOO}")
    built = assemble(one)
    built.directory.mkdir(parents=True)
    (built.directory / "config.yaml").write_text(yaml.safe_dump(as_older_code_wrote(one, "X")))
    check_directory(built)
    with pytest.raises(ConfigError, match="holds a run with seed=0"):
        check_directory(assemble(composed("run.name=mine", "+inference.environment.X=${oc.env:FOO}", "seed=1")))


def test_a_run_of_older_code_that_goes_on_loses_it() -> None:
    one = composed(f"+{KEY}=new")
    there = as_older_code_wrote(one, "HF_TOKEN") | {
        "interpolated": {},
        "command_line": [f"+{KEY}={SECRET}", "seed=0"],
        "resumed": [{"at": "then", "differs": [f"configuration: {KEY}: 'x' → '{SECRET}'", "python: 1 → 2"]}],
    }
    built = assemble(one)
    made = resumed(built, there, describe(built, {}, "c0"))
    assert SECRET not in yaml.safe_dump(dict(made))
    assert made["configuration"]["inference"]["environment"]["HF_TOKEN"] == "${oc.env:HF_TOKEN}"
    assert made["command_line"] == [f"+{KEY}=${{hidden:{KEY}}}", "seed=0"]
    assert made["resumed"][0]["differs"][1] == "python: 1 → 2"
    assert composed(*one.command_line).config["inference"]["environment"]["HF_TOKEN"] == "new"


def test_the_way_out_says_what_to_write() -> None:
    with pytest.raises(ConfigErrors, match=rf"write \+{KEY}=VALUE$"):
        composed(f"{KEY}={SECRET}")
