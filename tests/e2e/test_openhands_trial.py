"""The real OpenHands SDK in a real bubblewrap sandbox, against a scripted server on the sandbox's loopback."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from harness_pieces import build_images, listing_imports, shared_runtime
from harness_pieces import run_trial as run_any
from openhands_pieces import (
    HANG,
    KEY,
    ChatServer,
    Refusal,
    call,
    make_harness,
    make_task,
    run_trial,
    sandbox_of,
    say,
    shell,
)

from engine.core.errors import HarnessError
from engine.core.records import Termination
from engine.core.specs import Endpoint, Mount
from engine.harness.condensers import SummarisingCondenser
from engine.harness.launchers import process
from engine.harness.openhands import OpenHands
from engine.harness.runtime import RUNTIME

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def prepared() -> None:
    build_images(make_harness())


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True, params=["warm", "cold"])
async def start(request: pytest.FixtureRequest, prepared: None) -> AsyncIterator[str]:
    """One runtime for all trials; where they start warm, one warm process too."""
    async with shared_runtime(request.param):
        yield request.param


async def test_edits_tests_and_finishes_in_the_tasks_own_environment(tmp_path: Path) -> None:
    look = (
        "sed -i 's/a - b/a + b/' calc.py && python3 check.py; "
        "python3 -c 'import sys; print(\"PYTHON\", sys.version_info[:2], sys.path, sys.prefix)'; "
        "echo NAMES $(compgen -e); echo LEAKS $(env | grep -c opt.agent); "
        "cat /proc/$PPID/environ /proc/$PPID/mem /run/lego/settings.json 2>&1; ls /proc/$PPID/fd 2>&1; ls -A"
    )
    ended = await run_trial([shell(look, 1), call("finish", {"message": "done"}, 2)], tmp_path)
    assert make_harness().judge(ended.result, ended.report)[0] is Termination.AGENT_COMPLETED
    assert (ended.tree / "calc.py").read_text() == "def add(a, b):\n    return a + b\n"
    assert len(ended.server.requests) == 2
    assert ended.server.paths == {"/t/trial/v1/chat/completions"}
    assert ended.server.keys == {f"Bearer {KEY}"}

    (output,) = ended.server.tool_outputs()
    assert "the check passes" in output
    lines = {line.split()[0]: line for line in output.splitlines() if line.startswith(("PYTHON", "NAMES", "LEAKS"))}
    assert "(3, 11)" in lines["PYTHON"]
    assert "/opt/agent" not in lines["PYTHON"]
    assert lines["LEAKS"] == "LEAKS 0"
    of_the_sandbox = {"HOME", "PATH", "USER"}
    of_bash = {"OLDPWD", "PROMPT_COMMAND", "PS1", "PS2", "PWD", "SHLVL", "TERM", "_"}
    of_the_sdk = {"AI_AGENT", "GIT_PAGER", "PAGER"}
    names = set(lines["NAMES"].split()[1:])
    assert names <= of_the_sandbox | of_bash | of_the_sdk
    assert KEY not in output
    assert output.count("Permission denied") == 3
    assert "/run/lego/settings.json: No such file" in output


async def test_a_warm_process_has_imported_all_that_a_trial_needs(tmp_path: Path, start: str) -> None:
    if start == "warm":
        view = call("file_editor", {"command": "view", "path": "/testbed/calc.py"}, 1)
        script = [view, shell("true", 2), call("finish", {"message": "done"}, 3)]
        ended = await run_any(listing_imports(make_harness()), script, tmp_path)
        assert b"IMPORTED\n" in ended.result.stdout


async def test_mended_calls_and_a_last_word(tmp_path: Path) -> None:
    script = [
        call("terminal", '{"command": "ls', 1),
        call("nonesuch", {}, 2),
        call("terminal", "[1]", 3),
        say("I cannot go on."),
    ]
    ended = await run_trial(script, tmp_path)
    assert make_harness().judge(ended.result, ended.report)[0] is Termination.AGENT_COMPLETED
    assert len(ended.server.requests) == 4
    outputs = ended.server.tool_outputs()
    assert "unparseable JSON" in outputs[0]
    assert "'nonesuch' not found" in outputs[1]
    assert json.loads(ended.report or b"")["events"]["AgentErrorEvent"] == 3


async def test_limit_of_turns(tmp_path: Path) -> None:
    ended = await run_trial([shell("echo one", 1), shell("echo two", 2)], tmp_path, max_turns=2)
    termination, reason = make_harness().judge(ended.result, ended.report)
    assert termination is Termination.MAX_TURNS
    assert "maximum iterations limit (2)" in reason
    assert len(ended.server.requests) == 2


async def test_context_overflow_is_not_retried(tmp_path: Path) -> None:
    message = "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."
    ended = await run_trial([Refusal(400, "context_length_exceeded", message)], tmp_path)
    assert make_harness().judge(ended.result, ended.report)[0] is Termination.CONTEXT_OVERFLOW
    assert len(ended.server.requests) == 1


async def test_failing_endpoint_is_retried_within_bounds_and_is_no_result(tmp_path: Path) -> None:
    ended = await run_trial([Refusal(500, "", "the engine broke")], tmp_path)
    with pytest.raises(HarnessError, match="the engine broke"):
        make_harness().judge(ended.result, ended.report)
    assert len(ended.server.requests) == 2


async def test_wall_clock(tmp_path: Path, start: str) -> None:
    ended = await run_trial([HANG], tmp_path, timeout_s=3.0 if start == "warm" else 10.0)
    assert make_harness().judge(ended.result, ended.report)[0] is Termination.AGENT_TIMEOUT


async def test_an_agent_that_kills_its_harness_is_kept(tmp_path: Path) -> None:
    forge = """echo '{"exit_code": 70}' > /run/lego/report.json; echo x > made; kill -9 $PPID"""
    ended = await run_trial([shell(forge, 1)], tmp_path)
    termination, reason = make_harness().judge(ended.result, ended.report)
    assert termination is Termination.AGENT_COMPLETED
    assert "SIGKILL" in reason
    assert (ended.tree / "made").exists()


async def test_repeating_itself(tmp_path: Path) -> None:
    """By its viewer of files, which always shows the same; its terminal may not, on a machine that is slow."""
    view = call("file_editor", {"command": "view", "path": "/testbed/calc.py"}, 1)
    ended = await run_trial([view], tmp_path)
    assert make_harness().judge(ended.result, ended.report)[0] is Termination.NO_PROGRESS
    assert ended.result.exit_code == process.EXIT_NO_PROGRESS


@pytest.mark.slow
async def test_condenser_summarises_by_the_policy_itself(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        if "tools" not in body:
            return say("SUMMARY: the file was read")
        turns = sum("tools" in request for request in answered.requests)
        return say("enough") if turns == 7 else shell(f"echo turn {turns}", turns)

    answered = ChatServer([answer])
    condenser = SummarisingCondenser(max_events=8, keep_first=2)
    ended = await run_trial(answered, tmp_path, max_turns=12, condenser=condenser)
    assert make_harness().judge(ended.result, ended.report)[0] is Termination.AGENT_COMPLETED
    asked = [request for request in answered.requests if "tools" not in request]
    assert asked
    assert "SUMMARY" in json.dumps(answered.requests[-1]["messages"])
    assert "turn 1" not in json.dumps(answered.requests[-1]["messages"])


@pytest.mark.slow
async def test_other_prompt_tools_and_calls_as_text(tmp_path: Path) -> None:
    text = "<function=terminal>\n<parameter=command>echo made > made</parameter>\n</function>"
    ended = await run_trial(
        [say(text), say("done")],
        tmp_path,
        native_tool_calling=False,
        system_prompt="You mend code.",
        tools=["terminal", "task_tracker"],
        builtin_tools=[],
        max_output_tokens=77,
    )
    assert make_harness().judge(ended.result, ended.report)[0] is Termination.AGENT_COMPLETED
    assert (ended.tree / "made").read_text() == "made\n"
    first = ended.server.requests[0]
    assert first["max_completion_tokens"] == 77
    assert "tools" not in first
    system = first["messages"][0]["content"]
    assert system.startswith("You mend code.")
    assert "task_tracker" in system
    assert "file_editor" not in system


async def test_a_runtime_that_is_not_there_is_a_failure_of_the_harness(tmp_path: Path, start: str) -> None:
    harness = make_harness()
    harness.mount = lambda images: Mount(source=empty, target=RUNTIME)  # type: ignore[method-assign]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(HarnessError, match="exited with 127" if start == "cold" else "cannot start: .*No such file"):
        await attempt(harness, tmp_path)


async def attempt(harness: OpenHands, folder: Path) -> None:
    """Start the harness without an endpoint and judge what comes of it."""
    task = make_task(folder)
    async with sandbox_of(task, harness, folder) as sandbox:
        launch = harness.launch(task, Endpoint(base_url="http://127.0.0.1:8080/t/x", api_key=KEY, model="policy"))
        await sandbox.write(launch.files)
        result = await sandbox.exec(
            launch.command, environment=launch.environment, cwd=launch.cwd, timeout_s=60, stdin=b"", warm=launch.warm
        )
        harness.judge(result, await sandbox.read(harness.report_path, 1 << 20))
