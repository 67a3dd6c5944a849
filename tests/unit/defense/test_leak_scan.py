"""Another copy of the target in a task's image is found wherever it lies; an image without one costs nothing."""

import io
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from calc_task import FIXED_CODE, write_calc
from defense_pieces import as_acted, settings

from engine.core.errors import EnvironmentFailure
from engine.core.patch import difference, walk_files
from engine.core.records import Task
from engine.defense import leak_scan
from engine.defense.leak_scan import LeakScan

SITE = "usr/lib/python3/dist-packages"
LINES = [f"    result = combine(result, operand_{number})" for number in range(20)]
BASE = "\n".join(["def combined():", *LINES, "    return wrong"]).encode()
FIXED = BASE.replace(b"wrong", b"result")
LATER = FIXED.replace(b"operand_3", b"operand_33") + b"\ndef more():\n    return 1\n"


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return write_calc(tmp_path)


@pytest.fixture
def longer(task: Task) -> Task:
    """With a fix in a file of some lines, of a package below `src`."""
    path = "src/calc/combining.py"
    (task.repository / path).parent.mkdir(parents=True)
    (task.repository / path).write_bytes(BASE)
    reference = difference({path: (BASE, False)}, {path: (FIXED, False)})
    return replace(task, reference=reference, python_path=("src",))


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A root with what any has."""
    root = tmp_path / "root"
    put(root, f"{SITE}/yaml/__init__.py", b"calc = 1\n")
    put(root, f"{SITE}/PyYAML-6.0.egg-info/PKG-INFO", b"Name: PyYAML\n")
    put(root, "usr/lib/python3.11/calc.py", b"# of the standard library\n")
    put(root, "usr/share/python-wheels/pip-23.0.1-py3-none-any.whl", zipped({"pip/combining.py": b"x = 1\n"}))
    (root / "bin").symlink_to("usr/bin")
    return root


def put(root: Path, path: str, data: bytes) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(data)


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return buffer.getvalue()


def packed(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def leaks(task: Task, image: Path) -> Sequence[str]:
    return LeakScan(**settings("LeakScan")).leaks(task, image)


def test_an_image_without_a_copy_is_fine(task: Task, longer: Task, image: Path) -> None:
    assert leaks(task, image) == leaks(longer, image) == []


@pytest.mark.parametrize(
    ("path", "data", "why"),
    [
        (f"{SITE}/calc/__init__.py", b"", f"{SITE}/calc is installed"),
        (
            "opt/venv/lib/python3.11/site-packages/calc.py",
            b"",
            "opt/venv/lib/python3.11/site-packages/calc.py is installed",
        ),
        (
            f"{SITE}/calc.cpython-311-x86_64-linux-gnu.so",
            b"",
            f"{SITE}/calc.cpython-311-x86_64-linux-gnu.so is installed",
        ),
        (f"{SITE}/calc-1.1.dist-info/METADATA", b"", f"{SITE}/calc-1.1.dist-info is installed"),
        (f"{SITE}/Calc.egg-link", b"", f"{SITE}/Calc.egg-link is installed"),
        ("root/.cache/calc-1.1.tar.gz", b"", "root/.cache/calc-1.1.tar.gz is an archive of it"),
        ("tmp/Calc-1.1-py3-none-any.whl", b"", "tmp/Calc-1.1-py3-none-any.whl is an archive of it"),
        (
            "var/cache/apt/archives/python3-calc_1.1_all.deb",
            b"",
            "var/cache/apt/archives/python3-calc_1.1_all.deb is an archive of it",
        ),
        (f"{SITE}/calc_fixed.py", FIXED_CODE, f"{SITE}/calc_fixed.py is equal to a fixed file"),
        ("tmp/build/notes.txt", FIXED_CODE, "tmp/build/notes.txt is equal to a fixed file"),
    ],
)
def test_a_copy_is_found_by_its_name_or_its_contents(task: Task, image: Path, path: str, data: bytes, why: str) -> None:
    put(image, path, data)
    assert leaks(task, image) == [why]


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("usr/src/other/combining.py", LATER),
        (f"{SITE}/tool/_vendor/combining.py", BASE.replace(b"wrong", b"other")),
        ("root/.cache/pip/http-v2/a/b/c.body", b"some head" + zipped({"x/combining.py": LATER})),
        ("srv/all.zip", zipped({"combining.py": FIXED})),
        ("srv/sources.tar.gz", packed({"a/b/combining.py": LATER})),
    ],
)
def test_another_release_is_found_by_its_lines(longer: Task, image: Path, path: str, data: bytes) -> None:
    put(image, path, data)
    assert [line.split()[0] for line in leaks(longer, image)] == [path]


@pytest.mark.parametrize(
    ("path", "data"),
    [
        (f"{SITE}/other/combining.py", b"\n".join(BASE.splitlines()[:8])),
        ("usr/src/other/dividing.py", LATER),
        (f"{SITE}/calculus/__init__.py", b""),
        (f"{SITE}/calc_extras-1.0.dist-info/METADATA", b""),
        ("tmp/calc-extras-1.0.tar.gz", b"no archive"),
        ("tmp/empty.zip", b""),
        ("tmp/broken.tar.gz", packed({"combining.py": LATER})[:60]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # an archive holds the time at which it was made
)
def test_what_is_merely_near_is_no_copy(longer: Task, image: Path, path: str, data: bytes) -> None:
    put(image, path, data)
    assert leaks(longer, image) == []


def test_a_copy_of_the_repository_s_own_release_shows_nothing_new(longer: Task, image: Path) -> None:
    put(image, f"{SITE}/calc/combining.py", BASE)
    put(image, f"{SITE}/calc/other.py", LATER)
    put(image, f"{SITE}/calc-1.0.dist-info/METADATA", b"")
    assert leaks(longer, image) == []
    put(image, f"{SITE}/calc/combining.py", FIXED)
    assert leaks(longer, image) == [
        f"{SITE}/calc is installed",
        f"{SITE}/calc-1.0.dist-info is installed",
        f"{SITE}/calc/combining.py is equal to a fixed file",
        f"{SITE}/calc/combining.py is like a changed file",
    ]


def test_a_copy_that_has_what_the_fix_adds_is_another_release(longer: Task, image: Path) -> None:
    assert longer.reference is not None
    added = difference({}, {"src/calc/added.py": (b"ADDED = True\n", False)})
    both = replace(longer.reference, changes=(*longer.reference.changes, *added.changes))
    put(image, f"{SITE}/calc/combining.py", BASE)
    put(image, f"{SITE}/calc/added.py", b"ADDED = 1\n")
    assert leaks(replace(longer, reference=both), image) == [f"{SITE}/calc is installed"]


def test_without_a_reference_every_source_file_may_be_the_fixed_one(longer: Task, image: Path) -> None:
    unknown = replace(longer, reference=None, fingerprint="other")
    assert leaks(unknown, image) == []
    put(image, f"{SITE}/x/combining.py", LATER)
    put(image, f"{SITE}/calc/x", b"")
    assert leaks(unknown, image) == [f"{SITE}/calc is installed", f"{SITE}/x/combining.py is like a changed file"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("pyproject.toml", "[project]\nname = 'Calc.Project'\n"),
        ("pyproject.toml", "[tool.poetry]\nname = 'calc-project'\n"),
        ("setup.py", "setup(\n    name='calc_project',\n)\n"),
        ("PKG-INFO", "Metadata-Version: 2.1\nName: calc-project\n"),
        ("setup.cfg", "[metadata]\nname = calc-project\n"),
    ],
)
def test_a_project_goes_by_the_name_that_it_gives_itself(task: Task, image: Path, path: str, text: str) -> None:
    (task.repository / path).write_text(text)
    put(image, f"{SITE}/calc_project-3.0.dist-info/METADATA", b"")
    assert leaks(task, image) == [f"{SITE}/calc_project-3.0.dist-info is installed"]


async def test_a_leak_is_an_environment_failure_or_where_it_observes_a_finding(task: Task, image: Path) -> None:
    defense = LeakScan(**settings("LeakScan"))
    assert await defense.inspect(task, image) == ()
    put(image, f"{SITE}/calc.py", FIXED_CODE)
    assert await defense.inspect(task, image) == (), "an image never changes: it is looked at once"
    with pytest.raises(EnvironmentFailure, match=rf"{SITE}/calc.py is equal to a fixed file, 2 in all"):
        await LeakScan(**settings("LeakScan")).inspect(task, image)
    (noted,) = await LeakScan(**settings("LeakScan", mode="observe")).inspect(task, image)
    assert (noted.stage, noted.phase, noted.acted) == ("leak_scan", "build", False)
    assert len(noted.paths) == 2
    assert as_acted([noted])[0].acted


@pytest.mark.parametrize(
    ("path", "data", "shown"),
    [
        ("build/lib/calc/combining.py", FIXED, True),
        ("notes/old.txt", FIXED, True),
        ("dist/calc-1.1.tar.gz", packed({"calc-1.1/calc/combining.py": FIXED}), True),
        ("build/lib/calc/combining.py", BASE, False),
        ("dist/calc-1.0.tar.gz", packed({"calc-1.0/calc/combining.py": BASE}), False),
        ("src/other/combining.py", LATER, False),
    ],
)
async def test_the_repository_itself_holds_no_fix(longer: Task, path: str, data: bytes, shown: bool) -> None:
    put(longer.repository, path, data)
    defense = LeakScan(**settings("LeakScan"))
    if not shown:
        assert await defense.setup(longer, longer.repository) == ()
        return
    with pytest.raises(EnvironmentFailure, match=path):
        await defense.setup(longer, longer.repository)
    (noted,) = await LeakScan(**settings("LeakScan", mode="observe")).setup(longer, longer.repository)
    assert (noted.phase, noted.paths, noted.acted) == ("setup", (path,), False)


@pytest.mark.parametrize("left", ["no image", "a folder that cannot be read"])
async def test_what_cannot_be_read_is_refused(
    task: Task, image: Path, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image / "nowhere" if left == "no image" else image

    def walk(folder: Path) -> object:
        raise PermissionError(13, "Permission denied", str(folder / "secret"))

    if left != "no image":
        monkeypatch.setattr(leak_scan, "walk_files", walk)
    with pytest.raises(EnvironmentFailure, match="cannot be read"):
        await LeakScan(**settings("LeakScan")).inspect(task, root)
    assert len(await LeakScan(**settings("LeakScan", mode="observe")).inspect(task, root)) == 1


async def test_an_image_is_walked_once_for_all_its_tasks(
    task: Task, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[Path] = []

    def walk(folder: Path) -> object:
        walked.append(folder)
        return walk_files(folder)

    monkeypatch.setattr(leak_scan, "walk_files", walk)
    defense = LeakScan(**settings("LeakScan"))
    for number in range(3):
        await defense.inspect(replace(task, fingerprint=f"{number}"), image)
        await defense.inspect(replace(task, fingerprint=f"{number}"), image)
    assert walked == [image]
