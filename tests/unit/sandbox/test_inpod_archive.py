"""Trees travel whole and lead nowhere."""

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest

from engine.core.errors import SandboxError
from engine.sandbox.remote.within import archive


def travelled(source: Path, target: Path) -> Path:
    stream = io.BytesIO()
    archive.pack_tree(source, stream)
    stream.seek(0)
    target.mkdir()
    archive.unpack(stream, target)
    return target


def test_contents_modes_times_links_and_holes_arrive(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep/er").mkdir(parents=True)
    (source / "deep/er/run").write_bytes(os.urandom(3 << 20))
    (source / "deep/er/run").chmod(0o751)
    os.utime(source / "deep/er/run", (7, 7))
    (source / "link").symlink_to("/etc/shadow")
    os.link(source / "deep/er/run", source / "also")
    with (source / "holes").open("wb") as file:
        file.seek(5 << 20)
        file.write(b"middle")
        file.truncate(40 << 20)
    with (source / "empty").open("wb") as file:
        file.truncate(40 << 20)
    os.mkfifo(source / "pipe")
    (source / ("n" * 200)).mkdir()
    (source / ("n" * 200) / ("ü" * 100)).write_text("x")
    target = travelled(source, tmp_path / "target")
    run = target / "deep/er/run"
    assert run.read_bytes() == (source / "deep/er/run").read_bytes()
    assert run.stat().st_mode & 0o7777 == 0o751 and run.stat().st_mtime == 7
    assert run.stat().st_ino == (target / "also").stat().st_ino
    assert (target / "link").readlink() == Path("/etc/shadow")
    for name in ("holes", "empty"):
        assert (target / name).stat().st_size == 40 << 20 and (target / name).stat().st_blocks < 100
        assert (target / name).read_bytes() == (source / name).read_bytes()
    assert not (target / "pipe").exists()
    assert (target / ("n" * 200) / ("ü" * 100)).read_text() == "x"


def test_a_thousand_holes_cost_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with (tmp_path / "source/sparse").open("wb") as file:
        file.truncate(1 << 40)
    stream = io.BytesIO()
    archive.pack_tree(tmp_path / "source", stream)
    assert len(stream.getvalue()) < 4096


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb") as file, tarfile.open(fileobj=file, mode="w|") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    stream.seek(0)
    return stream


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/../../out", ".."])
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "target").mkdir()
    with pytest.raises(SandboxError, match="outside"):
        archive.unpack(packed((member(name), b"x")), tmp_path / "target")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target"]


def test_a_link_is_never_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "victim").mkdir()
    link = member("door", tarfile.SYMTYPE, str(tmp_path / "victim"))
    with pytest.raises(SandboxError, match="cannot be unpacked"):
        archive.unpack(packed((link, b""), (member("door/file"), b"x")), tmp_path / "target")
    assert list((tmp_path / "victim").iterdir()) == []
    with pytest.raises(SandboxError, match="outside"):
        archive.unpack(packed((member("hard", tarfile.LNKTYPE, "../victim"), b"")), tmp_path / "target")


def test_what_is_cut_off_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/file").write_bytes(os.urandom(1 << 20))
    stream = io.BytesIO()
    archive.pack_tree(tmp_path / "source", stream)
    (tmp_path / "target").mkdir()
    with pytest.raises(SandboxError, match="cannot be unpacked"):
        archive.unpack(io.BytesIO(stream.getvalue()[: 1 << 19]), tmp_path / "target")
