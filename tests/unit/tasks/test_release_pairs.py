"""The project's list of release pairs, and the pool made from it, without the package index."""

import asyncio
import hashlib
import io
import os
import signal
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from engine.core.errors import PatchError, RunError
from engine.core.patch import under
from engine.tasks import release_pairs
from engine.tasks.grading import Grading
from engine.tasks.release_pairs import Pair, ReleasePairs, known_pairs
from engine.tasks.sdists import Sdist, _batches, fetch, unpack

ROOT = Path(__file__).parents[3]


def make_sdist(version: str, files: Mapping[str, str], link: str | None = None) -> Sdist:
    """Put an sdist straight into the cache."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"tiny-{version}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
        if link:
            member = tarfile.TarInfo(f"tiny-{version}/{link}")
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(member)
    data = buffer.getvalue()
    sdist = Sdist(
        package="tiny", version=version, file=f"tiny-{version}.tar.gz", sha256=hashlib.sha256(data).hexdigest()
    )
    sdist.path.parent.mkdir(parents=True, exist_ok=True)
    sdist.path.write_bytes(data)
    return sdist


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """One pair of a package that no index knows."""
    base = {"tiny.py": "x = 1\n", "tests/test_x.py": "old\n", "CHANGES": "1.0\n---\n- first\n", "sub/.git": "gitdir: x"}
    fixed = {"tiny.py": "x = 2\n", "tests/test_x.py": "new\n", "CHANGES": "1.1\n---\n- x is 2\n\n1.0\n---\n- first\n"}
    grading = Grading(
        test_paths=("tests",), python_path=(".",), fail_to_pass=("tests/test_x.py::test_x",), pass_to_pass=()
    )
    pair = Pair(
        name="tiny-1.0-1.1",
        package="tiny",
        license="MIT",
        base=make_sdist("1.0", base),
        fixed=make_sdist("1.1", fixed),
        changelog="CHANGES",
        source_files=("tiny.py",),
        grading=grading,
    )
    monkeypatch.setattr(release_pairs, "known_pairs", lambda: (pair,))
    return pair


def pool(**changes: object) -> ReleasePairs:
    config = yaml.safe_load((ROOT / "configs/tasks/release_pairs.yaml").read_text())
    del config["_target_"]
    return ReleasePairs(**config | changes)


def test_the_list_is_whole() -> None:
    pairs = known_pairs()
    assert len(pairs) == 12
    assert len({pair.name for pair in pairs}) == 12
    for pair in pairs:
        assert len(pair.base.sha256) == len(pair.fixed.sha256) == 64
        assert pair.grading.fail_to_pass
        assert len(pair.grading.pass_to_pass) > 20
        assert not [path for path in pair.source_files if under(path, pair.grading.test_paths)]
        for test in (*pair.grading.fail_to_pass, *pair.grading.pass_to_pass):
            assert under(test.split("::")[0], pair.grading.test_paths)


def test_the_split_holds_whole_packages_out() -> None:
    config = yaml.safe_load((ROOT / "configs/tasks/release_pairs.yaml").read_text())
    held_out = {pair.package for pair in known_pairs() if set(pair.names()) & set(config["validation"])}
    train = {pair.package for pair in known_pairs()} - held_out
    assert held_out == set(config["validation"])
    assert train


def test_unknown_names_are_problems() -> None:
    keys = {(problem.key, problem.value) for problem in pool(names=["parse", "prase"], validation=["nope"]).problems()}
    assert keys == {("tasks.names.1", "prase"), ("tasks.validation.0", "nope")}


def test_what_is_not_built_is_a_problem_and_says_how() -> None:
    (problem,) = pool(names=["parse"], validation=[]).problems()
    assert "3 tasks" in problem.problem
    assert "job=prepare" in problem.way_out


def test_a_pair_becomes_a_task(tiny: Pair) -> None:
    made = pool(names=[], validation=["tiny"], agent_timeout_s=7)
    said: list[str] = []
    asyncio.run(made.prepare(said.append))
    assert made.problems() == []
    (task,) = made.load()
    assert (task.id, task.split, task.agent_timeout_s) == ("tiny-1.0-1.1", "validation", 7)
    assert "x is 2" in task.instruction
    assert "first" not in task.instruction
    assert (task.repository / "tests/test_x.py").read_text() == "old\n"
    assert (task.tests / "tests/test_x.py").read_text() == "new\n"
    assert not (task.repository / "sub/.git").exists()
    assert task.reference is not None
    assert [(change.path, change.after) for change in task.reference.changes] == [("tiny.py", b"x = 2\n")]
    assert asyncio.run(made.prepare(said.append)) is None
    assert len(said) == 1


def test_other_limits_need_no_rebuild_another_image_does(tiny: Pair) -> None:
    asyncio.run(pool(names=[], validation=[]).prepare(print))
    assert pool(names=[], validation=[], agent_timeout_s=1, cpus=2).problems() == []
    assert pool(names=[], validation=[], workdir="/elsewhere").problems()


def test_a_build_that_fails_leaves_nothing(tiny: Pair, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(release_pairs, "write_task", broken)
    with pytest.raises(OSError, match="disk full"):
        asyncio.run(pool(names=[], validation=[]).prepare(print))
    assert list((cache / "tasks").iterdir()) == []


def test_a_change_log_without_the_release_is_refused(tiny: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = make_sdist("1.1", {"tiny.py": "", "tests/test_x.py": "", "CHANGES": "9.9\n---\n- other\n"})
    pair = Pair(**{**{name: getattr(tiny, name) for name in tiny.__dataclass_fields__}, "fixed": wrong})
    monkeypatch.setattr(release_pairs, "known_pairs", lambda: (pair,))
    with pytest.raises(RunError, match=r"tiny-1\.0-1\.1.*no entry for release 1\.1"):
        asyncio.run(pool(names=[], validation=[]).prepare(print))


def test_an_archive_with_a_link_is_refused() -> None:
    with pytest.raises(PatchError, match="link"):
        unpack(make_sdist("3.0", {"a": "1"}, link="b"))


def test_an_archive_that_climbs_is_refused() -> None:
    with pytest.raises(PatchError, match="leaves"):
        unpack(make_sdist("3.1", {"../../a": "1"}))


def test_one_release_of_a_package_in_a_batch() -> None:
    sdists = [make_sdist(version, {"a": version}) for version in ("1", "2", "3")]
    assert [[item.version for item in batch] for batch in _batches(sdists)] == [["1"], ["2"], ["3"]]


def test_a_download_that_fails_says_what_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    missing = Sdist(package="tiny", version="8.0", file="tiny-8.0.tar.gz", sha256="0" * 64)
    with pytest.raises(RunError, match=r"tiny==8\.0.*No matching distribution"):
        asyncio.run(fetch([missing], print))
    assert not missing.path.exists()
    assert [path.name for path in missing.path.parents[1].iterdir()] == []


PIP = """
import os, subprocess, sys, tempfile
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, tempfile.mkdtemp(), sep="\\n", file=open(os.environ["TOLD"] + "~", "w"), flush=True)
os.rename(os.environ["TOLD"] + "~", os.environ["TOLD"])
child.wait()
"""


async def test_a_cancelled_download_leaves_no_child_of_pips_and_nothing_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip builds an archive's metadata in processes of its own."""
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip/__init__.py").touch()
    (tmp_path / "pip/__main__.py").write_text(PIP)
    told = tmp_path / "told"
    for name, value in {"LEGO_RL_CACHE": tmp_path / "cache", "PYTHONPATH": tmp_path, "TOLD": told}.items():
        monkeypatch.setenv(name, str(value))
    sdist = Sdist(package="p", version="1", file="p-1.tar.gz", sha256="0" * 64)
    fetching = asyncio.create_task(fetch([sdist], print))
    while not told.exists():
        assert not fetching.done(), await fetching
        await asyncio.sleep(0.02)
    child, scratch = told.read_text().splitlines()
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    await _gone(int(child))
    assert not Path(scratch).exists()
    assert list((tmp_path / "cache/sdists").iterdir()) == []


async def _gone(pid: int) -> None:
    """A killed process may wait for whoever adopted it; then it runs no more."""
    for _ in range(1000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        await asyncio.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError(f"process {pid} is still there")
