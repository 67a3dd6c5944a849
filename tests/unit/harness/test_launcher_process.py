"""What every launcher does around its harness, without one."""

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from engine.harness.launchers import process


class Program:
    """A harness that needs no package; `ending` is what its conversation returns or raises."""

    IMPORT_ENVIRONMENT: ClassVar = {"WHILE_IMPORTING": "1"}
    IMPORTED: ClassVar = ["wave"]

    def __init__(self, ending: int | Exception = process.EXIT_FINISHED, known: int | None = None) -> None:
        self.ending, self.known = ending, known
        self.seen: list[dict[str, str]] = []

    def prepare(self, settings: dict[str, Any]) -> str:
        self.seen.append(dict(os.environ))
        return "conversation"

    def converse(self, conversation: str, settings: dict[str, Any], report: dict[str, Any]) -> int:
        assert (conversation, settings["instruction"]) == ("conversation", "Fix it.")
        self.seen.append(dict(os.environ))
        if isinstance(self.ending, Exception):
            raise self.ending
        return self.ending

    def exit_code_of(self, chain: Sequence[BaseException]) -> int | None:
        return self.known


@pytest.fixture
def aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher changes its own process; here that is the test's."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(process.site, "addsitedir", lambda path: None)
    monkeypatch.setattr(process.gc, "freeze", lambda: None)


def run(program: Program, report: dict[str, Any]) -> int:
    return process.run(program, {"runtime": "/opt/agent", "instruction": "Fix it."}, {"GIVEN": "1"}, report)


@pytest.mark.usefixtures("aside")
@pytest.mark.parametrize("start", ["warm", "cold"])
def test_the_conversation_has_the_given_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], start: str
) -> None:
    monkeypatch.setattr(process, "close_to_neighbours", lambda: None)
    monkeypatch.setattr(process, "given_environment", lambda: {"GIVEN": "1"})
    path = tmp_path / "settings.json"
    path.write_text('{"runtime": "/opt/agent", "instruction": "Fix it."}')
    os.environ["OF_THE_WARM_PROCESS"] = "1"
    program = Program(process.EXIT_MAX_TURNS)
    code = process.main(program, path, {"GIVEN": "1"} if start == "warm" else None)
    assert code == process.EXIT_MAX_TURNS
    assert program.seen[0]["WHILE_IMPORTING"] == "1"
    assert ("OF_THE_WARM_PROCESS" in program.seen[0]) is (start == "cold")
    assert program.seen[1] == {"GIVEN": "1"}
    assert capsys.readouterr().out == process.STARTED + "\n"
    assert not path.exists()


@pytest.mark.usefixtures("aside")
def test_loading_imports_what_a_conversation_needs() -> None:
    sys.modules.pop("wave", None)
    process.load(Program(), "/opt/agent")
    assert "wave" in sys.modules
    assert os.environ["WHILE_IMPORTING"] == "1"


FORKED = """
import os, random, sys
from pathlib import Path
from engine.harness.launchers import process

class Program:
    IMPORT_ENVIRONMENT, IMPORTED = {}, ()
    def prepare(self, settings):
        return None
    def converse(self, conversation, settings, report):
        print(random.random(), os.environ.get("GIVEN"), sys.argv[0])
        raise {error}

for number in range(2):
    path = Path(sys.argv[1], f"settings-{number}.json")
    path.write_text('{"instruction": "Fix it."}')
    if (child := os.fork()) == 0:
        process.start_warm(Program(), ("program", str(path)), {"GIVEN": "1"})
    print("EXIT", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.parametrize(
    ("error", "code"),
    [("SystemExit(3)", 3), ("SystemExit('words')", 1), ("KeyboardInterrupt", -2), ("ValueError", process.EXIT_CRASHED)],
)
def test_a_forked_trial_ends_as_a_cold_one_and_draws_its_own_numbers(tmp_path: Path, error: str, code: int) -> None:
    script = FORKED.replace("{error}", error)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines.count(f"EXIT {code}") == 2, done.stderr
    drawn = [line.split() for line in lines if line.endswith("program")]
    assert [words[1] for words in drawn] == ["1", "1"]
    assert drawn[0][0] != drawn[1][0]


def error_of(module: str) -> Exception:
    return type("Foreign", (Exception,), {"__module__": module})("boom")


@pytest.mark.usefixtures("aside")
@pytest.mark.parametrize(
    ("error", "known", "code"),
    [
        (OSError(errno.ENOSPC, "full"), process.EXIT_REFUSED, process.EXIT_OUT_OF_RESOURCES),
        (error_of("litellm.exceptions"), process.EXIT_CONTEXT_OVERFLOW, process.EXIT_CONTEXT_OVERFLOW),
        (error_of("litellm.exceptions"), None, process.EXIT_UNSERVED),
        (error_of("httpx"), None, process.EXIT_UNSERVED),
        (RuntimeError("boom"), None, process.EXIT_CRASHED),
    ],
)
def test_endings_by_exception(error: Exception, known: int | None, code: int) -> None:
    report = {"error": ""}
    assert run(Program(error, known), report) == code
    assert type(error).__name__ in report["error"]


@pytest.mark.usefixtures("aside")
def test_the_harnesss_own_words_come_before_the_exceptions() -> None:
    report = {"error": "its own words"}
    assert run(Program(RuntimeError("boom")), report) == process.EXIT_CRASHED
    assert report["error"] == "its own words"


def test_settings_are_read_once_and_their_file_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"llm": {"api_key": "sk"}}')
    assert process.take_settings(path)["llm"]["api_key"] == "sk"
    assert not path.exists()


def test_report_replaces_a_link_instead_of_following_it(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("untouched")
    path = tmp_path / "report.json"
    path.symlink_to(precious)
    process.write_report(path, {"error": "x"})
    assert precious.read_text() == "untouched"
    assert not path.is_symlink()
    assert json.loads(path.read_text()) == {"error": "x"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_report_that_cannot_be_written_is_said_and_does_not_raise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gone" / "report.json"
    process.write_report(path, {})
    assert "no report" in capsys.readouterr().err
    path.parent.mkdir()
    (path.parent / f".report.json.{os.getpid()}").symlink_to(tmp_path / "elsewhere")
    process.write_report(path, {})
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOSPC, "full"), True),
        (BlockingIOError(errno.EAGAIN, "fork"), True),
        (RuntimeError("can't start new thread"), True),
        (OSError(errno.ENOENT, "gone"), False),
        (RuntimeError("boom"), False),
    ],
)
def test_spent_resources(error: Exception, expected: bool) -> None:
    assert process.spent_resources(error) is expected


def test_causes_are_followed() -> None:
    inner = OSError(errno.ENOSPC, "full")
    try:
        try:
            raise inner
        except OSError as error:
            raise RuntimeError("outer") from error
    except RuntimeError as outer:
        assert list(process.causes(outer)) == [outer, inner]


def test_given_environment_is_that_of_the_start() -> None:
    """In a process of its own: one that changed its title, as test runners do, wrote over what it was given."""
    lines = "import json, os, process; os.environ['ADDED_SINCE'] = '1'; print(json.dumps(process.given_environment()))"
    given = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(process.__file__).parent)}
    told = subprocess.run([sys.executable, "-c", lines], env=given, capture_output=True, text=True, check=True)
    assert json.loads(told.stdout).items() >= given.items()
    assert "ADDED_SINCE" not in told.stdout


def test_failure_at_set_up_is_a_crash_with_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "close_to_neighbours", lambda: None)
    path = tmp_path / "settings.json"
    path.write_text("no json")
    assert process.main(Program(), path) == process.EXIT_CRASHED
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["exit_code"] == process.EXIT_CRASHED
    assert content["error"].startswith("JSONDecodeError")
