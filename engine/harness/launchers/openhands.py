"""Runs one unmodified OpenHands agent inside a sandbox; `engine.harness.openhands` writes it there.

The runtime's interpreter runs it (`python -I launcher.py SETTINGS`): only the standard library is there until the
runtime's site-packages are added. It uses the SDK through its public API alone.

Invariants: the agent's shell inherits exactly the environment that this process was given; the settings, which hold the
trial's API key, are gone from the disk and this process is closed to its neighbours before any agent command can run;
how the trial ended is told by the exit code (EXIT_*), which no command of the agent can choose. The report file is in
the agent's reach and adds text only.
"""

import ctypes
import errno
import gc
import json
import os
import site
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXIT_FINISHED = 0
EXIT_MAX_ITERATIONS = 10
EXIT_STUCK = 11
EXIT_CONTEXT_OVERFLOW = 12
EXIT_OUT_OF_RESOURCES = 13  # processes, memory, descriptors or disk, spent by the agent's commands
EXIT_CRASHED = 70  # the harness failed by itself: import, set-up or a fault in its code
EXIT_UNSERVED = 75  # the endpoint failed or could not be reached, retries included
EXIT_REFUSED = 76  # the endpoint said that the request itself is wrong

STARTED = "lego-agent: conversation started"
"""Printed once, before the agent's first command can run: a later death by signal is the agent's own doing."""

IMPORT_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no download of prices
    "LITELLM_MODE": "PRODUCTION",  # its default mode reads a `.env` file
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "LOG_LEVEL": "WARNING",
    "ALLOW_SHORT_CONTEXT_WINDOWS": "true",  # the endpoint bounds the context; small windows are meant
}
SPENT = {errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE}
PR_SET_DUMPABLE = 4
TEXT_LIMIT = 2000


def take_settings(path: Path) -> dict[str, Any]:
    """Read the settings and remove their file, which holds the API key."""
    settings: dict[str, Any] = json.loads(path.read_bytes())
    path.unlink()
    return settings


def given_environment() -> dict[str, str]:
    """The environment that this process was started with; Python itself may have added a locale since."""
    pairs = (entry.partition("=") for entry in os.fsdecode(Path("/proc/self/environ").read_bytes()).split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def close_to_neighbours() -> None:
    """Keep unprivileged processes of the same user out of this one's memory, descriptors and environment."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE) failed")


class Progress:
    """Counts events by kind and keeps the last error that the conversation itself reported."""

    def __init__(self) -> None:
        self.events: dict[str, int] = {}
        self.code = ""
        self.detail = ""

    def __call__(self, event: Any) -> None:
        kind = type(event).__name__
        self.events[kind] = self.events.get(kind, 0) + 1
        if kind == "ConversationErrorEvent":
            self.code, self.detail = event.code, event.detail


def build_conversation(settings: dict[str, Any], progress: Progress) -> Any:
    """Agent and conversation; the imports take most of a cold start."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site.addsitedir(f"{settings['runtime']}/opt/venv/lib/{version}/site-packages")
    from openhands.sdk import LLM, Agent, LocalConversation, Tool
    from openhands.sdk.context.condenser import LLMSummarizingCondenser
    from openhands.tools.file_editor import FileEditorTool
    from openhands.tools.task_tracker import TaskTrackerTool
    from openhands.tools.terminal import TerminalTool

    known = {tool.name for tool in (TerminalTool, FileEditorTool, TaskTrackerTool)}  # importing them registers them
    unknown = settings["tools"].keys() - known
    if unknown:
        raise ValueError(f"unknown tools {sorted(unknown)}; this SDK has {sorted(known)}")
    llm = LLM(**settings["llm"])
    condenser = None
    if settings["condenser"] is not None:
        condenser = LLMSummarizingCondenser(
            llm=llm.model_copy(update={"usage_id": "condenser"}), **settings["condenser"]
        )
    tools = [Tool(name=name, params=params) for name, params in settings["tools"].items()]
    agent = Agent(llm=llm, tools=tools, condenser=condenser, **settings["agent"])
    return LocalConversation(agent=agent, visualizer=None, callbacks=[progress], **settings["conversation"])


def causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and what it was raised from, outermost first."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def spent_resources(error: BaseException) -> bool:
    """Whether the machine refused something for want of memory, processes, descriptors or disk."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in SPENT):
        return True
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)


def exit_code_of(error: BaseException) -> int:
    """Which ending an exception out of `conversation.run` is."""
    from openhands.sdk.llm import exceptions as llm

    chain = list(causes(error))
    if any(spent_resources(link) for link in chain):
        return EXIT_OUT_OF_RESOURCES
    if any(isinstance(link, llm.LLMContextWindowExceedError) for link in chain):
        return EXIT_CONTEXT_OVERFLOW
    if any(isinstance(link, llm.LLMBadRequestError | llm.LLMMalformedConversationHistoryError) for link in chain):
        return EXIT_REFUSED
    clients = ("litellm", "openai", "httpx", "httpcore")
    if any(isinstance(link, llm.LLMError) or type(link).__module__.startswith(clients) for link in chain):
        return EXIT_UNSERVED
    return EXIT_CRASHED


def exit_code_at(status: str, code: str) -> int:
    """Which ending it is when `conversation.run` returned, from its final status and last error code."""
    if status == "finished":
        return EXIT_FINISHED
    if status == "stuck":
        return EXIT_STUCK
    return EXIT_MAX_ITERATIONS if code == "MaxIterationsReached" else EXIT_CRASHED


def run(settings: dict[str, Any], environment: dict[str, str], progress: Progress, report: dict[str, Any]) -> int:
    """One conversation from its first message to its end; fills `report` and returns the exit code."""
    begun = time.monotonic()
    os.environ.update(IMPORT_ENVIRONMENT)
    gc.disable()  # nothing that the imports make is garbage: a fifth of their time is spent looking for it
    conversation = build_conversation(settings, progress)
    gc.freeze()
    gc.enable()
    os.environ.clear()
    os.environ.update(environment)
    report["setup_s"] = round(time.monotonic() - begun, 3)
    print(STARTED, flush=True)
    code: int | None = None
    try:
        conversation.send_message(settings["instruction"])
        conversation.run()
    except Exception as error:
        code = exit_code_of(error)
        if code == EXIT_CRASHED:
            traceback.print_exc()
        report["error"] = f"{type(error).__name__}: {error}"
    report["status"] = conversation.state.execution_status.value
    if progress.code:
        report["error"] = f"{progress.code}: {progress.detail}"
    return exit_code_at(report["status"], progress.code) if code is None else code


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Whole or not at all, and never through a link that the agent left in its place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(report, file)
        temporary.replace(path)
    except OSError as error:
        print(f"lego-agent: no report: {error}", file=sys.stderr)


def main(settings_path: Path) -> int:
    """Run the trial that the settings describe and leave the report beside them."""
    progress = Progress()
    report: dict[str, Any] = {"status": "", "error": "", "setup_s": 0.0}
    try:
        environment = given_environment()
        close_to_neighbours()
        code = run(take_settings(settings_path), environment, progress, report)
    except Exception as error:
        traceback.print_exc()
        report["error"] = f"{type(error).__name__}: {error}"
        code = EXIT_CRASHED
    report |= {"error": report["error"][:TEXT_LIMIT], "exit_code": code, "events": progress.events}
    write_report(settings_path.with_name("report.json"), report)
    return code


if __name__ == "__main__":
    ended_with = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    # Neither threads nor exit hooks of the SDK may hold the exit back; what they leave dies with the sandbox.
    os._exit(ended_with)
