"""Adapter for the OpenHands software agent SDK, unmodified, in a self-contained runtime of its own.

The runtime is a Debian root with its own Python, mounted read-only; it is started through its own dynamic loader, so
it needs nothing of the task's image and leaves nothing in the agent's shell (no PATH, PYTHONHOME or PYTHONPATH).

Invariant: how a trial ended is judged by the launcher's exit code, which the agent's commands cannot choose; the report
file only adds words. A harness that an agent kills is therefore kept and graded, never an excluded failure.
"""

import json
import platform
import signal
from collections.abc import Sequence
from importlib import resources
from typing import Any

from engine.core.contracts import ImageStore
from engine.core.errors import ConfigError, HarnessError
from engine.core.records import Endpoint, ExecResult, ImageSpec, Launch, Mount, Task, Termination
from engine.harness.condensers import Condenser
from engine.harness.launchers import openhands as launcher

RUNTIME = "/opt/agent"
"""Where the runtime is mounted in every sandbox."""
FOLDER = "/run/lego"
"""Sandbox folder for launcher, settings and report; outside the repository and its tools' reach."""
_LOADERS = {
    "x86_64": ("x86_64-linux-gnu", "ld-linux-x86-64.so.2"),
    "aarch64": ("aarch64-linux-gnu", "ld-linux-aarch64.so.1"),
}
"""Machine → Debian's multiarch folder and the dynamic loader in it."""
_ENDINGS = {
    launcher.EXIT_FINISHED: (Termination.AGENT_COMPLETED, "the agent finished"),
    launcher.EXIT_MAX_ITERATIONS: (Termination.MAX_TURNS, "the agent reached its limit of turns"),
    launcher.EXIT_STUCK: (Termination.NO_PROGRESS, "the harness found the agent repeating itself"),
    launcher.EXIT_CONTEXT_OVERFLOW: (Termination.CONTEXT_OVERFLOW, "the conversation outgrew the context"),
    launcher.EXIT_OUT_OF_RESOURCES: (Termination.AGENT_OOM, "the agent's commands left no resources to the harness"),
}
_FAILURES = {
    launcher.EXIT_CRASHED: "OpenHands crashed",
    launcher.EXIT_UNSERVED: "OpenHands got no answer from its endpoint",
    launcher.EXIT_REFUSED: "OpenHands sent a request that its endpoint refused",
}


class OpenHands:
    """`harnesses.openhands`: one agent per trial, started cold."""

    name = "openhands"

    def __init__(
        self,
        *,
        version: str,
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
    ) -> None:
        self.max_turns = max_turns
        self._version, self._condenser = version, condenser
        self._max_output_tokens, self._native_tool_calling = max_output_tokens, native_tool_calling
        self._system_prompt, self._stuck_detection = system_prompt, stuck_detection
        self._tools, self._builtin_tools = tuple(tools), tuple(builtin_tools)
        self._terminal_idle_timeout_s = terminal_idle_timeout_s
        self._attempts, self._llm_timeout_s = attempts, llm_timeout_s
        self._retry_min_wait_s, self._retry_max_wait_s = retry_min_wait_s, retry_max_wait_s

    @property
    def report_path(self) -> str:
        return f"{FOLDER}/report.json"

    def runtime(self) -> ImageSpec:
        """Debian trixie for its Python 3.13 (the SDK needs ≥ 3.12); every package pinned where a lock is kept."""
        return ImageSpec(
            name="openhands",
            suite="trixie",
            packages=("python3", "python3-venv", "python3-pip", "git", "ca-certificates"),
            pip=_requirements(self._version),
        )

    def mount(self, images: ImageStore) -> Mount:
        return Mount(source=images.path(self.runtime()), target=RUNTIME)

    def problems(self, images: ImageStore) -> Sequence[ConfigError]:
        key = f"harnesses.{self.name}"
        found = list(self._condenser.problems(f"{key}.condenser"))
        if platform.machine() not in _LOADERS:
            found.append(ConfigError(key, platform.machine(), "no runtime for this machine", f"use {list(_LOADERS)}"))
        if not (images.path(self.runtime()) / ".complete").is_file():
            way_out = "run the same command with job=prepare"
            found.append(ConfigError(f"{key}.version", self._version, "its runtime is not built", way_out))
        return found

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        settings_path, launcher_path = f"{FOLDER}/settings.json", f"{FOLDER}/launcher.py"
        multiarch, loader = _LOADERS[platform.machine()]
        libraries, python = f"{RUNTIME}/usr/lib/{multiarch}", f"{RUNTIME}/usr/bin/python3"
        start = (f"{libraries}/{loader}", "--argv0", python, "--library-path", libraries, python)
        return Launch(
            command=(*start, "-I", "-B", launcher_path, settings_path),
            environment={},
            cwd=task.workdir,
            files={
                launcher_path: resources.files("engine.harness.launchers").joinpath("openhands.py").read_bytes(),
                settings_path: json.dumps(self._settings(task, endpoint)).encode(),
            },
        )

    def judge(self, result: ExecResult, report: bytes | None) -> tuple[Termination, str]:
        if result.timed_out:
            return Termination.AGENT_TIMEOUT, f"the agent's wall clock ran out after {result.duration_s:.0f} s"
        code, words = result.exit_code, _words(report)
        if code in _ENDINGS:
            termination, reason = _ENDINGS[code]
            return termination, f"{reason}: {words}" if words and code != launcher.EXIT_FINISHED else reason
        if code in _FAILURES:
            raise HarnessError(f"{_FAILURES[code]}: {words or _last_line(result.stderr)}")
        if result.oom_killed:
            return Termination.AGENT_OOM, "the harness was killed when the sandbox ran out of memory"
        killed_by = _signal(code)
        if killed_by and launcher.STARTED.encode() in result.stdout:
            return Termination.AGENT_COMPLETED, f"the agent's own commands ended the harness ({killed_by})"
        ended = f"was ended by {killed_by}" if killed_by else f"exited with {code}"
        raise HarnessError(f"OpenHands {ended}: {_last_line(result.stderr)}")

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
            "runtime": RUNTIME,
            "instruction": task.instruction,
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


def _requirements(version: str) -> tuple[str, ...]:
    """The SDK's packages at one version, with all they need as tried with it where the project keeps a lock."""
    wanted = (f"openhands-sdk=={version}", f"openhands-tools=={version}")
    lock = resources.files("engine.harness").joinpath("locks", f"openhands-{version}.txt")
    if not lock.is_file():
        return wanted
    lines = (line.strip() for line in lock.read_text(encoding="utf-8").splitlines())
    return (*wanted, *(line for line in lines if line and not line.startswith("#")))


def _words(report: bytes | None) -> str:
    """The report's error text on one line; empty when there is none, or none that can be read."""
    try:
        content = json.loads(report or b"{}")
    except ValueError:
        return ""
    error = content.get("error", "") if isinstance(content, dict) else ""
    return " ".join(error.split())[:500] if isinstance(error, str) else ""


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:500] if lines else "it wrote nothing to standard error"


def _signal(code: int) -> str:
    """Name of the signal that an exit status tells of (`-9` and `137` alike); empty when none."""
    number = -code if code < 0 else code - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""
