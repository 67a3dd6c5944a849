"""What a program says when nobody reads it any more: it goes on, and ends with its own code."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

GOES_ON = """
import contextlib, logging, os, sys, warnings
from pathlib import Path
from rich.console import Console
from engine.core.streams import outlive_readers
outlive_readers()
outlive_readers()
note = Path(sys.argv[1])
print("ready", flush=True)
print("also here", file=sys.stderr)
sys.stdin.readline()
for _ in range(3):
    print("result", flush=True)
    print("word", file=sys.stderr)
    Console(stderr=True).print("rich")
    Console().print("rich")
    logging.error("logged")
    warnings.warn("warned")
    with contextlib.suppress(OSError):
        os.write(2, b"native code")
note.write_text("done")
sys.exit(7)
"""


def start(note: Path, **streams: object) -> "subprocess.Popen[bytes]":
    given = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen([sys.executable, "-c", GOES_ON, str(note)], **given)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("gone", [("stdout",), ("stderr",), ("stdout", "stderr")])
def test_a_pipe_s_reader_goes_away(tmp_path: Path, gone: tuple[str, ...]) -> None:
    process = start(tmp_path / "note")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"ready\n"
    assert process.stderr.readline() == b"also here\n"
    for name in gone:
        getattr(process, name).close()
    with process:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        rest = [getattr(process, name).read() for name in ("stdout", "stderr") if name not in gone]
    assert process.returncode == 7
    assert (tmp_path / "note").read_text() == "done"
    assert b"Exception ignored" not in b"".join(rest)


def test_a_terminal_goes_away(tmp_path: Path) -> None:
    master, terminal = pty.openpty()
    process = start(tmp_path / "note", stdout=terminal, stderr=terminal)
    os.close(terminal)
    assert b"ready" in os.read(master, 100)
    os.close(master)
    process.communicate(b"\n", timeout=60)
    assert process.returncode == 7
    assert (tmp_path / "note").read_text() == "done"


def test_words_that_no_disk_takes_end_nothing(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        process = start(tmp_path / "note", stderr=full)
    process.communicate(b"\n", timeout=60)
    assert process.returncode == 7


def test_results_that_no_disk_takes_are_an_error(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        process = start(tmp_path / "note", stdout=full)
    _, told = process.communicate(b"\n", timeout=60)
    assert process.returncode != 7
    assert b"No space left on device" in told


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_was_closed_gives_its_number_to_no_file(tmp_path: Path, closed: str) -> None:
    script = """
import os, sys
from pathlib import Path
from engine.core.streams import outlive_readers
outlive_readers()
with open(sys.argv[1], "w") as file:
    assert file.fileno() > 2
    print("result")
    print("word", file=sys.stderr)
    sys.stderr.flush()
    os.write(2, b"native code")
    file.write("done")
sys.exit(7)
"""
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", script, str(tmp_path / "note")]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert done.returncode == 7
    assert (tmp_path / "note").read_text() == "done"
    assert done.stdout == (b"" if ">&- " in f"{closed} " and closed != "2>&-" else b"result\n")


def test_a_stream_that_does_not_wait_is_waited_for(tmp_path: Path) -> None:
    """A parent that reads a pipe in its own event loop may have set it so for both ends' descriptions."""
    script = """
import os, sys
os.set_blocking(2, False)
from engine.core.streams import outlive_readers
outlive_readers()
print("x" * 300_000, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, check=False, timeout=60)
    assert (done.returncode, len(done.stderr)) == (0, 300_001)
