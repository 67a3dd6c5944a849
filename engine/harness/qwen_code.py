"""Adapter for Qwen Code, unmodified: its script under a pinned Node of the runtime, over OpenAI Chat Completions.

Its settings file turns off what would call the model beside the task (memory, next-speaker checks) or anything but the
endpoint. Node needs the sandbox's glibc and libstdc++.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.core.records import Task, Termination
from engine.core.specs import Endpoint, ExecResult, ImageSpec, Launch
from engine.harness import commands
from engine.harness.client import Client

_NODE = "22.23.5"
_EXIT_MAX_TURNS = 53


class QwenCode(commands.Program):
    """`harnesses.qwen_code`: one agent per trial, in a process of its own."""

    name = "qwen_code"

    def __init__(
        self,
        *,
        version: str,
        max_turns: int,
        max_output_tokens: int | None,
        max_context_tokens: int,
        compaction_share: float,
        system_prompt: str | None,
        bare: bool,
        excluded_tools: Sequence[str],
        llm_timeout_s: int,
        environment: Mapping[str, str],
        client: Client,
        demonstration: Sequence[Mapping[str, Any]],
    ) -> None:
        self.max_turns = max_turns
        self.client, self.demonstration = client, demonstration
        self._version, self._system_prompt, self._bare = version, system_prompt, bare
        self._max_output_tokens, self._max_context_tokens = max_output_tokens, max_context_tokens
        self._compaction_share, self._excluded_tools = compaction_share, tuple(excluded_tools)
        self._llm_timeout_s, self._environment = llm_timeout_s, environment

    def runtime(self) -> ImageSpec:
        return commands.npm_runtime("qwen-code", f"@qwen-code/qwen-code@{self._version}", f"{_node()}@{_NODE}")

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        node, script = f"{commands.MODULES}/{_node()}/bin/node", f"{commands.MODULES}/@qwen-code/qwen-code/cli.js"
        command = [node, script, "--yolo", "--auth-type", "openai", "--max-session-turns", str(self.max_turns)]
        command += ["--bare"] if self._bare else []
        command += [] if self._system_prompt is None else ["--system-prompt", self._system_prompt]
        command += [word for tool in self._excluded_tools for word in ("--exclude-tools", tool)]
        variables = {
            "OPENAI_API_KEY": endpoint.api_key,
            "OPENAI_BASE_URL": f"{endpoint.base_url}/v1",
            "OPENAI_MODEL": endpoint.model,
            "QWEN_CODE_NO_RELAUNCH": "true",
            "QWEN_DISABLE_AUTO_TITLE": "1",
            "QWEN_HOME": commands.STATE,
            "QWEN_RUNTIME_DIR": commands.STATE,
        }
        if self._max_output_tokens is not None:
            variables["QWEN_CODE_MAX_OUTPUT_TOKENS"] = str(self._max_output_tokens)
        files = {f"{commands.STATE}/settings.json": json.dumps(self._settings()).encode()}
        return commands.launch(task, command, variables | dict(self._environment), files)

    def judge(self, result: ExecResult, report: bytes | None) -> tuple[Termination, str]:  # noqa: ARG002
        return commands.judge("Qwen Code", result, {0: "completed", _EXIT_MAX_TURNS: "max_turns"})

    def _settings(self) -> dict[str, Any]:
        generation = {
            "timeout": self._llm_timeout_s * 1000,
            "maxRetries": 0,  # would be multiplied with the seven attempts, over 80 s, that nothing changes
            "contextWindowSize": self._max_context_tokens,
        }
        return {
            "$version": 3,
            "general": {"enableAutoUpdate": False, "checkpointing": {"enabled": False}},
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
            "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
            "model": {
                "skipNextSpeakerCheck": True,
                "chatCompression": {"contextPercentageThreshold": self._compaction_share},
                "generationConfig": generation,
            },
        }


def _node() -> str:
    return f"node-linux-{commands.machine()}"
