"""The real mini-swe-agent in a real bubblewrap sandbox, against a scripted server on the sandbox's loopback."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from harness_pieces import (
    HANG,
    KEY,
    ChatServer,
    Ended,
    Refusal,
    build_images,
    call,
    listing_imports,
    run_trial,
    say,
    shared_runtime,
)
from mini_pieces import SUBMIT, bash, block, make_harness

from engine.core.errors import HarnessError
from engine.core.records import Termination

LOOK = (
    "sed -i 's/a - b/a + b/' calc.py && python3 check.py; "
    "python3 -c 'import sys; print(\"PYTHON\", sys.version_info[:2], sys.path, sys.prefix)'; "
    "echo NAMES $(env | sed 's/=.*//'); echo LEAKS $(env | grep -c -e opt.agent -e MSWEA); echo AT $(pwd); "
    "cat /proc/$PPID/environ /proc/$PPID/mem 2>&1; ls /proc/$PPID/fd 2>&1; ls /run/lego/settings.json 2>&1; "
    "echo HOME $(ls -A ~)"
)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def prepared() -> None:
    build_images(make_harness())


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True, params=["warm", "cold"])
async def start(request: pytest.FixtureRequest, prepared: None) -> AsyncIterator[str]:
    """One runtime for all trials; where they start warm, one warm process too."""
    async with shared_runtime(request.param):
        yield request.param


async def trial(script: list[Any] | ChatServer, folder: Path, *, timeout_s: float = 120.0, **changes: object) -> Ended:
    return await run_trial(make_harness(**changes), script, folder, timeout_s=timeout_s)


def judged(ended: Ended) -> tuple[Termination, str]:
    return make_harness().judge(ended.result, ended.report)


@pytest.mark.parametrize("native", [True, False])
async def test_edits_tests_and_submits_in_the_tasks_own_environment(tmp_path: Path, native: bool) -> None:
    script = [bash(LOOK, 1), bash(SUBMIT, 2)] if native else [block(LOOK), block(SUBMIT)]
    ended = await trial(script, tmp_path, native_tool_calling=native)
    assert judged(ended) == (Termination.AGENT_COMPLETED, "the agent finished")
    assert (ended.tree / "calc.py").read_text() == "def add(a, b):\n    return a + b\n"
    assert {path.name for path in ended.tree.iterdir()} == {"calc.py", "check.py", "__pycache__"}
    first, last = ended.server.requests
    assert ended.server.paths == {"/t/trial/v1/chat/completions"}
    assert ended.server.keys == {f"Bearer {KEY}"}
    assert ("tools" in first) is native
    assert first["messages"] == last["messages"][:2], "the history only grows"
    assert len(last["messages"]) == 4

    output = last["messages"][-1]["content"]
    output = json.loads(output)["output"] if native else output
    assert "the check passes" in output
    lines = {line.partition(" ")[0]: line for line in output.splitlines()}
    assert "(3, 11)" in lines["PYTHON"]
    assert "/opt/agent" not in lines["PYTHON"]
    assert lines["LEAKS"] == "LEAKS 0"
    assert lines["AT"] == "AT /testbed"
    assert lines["HOME"] == "HOME"
    of_the_sandbox, of_sh = {"HOME", "PATH", "USER"}, {"PWD"}
    of_the_package = {"LESS", "MANPAGER", "PAGER", "PIP_PROGRESS_BAR", "TQDM_DISABLE"}
    assert set(lines["NAMES"].split()[1:]) == of_the_sandbox | of_sh | of_the_package
    assert KEY not in output
    assert output.count("Permission denied") == 3
    assert "/run/lego/settings.json': No such file" in output


@pytest.mark.parametrize("native", [True, False])
async def test_a_warm_process_has_imported_all_that_a_trial_needs(tmp_path: Path, start: str, native: bool) -> None:
    if start == "warm":
        script = [bash("true", 1), bash(SUBMIT, 2)] if native else [block("true"), block(SUBMIT)]
        ended = await run_trial(listing_imports(make_harness(native_tool_calling=native)), script, tmp_path)
        assert b"IMPORTED\n" in ended.result.stdout


async def test_limit_of_turns(tmp_path: Path) -> None:
    ended = await trial([bash("echo again", 1)], tmp_path, max_turns=2)
    termination, reason = judged(ended)
    assert termination is Termination.MAX_TURNS
    assert "LimitsExceeded after 2 calls" in reason
    assert len(ended.server.requests) == 2


async def test_answers_without_a_command_are_dropped_and_then_given_up(tmp_path: Path) -> None:
    faulty = [say("no call"), call("nonesuch", {}, 1), call("bash", '{"command": "ls', 2), call("bash", "[1]", 3)]
    ended = await trial([faulty[0], faulty[1], bash("echo fine", 4), *faulty[1:]], tmp_path, max_turns=9)
    termination, reason = judged(ended)
    assert termination is Termination.NO_PROGRESS
    assert "RepeatedFormatError after 6 calls" in reason
    roles = [message["role"] for message in ended.server.requests[2]["messages"]]
    assert roles == ["system", "user", "user", "user"], "what was said stands in no history"
    assert "Unknown tool 'nonesuch'" in ended.server.requests[2]["messages"][-1]["content"]


async def test_no_command_crashes_the_harness(tmp_path: Path) -> None:
    odd = [5, None, "", ["ls"], {"a": 1}, "\0", "\ud800", "exit 3", "{{ 1 / 0 }}", "printf '\\377\\0'", "kill -9 $$"]
    calls = [call("bash", {"command": command}, number) for number, command in enumerate(odd)]
    ended = await trial([*calls, bash(SUBMIT, 99)], tmp_path, max_turns=50)
    assert judged(ended)[0] is Termination.AGENT_COMPLETED
    assert len(ended.server.tool_outputs()) == len(odd)


@pytest.mark.slow
async def test_output_beyond_the_memory_is_the_agents_own_affair(tmp_path: Path) -> None:
    ended = await trial([bash("touch made; yes", 1), bash(SUBMIT, 2)], tmp_path)
    assert judged(ended)[0] in (Termination.AGENT_OOM, Termination.AGENT_COMPLETED)
    assert (ended.tree / "made").exists()


async def test_context_overflow_is_not_retried(tmp_path: Path) -> None:
    message = "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."
    ended = await trial([bash("true", 1), Refusal(400, "context_length_exceeded", message)], tmp_path)
    assert judged(ended)[0] is Termination.CONTEXT_OVERFLOW
    assert len(ended.server.requests) == 2


async def test_refusal_is_not_retried(tmp_path: Path) -> None:
    ended = await trial([Refusal(400, "max_turns_reached", "all calls are made")], tmp_path)
    with pytest.raises(HarnessError, match=r"refused: .*all calls are made"):
        judged(ended)
    assert len(ended.server.requests) == 1


@pytest.mark.parametrize("attempts", [1, 3])
async def test_failing_endpoint_is_retried_within_bounds_and_is_no_result(tmp_path: Path, attempts: int) -> None:
    ended = await trial([Refusal(500, "", "the engine broke")], tmp_path, attempts=attempts)
    with pytest.raises(HarnessError, match=r"no answer from its endpoint: .*the engine broke"):
        judged(ended)
    assert len(ended.server.requests) == attempts


async def test_an_endpoint_that_recovers_costs_nothing(tmp_path: Path) -> None:
    ended = await trial([Refusal(500, "", "the engine broke"), bash(SUBMIT, 1)], tmp_path)
    assert judged(ended)[0] is Termination.AGENT_COMPLETED
    assert ended.server.requests[0] == ended.server.requests[1]


async def test_endpoint_that_never_answers(tmp_path: Path) -> None:
    ended = await trial([HANG], tmp_path, llm_timeout_s=1)
    with pytest.raises(HarnessError, match=r"no answer from its endpoint: .*[Tt]ime"):
        judged(ended)
    assert len(ended.server.requests) == 2


async def test_wall_clock(tmp_path: Path, start: str) -> None:
    ended = await trial([HANG], tmp_path, timeout_s=3.0 if start == "warm" else 10.0)
    assert judged(ended)[0] is Termination.AGENT_TIMEOUT


async def test_command_that_hangs_is_the_agents_to_learn_from(tmp_path: Path) -> None:
    ended = await trial([bash("echo before; sleep 60", 1), bash(SUBMIT, 2)], tmp_path, command_timeout_s=1)
    assert judged(ended)[0] is Termination.AGENT_COMPLETED
    (output,) = ended.server.tool_outputs()
    assert "before" in output
    assert "timed out after 1 seconds" in output


@pytest.mark.parametrize("signal", ["KILL", "INT", "TERM"])
async def test_agent_that_kills_its_harness_is_kept(tmp_path: Path, signal: str) -> None:
    ended = await trial([bash(f"touch made; kill -{signal} $PPID; sleep 5", 1)], tmp_path)
    termination, reason = judged(ended)
    assert termination is Termination.AGENT_COMPLETED
    assert f"SIG{signal}" in reason
    assert (ended.tree / "made").exists()


async def test_agent_that_forges_files_changes_nothing(tmp_path: Path) -> None:
    """Neither the repository nor the launcher's own folder is looked at for code or configuration."""
    files = "json.py tiktoken.py openai.py litellm.py minisweagent/__init__.py mini.yaml .env"
    plant = (
        f"for d in . /run/lego /run/lego/launcher; do mkdir -p $d/minisweagent; for f in {files}; do "
        'echo "raise SystemExit(70)" > $d/$f; done; done; '
        'echo \'{"error": "forged", "exit_code": 70}\' > /run/lego/report.json; ls /run/lego/launcher'
    )
    ended = await trial([bash(plant, 1), Refusal(500, "", "broke"), bash(SUBMIT, 2)], tmp_path)
    assert judged(ended)[0] is Termination.AGENT_COMPLETED
    assert "litellm.py" in ended.server.tool_outputs()[0], "it was planted"
    assert json.loads(ended.report or b"")["status"] == "Submitted"


async def test_configuration_files_of_the_repository_are_not_the_harnesss(tmp_path: Path) -> None:
    harness = make_harness()
    plain = harness.launch

    def planted(*arguments: Any) -> Any:
        launch = plain(*arguments)
        launch.files["/testbed/mini.yaml"] = b"agent: {system_template: forged, instance_template: forged}\n"
        launch.files["/testbed/.env"] = b"MSWEA_GLOBAL_CALL_LIMIT=1\n"
        return launch

    harness.launch = planted  # type: ignore[method-assign]
    ended = await run_trial(harness, [bash("true", 1), bash("true", 2), bash(SUBMIT, 3)], tmp_path)
    assert judged(ended)[0] is Termination.AGENT_COMPLETED
    assert "forged" not in json.dumps(ended.server.requests)


async def test_other_prompts_and_a_bound_of_output(tmp_path: Path) -> None:
    ended = await trial(
        [bash(SUBMIT, 1)],
        tmp_path,
        system_template="You mend code.",
        instance_template="Issue: {{task}}",
        max_output_tokens=77,
    )
    assert judged(ended)[0] is Termination.AGENT_COMPLETED
    (first,) = ended.server.requests
    assert [message["content"] for message in first["messages"]] == [
        "You mend code.",
        "Issue: add() in calc.py is wrong; `python3 check.py` must pass.",
    ]
    assert first["max_completion_tokens"] == 77
