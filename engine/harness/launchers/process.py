"""What every launcher does around its harness inside a sandbox: secrets, environment, exit code, report.

The runtime's interpreter runs it (`python -I FOLDER SETTINGS`, written by `engine.harness.runtime`): only the standard
library is there until the runtime's site-packages are added. Started cold, a process does everything for one trial
(`start`); a warm one does the imports once (`load`), and what is forked from it into a sandbox the rest (`start_warm`).

Invariants: the agent's shell inherits exactly the environment that this process was given; the settings, which hold the
trial's API key, are gone from the disk and this process is closed to its neighbours before any agent command can run;
no module is looked for where the agent can write; how the trial ended is told by the exit code (EXIT_*), which no
command of the agent can choose. The report file is in the agent's reach and adds text only.
"""

import ctypes
import errno
import gc
import importlib
import json
import os
import random
import signal
import site
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

EXIT_FINISHED = 0
EXIT_MAX_TURNS = 10
EXIT_NO_PROGRESS = 11  # the harness itself gave the agent up
EXIT_CONTEXT_OVERFLOW = 12
EXIT_OUT_OF_RESOURCES = 13  # processes, memory, descriptors or disk, spent by the agent's commands
EXIT_CRASHED = 70  # the harness failed by itself: import, set-up or a fault in its code
EXIT_UNSERVED = 75  # the endpoint failed or could not be reached, retries included
EXIT_REFUSED = 76  # the endpoint said that the request itself is wrong

STARTED = "lego-agent: conversation started"
"""Printed once, before the agent's first command can run: a later death by signal is the agent's own doing."""

SPENT = {errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE}
CLIENTS = ("litellm", "openai", "httpx", "httpcore")
"""Packages whose exceptions tell of the endpoint, where the harness's own do not say more."""
LITELLM = (
    "httpcore",
    "litellm._service_logger",
    "litellm.llms.litellm_proxy.chat.transformation",
    "litellm.llms.openai.chat.gpt_audio_transformation",
    "litellm.llms.openai_like.dynamic_config",
    "litellm.proxy.openai_files_endpoints.common_utils",
    "openai.resources",
)
"""What litellm imports at its first call."""
PR_SET_DUMPABLE = 4
TEXT_LIMIT = 2000


class Program(Protocol):
    """One harness: a module of this folder."""

    IMPORT_ENVIRONMENT: Mapping[str, str]
    """Variables set while the harness is imported and built; they are gone before it runs."""
    IMPORTED: Sequence[str]
    """Modules that a conversation needs: what a warm process imports before any."""

    def prepare(self, settings: dict[str, Any]) -> Any:
        """Import the harness and build a conversation; the imports take most of a cold start."""
        ...

    def converse(self, conversation: Any, settings: dict[str, Any], report: dict[str, Any]) -> int:
        """Run the conversation to its end; fills `report` and returns the exit code."""
        ...

    def exit_code_of(self, chain: Sequence[BaseException]) -> int | None:
        """Which ending an exception out of `converse` is (outermost first); None: not one of its own."""
        ...


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


def exit_code_of(error: BaseException, program: Program) -> int:
    """Which ending an exception out of a conversation is."""
    chain = list(causes(error))
    if any(spent_resources(link) for link in chain):
        return EXIT_OUT_OF_RESOURCES
    known = program.exit_code_of(chain)
    if known is not None:
        return known
    return EXIT_UNSERVED if any(type(link).__module__.startswith(CLIENTS) for link in chain) else EXIT_CRASHED


def add_packages(program: Program, runtime: str) -> None:
    """Make the runtime's packages importable, without the garbage collector until a conversation is prepared."""
    os.environ.update(program.IMPORT_ENVIRONMENT)
    gc.disable()  # nothing that the imports make is garbage: a fifth of their time is spent looking for it
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site.addsitedir(f"{runtime}/opt/venv/lib/{version}/site-packages")


def load(program: Program, runtime: str) -> None:
    """In the warm process: import the harness, which then lies in the memory of all that are forked from it."""
    add_packages(program, runtime)
    for name in program.IMPORTED:
        importlib.import_module(name)


def run(program: Program, settings: dict[str, Any], environment: Mapping[str, str], report: dict[str, Any]) -> int:
    """One conversation from its first message to its end; fills `report` and returns the exit code."""
    begun = time.monotonic()
    conversation = program.prepare(settings)
    gc.freeze()
    gc.enable()
    os.environ.clear()
    os.environ.update(environment)
    report["setup_s"] = round(time.monotonic() - begun, 3)
    print(STARTED, flush=True)
    try:
        return program.converse(conversation, settings, report)
    except Exception as error:
        code = exit_code_of(error, program)
        if code == EXIT_CRASHED:
            traceback.print_exc()
        report["error"] = report["error"] or f"{type(error).__name__}: {error}"
        return code


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


def main(program: Program, settings_path: Path, given: Mapping[str, str] | None = None) -> int:
    """Run the trial that the settings describe and leave the report beside them.

    `given`: the environment, in a process that was forked from a warm one; None: a cold start."""
    report: dict[str, Any] = {"status": "", "error": "", "setup_s": 0.0}
    try:
        environment = given_environment() if given is None else given
        close_to_neighbours()
        settings = take_settings(settings_path)
        if given is None:
            add_packages(program, settings["runtime"])
        else:
            become_another({**environment, **program.IMPORT_ENVIRONMENT})
        code = run(program, settings, environment, report)
    except Exception as error:
        traceback.print_exc()
        report["error"] = f"{type(error).__name__}: {error}"
        code = EXIT_CRASHED
    report |= {"error": report["error"][:TEXT_LIMIT], "exit_code": code}
    write_report(settings_path.with_name("report.json"), report)
    return code


def become_another(environment: Mapping[str, str]) -> None:
    """In a forked process: let go of what would otherwise be the same in all of them."""
    os.environ.clear()
    os.environ.update(environment)
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def start(program: Program) -> NoReturn:
    """The process from its first line to its last; the settings' path is its only argument."""
    sys.path.remove(str(Path(sys.argv[0]).absolute()))  # the agent can write there
    leave(main(program, Path(sys.argv[1])))


def start_warm(program: Program, command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """The same in a process that was forked from a warm one: `command` is what `sys.argv` is after a cold start."""
    sys.argv[:] = command
    try:
        leave(main(program, Path(command[1]), environment))
    except SystemExit as error:
        leave(error.code if isinstance(error.code, int) else 1)
    except KeyboardInterrupt:  # as the interpreter itself ends by it
        traceback.print_exc()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        leave(128 + signal.SIGINT)


def leave(code: int) -> NoReturn:
    """Neither threads nor exit hooks of the harness may hold the exit back; what they leave dies with the sandbox."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
