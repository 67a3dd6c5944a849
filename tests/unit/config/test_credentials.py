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
from engine.config.credentials import Secret, conceal
from engine.config.schemas import TREE, load_registry
from engine.core.credentials import is_credential
from engine.core.errors import ConfigError, ConfigErrors
from engine.run.directory import check_directory
from engine.run.jobs.show import ShowJob
from engine.run.reproduce import told

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


REFERENCE = "${oc.env:MINE}"
BY_REFERENCE = {
    "a value": [f"+{KEY}={REFERENCE}"],
    "in quotes": [f"+{KEY}='{REFERENCE}'"],
    "a map": [f"++inference.environment={{HF_TOKEN:'{REFERENCE}',OMP_NUM_THREADS:'1'}}"],
    "the group": [f"+inference={{environment:{{HF_TOKEN:'{REFERENCE}'}}}}"],
    "with an empty default": [f"+{KEY}='${{oc.env:MINE,null}}'"],
}
BY_VALUE = {
    "a value": [f"+{KEY}={SECRET}"],
    "in quotes": [f"+{KEY}='{SECRET}'"],
    "a number": [f"+{KEY}=5678"],
    "a map": [f"++inference.environment={{HF_TOKEN:{SECRET},OMP_NUM_THREADS:'1'}}"],
    "the group": [f"+inference={{environment:{{HF_TOKEN:'{SECRET}'}}}}"],
    "a default": [f"+{KEY}='${{oc.env:HF_TOKEN,{SECRET}}}'"],
    "beside a reference": [f"+{KEY}='{SECRET}{REFERENCE}'"],
    "not even a text": [f"+{KEY}={{a: {SECRET}}}"],
    "below": [f"+{KEY}.x={SECRET}"],
}


@pytest.mark.parametrize("given", BY_REFERENCE.values(), ids=BY_REFERENCE)
def test_it_is_used_and_written_as_the_name_of_a_variable(given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", SECRET)
    one = composed(*given)
    built: Any = assemble(one)
    seen = subprocess.run(["printenv", "HF_TOKEN"], env=dict(built.inference.environment), capture_output=True)
    assert seen.stdout.decode() == f"{SECRET}\n"
    text = write(one)
    assert SECRET not in text
    assert yaml.safe_load(text)["configuration"]["inference"]["environment"]["HF_TOKEN"] == REFERENCE
    assert built.hash == assemble(composed()).hash
    assert configuration_hash(yaml.safe_load(text)["configuration"]) == built.hash
    assert SECRET not in f"{one} {one.config} {one.command_line} {one.interpolated} {one.origins()}"


@pytest.mark.parametrize("flags", [[], ["-m", "seed=1,2"]], ids=["run", "sweep"])
@pytest.mark.parametrize("given", BY_VALUE.values(), ids=BY_VALUE)
def test_one_that_is_given_by_value_is_refused(
    given: list[str], flags: list[str], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "5678")
    recorder = Recorder()
    with pytest.raises(ConfigErrors) as refused:
        run_command([*flags[:1], "experiment=openhands_gspo", *flags[1:], *given], recorder)
    assert str(refused.value).partition("; ")[2] == f"export HF_TOKEN=…, and write {KEY}='${{oc.env:HF_TOKEN}}'"
    assert str(refused.value).startswith(f"{KEY}='(hidden)': a credential that stands in the configuration itself")
    assert recorder.seen == []
    assert SECRET not in str(refused.value) + everything_below(elsewhere)


def test_one_in_a_file_is_refused_too(elsewhere: Path) -> None:
    (elsewhere / "own/experiment").mkdir(parents=True)
    (elsewhere / "own/experiment/mine.yaml").write_text(
        f"# @package _global_\ndefaults: [openhands_gspo]\ninference:\n  environment:\n    A_SECRET: {SECRET}\n"
    )
    with pytest.raises(ConfigErrors, match=r"environment\.A_SECRET='\(hidden\)': a credential that stands"):
        run_command(["--config-dir", "own", "experiment=mine"], Recorder())


def test_what_the_environment_sets_is_the_machines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADS", "7")
    one = composed("inference.environment.OMP_NUM_THREADS='${oc.env:THREADS,4}'")
    assert one.config["inference"]["environment"]["OMP_NUM_THREADS"] == "7"
    write(one)
    monkeypatch.delenv("THREADS")
    assert again().config["inference"]["environment"]["OMP_NUM_THREADS"] == "4"
    assert assemble(again()).hash == assemble(one).hash
    assert assemble(composed("inference.environment.OMP_NUM_THREADS='7'")).hash != assemble(one).hash


def test_a_run_again_takes_it_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    write(composed(f"+{KEY}=${{oc.env:HF_TOKEN}}"))
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ConfigErrors) as missing:
        assemble(again())
    assert str(missing.value) == (f"{KEY}='${{oc.env:HF_TOKEN}}': the environment variable HF_TOKEN is not set; set it")
    monkeypatch.setenv("MINE", "other")
    assert again(f"{KEY}={REFERENCE}").config["inference"]["environment"]["HF_TOKEN"] == "other"
    monkeypatch.setenv("HF_TOKEN", "rotated")
    one = again()
    assert one.config["inference"]["environment"]["HF_TOKEN"] == "rotated"
    built = assemble(one)
    assert built.written is not None
    differing = "\n".join(told(built.written, describe(built, {}, "c0")))
    assert "HF_TOKEN" not in differing
    assert "configuration" not in differing


async def test_what_shows_the_configuration_shows_the_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", SECRET)
    one = composed(f"+{KEY}={REFERENCE}")
    await ShowJob().run(assemble(one))
    shown = capsys.readouterr().out
    assert "HF_TOKEN: ${oc.env:MINE}  # command line → ${oc.env:MINE}" in shown
    assert SECRET not in shown


@pytest.mark.parametrize("flags", [["--cfg", "job"], ["--cfg", "job", "--resolve"], ["--cfg", "all"]])
def test_hydras_flags_show_none(
    flags: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", SECRET)
    given = f"+{KEY}=${{oc.env:MY_KEY}}"
    assert run_command(["experiment=openhands_gspo", given, *flags], Recorder()) == 0
    told_there = capsys.readouterr()
    assert "HF_TOKEN" in told_there.out
    assert SECRET not in told_there.out + told_there.err


class Sweeper(Recorder):
    def begin_sweep(self) -> Path:
        return Path("record")


def test_a_sweeps_record_holds_none(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", SECRET)
    sweeper = Sweeper()
    given = ["experiment=openhands_gspo", f"+{KEY}={REFERENCE}", "seed=1,2"]
    assert run_command(["-m", *given], sweeper) == 0
    assert [one.config["inference"]["environment"]["HF_TOKEN"] == SECRET for one in sweeper.seen] == [True, True]
    assert sweeper.points == ["seed=1", "seed=2"]
    assert (elsewhere / "record/multirun.yaml").is_file()
    assert SECRET not in everything_below(elsewhere / "record")


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


@pytest.mark.parametrize(
    ("wrong", "flags"), [*((one, []) for one in BESIDE), *((one, ["-m", "seed=1,2"]) for one in BESIDE[::3])]
)
def test_a_wrong_key_shows_it_no_more(
    wrong: str, flags: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "__call__", lambda _, one: bool(assemble(one)), raising=True)
    with pytest.raises(ConfigError) as refused:
        run_command([*flags[:1], "experiment=openhands_gspo", *flags[1:], wrong], Recorder())
    assert SECRET not in str(refused.value)
    assert SECRET not in "".join(capsys.readouterr())


def test_a_text_that_looks_like_a_number_is_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "0123456")
    assert assemble(composed(f"+{KEY}={REFERENCE}")).inference.environment["HF_TOKEN"] == "0123456"  # type: ignore[attr-defined]


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
            if name == "environment" and schema.get("type") == "object":
                yield name, schema
            for inner_name, inner in schema.items():
                yield from maps(inner, inner_name)

    registry = load_registry(TREE.schemas)
    found = list(maps({"properties": {**registry.components, "run": registry.run}}))
    assert len(found) >= 6
    assert all(schema.get("x-environment") is True for _, schema in found)


def test_a_map_of_a_component_in_a_map_of_components_counts_too() -> None:
    registry = load_registry(TREE.schemas)
    (target,) = [one for one in registry.components if one.startswith("engine.harness.openhands.") and "Hands" in one]
    schema = copy.deepcopy(dict(registry.components[target]))
    schema["properties"]["variables"] = {"type": "object", "x-environment": True}
    own = replace(registry, components={**registry.components, target: schema})
    config = {"harnesses": {"a": {"_target_": target, "variables": {"A_KEY": SECRET, "LANG": "C"}}}}
    with pytest.raises(ConfigErrors, match=r"harnesses\.a\.variables\.A_KEY='\(hidden\)'"):
        conceal(config, {}, own)
    concealed, interpolated = conceal(config, {"harnesses.a.variables.A_KEY": "${oc.env:A_KEY}"}, own)
    assert SECRET not in repr(concealed)
    assert concealed["harnesses"]["a"]["variables"]["LANG"] == "C"
    assert interpolated == {"harnesses.a.variables.A_KEY": "${oc.env:A_KEY}"}


def test_a_rotated_one_goes_on_in_the_runs_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("run.name=mine", f"+{KEY}={REFERENCE}")
    monkeypatch.setenv("MINE", SECRET)
    built = assemble(composed(*given))
    built.directory.mkdir(parents=True)
    (built.directory / "config.yaml").write_text(yaml.safe_dump(describe(built, {}, "c0")))
    monkeypatch.setenv("MINE", "rotated")
    check_directory(assemble(composed(*given)))
    with pytest.raises(ConfigError, match=r"holds a run with seed=0, this one has 1") as refused:
        check_directory(assemble(composed(*given, "seed=1")))
    assert SECRET not in str(refused.value)


def test_a_placeholder_is_none() -> None:
    given = ("harness=claude_code", "+harnesses.claude_code.environment.OTHER_API_KEY='{api_key}'")
    assert composed(*given).config["harnesses"]["claude_code"]["environment"] == {"OTHER_API_KEY": "{api_key}"}


def test_the_way_out_says_what_to_write() -> None:
    with pytest.raises(ConfigErrors, match=rf"write \+{KEY}=VALUE$"):
        composed(f"{KEY}={SECRET}")
