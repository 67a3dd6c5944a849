"""`python -m engine [overrides]`: compose → validate → check → build → run the job.

Exit codes: 0 done, 2 bad configuration, 3 run failed, 130 interrupted. Errors are one line a problem on standard error.
"""

import asyncio
import contextlib
import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from engine.config.assemble import assemble
from engine.config.command import run_command
from engine.config.composed import Composed
from engine.core.contracts import DrainableJob
from engine.core.errors import Interrupted, LegoError
from engine.core.paths import compiled_dir
from engine.run.sweep import Runner

INTERRUPTED = 130
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""What a disk says that takes no more; no defect of the program."""
_NO_MEMORY = re.compile(r"can't allocate memory|[Cc]annot allocate memory|out of memory")
"""What torch and the kernel say of memory."""


def main(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code."""
    # As soon as it is imported, torch makes a folder among the temporary ones unless it is told another place.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled_dir()))
    for number in (signal.SIGTERM, signal.SIGHUP):  # SIGHUP: the terminal is gone, unless `nohup` has it ignored
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        return run_command(arguments, Runner(execute))
    except LegoError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output (`| head`) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _interrupt(*_: object) -> None:
    """As Ctrl-C does, also where it is ignored: a script that starts a run with `&` has it so, and can still end it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


def execute(composed: Composed) -> int:
    """Assemble one configuration and run its job; every error but an interruption becomes an exit code."""
    try:
        built = assemble(composed)
    except LegoError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    try:
        return asyncio.run(_told(built.job.run(built), built.job))
    except (asyncio.CancelledError, Interrupted):
        raise KeyboardInterrupt from None
    except LegoError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _DISK:
            problem = f"{error.filename or 'a file'} cannot be written: {error.strerror}"
            print(f"{problem}; once it can, the same command goes on", file=sys.stderr)
            return LegoError.exit_code
        text = " ".join(str(error).split())
        if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
            way = "end other programs, or lower train.micro_batch_tokens, schedule.concurrency or the model's sizes"
            print(f"there is not enough memory ({text[:300] or 'MemoryError'}); {way}", file=sys.stderr)
            return LegoError.exit_code
        print(f"{type(error).__name__}: {text} (a defect of the program; {_keep(built.directory)})", file=sys.stderr)
        return LegoError.exit_code


async def _told(work: Coroutine[Any, Any, int], job: object) -> int:
    """Do the work. The first signal lets a job that can do so finish what is running; the next one, or the first where
    it cannot, stops it. Each is answered at once, since ending in order takes a while."""
    task = asyncio.ensure_future(work)
    ways = ["stopping"]
    if isinstance(job, DrainableJob):
        ways.append("finishing what is running; once more stops it")

    def hear() -> None:
        if not ways:
            return  # a second cancellation would interrupt the tidying up
        way = ways.pop()
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(way, file=sys.stderr, flush=True)
        if isinstance(job, DrainableJob) and ways:
            job.drain()
        else:
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, hear)
    return await task


def _keep(directory: Path) -> str:
    """Put the traceback where the run lies, or show it; says where it is."""
    if os.environ.get("LEGO_RL_TRACEBACK") == "1" or not directory.is_dir():
        traceback.print_exc()
        return "traceback above"
    file = directory / "logs" / "traceback.txt"
    try:
        file.parent.mkdir(exist_ok=True)
        file.write_text(traceback.format_exc())
    except OSError:
        traceback.print_exc()
        return "traceback above"
    return f"traceback in {file}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
