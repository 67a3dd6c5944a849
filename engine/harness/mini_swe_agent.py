"""Adapter for mini-swe-agent, unmodified, in a self-contained runtime of its own (`engine.harness.runtime`).

Its agent runs each command in a new shell of the sandbox and sees the output; it ends when a command prints the
package's word for submitting. Two protocols: the model's own tool calls, or one fenced command in its text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.core.contracts import ImageStore
from engine.core.errors import ConfigError
from engine.core.records import Task, Termination
from engine.core.specs import Endpoint, ExecResult, ImageSpec, Launch, Mount
from engine.harness import endings, runtime
from engine.harness.client import Client


class MiniSweAgent:
    """`harnesses.mini_swe_agent`: one agent per trial, in a process of its own."""

    name = "mini_swe_agent"

    def __init__(
        self,
        *,
        version: str,
        start: runtime.Start,
        max_turns: int,
        max_output_tokens: int | None,
        native_tool_calling: bool,
        system_template: str | None,
        instance_template: str | None,
        max_format_errors: int,
        command_timeout_s: int,
        attempts: int,
        llm_timeout_s: int,
        client: Client,
        demonstration: Sequence[Mapping[str, Any]],
    ) -> None:
        self.max_turns = max_turns
        self.client = client
        self.demonstration = demonstration
        self._version, self._start = version, start
        self._max_output_tokens, self._native_tool_calling = max_output_tokens, native_tool_calling
        self._system_template, self._instance_template = system_template, instance_template
        self._max_format_errors, self._command_timeout_s = max_format_errors, command_timeout_s
        self._attempts, self._llm_timeout_s = attempts, llm_timeout_s

    @property
    def report_path(self) -> str:
        return runtime.REPORT

    def runtime(self) -> ImageSpec:
        return runtime.python_runtime("mini-swe-agent", self._version, ["mini-swe-agent"])

    def mount(self, images: ImageStore) -> Mount:
        return runtime.runtime_mount(self.runtime(), images)

    def problems(self, images: ImageStore) -> Sequence[ConfigError]:
        return runtime.runtime_problems(f"harnesses.{self.name}", self._version, self.runtime(), images)

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        return runtime.launch("mini_swe_agent", self._settings(task, endpoint), task, self._start)

    def judge(self, result: ExecResult, report: bytes | None) -> tuple[Termination, str]:
        return endings.judge("mini-swe-agent", result, report)

    def _settings(self, task: Task, endpoint: Endpoint) -> dict[str, Any]:
        """The package's configuration file, and what is changed in it by the package's own keys."""
        call: dict[str, Any] = {
            "api_base": f"{endpoint.base_url}/v1",
            "api_key": endpoint.api_key,
            "timeout": self._llm_timeout_s,
            "max_retries": self._attempts - 1,
        }
        if self._max_output_tokens is not None:
            call["max_completion_tokens"] = self._max_output_tokens
        agent: dict[str, Any] = {
            "step_limit": self.max_turns,
            "cost_limit": 0,
            "max_consecutive_format_errors": self._max_format_errors,
        }
        templates = {"system_template": self._system_template, "instance_template": self._instance_template}
        model = {
            "model_class": "litellm" if self._native_tool_calling else "litellm_textbased",
            "model_name": f"openai/{endpoint.model}",
            "cost_tracking": "ignore_errors",
            "model_kwargs": call,
        }
        return {
            "config": "mini.yaml" if self._native_tool_calling else "mini_textbased.yaml",
            "changes": {
                "agent": agent | {name: text for name, text in templates.items() if text is not None},
                "environment": {"cwd": task.workdir, "timeout": self._command_timeout_s},
                "model": model,
            },
        }
