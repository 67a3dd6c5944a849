"""A build reaches the sources of packages that this machine is configured with, and fails at any other place."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from engine.core.errors import SandboxError
from engine.core.specs import ImageSpec
from engine.sandbox.images import DebianImageStore
from engine.sandbox.network import sources

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "0")
    served = tmp_path / "served"
    served.mkdir()
    return served


@pytest.fixture
def port(folder: Path) -> Iterator[int]:
    """A package index of this machine's loopback."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def publish(folder: Path, name: str, backend: str = "") -> None:
    """A package of the index: a wheel, or a source distribution whose build runs `backend`."""
    (folder / "simple" / name).mkdir(parents=True)
    if backend:
        path = folder / "simple" / name / f"{name}-1.0.zip"
        with zipfile.ZipFile(path, "w") as archive:
            project = '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'
            archive.writestr(f"{name}-1.0/pyproject.toml", project)
            archive.writestr(f"{name}-1.0/PKG-INFO", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            archive.writestr(f"{name}-1.0/own.py", textwrap.dedent(backend))
    else:
        path = folder / "simple" / name / f"{name}-1.0-py3-none-any.whl"
        info = f"{name}-1.0.dist-info"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{name}/__init__.py", "value = 7\n")
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
    (folder / "simple" / name / "index.html").write_text(f'<a href="{path.name}">{path.name}</a>')


def packages(*names: str) -> ImageSpec:
    return ImageSpec(name="tools", suite=None, packages=(), pip=tuple(f"{name}==1.0" for name in names))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_the_index_of_this_machine_is_reached(
    folder: Path, port: int, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    publish(folder, "tiny")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://{host}:{port}/simple")
    built = await DebianImageStore().build(packages("tiny"), print)
    assert (built / "tiny/__init__.py").read_text() == "value = 7\n"


_TRIES = """
    import socket, sys, time
    def get_requires_for_build_wheel(*_):
        try: {attempt}
        except OSError: pass
        print("sleeping", flush=True)
        time.sleep(600)
    def build_wheel(*_): raise AssertionError
"""


@pytest.mark.parametrize(
    ("attempt", "told"),
    [
        ('socket.getaddrinfo("evil.test", 443)', "evil.test"),
        ('socket.create_connection(("192.0.2.1", 443))', "192.0.2.1:443"),
        ('socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 123))', "192.0.2.1:123/udp"),
    ],
)
async def test_an_attempt_at_another_place_ends_the_build(
    folder: Path, port: int, monkeypatch: pytest.MonkeyPatch, attempt: str, told: str
) -> None:
    publish(folder, "sly", _TRIES.format(attempt=attempt))
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    store, spec = DebianImageStore(), packages("sly")
    with pytest.raises(SandboxError) as caught:
        await store.build(spec, print)
    assert f"tried to reach {told}, which it may not: add it to sandbox.network.build" in str(caught.value)
    assert not store.path(spec).exists() and not list(store.path(spec).parent.glob(".lego-rl-*"))


async def test_what_is_named_beside_is_reached(folder: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(folder, "tiny")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder / "nowhere"))
    spec = ImageSpec(name="tools", suite=None, packages=(), pip=(f"http://127.0.0.2:{port}/tiny-1.0-py3-none-any.whl",))
    (folder / "simple/tiny/tiny-1.0-py3-none-any.whl").rename(folder / "tiny-1.0-py3-none-any.whl")
    with pytest.raises(SandboxError, match="failed"):
        await DebianImageStore().build(spec, print)
    near = ImageSpec(name="tools", suite=None, packages=(), pip=(spec.pip[0].replace("127.0.0.2", "127.0.0.1"),))
    built = await DebianImageStore(reach=[f"127.0.0.1:{port}"]).build(near, print)
    assert (built / "tiny/__init__.py").exists()


def test_sources_are_what_this_machine_is_configured_with(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    assert sources.of_proxies() == []
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret@proxy.lan:3128")
    monkeypatch.setenv("http_proxy", "proxy.lan:3128")
    assert sources.of_proxies() == ["proxy.lan:3128 private"]
    assert sources.of_debian("https://[2001:db8::1]/debian") == ["[2001:db8::1]:443"]
    assert sources.of_debian("") == ["deb.debian.org:80 private", "deb.debian.org:443 private"]
    assert sources.of_pip({}) == ["pypi.org:443 private", "files.pythonhosted.org:443 private"]
    settings = {"index-url": "http://localhost:3141/simple", "extra-index-url": "file:///opt/simple https://b.test/x",
                "find-links": "/opt/wheels https://c.test", "proxy": "p.test:8080"}  # fmt: skip
    assert sources.of_pip(settings) == [
        "localhost:3141", "b.test:443 private", "c.test:443 private", "p.test:8080 private"]  # fmt: skip


async def test_npm_tells_its_own_registry(tmp_path: Path) -> None:
    (tmp_path / "npm").write_text(
        '#!/bin/sh\necho \'{"registry": "http://r.test:4873/", "@a:registry": "https://a.test", "proxy": null}\'\n'
    )
    (tmp_path / "npm").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    command = [sys.executable, "-c", f"""if 1:
        import asyncio
        from engine.sandbox.network import sources
        print(asyncio.run(sources.of_npm({environment!r})))
    """]  # fmt: skip
    done = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['r.test:4873 private', 'a.test:443 private']"


_ENGINE = """
    import asyncio, sys
    from engine.sandbox.egress import new_namespace
    from engine.sandbox.network.phases import PhasedNetwork
    async def main():
        network = PhasedNetwork(new_namespace(), {"setup": ["192.0.2.1:9"]}, "setup")
        await network.ready()
        print(network.way_out.pid, flush=True)
        await asyncio.sleep(600)
    asyncio.run(main())
"""


def test_a_way_out_ends_with_its_engine() -> None:
    command = [sys.executable, "-c", textwrap.dedent(_ENGINE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        way_out = os.pidfd_open(int(engine.stdout.readline()))
        try:
            os.kill(engine.pid, signal.SIGKILL)
            engine.wait()
            assert select.select([way_out], [], [], 60)[0] == [way_out]
        finally:
            os.close(way_out)
