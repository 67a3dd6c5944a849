"""`kill -9` of `job=prepare` in its stages: no process lives on; the next start or `job=reap` removes the rest."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from whole_runs import ROOT, prepare, processes_naming

from engine.core.paths import cache_dir
from engine.sandbox.rooms import started

pytestmark = pytest.mark.slow

FEW = [f"tasks.{kind}.{split}=2" for kind in ("real", "generated") for split in ("warm_start", "train", "validation")]


@dataclass(frozen=True)
class Place:
    """A machine's places of this test's own."""

    root: Path
    tmp: Path
    """With a path that is short enough for sockets."""

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def command(self, job: str, *overrides: str) -> list[str]:
        own = (f"run.root={self.root}/runs", f"job={job}")
        engine = (sys.executable, "-m", "engine", "experiment=openhands_gspo", "model=tiny_qwen3_moe")
        return [*engine, *own, *overrides]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "TMPDIR": str(self.tmp), "LEGO_RL_CACHE": str(self.cache)}

    @contextlib.contextmanager
    def started(self, *overrides: str) -> Iterator["subprocess.Popen[bytes]"]:
        with (self.root / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                self.command("prepare", *overrides), cwd=ROOT, env=self.environment, stdout=log, stderr=log
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def wait_for(self, moment: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + 600
        while not moment():
            assert process.poll() is None, f"it ended before: {(self.root / 'log.txt').read_text()[-3000:]}"
            assert time.monotonic() < deadline, "that moment never came"
            time.sleep(0.02)

    def reap(self) -> list[str]:
        """What it removed."""
        done = subprocess.run(
            self.command("reap"),
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        return done.stdout.splitlines()

    def clean(self) -> bool:
        """Whether nothing is left, once what was killed is dead: on a busy machine that takes a moment."""
        deadline = time.monotonic() + 10
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == []
        return True

    def left(self) -> list[str]:
        """Temporary folders, rooms of sandboxes, mounts and processes that are there."""
        own = [folder for folder in self.cache.glob("*/") if not folder.is_symlink()]
        hidden = [path for folder in own for path in folder.glob(".*") if not path.name.endswith(".lock")]
        rooms = list(self.cache.glob("sandboxes/*/*"))
        places = (str(self.root), str(self.tmp))
        table = Path("/proc/self/mountinfo").read_text().splitlines()
        mounts = [line for line in table if any(place in line for place in places)]
        processes = [line for place in places for line in processes_naming(place)]
        return [*map(str, (*self.tmp.iterdir(), *hidden, *rooms)), *mounts, *processes]


@pytest.fixture
def place(tmp_path: Path, short_tmp: Path) -> Place:
    (tmp_path / "cache").mkdir()
    return Place(tmp_path, short_tmp)


def tree(pid: int) -> dict[int, str]:
    """A process and all that stem from it, each with its start time."""
    found = {pid: started(pid)}
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                found |= tree(int(child))
    return found


def kill_head(place: Place, process: "subprocess.Popen[bytes]", moment: Callable[[], bool]) -> None:
    """Kill it alone, at a moment and not after it; what stems from it must notice by itself."""
    while True:
        place.wait_for(moment, process)
        process.send_signal(signal.SIGSTOP)
        family = tree(process.pid)
        if moment() and len(family) > 1:
            break
        process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while alive := [pid for pid, begun in family.items() if begun and started(pid) == begun and not is_zombie(pid)]:
        if time.monotonic() > deadline:
            lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in alive]
            # One that was killed as it started a sandbox may leave bubblewrap behind, which whoever comes next ends.
            assert all(f"{place.cache}/sandboxes/".encode() in line for line in lines), lines
            break
        time.sleep(0.02)


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def runs(place: Place, *words: str) -> bool:
    return any(all(word in line for word in words) for line in processes_naming(str(place.cache)))


def test_killed_while_it_fetches_and_builds(place: Place) -> None:
    overrides = ("tasks=release_pairs",)
    for words in (("pip", "download"), ("pip", "install", "--target"), ("debootstrap", "unshare")):
        with place.started(*overrides) as process:
            place.wait_for(lambda words=words: runs(place, *words), process)  # type: ignore[misc]
            time.sleep(1)
            kill_head(place, process, lambda words=words: runs(place, *words))  # type: ignore[misc]
    assert place.left() != []
    assert place.reap() != []
    assert place.clean()
    assert place.reap() == ["nothing was left behind"]

    with place.started(*overrides) as process:
        place.wait_for(lambda: runs(place, "debootstrap"), process)
        process.terminate()
        assert process.wait(timeout=60) == 130
    assert place.clean()


def test_killed_while_it_tries_the_tasks(place: Place) -> None:
    prepare()
    for shared in ("images", "sdists", "models"):
        (place.cache / shared).symlink_to(cache_dir() / shared)
    overrides = ("tasks=laptop", *FEW)
    for kind in ("audit", "grade"):
        with place.started(*overrides) as process:

            def at_work(kind: str = kind) -> bool:
                return any(place.tmp.glob(f"lego-rl-{kind}-*"))

            kill_head(place, process, at_work)
        assert any(place.tmp.glob("lego-rl-*"))
    assert any(line.startswith("removed sandbox audit-") for line in place.reap())
    assert place.clean()

    with place.started(*overrides) as process:
        rooms = "sandboxes/*/*/audit-*/root"
        kill_head(place, process, lambda: any(place.cache.glob(rooms)))
    with place.started(*overrides) as process:  # which removes what the one before left, and goes on
        assert process.wait(timeout=900) == 0, (place.root / "log.txt").read_text()[-3000:]
    assert place.clean()
