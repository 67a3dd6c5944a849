"""Adapter for Codex, unmodified: its own executable, `codex exec`, over OpenAI Responses.

Its configuration names the trial's endpoint as a provider and describes the endpoint's model in a catalogue of its own
(text alone, functions alone, no hosted tools). Codex has no limit of turns and no word of its own for a full context:
the proxy ends such trials, and its reason counts before what is made of the exit code here.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.core.records import Task, Termination
from engine.core.specs import Endpoint, ExecResult, ImageSpec, Launch
from engine.harness import commands
from engine.harness.client import Client

_KEY = "LEGO_API_KEY"
_CATALOGUE = f"{commands.STATE}/models.json"
_TRIPLES = {"x64": "x86_64-unknown-linux-musl", "arm64": "aarch64-unknown-linux-musl"}
_OFF = (
    "apps",
    "browser_use",
    "computer_use",
    "enable_request_compression",
    "goals",
    "image_generation",
    "plugins",
    "shell_snapshot",
    "skill_search",
    "sleep_tool",
    "tool_suggest",
    "view_image",
)
"""Features that offer what no endpoint but its maker's has, or that a sandbox without a network cannot use."""


class Codex(commands.Program):
    """`harnesses.codex`: one agent per trial, in a process of its own."""

    name = "codex"

    def __init__(
        self,
        *,
        version: str,
        max_turns: int,
        max_context_tokens: int,
        compaction_tokens: int | None,
        instructions: str | None,
        features: Mapping[str, bool],
        parallel_tool_calls: bool,
        tool_output_tokens: int,
        attempts: int,
        llm_timeout_s: int,
        environment: Mapping[str, str],
        client: Client,
        demonstration: Sequence[Mapping[str, Any]],
    ) -> None:
        self.max_turns = max_turns
        self.client, self.demonstration = client, demonstration
        self._version, self._instructions, self._features = version, instructions, features
        self._max_context_tokens, self._compaction_tokens = max_context_tokens, compaction_tokens
        self._parallel_tool_calls, self._tool_output_tokens = parallel_tool_calls, tool_output_tokens
        self._attempts, self._llm_timeout_s, self._environment = attempts, llm_timeout_s, environment

    def runtime(self) -> ImageSpec:
        return commands.npm_runtime("codex", f"@openai/codex@{self._version}-linux-{commands.machine()}")

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        triple = _TRIPLES.get(commands.machine(), commands.machine())
        program = f"{commands.MODULES}/@openai/codex/vendor/{triple}/bin/codex"
        options = ("--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check", "--strict-config", "--json")
        files = {
            f"{commands.STATE}/config.toml": self._configuration(endpoint).encode(),
            _CATALOGUE: json.dumps({"models": [self._model(endpoint.model)]}).encode(),
        }
        variables = {"CODEX_HOME": commands.STATE, _KEY: endpoint.api_key, **self._environment}
        return commands.launch(task, (program, "exec", *options, "-"), variables, files)

    def judge(self, result: ExecResult, report: bytes | None) -> tuple[Termination, str]:  # noqa: ARG002
        last = commands.last_json(result.stdout)
        error = last.get("error")
        words = commands.one_line(error.get("message") if isinstance(error, dict) else last.get("message"))
        exits: dict[int, commands.Ending] = {0: "completed"}
        if not words and not result.stderr.strip():
            exits[1] = "completed"  # a failure is told; this is what an interrupt (SIGINT) by the agent leaves
        return commands.judge("Codex", result, exits, words)

    def _configuration(self, endpoint: Endpoint) -> str:
        """`config.toml`: its values are written as JSON, which TOML reads alike."""
        top = {
            "model": endpoint.model,
            "model_provider": "lego",
            "model_context_window": self._max_context_tokens,
            "web_search": "disabled",
            "allow_login_shell": False,  # whose start-up files would change the sandbox's PATH
            "check_for_update_on_startup": False,
            "cli_auth_credentials_store": "file",
        }
        if self._instructions is not None:
            top["model_catalog_json"] = _CATALOGUE
        if self._compaction_tokens is not None:
            top["model_auto_compact_token_limit"] = self._compaction_tokens
        tables: dict[str, dict[str, Any]] = {
            "model_providers.lego": {
                "name": "lego",
                "base_url": f"{endpoint.base_url}/v1",
                "env_key": _KEY,
                "wire_api": "responses",
                "request_max_retries": 0,  # would be multiplied with the stream's, which repeat the request too
                "stream_max_retries": self._attempts - 1,
                "stream_idle_timeout_ms": self._llm_timeout_s * 1000,
            },
            "features": dict.fromkeys(_OFF, False) | dict(self._features),
            "analytics": {"enabled": False},
            "history": {"persistence": "none"},
            "skills": {"include_instructions": False},
            "skills.bundled": {"enabled": False},
        }
        lines = [f"{name} = {json.dumps(value)}" for name, value in top.items()]
        for table, values in tables.items():
            lines += [f"[{table}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
        hidden = sorted((_KEY, "CODEX_HOME", *commands.OWN, *self._environment))
        lines += ["[shell_environment_policy]", 'inherit = "all"', f"exclude = {json.dumps(hidden)}"]
        return "\n".join(lines) + "\n"

    def _model(self, name: str) -> dict[str, Any]:
        """What Codex must know of a model that is not its maker's."""
        return {
            "slug": name,
            "display_name": name,
            "description": None,
            "base_instructions": self._instructions,
            "supported_reasoning_levels": [],
            "shell_type": "shell_command",
            "visibility": "list",
            "supported_in_api": True,
            "priority": 0,
            "availability_nux": None,
            "upgrade": None,
            "supports_reasoning_summaries": False,
            "support_verbosity": False,
            "default_verbosity": None,
            "apply_patch_tool_type": None,
            "input_modalities": ["text"],
            "truncation_policy": {"mode": "tokens", "limit": self._tool_output_tokens},
            "supports_parallel_tool_calls": self._parallel_tool_calls,
            "context_window": self._max_context_tokens,
            "auto_compact_token_limit": self._compaction_tokens,
            "experimental_supported_tools": [],
        }
