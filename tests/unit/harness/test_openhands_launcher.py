"""The launcher's own parts, without the SDK."""

import pytest

from engine.harness.launchers import openhands as launcher
from engine.harness.launchers import process


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ("finished", "", process.EXIT_FINISHED),
        ("finished", "MaxIterationsReached", process.EXIT_FINISHED),
        ("stuck", "", process.EXIT_NO_PROGRESS),
        ("error", "MaxIterationsReached", process.EXIT_MAX_TURNS),
        ("error", "Other", process.EXIT_CRASHED),
        ("paused", "", process.EXIT_CRASHED),
    ],
)
def test_endings_by_status(status: str, code: str, expected: int) -> None:
    assert launcher.exit_code_at(status, code) == expected


def test_progress_keeps_the_last_error_of_the_conversation() -> None:
    class ConversationErrorEvent:
        code, detail = "MaxIterationsReached", "limit"

    progress = launcher.Progress()
    progress(object())
    progress(ConversationErrorEvent())
    assert progress.events == {"object": 1, "ConversationErrorEvent": 1}
    assert (progress.code, progress.detail) == ("MaxIterationsReached", "limit")
