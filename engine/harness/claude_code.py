"""Adapter for Claude Code, unmodified: its own executable, in print mode, over Anthropic Messages.

It is told by its own variables to keep to its endpoint (no telemetry, updates, side calls or background work) and what
the endpoint's model can do. The instruction comes on its standard input, its last words as one JSON object.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.core.records import Task, Termination
from engine.core.specs import Endpoint, ExecResult, ImageSpec, Launch
from engine.harness import commands, runtime
from engine.harness.client import Client

_QUIET = (
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS",
    "CLAUDE_CODE_DISABLE_BUNDLED_SKILLS",
    "CLAUDE_CODE_DISABLE_CLAUDE_MDS",
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "CLAUDE_CODE_DISABLE_THINKING",
    "DISABLE_AUTOUPDATER",
    "DISABLE_ERROR_REPORTING",
    "DISABLE_PROMPT_CACHING",
    "DISABLE_TELEMETRY",
    "IS_SANDBOX",
)
_STATIC = dict.fromkeys(_QUIET, "1") | {
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # a billing header in the system prompt, which changes with each version
    "ENABLE_TOOL_SEARCH": "false",
    "MAX_THINKING_TOKENS": "0",
    "CLAUDE_CONFIG_DIR": commands.STATE,
}
_PATIENCE = ("API_TIMEOUT_MS", "CLAUDE_STREAM_FIRST_BYTE_TIMEOUT_MS", "CLAUDE_STREAM_IDLE_TIMEOUT_MS")
"""How long a call may take, how long it may be silent before its first byte (330 s unless set), and within a stream."""


class ClaudeCode(commands.Program):
    """`harnesses.claude_code`: one agent per trial, in a process of its own."""

    name = "claude_code"

    def __init__(
        self,
        *,
        version: str,
        max_turns: int,
        max_output_tokens: int | None,
        max_context_tokens: int,
        compaction: bool,
        compaction_percent: int | None,
        system_prompt: str | None,
        bare: bool,
        tools: Sequence[str],
        git_instructions: bool,
        command_timeout_s: int,
        attempts: int,
        llm_timeout_s: int,
        environment: Mapping[str, str],
        client: Client,
        demonstration: Sequence[Mapping[str, Any]],
    ) -> None:
        self.max_turns = max_turns
        self.client, self.demonstration = client, demonstration
        self._version, self._bare, self._tools = version, bare, tuple(tools)
        self._max_output_tokens, self._max_context_tokens = max_output_tokens, max_context_tokens
        self._compaction, self._compaction_percent = compaction, compaction_percent
        self._system_prompt, self._git_instructions = system_prompt, git_instructions
        self._command_timeout_s, self._llm_timeout_s, self._attempts = command_timeout_s, llm_timeout_s, attempts
        self._environment = environment

    def runtime(self) -> ImageSpec:
        return commands.npm_runtime("claude-code", f"{self._package()}@{self._version}")

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        command = [f"{commands.MODULES}/{self._package()}/claude", "-p", "--dangerously-skip-permissions"]
        command += ["--tools", ",".join(self._tools), "--max-turns", str(self.max_turns), "--output-format", "json"]
        command += ["--bare"] if self._bare else []
        files = {}
        if self._system_prompt is not None:
            files[f"{runtime.FOLDER}/system_prompt"] = self._system_prompt.encode()
            command += ["--system-prompt-file", f"{runtime.FOLDER}/system_prompt"]
        return commands.launch(task, command, self._variables(endpoint), files)

    def judge(self, result: ExecResult, report: bytes | None) -> tuple[Termination, str]:  # noqa: ARG002
        last = commands.last_json(result.stdout)
        words = commands.one_line(last.get("result") or last.get("subtype"))
        exits: dict[int, commands.Ending] = {0: "completed"}
        if last.get("subtype") == "error_max_turns":
            exits[1] = "max_turns"
        return commands.judge("Claude Code", result, exits, words)

    def _package(self) -> str:
        """The one of its packages that holds this machine's executable."""
        return f"@anthropic-ai/claude-code-linux-{commands.machine()}"

    def _variables(self, endpoint: Endpoint) -> dict[str, str]:
        models = ("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL")
        families = [f"ANTHROPIC_DEFAULT_{family}_MODEL" for family in ("HAIKU", "SONNET", "OPUS")]
        given = _STATIC | dict.fromkeys((*models, *families), endpoint.model)
        given |= {
            "ANTHROPIC_BASE_URL": endpoint.base_url,
            "ANTHROPIC_API_KEY" if self._bare else "ANTHROPIC_AUTH_TOKEN": endpoint.api_key,
            **{name: str(self._llm_timeout_s * 1000) for name in _PATIENCE},
            "BASH_DEFAULT_TIMEOUT_MS": str(self._command_timeout_s * 1000),
            "BASH_MAX_TIMEOUT_MS": str(self._command_timeout_s * 1000),
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(self._max_context_tokens),
            "CLAUDE_CODE_MAX_RETRIES": str(self._attempts - 1),
        }
        if not self._git_instructions:
            given["CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS"] = "1"
        if self._max_output_tokens is not None:
            given["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(self._max_output_tokens)
        if not self._compaction:
            given["DISABLE_COMPACT"] = "1"
        elif self._compaction_percent is not None:
            given["CLAUDE_AUTOCOMPACT_PCT_OVERRIDE"] = str(self._compaction_percent)
        return given | dict(self._environment)
