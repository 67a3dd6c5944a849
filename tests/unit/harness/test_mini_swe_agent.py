"""What is mini-swe-agent's own in its adapter and launcher."""

import json
from typing import Any

import pytest
from mini_pieces import make_harness

from engine.core.records import Task
from engine.core.specs import Endpoint
from engine.harness.launchers import mini_swe_agent as launcher
from engine.harness.launchers import process

ENDPOINT = Endpoint(base_url="http://127.0.0.1:8080/t/abc", api_key="sk-trial", model="policy")


def settings(task: Task, **changes: object) -> dict[str, Any]:
    launch = make_harness(**changes).launch(task, ENDPOINT)
    loaded: dict[str, Any] = json.loads(launch.files[launch.command[-1]])
    return loaded


def test_settings_are_the_packages_own(task: Task) -> None:
    found = settings(task, max_turns=7, attempts=3, command_timeout_s=9)
    assert found["config"] == "mini.yaml"
    changes = found["changes"]
    assert changes["agent"] == {"step_limit": 7, "cost_limit": 0, "max_consecutive_format_errors": 3}
    assert changes["environment"] == {"cwd": "/testbed", "timeout": 9}
    assert changes["model"]["model_class"] == "litellm"
    assert changes["model"]["cost_tracking"] == "ignore_errors"
    call = changes["model"]["model_kwargs"]
    assert (call["api_base"], call["api_key"]) == ("http://127.0.0.1:8080/t/abc/v1", "sk-trial")
    assert call["max_retries"] == 2
    assert "max_completion_tokens" not in call


def test_text_protocol_and_templates(task: Task) -> None:
    found = settings(task, native_tool_calling=False, system_template="S", max_output_tokens=5)
    assert found["config"] == "mini_textbased.yaml"
    assert found["changes"]["model"]["model_class"] == "litellm_textbased"
    assert found["changes"]["model"]["model_kwargs"]["max_completion_tokens"] == 5
    assert found["changes"]["agent"]["system_template"] == "S"
    assert "instance_template" not in found["changes"]["agent"]


class Agent:
    """Ends with a given exit status."""

    n_calls = 4

    def __init__(self, status: str | Exception) -> None:
        self.status = status

    def run(self, instruction: str) -> dict[str, str]:
        if isinstance(self.status, Exception):
            raise self.status
        return {"exit_status": self.status} if self.status else {}


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        ("Submitted", process.EXIT_FINISHED, ""),
        ("LimitsExceeded", process.EXIT_MAX_TURNS, "LimitsExceeded after 4 calls"),
        ("RepeatedFormatError", process.EXIT_NO_PROGRESS, "RepeatedFormatError after 4 calls"),
        ("Unheard", process.EXIT_CRASHED, "Unheard after 4 calls"),
        ("", process.EXIT_CRASHED, "no exit status after 4 calls"),
    ],
)
def test_endings_by_exit_status(status: str, code: int, error: str) -> None:
    report = {"status": "", "error": ""}
    assert launcher.converse(Agent(status), {"instruction": "x"}, report) == code
    assert report == {"status": status, "error": error, "calls": 4}


def test_calls_are_counted_when_the_agent_fails() -> None:
    report = {"status": "", "error": ""}
    with pytest.raises(OSError, match="gone"):
        launcher.converse(Agent(OSError("gone")), {"instruction": "x"}, report)
    assert report["calls"] == 4
