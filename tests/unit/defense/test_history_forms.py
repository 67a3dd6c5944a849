"""History is known by what it is, not by its name: whatever gives another state back, in a tree or an image."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from calc_task import BASE_CODE, FIXED_CODE, write_calc
from defense_pieces import settings

from engine.core.errors import EnvironmentFailure
from engine.core.records import Task
from engine.defense.leak_scan import LeakScan
from engine.defense.patch_by_contents import make_patch
from engine.defense.single_commit_history import SingleCommitHistory


def git(folder: Path, *arguments: str) -> None:
    people = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "safe.directory=*")
    subprocess.run(["git", *people, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A repository whose second commit is the fix."""
    folder = tmp_path / "source"
    (folder / "calc").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for code in (BASE_CODE, FIXED_CODE):
        (folder / "calc/__init__.py").write_bytes(code)
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", "x")
    return folder


def bare(source: Path, tree: Path) -> None:
    git(source, "clone", "-q", "--bare", ".", str(tree / "upstream"))


def packed(source: Path, tree: Path) -> None:
    bare(source, tree)
    git(tree / "upstream", "repack", "-adq")
    git(tree / "upstream", "pack-refs", "--all")


def detached(source: Path, tree: Path) -> None:
    bare(source, tree)
    git(tree / "upstream", "update-ref", "--no-deref", "HEAD", "main")


def renamed(source: Path, tree: Path) -> None:
    shutil.copytree(source / ".git", tree / "backup/old")


def loose_objects(source: Path, tree: Path) -> None:
    shutil.copytree(source / ".git/objects", tree / "data/store")


def bundle(source: Path, tree: Path) -> None:
    git(source, "bundle", "create", "-q", str(tree / "notes.txt"), "--all")


def lone_pack(source: Path, tree: Path) -> None:
    git(source, "repack", "-adq")
    (pack,) = (source / ".git/objects/pack").glob("*.pack")
    shutil.copy(pack, tree / "data.bin")


def dump(source: Path, tree: Path) -> None:
    (tree / "old.txt").write_text("SVN-fs-dump-format-version: 3\n")


def export(source: Path, tree: Path) -> None:
    (tree / "hg.bin").write_bytes(b"HG20\0\0\0\0" + bytes(20))


FORMS = (bare, packed, detached, renamed, loose_objects, bundle, lone_pack, dump, export)
each = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
Form = Callable[[Path, Path], None]


@each
async def test_no_form_of_history_reaches_the_agent(form: Form, source: Path, tmp_path: Path) -> None:
    task = write_calc(tmp_path)
    form(source, task.repository)
    tree = Path(shutil.copytree(task.repository, tmp_path / "staged"))
    findings = await SingleCommitHistory(**settings("SingleCommitHistory")).setup(task, tree)
    assert len(findings) == 1 and findings[0].acted and len(findings[0].paths) == 1
    left = {path.name for path in tree.iterdir()} - {".git"}
    assert left >= {"calc", "setup.cfg", "tests", "bin"}
    assert not any((tree / path).exists() for path in findings[0].paths)
    assert make_patch(task.repository, tree)[0].changes == (), "what was taken away is no change of the agent's"


@each
async def test_an_image_that_holds_history_is_refused(form: Form, source: Path, tmp_path: Path) -> None:
    task, image = write_calc(tmp_path), tmp_path / "image"
    (image / "opt").mkdir(parents=True)
    form(source, image / "opt")
    with pytest.raises(EnvironmentFailure, match="history"):
        await LeakScan(**settings("LeakScan")).inspect(task, image)


async def test_a_repository_in_an_image_is_refused_by_its_name_too(source: Path, tmp_path: Path) -> None:
    task, image = write_calc(tmp_path), tmp_path / "image"
    shutil.copytree(source, image / "testbed")
    with pytest.raises(EnvironmentFailure, match=r"testbed/\.git"):
        await LeakScan(**settings("LeakScan")).inspect(task, image)


async def test_what_only_looks_like_history_stays(tmp_path: Path) -> None:
    task: Task = write_calc(tmp_path)
    for path, data in (
        ("HEAD", b"ref: refs/heads/main\n"),
        ("objects/model.py", b"x = 1\n"),
        ("pkg/HEAD", b"the head of a list\n"),
        ("pkg/objects/info", b"x\n"),
        ("ab/" + "c" * 30, b"x"),
        ("PACKAGES.txt", b"PACKAGES\n"),
        (".gitignore", b"*.o\n"),
        (".github/workflows/x.yml", b"on: push\n"),
    ):
        (task.repository / path).parent.mkdir(parents=True, exist_ok=True)
        (task.repository / path).write_bytes(data)
    tree = Path(shutil.copytree(task.repository, tmp_path / "staged"))
    assert await SingleCommitHistory(**settings("SingleCommitHistory")).setup(task, tree) == ()
    assert await LeakScan(**settings("LeakScan")).inspect(task, task.repository) == ()
