"""How a trial ended, from the exit code of a launcher (`engine.harness.launchers.process`).

Invariant: the exit code alone decides, because no command of the agent can choose it; the report file only adds words.
A harness that an agent kills is therefore kept and graded, never an excluded failure.
"""

import json
import signal

from engine.core.errors import HarnessError
from engine.core.records import Termination
from engine.core.specs import ExecResult
from engine.harness.launchers import process

_ENDINGS = {
    process.EXIT_FINISHED: (Termination.AGENT_COMPLETED, "the agent finished"),
    process.EXIT_MAX_TURNS: (Termination.MAX_TURNS, "the agent reached its limit of turns"),
    process.EXIT_NO_PROGRESS: (Termination.NO_PROGRESS, "the harness gave up an agent that made no progress"),
    process.EXIT_CONTEXT_OVERFLOW: (Termination.CONTEXT_OVERFLOW, "the conversation outgrew the context"),
    process.EXIT_OUT_OF_RESOURCES: (Termination.AGENT_OOM, "the agent's commands left no resources to the harness"),
}
_FAILURES = {
    process.EXIT_CRASHED: "crashed",
    process.EXIT_UNSERVED: "got no answer from its endpoint",
    process.EXIT_REFUSED: "sent a request that its endpoint refused",
}


def judge(program: str, result: ExecResult, report: bytes | None) -> tuple[Termination, str]:
    """Termination and one line of reason; raises HarnessError for failures of `program` that are not the model's."""
    if result.timed_out:
        return Termination.AGENT_TIMEOUT, f"the agent's wall clock ran out after {result.duration_s:.0f} s"
    code, words = result.exit_code, _words(report)
    if code in _ENDINGS:
        termination, reason = _ENDINGS[code]
        return termination, f"{reason}: {words}" if words and code != process.EXIT_FINISHED else reason
    if code in _FAILURES:
        raise HarnessError(f"{program} {_FAILURES[code]}: {words or last_line(result.stderr)}")
    if result.oom_killed:
        return Termination.AGENT_OOM, "the harness was killed when the sandbox ran out of memory"
    killed_by = signal_name(code)
    if killed_by and process.STARTED.encode() in result.stdout:
        return Termination.AGENT_COMPLETED, f"the agent's own commands ended the harness ({killed_by})"
    ended = f"was ended by {killed_by}" if killed_by else f"exited with {code}"
    raise HarnessError(f"{program} {ended}: {last_line(result.stderr)}")


def _words(report: bytes | None) -> str:
    """The report's error text on one line; empty when there is none, or none that can be read."""
    try:
        content = json.loads(report or b"{}")
    except (ValueError, RecursionError):
        return ""
    error = content.get("error", "") if isinstance(content, dict) else ""
    return one_line(error)


def one_line(text: object) -> str:
    """What a program said, short enough for a reason and fit to be stored; empty when it is no text."""
    return " ".join(text.split())[:500].encode("utf-8", "replace").decode() if isinstance(text, str) else ""


def last_line(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:500] if lines else "it wrote nothing to standard error"


def signal_name(code: int) -> str:
    """Name of the signal that an exit status tells of (`-9` and `137` alike); empty when none."""
    number = -code if code < 0 else code - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""
