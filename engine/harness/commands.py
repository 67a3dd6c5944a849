"""Harnesses that are command-line programs: their packages from npm, how one is started, and how its exit is judged.

The program runs unmodified, as its own command, with the instruction as its standard input. Invariants: the trial's key
stands in its environment alone, never in an argument or a file; the variables that it was started with are gone again
from every bash that it starts, so the agent's commands see the sandbox's own environment; only an exit code that no
signal of the agent can cause excludes a trial.
"""

import json
import platform
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from engine.core import guest
from engine.core.contracts import ImageStore
from engine.core.errors import ConfigError, HarnessError
from engine.core.records import Task, Termination
from engine.core.specs import ExecResult, ImageSpec, Launch, Mount
from engine.harness import endings
from engine.harness.runtime import REPORT, RUNTIME, runtime_mount, runtime_problems

PROMPT, STATE, FORGET = guest.PROMPT, guest.STATE, guest.FORGET
MODULES = f"{RUNTIME}/node_modules"
OWN = ("BASH_ENV", "SHLVL")
"""Variables that `launch` adds."""
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}
"""Machine → its name in npm's packages of machine code."""

Ending = Literal["completed", "max_turns", "no_progress", "context_overflow", "failed"]
_ENDINGS: Mapping[Ending, tuple[Termination, str]] = {
    "completed": (Termination.AGENT_COMPLETED, "the agent finished"),
    "max_turns": (Termination.MAX_TURNS, "the agent reached its limit of turns"),
    "no_progress": (Termination.NO_PROGRESS, "the harness gave up an agent that made no progress"),
    "context_overflow": (Termination.CONTEXT_OVERFLOW, "the conversation outgrew the context"),
}


def machine() -> str:
    """This machine in the names of npm's packages; one that has none is told by `problems`."""
    return _MACHINES.get(platform.machine(), platform.machine())


def npm_runtime(name: str, *packages: str) -> ImageSpec:
    """A folder of pinned npm packages, mounted at `/opt/agent`."""
    return ImageSpec(name=name, suite=None, packages=(), pip=(), npm=packages)


class Program(ABC):
    """What the adapters of these programs share: a runtime of npm packages, and no report beside their output."""

    name: str
    _version: str

    @property
    def report_path(self) -> str:
        return REPORT

    @abstractmethod
    def runtime(self) -> ImageSpec: ...

    def mount(self, images: ImageStore) -> Mount:
        return runtime_mount(self.runtime(), images)

    def problems(self, images: ImageStore) -> Sequence[ConfigError]:
        return runtime_problems(f"harnesses.{self.name}", self._version, self.runtime(), images, _MACHINES)


def launch(
    task: Task,
    command: Sequence[str],
    environment: Mapping[str, str],
    files: Mapping[str, bytes],
    search: Sequence[str] = (),
) -> Launch:
    """Start `command` in the repository, the instruction as its standard input.

    `search`: folders in which the program, but no command of the agent, finds helpers before those of the system."""
    # With a level, bash takes a socket as its standard input for no remote shell, which would read other files.
    given = {**environment, "BASH_ENV": FORGET, "SHLVL": "1"}
    forget = f"SHLVL=1\nunset BASH_ENV {' '.join(sorted(environment))}\n"
    if search:
        given["PATH"] = ":".join((*search, _SYSTEM_PATH))
        forget += f"PATH={_SYSTEM_PATH}\n"
    written = {PROMPT: task.instruction.encode(), FORGET: forget.encode(), **files}
    start = ("/bin/sh", "-c", f'exec "$@" <{PROMPT}', "start")
    return Launch(command=(*start, *command), environment=given, cwd=task.workdir, files=written)


def judge(program: str, result: ExecResult, exits: Mapping[int, Ending], said: str = "") -> tuple[Termination, str]:
    """Termination and one line of reason, by the table `exits` of the program's exit codes.

    `said`: what the program printed of its end. Raises HarnessError for exit codes that are failures of `program`
    itself: `failed` in the table, or not in it."""
    if result.timed_out:
        return Termination.AGENT_TIMEOUT, f"the agent's wall clock ran out after {result.duration_s:.0f} s"
    ending = exits.get(result.exit_code)
    if ending is not None and ending != "failed":
        termination, reason = _ENDINGS[ending]
        return termination, f"{reason}: {said}" if said and ending != "completed" else reason
    if result.oom_killed:
        return Termination.AGENT_OOM, "the harness was ended when the sandbox ran out of memory"
    killed_by = endings.signal_name(result.exit_code)
    if killed_by:  # before its first call: the trial is excluded because no token was sampled
        return Termination.AGENT_COMPLETED, f"the agent's own commands ended the harness ({killed_by})"
    raise HarnessError(f"{program} exited with {result.exit_code}: {said or endings.last_line(result.stderr)}")


def json_lines(stdout: bytes) -> list[dict[str, Any]]:
    """The lines of output that are JSON objects."""
    found = []
    for line in stdout.splitlines():
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            found.append(content)
    return found


def last_json(stdout: bytes) -> dict[str, Any]:
    """The last line of output that is a JSON object; empty when none is."""
    return next(iter(json_lines(stdout)[-1:]), {})


def one_line(text: object) -> str:
    """What a program said, short enough for a reason; empty when it is no text."""
    return endings.one_line(text)


def filled(template: str, values: Mapping[str, str]) -> str:
    """Each `{name}` of `values` replaced, once: what is put in is not searched again, and other braces stay."""
    names = "|".join(map(re.escape, values))
    return re.sub(rf"\{{({names})\}}", lambda found: values[found[1]], template)
