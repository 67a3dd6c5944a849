"""`python -m engine [overrides]`: compose → validate → check → build → run the job.

Exit codes: 0 done, 2 bad configuration, 3 run failed, 130 interrupted. Errors are one line a problem on standard error.
"""

import sys

from engine.core.ending import ENDING, INTERRUPTED, SAID
from engine.core.streams import outlive_readers

if __name__ == "__main__":  # ahead of the imports below, which take a third of a second
    outlive_readers()
    ENDING.listen(leaves=True)

import asyncio
import errno
import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path

from engine.config.assemble import assemble
from engine.config.built import Built
from engine.config.command import run_command
from engine.config.composed import Composed
from engine.core.contracts import DrainableJob, EndlessJob
from engine.core.errors import Interrupted, LegoError
from engine.core.garbage import look_seldom
from engine.core.paths import compiled_dir
from engine.run.sweep import Runner

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""What a disk says that takes no more; no defect of the program."""
_PATIENCE = 3
"""Signals after the one that stops a job, before the program leaves whatever does not end."""
_NO_MEMORY = re.compile(r"can't allocate memory|[Cc]annot allocate memory|out of memory")
"""What torch and the kernel say of memory."""


def main(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code."""
    outlive_readers()
    ENDING.listen(leaves=False)
    # As soon as it is imported, torch makes a folder among the temporary ones unless it is told another place.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled_dir()))
    try:
        code = run_command(arguments, Runner(execute, lambda: ENDING.asked))
        sys.stdout.flush()
        return code
    except LegoError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as end:
        ENDING.listen(leaves=True)  # all is tidied up; an impatient second one finds nothing to interrupt
        print(*(end.args or (SAID,)), file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if error.errno not in _DISK:
            raise
        print(_not_written(error), file=sys.stderr)
        return LegoError.exit_code


def execute(composed: Composed) -> int:
    """Assemble one configuration and run its job; every error but an interruption becomes an exit code."""
    if ENDING.asked:  # by an interruption that was swallowed on its way
        raise KeyboardInterrupt
    try:
        built = assemble(composed)
    except LegoError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    try:
        return _run(built)
    except (asyncio.CancelledError, Interrupted):
        raise KeyboardInterrupt(*([built.job.ended] if isinstance(built.job, EndlessJob) else [])) from None
    except LegoError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _DISK:
            print(_not_written(error), file=sys.stderr)
            return LegoError.exit_code
        text = " ".join(str(error).split())
        if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
            way = "end other programs, or lower train.micro_batch_tokens, schedule.concurrency or the model's sizes"
            print(f"there is not enough memory ({text[:300] or 'MemoryError'}); {way}", file=sys.stderr)
            return LegoError.exit_code
        print(f"{type(error).__name__}: {text} (a defect of the program; {_keep(built.directory)})", file=sys.stderr)
        return LegoError.exit_code


def _run(built: Built) -> int:
    """Run the job. The first signal lets one that can do so finish what is running; the next one, or the first where
    there is nothing to finish, stops it. Each is answered at once, since ending in order takes a while."""
    job = built.job
    draining = False
    stopping = 0

    def hear() -> None:
        nonlocal draining, stopping
        if stopping:
            stopping += 1  # a second cancellation would interrupt the tidying up
            if stopping > _PATIENCE:
                print("left at once; job=reap removes what is left", file=sys.stderr, flush=True)
                os._exit(INTERRUPTED)
            print(f"still stopping; {_PATIENCE + 1 - stopping} more leave at once", file=sys.stderr)
            return
        if not draining and isinstance(job, DrainableJob) and job.drain():
            draining = True
            print("finishing what is running; once more stops it", file=sys.stderr)
        else:
            stopping = 1
            print("stopping", file=sys.stderr)
            task.cancel()

    async def wait() -> int:
        return await task

    look_seldom()
    runner = asyncio.Runner()
    loop = runner.get_loop()
    with ENDING.heard_in(loop, hear), runner:
        task = loop.create_task(job.run(built))
        return runner.run(wait())


def _not_written(error: OSError) -> str:
    problem = f"{error.filename or 'a file'} cannot be written: {error.strerror}"
    return f"{problem}; once it can, the same command goes on"


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
