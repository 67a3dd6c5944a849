"""`job=trial` from the command line: by the real mini-swe-agent with a scripted engine, by hand, and through a terminal
as a person has one."""

import contextlib
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
import yaml
from calc_task import calc_draft
from mini_pieces import SUBMIT

from engine.config.schemas import ROOT
from engine.core.paths import cache_dir
from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.tasks.harbor import write_task

MEND = "sed -i 's/a - b/a + b/' calc/__init__.py"
PATIENCE_S = 120.0


def turn(command: str) -> dict[str, Any]:
    return {"text": f"I run {command[:4]}.", "calls": [{"name": "bash", "arguments": {"command": command}}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds one task, and what the model says; all that a trial needs is built."""
    made = tmp_path_factory.mktemp("trial")
    write_task(calc_draft(), made / "tasks/calc")
    (made / "script.yaml").write_text(
        yaml.safe_dump({"e0-calc-*": [turn(f"{MEND}; setsid sleep 999 >/dev/null 2>&1 &"), turn(SUBMIT)]})
    )
    done = engine(made, "job=prepare")
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def own_records(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is built is everybody's; records of sandboxes are this test's own: nobody else reaps what is left."""
    real = cache_dir()
    with tempfile.TemporaryDirectory(prefix="lego-") as short:
        for entry in real.iterdir():
            if entry.name not in ("sandboxes", "podman"):
                (Path(short) / entry.name).symlink_to(entry)
        monkeypatch.setenv("LEGO_RL_CACHE", short)
        yield
        subprocess.run([sys.executable, "-m", "engine", "job=reap", f"run.root={short}/runs"], cwd=ROOT, check=True)


def command(folder: Path, *overrides: str) -> list[str]:
    options = ["experiment=mini_swe_agent_gspo", "model=tiny_qwen3_moe", "tasks=harbor", f"tasks.path={folder}/tasks"]
    options += ["inference=scripted", f"inference.script={folder}/script.yaml", "proxy.max_tokens_per_turn=4096"]
    return [sys.executable, "-m", "engine", *options, f"run.root={folder}/runs", "job=trial", *overrides]


def engine(folder: Path, *overrides: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(folder, *overrides), cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def stored(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """The trial's row, by the last line that was printed."""
    reader = Reader(Layout(root=Path(done.stdout.splitlines()[-1])))
    state, written = reader.state(), reader.config()
    assert state is not None
    assert state["phase"] == "finished"
    assert written is not None
    assert set(written["data"]) == {"calc"}
    (row,) = reader.rows(0, "train")
    return row


def test_a_harness_is_watched_and_what_it_did_is_told_and_kept(folder: Path) -> None:
    look = """git diff --stat; bash -c "exec 3<>/dev/tcp/127.0.0.1/8080" && echo the model answers"""
    done = engine(folder, "job.task=calc", "job.shell=after", f"job.commands=['{look}']")
    assert done.returncode == 0, done.stderr
    said = done.stderr
    order = ["task calc (train), harness mini_swe_agent: Mend", "] starting inference", "] setup", "] agent"]
    order += ["call x0: prompt", '  bash {"command"', "call x1: prompt", f'bash {{"command": "{SUBMIT}', "$ git diff"]
    order += ["] extract", "] grade"]
    places = [said.find(part) for part in order]
    assert places == sorted(places) and places[0] >= 0, said
    shown = done.stdout
    assert "calc/__init__.py | 2 +-" in shown, "the commands see the agent's work"
    assert "the model answers" in shown
    for part in (
        "ended      agent_completed: the agent finished",
        "calls      2, ",
        "finding    reap_processes/extract: 1 processes outlived the agent and were killed",
        "  +    return a + b",
        "verdict    resolved, reward 1",
        "tests      6 of 6 as they must be",
    ):
        assert part in shown, shown
    row = stored(done)
    assert (row["harness"], row["reward"], len(row["exchanges"])) == ("mini_swe_agent", 1.0, 2)
    again = engine(folder, "job.task=calc")
    assert stored(again)["run"] != row["run"], "each has a directory of its own"
    exported = engine(folder, "job=export", f"job.run={folder}/runs/{row['run']}")
    assert exported.stdout.startswith("1 files of 1 trials"), exported.stderr


def test_a_trial_that_is_excluded_ends_with_3(folder: Path) -> None:
    done = engine(folder, "job.task=calc", "proxy.max_prompt_tokens=8")
    assert done.returncode == 3, done.stderr
    assert "(excluded: neither trained on nor counted)" in done.stdout


def test_work_by_hand_is_graded_as_an_agents(folder: Path) -> None:
    commands = f"job.commands=['id -u; cat calc/__init__.py','{MEND.replace(chr(39), chr(34))}','exit 5']"
    done = engine(folder, "job.task=calc", "job.harness=none", commands, "run.name=mine")
    assert done.returncode == 0, done.stderr
    assert "starting inference" not in done.stderr
    assert "exit code 5" in done.stderr
    assert done.stdout.startswith("10001\ndef add(a, b):\n    return a - b\n")
    assert "verdict    resolved, reward 1" in done.stdout
    row = stored(done)
    assert (row["harness"], row["reward"], row["exchanges"], row["run"]) == ("none", 1.0, [], "mine")
    exported = engine(folder, "job=export", f"job.run={folder}/runs/mine")
    assert exported.stdout.startswith("1 files of 1 trials"), exported.stderr
    refused = engine(folder, "job.task=calc", "job.harness=none", commands, "run.name=mine")
    assert (refused.returncode, refused.stderr.partition(":")[0]) == (2, "run.name='mine'")


def test_what_is_not_there_is_named_with_the_nearest(folder: Path) -> None:
    assert (
        engine(folder).stdout
        == 'calc  train       Mend "add" in calc: it subtracts.\n1 tasks; job.task=ID tries one of them\n'
    )
    for overrides, line in (
        (
            ["job.task=clac"],
            "job.task='clac': the pool has no such task; did you mean calc? leave it null to list all 1",
        ),
        (
            ["job.task=calc", "job.harness=mini"],
            "job.harness='mini': the configuration has no such harness; choose one of mini_swe_agent, or none",
        ),
        (
            ["job.task=calc", "job.shell=before"],
            "job.shell='before': a shell needs a terminal, and standard input or output is none here; "
            "start it on a terminal, or give job.commands=[…] to run instead",
        ),
        (["job.enter=nobody"], "job.enter='nobody': no sandbox of this name was left running on this machine; none is"),
    ):
        done = engine(folder, *overrides)
        assert (done.returncode, done.stderr.strip()) == (2, line)


# ---------------------------------------------------------------- a terminal


class Terminal:
    """A program on a terminal, and a person who waits for words and types."""

    def __init__(self, arguments: list[str]) -> None:
        self.seen = b""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execv(arguments[0], arguments)
        self.resize(40, 90)

    def resize(self, rows: int, columns: int) -> None:
        ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, words: bytes) -> bytes:
        """All that is shown up to some words, which are then forgotten."""
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.seen:
            assert time.monotonic() < deadline, self.seen.decode(errors="replace")
            self._read()
        before, self.seen = self.seen.split(words, 1)
        return before

    def _read(self) -> bool:
        if select.select([self._fd], [], [], 0.5)[0]:
            try:
                data = os.read(self._fd, 4096)
            except OSError:
                data = b""
            self.seen += data
            return bool(data)
        return True

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def end(self) -> tuple[int, bytes]:
        """Exit code, and all that was still shown."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read():
            assert time.monotonic() < deadline, self.seen.decode(errors="replace")
        _, status = os.waitpid(self.pid, 0)
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status), self.seen

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def test_a_shell_is_the_persons_and_what_is_kept_is_entered_again(folder: Path, own_records: None) -> None:
    person = Terminal(command(folder, "job.task=calc", "job.harness=none", "job.keep=true"))
    try:
        person.until(b"[calc] /testbed$ ")
        person.type(b"tty; stty size\r")
        assert b"/dev/pts/0\r\n40 90" in person.until(b"[calc] /testbed$ ")
        person.resize(50, 100)
        os.kill(person.pid, signal.SIGWINCH)
        person.type(b"stty size\r")
        person.until(b"50 100\r\n")
        person.until(b"[calc] /testbed$ ")
        person.type(b"sh -c 'echo be\"\"gun; exec sleep 1000'\r")
        person.until(b"begun\r\n")  # which the line as typed does not say
        person.type(b"\x03")  # the engine does not hear of it
        person.until(b"[calc] /testbed$ ")
        person.type(MEND.encode() + b"\r")
        person.until(b"[calc] /testbed$ ")
        person.type(b"\x04")
        code, said = person.end()
    finally:
        person.kill()
    assert code == 0, said.decode()
    assert b"verdict    resolved, reward 1" in said
    assert b"for      7 days more (sandbox.keep_s)" in said
    name = said.partition(b"job.enter=")[2].split()[0].decode()

    listed = engine(folder, f"job.enter={name}", "job.commands=['cat calc/__init__.py; ps ax | grep -c sleep; exit 4']")
    assert listed.returncode == 4, listed.stderr
    assert "return a + b" in listed.stdout
    again = Terminal(command(folder, f"job.enter={name}"))
    try:
        again.until(b"[" + name.encode() + b"] /testbed$ ")
        again.type(b"exit 6\r")
        assert again.end()[0] == 6
    finally:
        again.kill()
    told = engine(folder, "job=reap", "job.kept=tell")
    assert f"kept sandbox {name}: 7 days more\n" in told.stdout, told.stdout
    reaped = engine(folder, "job=reap")
    assert "removed sandbox e0-calc-s0-a0\n" in reaped.stdout, reaped.stdout
    assert engine(folder, f"job.enter={name}").returncode == 2


def test_a_terminal_is_as_it_was_when_the_trial_is_interrupted(folder: Path) -> None:
    person = Terminal(command(folder, "job.task=calc", "job.shell=before"))
    before = termios.tcgetattr(person._fd)
    try:
        person.until(b"[calc] /testbed$ ")
        assert termios.tcgetattr(person._fd) != before
        os.kill(person.pid, signal.SIGTERM)
        person.until(b"] stopping")
        assert termios.tcgetattr(person._fd) == before
        code, said = person.end()
    finally:
        person.kill()
    assert code == 130, said.decode()
