"""Adapter for the OpenHands software agent SDK, unmodified, in a self-contained runtime of its own.

What it shares with other harnesses: `engine.harness.runtime` starts the launcher, `engine.harness.endings` judges it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.core.contracts import ImageStore
from engine.core.errors import ConfigError
from engine.core.records import Task, Termination
from engine.core.specs import Endpoint, ExecResult, ImageSpec, Launch, Mount
from engine.harness import endings, runtime
from engine.harness.client import Client
from engine.harness.condensers import Condenser


class OpenHands:
    """`harnesses.openhands`: one agent per trial, in a process of its own."""

    name = "openhands"

    def __init__(
        self,
        *,
        version: str,
        start: runtime.Start,
        max_turns: int,
        max_output_tokens: int | None,
        native_tool_calling: bool,
        system_prompt: str | None,
        tools: Sequence[str],
        builtin_tools: Sequence[str],
        terminal_idle_timeout_s: int,
        stuck_detection: bool,
        condenser: Condenser,
        attempts: int,
        retry_min_wait_s: int,
        retry_max_wait_s: int,
        llm_timeout_s: int,
        client: Client,
        demonstration: Sequence[Mapping[str, Any]],
    ) -> None:
        self.max_turns = max_turns
        self.client = client
        self.demonstration = demonstration
        self._version, self._start, self._condenser = version, start, condenser
        self._max_output_tokens, self._native_tool_calling = max_output_tokens, native_tool_calling
        self._system_prompt, self._stuck_detection = system_prompt, stuck_detection
        self._tools, self._builtin_tools = tuple(tools), tuple(builtin_tools)
        self._terminal_idle_timeout_s = terminal_idle_timeout_s
        self._attempts, self._llm_timeout_s = attempts, llm_timeout_s
        self._retry_min_wait_s, self._retry_max_wait_s = retry_min_wait_s, retry_max_wait_s

    @property
    def report_path(self) -> str:
        return runtime.REPORT

    def runtime(self) -> ImageSpec:
        return runtime.python_runtime("openhands", self._version, ["openhands-sdk", "openhands-tools"], ["git"])

    def mount(self, images: ImageStore) -> Mount:
        return runtime.runtime_mount(self.runtime(), images)

    def problems(self, images: ImageStore) -> Sequence[ConfigError]:
        key = f"harnesses.{self.name}"
        mounting = runtime.runtime_problems(key, self._version, self.runtime(), images)
        return [*self._condenser.problems(f"{key}.condenser"), *mounting]

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        return runtime.launch("openhands", self._settings(task, endpoint), task, self._start)

    def judge(self, result: ExecResult, report: bytes | None) -> tuple[Termination, str]:
        return endings.judge("OpenHands", result, report)

    def _settings(self, task: Task, endpoint: Endpoint) -> dict[str, Any]:
        """What the launcher passes to the SDK's public constructors."""
        llm = {
            "model": f"openai/{endpoint.model}",
            "base_url": f"{endpoint.base_url}/v1",
            "api_key": endpoint.api_key,
            "usage_id": "agent",
            "num_retries": self._attempts,
            "retry_min_wait": self._retry_min_wait_s,
            "retry_max_wait": self._retry_max_wait_s,
            "retry_multiplier": 1.0,
            "timeout": self._llm_timeout_s,
            "max_output_tokens": self._max_output_tokens,
            "native_tool_calling": self._native_tool_calling,
            "caching_prompt": False,
            "reasoning_effort": None,
        }
        terminal = {"terminal_type": "subprocess", "no_change_timeout_seconds": self._terminal_idle_timeout_s}
        return {
            "llm": llm,
            "condenser": self._condenser.settings(),
            "tools": {name: terminal if name == "terminal" else {} for name in self._tools},
            "agent": {"system_prompt": self._system_prompt, "include_default_tools": list(self._builtin_tools)},
            "conversation": {
                "workspace": task.workdir,
                "max_iteration_per_run": self.max_turns,
                "stuck_detection": self._stuck_detection,
            },
        }
