"""Adapter for OpenCode, unmodified: its own executable, `opencode run`, over OpenAI Chat Completions.

Its whole configuration comes in one variable, so that nothing of the repository's changes it. OpenCode has no hard
limit of turns: the proxy ends such trials, and its reason counts before what is made of the exit code here. It repeats
a call that failed five times in 70 s, whatever is configured; refusals (400, 401) are never repeated.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.core.records import Task, Termination
from engine.core.specs import Endpoint, ExecResult, ImageSpec, Launch
from engine.harness import commands
from engine.harness.client import Client

_RIPGREP = "1.18.0"
"""Version of the package that holds the `rg` which OpenCode's own search tools start."""
_QUIET = (
    "OPENCODE_DISABLE_AUTOUPDATE",
    "OPENCODE_DISABLE_CLAUDE_CODE",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS",
    "OPENCODE_DISABLE_EXTERNAL_SKILLS",
    "OPENCODE_DISABLE_LSP_DOWNLOAD",
    "OPENCODE_DISABLE_MODELS_FETCH",
    "OPENCODE_DISABLE_PROJECT_CONFIG",
    "OPENCODE_DISABLE_SHARE",
)
_PROVIDER = "lego"
_EXIT_ERROR = 1


class OpenCode(commands.Program):
    """`harnesses.opencode`: one agent per trial, in a process of its own."""

    name = "opencode"

    def __init__(
        self,
        *,
        version: str,
        max_turns: int,
        max_output_tokens: int,
        max_context_tokens: int,
        compaction: bool,
        system_prompt: str | None,
        tools: Mapping[str, bool],
        command_timeout_s: int,
        llm_timeout_s: int,
        environment: Mapping[str, str],
        client: Client,
        demonstration: Sequence[Mapping[str, Any]],
    ) -> None:
        self.max_turns = max_turns
        self.client, self.demonstration = client, demonstration
        self._version, self._tools, self._system_prompt = version, tools, system_prompt
        self._max_output_tokens, self._max_context_tokens = max_output_tokens, max_context_tokens
        self._compaction, self._command_timeout_s, self._llm_timeout_s = compaction, command_timeout_s, llm_timeout_s
        self._environment = environment

    def runtime(self) -> ImageSpec:
        return commands.npm_runtime("opencode", f"{self._package()}@{self._version}", f"{_ripgrep()}@{_RIPGREP}")

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        program = f"{commands.MODULES}/{self._package()}/bin/opencode"
        # A title of its own, and none is asked of the model.
        command = (program, "run", "--model", f"{_PROVIDER}/{endpoint.model}", "--title", "task", "--format", "json")
        variables = dict.fromkeys(_QUIET, "1") | {
            "OPENCODE_CONFIG_CONTENT": json.dumps(self._configuration(endpoint)),
            "OPENCODE_EXPERIMENTAL_BASH_DEFAULT_TIMEOUT_MS": str(self._command_timeout_s * 1000),
            "SHELL": "/bin/bash",
        }
        variables |= {f"XDG_{kind}_HOME": f"{commands.STATE}/{kind}" for kind in ("CACHE", "CONFIG", "DATA", "STATE")}
        search = (f"{commands.MODULES}/{_ripgrep()}/bin",)
        return commands.launch(task, command, variables | dict(self._environment), {}, search)

    def judge(self, result: ExecResult, report: bytes | None) -> tuple[Termination, str]:  # noqa: ARG002
        events = commands.json_lines(result.stdout)
        error = events[-1].get("error") if events else None
        words = commands.one_line(json.dumps(error)) if error else ""
        exits: dict[int, commands.Ending] = {0: "failed" if error else "completed"}
        if _healed(events):
            exits[_EXIT_ERROR] = "completed"
        return commands.judge("OpenCode", result, exits, words)

    def _package(self) -> str:
        """The one of its packages that holds this machine's executable."""
        return f"opencode-linux-{commands.machine()}"

    def _configuration(self, endpoint: Endpoint) -> dict[str, Any]:
        options = {
            "baseURL": f"{endpoint.base_url}/v1",
            "apiKey": endpoint.api_key,
            "timeout": self._llm_timeout_s * 1000,
            "headerTimeout": False,
            "chunkTimeout": self._llm_timeout_s * 1000,
        }
        limit = {"context": self._max_context_tokens, "output": self._max_output_tokens}
        model = {"name": endpoint.model, "tool_call": True, "limit": limit}
        build: dict[str, Any] = {"tools": dict(self._tools)}
        if self._system_prompt is not None:
            build["prompt"] = self._system_prompt
        return {
            "provider": {
                _PROVIDER: {
                    "npm": "@ai-sdk/openai-compatible",
                    "name": _PROVIDER,
                    "options": options,
                    "models": {endpoint.model: model},
                }
            },
            "model": f"{_PROVIDER}/{endpoint.model}",
            "small_model": f"{_PROVIDER}/{endpoint.model}",
            "permission": "allow",
            "agent": {"build": build, "title": {"disable": True}},
            "compaction": {"auto": self._compaction, "prune": self._compaction},
            "autoupdate": False,
            "share": "disabled",
        }


def _healed(events: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an error was told after which the session went on to the end of a step.

    The exit code tells of every error, also of a full context that a compaction then made room in."""
    kinds = [event.get("type") for event in events]
    return "error" in kinds and kinds[-1] == "step_finish"


def _ripgrep() -> str:
    return f"@vscode/ripgrep-linux-{commands.machine()}"
