"""The image store: one folder for one specification, whole or not at all, nothing of this machine in it."""

import asyncio
import json
import shutil
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from engine.core.errors import ConfigError, SandboxError
from engine.core.specs import ImageSpec
from engine.sandbox import image_build, pip_settings, tools
from engine.sandbox.images import DebianImageStore, digest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def wheel(folder: Path, name: str = "tiny", extra: str = "") -> str:
    """A wheel made by hand; its path is a requirement that needs no index."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "value = 7\n")
        if extra:
            archive.writestr(f"{name}/{extra}", "x")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return str(path)


def packages(*requirements: str) -> ImageSpec:
    return ImageSpec(name="tools", suite=None, packages=(), pip=requirements)


ROOT = ImageSpec(name="base", suite="bookworm", packages=("git", "python3"), pip=())


def test_the_digest_is_of_what_decides_the_contents() -> None:
    assert digest(ROOT) == digest(replace(ROOT, name="other", packages=("python3", "git")))
    others = (replace(ROOT, suite="trixie"), replace(ROOT, packages=("git",)), replace(ROOT, pip=("a==1",)))
    assert len({digest(spec) for spec in (ROOT, *others)}) == 4
    assert DebianImageStore().path(ROOT).name == f"base-{digest(ROOT)}"


async def test_a_package_folder_is_built_once(tmp_path: Path) -> None:
    store, said = DebianImageStore(), list[str]()
    spec = packages(wheel(tmp_path))
    paths = await asyncio.gather(*(store.build(spec, said.append) for _ in range(3)))
    assert set(paths) == {store.path(spec)} and store.has(spec)
    assert (paths[0] / "tiny/__init__.py").read_text() == "value = 7\n"
    assert len([line for line in said if "built in" in line]) == 1
    compiled = next((paths[0] / "tiny/__pycache__").iterdir()).read_bytes()
    assert compiled[4:8] == b"\x01\0\0\0"  # by content and never checked: the time of the build is not in it
    assert store.problems([spec]) == ()


async def test_compiled_code_in_a_package_folder_is_refused(tmp_path: Path) -> None:
    store = DebianImageStore()
    spec = packages(wheel(tmp_path, extra="fast.cpython-311-x86_64-linux-gnu.so"))
    with pytest.raises(SandboxError, match="compiled"):
        await store.build(spec, print)
    assert not store.path(spec).exists() and not list(store.path(spec).parent.glob(".lego-rl-*"))


async def test_a_failed_build_names_its_log_and_leaves_nothing(tmp_path: Path) -> None:
    store = DebianImageStore()
    spec = packages(str(tmp_path / "missing-1.0-py3-none-any.whl"))
    with pytest.raises(SandboxError, match=r"tools-[0-9a-f]{12}\.log") as caught:
        await store.build(spec, print)
    assert "\n" not in str(caught.value)
    assert not store.path(spec).exists() and not list(store.path(spec).parent.glob(".lego-rl-*"))


async def test_a_cancelled_build_leaves_nothing_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, begun = DebianImageStore(), asyncio.Event()
    spec = packages(wheel(tmp_path))

    async def hang(*_: object, environment: dict[str, str], **__: object) -> tuple[int, str]:
        begun.set()
        scratch = Path(environment["TMPDIR"])  # pip is killed: what it unpacked is not left to the machine's /tmp
        assert scratch.parent.parent == store.path(spec).parent
        (scratch / "pip-unpack").mkdir()
        await asyncio.sleep(3600)
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(image_build, "run_logged", hang)
        building = asyncio.create_task(store.build(spec, print))
        await begun.wait()
        waiting = asyncio.create_task(store.build(spec, print))
        await asyncio.sleep(0)
        for task in (waiting, building):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert not store.path(spec).exists() and not list(store.path(spec).parent.glob(".lego-rl-*"))
    assert (await store.build(spec, print) / ".complete").is_file()


async def test_what_a_killed_build_left_is_replaced(tmp_path: Path) -> None:
    store = DebianImageStore()
    spec = packages(wheel(tmp_path))
    stale = store.path(spec).with_name(".lego-rl-image-of_a_dead_process")
    (stale / "root").mkdir(parents=True)
    (stale / ".lock").touch()
    store.path(spec).mkdir()
    (store.path(spec) / "half").write_text("half")
    path = await store.build(spec, print)
    assert not stale.exists() and not (path / "half").exists()


async def test_a_missing_tool_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "host_path", lambda: "/no/such/folder")
    store = DebianImageStore()
    with pytest.raises(ConfigError, match="apt-get install") as caught:
        await store.build(ROOT, print)
    assert "debootstrap" in str(caught.value) and caught.value.exit_code == 2
    assert "debootstrap" in str(store.problems([ROOT])[0])


async def test_pip_in_a_root_gets_the_machines_index_and_certificates_but_not_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("certificate")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_CERT", str(bundle))
    monkeypatch.setenv("PIP_FIND_LINKS", "/opt/wheels")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "file:///opt/index https://more.example/simple")
    private = tmp_path / "private"
    private.mkdir()
    environment = await pip_settings.for_chroot(private, "/run/build")
    assert environment["PIP_INDEX_URL"] == "https://index.example/simple"
    assert environment["PIP_EXTRA_INDEX_URL"] == "https://more.example/simple"
    assert environment["PIP_CERT"] == "/run/build/certificates.pem"
    assert (private / "certificates.pem").read_text() == "certificate"
    assert "PIP_FIND_LINKS" not in environment and str(tmp_path) not in str(environment)


def npm_package(folder: Path) -> str:
    """A package made by hand, with a script of its own that must not be run; its path is what is to be installed."""
    made = folder / "package"
    made.mkdir()
    scripts = {"postinstall": f"touch {folder}/ran"}
    (made / "package.json").write_text(json.dumps({"name": "tiny", "version": "1.0.0", "scripts": scripts}))
    for name, content, mode in (
        ("program", b"\x7fELF and so on", 0o755),
        ("library.so.1", b"\x7fELF and so on", 0o755),
        ("script.sh", b"#!/bin/sh\n", 0o755),
        ("text", b"x", 0o600),
    ):
        (made / name).write_bytes(content)
        (made / name).chmod(mode)
    with tarfile.open(folder / "tiny-1.0.0.tgz", "w:gz") as archive:
        archive.add(made, arcname="package")
    return str(folder / "tiny-1.0.0.tgz")


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
async def test_npm_packages_become_a_folder_whose_machine_code_can_only_be_executed(tmp_path: Path) -> None:
    spec = ImageSpec(name="agent", suite=None, packages=(), pip=(), npm=(npm_package(tmp_path),))
    tiny = await DebianImageStore().build(spec, print) / "node_modules/tiny"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tiny, *tiny.iterdir())}
    wanted = {"tiny": 0o755, "program": 0o711, "library.so.1": 0o755, "script.sh": 0o755, "text": 0o644}
    assert modes == {**wanted, "package.json": 0o644}
    assert not (tmp_path / "ran").exists()
    assert not (tiny.parent / ".package-lock.json").exists(), "it names the registry"


async def test_an_image_of_nothing_is_an_empty_folder() -> None:
    spec = ImageSpec(name="none", suite=None, packages=(), pip=())
    assert [path.name for path in (await DebianImageStore().build(spec, print)).iterdir()] == [".complete"]


def test_npm_packages_change_no_fingerprint_of_images_without_them() -> None:
    assert repr(ROOT) == "ImageSpec(name='base', suite='bookworm', packages=('git', 'python3'), pip=())"
    with_npm = ImageSpec(name="base", suite=None, packages=(), pip=(), npm=("tiny@1.0.0",))
    assert repr(with_npm).endswith("npm=('tiny@1.0.0',))")
    assert digest(with_npm) != digest(replace(with_npm, npm=("tiny@1.0.1",)))


def test_npm_packages_need_npm_and_a_folder_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ImageSpec(name="agent", suite=None, packages=(), pip=(), npm=("tiny@1.0.0",))
    (mixed,) = DebianImageStore().problems([replace(spec, pip=("a==1",))])
    assert "of their own" in str(mixed)
    monkeypatch.setattr(image_build.shutil, "which", lambda *_, **__: None)
    (missing,) = DebianImageStore().problems([spec])
    assert "npm is not installed" in str(missing)
    with pytest.raises(ConfigError, match="npm is not installed"):
        asyncio.run(DebianImageStore().build(spec, print))
