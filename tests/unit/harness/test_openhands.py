"""What is OpenHands' own in its adapter."""

import json
from pathlib import Path

import pytest
from openhands_pieces import make_harness

from engine.core.records import Task
from engine.core.specs import Endpoint, ImageSpec
from engine.harness.condensers import SummarisingCondenser

ENDPOINT = Endpoint(base_url="http://127.0.0.1:8080/t/abc", api_key="sk-trial", model="policy")


class NoImages:
    def path(self, spec: ImageSpec) -> Path:
        return Path("/nowhere")

    async def build(self, spec: ImageSpec, say: object) -> Path:
        return self.path(spec)


def test_settings_are_the_sdks_own(task: Task) -> None:
    launch = make_harness(max_turns=7).launch(task, ENDPOINT)
    settings = json.loads(launch.files[launch.command[-1]])
    assert settings["llm"]["base_url"] == "http://127.0.0.1:8080/t/abc/v1"
    assert settings["llm"]["api_key"] == "sk-trial"
    assert settings["llm"]["model"] == "openai/policy"
    assert settings["conversation"]["max_iteration_per_run"] == 7


@pytest.mark.parametrize(("max_events", "keep_first", "fine"), [(80, 4, True), (10, 3, True), (10, 4, False)])
def test_condenser_bounds_are_those_of_the_sdk(max_events: int, keep_first: int, fine: bool) -> None:
    condenser = SummarisingCondenser(max_events=max_events, keep_first=keep_first)
    found = make_harness(condenser=condenser).problems(NoImages())
    problems = [str(problem) for problem in found if "condenser" in str(problem)]
    assert problems == [] if fine else "keep_first=4" in problems[0]
