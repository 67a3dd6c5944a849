"""The launcher's own parts, without the SDK."""

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from engine.harness.launchers import openhands as launcher


def test_settings_are_read_once_and_their_file_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"llm": {"api_key": "sk"}}')
    assert launcher.take_settings(path)["llm"]["api_key"] == "sk"
    assert not path.exists()


def test_report_replaces_a_link_instead_of_following_it(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("untouched")
    path = tmp_path / "report.json"
    path.symlink_to(precious)
    launcher.write_report(path, {"error": "x"})
    assert precious.read_text() == "untouched"
    assert not path.is_symlink()
    assert json.loads(path.read_text()) == {"error": "x"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_report_that_cannot_be_written_is_said_and_does_not_raise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gone" / "report.json"
    launcher.write_report(path, {})
    assert "no report" in capsys.readouterr().err
    path.parent.mkdir()
    (path.parent / f".report.json.{os.getpid()}").symlink_to(tmp_path / "elsewhere")
    launcher.write_report(path, {})
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ("finished", "", launcher.EXIT_FINISHED),
        ("finished", "MaxIterationsReached", launcher.EXIT_FINISHED),
        ("stuck", "", launcher.EXIT_STUCK),
        ("error", "MaxIterationsReached", launcher.EXIT_MAX_ITERATIONS),
        ("error", "Other", launcher.EXIT_CRASHED),
        ("paused", "", launcher.EXIT_CRASHED),
    ],
)
def test_endings_by_status(status: str, code: str, expected: int) -> None:
    assert launcher.exit_code_at(status, code) == expected


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
    assert launcher.spent_resources(error) is expected


def test_causes_are_followed() -> None:
    inner = OSError(errno.ENOSPC, "full")
    try:
        try:
            raise inner
        except OSError as error:
            raise RuntimeError("outer") from error
    except RuntimeError as outer:
        assert list(launcher.causes(outer)) == [outer, inner]


def test_progress_keeps_the_last_error_of_the_conversation() -> None:
    class ConversationErrorEvent:
        code, detail = "MaxIterationsReached", "limit"

    progress = launcher.Progress()
    progress(object())
    progress(ConversationErrorEvent())
    assert progress.events == {"object": 1, "ConversationErrorEvent": 1}
    assert (progress.code, progress.detail) == ("MaxIterationsReached", "limit")


def test_given_environment_is_that_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADDED_SINCE", "1")
    given = launcher.given_environment()
    assert given["PATH"]
    assert "ADDED_SINCE" not in given


def test_failure_at_set_up_is_a_crash_with_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "close_to_neighbours", lambda: None)
    path = tmp_path / "settings.json"
    path.write_text("no json")
    assert launcher.main(path) == launcher.EXIT_CRASHED
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["exit_code"] == launcher.EXIT_CRASHED
    assert content["error"].startswith("JSONDecodeError")
