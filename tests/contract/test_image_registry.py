"""Images over a registry for real: Debian's docker-registry on loopback, pushed to and pulled from by podman."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from registry_pieces import layer, push_layers, skip_without_registry, small_root, tree
from sandbox_cases import make_runtime, specification

from engine.core.errors import SandboxError
from engine.core.specs import ImageSpec
from engine.sandbox.image_tools import ImageTools
from engine.sandbox.images import DebianImageStore, digest
from engine.sandbox.loopback_registry import counting_relay, loopback_registry
from engine.sandbox.pushed import Format, format_of, push
from engine.sandbox.references import Reference, parse_reference

pytestmark = pytest.mark.podman
REPOSITORY = Path(__file__).parents[2]
NOTHING = "sha256:" + "0" * 64


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[str]:
    skip_without_registry()
    async with loopback_registry(tmp_path / "registry") as address:
        yield address


@pytest.fixture
def tools(tmp_path: Path) -> ImageTools:
    return ImageTools(tmp_path / "tools", plain_http=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "built").mkdir()
    made = small_root(tmp_path / "built" / "root")
    (made / ".complete").write_text("{}")
    return made


def named(address: str, name: str = "images/small", tag: str = "0123456789ab") -> Reference:
    return parse_reference("reference", f"{address}/{name}:{tag}")


def pulled(reference: object, name: str = "small") -> ImageSpec:
    return ImageSpec(name=name, suite=None, packages=(), pip=(), reference=str(reference))


def leftovers(store: DebianImageStore, spec: ImageSpec) -> list[str]:
    return [path.name for path in store.path(spec).parent.glob("*") if path.name.startswith((".lego", spec.name))]


@pytest.mark.parametrize("form", ["gzip", "zstd", "zstd:chunked"])
async def test_what_is_pulled_is_what_was_pushed(
    registry: str, tools: ImageTools, root: Path, tmp_path: Path, form: Format
) -> None:
    said: list[str] = []
    reference, store = named(registry), DebianImageStore(tmp_path / "images")
    assert await push(root, reference, form, tools, said.append)
    manifest = await tools.manifest(reference)
    assert manifest is not None and format_of(manifest) == form
    path = await store.build(pulled(reference), said.append)
    assert tree(path) == tree(root)
    exact = json.loads((path / ".complete").read_text())["manifest"]
    assert exact == reference.at(await tools.digest(reference))
    # the second image has almost all files of the first: of zstd:chunked, only the rest is fetched
    (root / "odd/new").write_bytes(os.urandom(5000))
    later = named(registry, tag="ba9876543210")
    await push(root, later, form, tools, said.append)
    async with counting_relay(registry) as counted:
        through = parse_reference("reference", str(later).replace(registry, counted.address))
        assert tree(await store.build(pulled(through), said.append)) == tree(root)
    layers = (await tools.manifest(later) or {})["layers"]
    assert (counted.passed < layers[0]["size"] / 4) is (form == "zstd:chunked")


async def test_what_the_registry_has_is_not_sent_again(registry: str, tools: ImageTools, root: Path) -> None:
    said: list[str] = []
    reference = named(registry)
    assert await push(root, reference, "gzip", tools, said.append)
    assert not await push(root, reference, "gzip", tools, said.append)
    assert said[-1].endswith("is there already")
    assert await push(root, reference, "zstd", tools, said.append)
    assert f"{reference}: is there as gzip, pushing it as zstd" in said
    assert not [path for path in root.parent.iterdir() if path != root]


async def test_layers_hide_and_remove_what_is_below(registry: str, tools: ImageTools, tmp_path: Path) -> None:
    lower = layer({"a": None, "a/gone": b"1", "a/kept": b"2", "b": None, "b/hidden": b"3", "c": None, "c/in": b"4"})
    upper = layer({"a": None, "a/kept": b"new", "b": None, "b/own": b"5", "c": b"a file now"}, ["a/gone"], ["b"])
    await push_layers(tmp_path / "oci", named(registry), [lower, upper])
    store = DebianImageStore(tmp_path / "images")
    path = await store.build(pulled(named(registry)), print)
    found = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    found.pop(".complete")
    assert found == {"a/kept": b"new", "b/own": b"5", "c": b"a file now"}
    status = (path / "a/kept").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (1000, 100, 0o640)
    assert int((path / "a").stat().st_mtime) == 1_700_000_000


async def test_a_tag_is_resolved_once(registry: str, tools: ImageTools, tmp_path: Path) -> None:
    """What moves under a tag later is another image; by its digest the first is pulled still."""
    store, moving = DebianImageStore(tmp_path / "images"), named(registry, tag="latest")
    await push_layers(tmp_path / "1", moving, [layer({"version": b"1"})])
    first = await store.build(pulled(moving), print)
    exact = json.loads((first / ".complete").read_text())["manifest"]
    await push_layers(tmp_path / "2", moving, [layer({"version": b"2"})])
    assert (await store.build(pulled(moving), print) / "version").read_text() == "1"
    assert (await store.build(pulled(exact, "exact"), print) / "version").read_text() == "1"
    elsewhere = DebianImageStore(tmp_path / "elsewhere")
    assert (await elsewhere.build(pulled(moving), print) / "version").read_text() == "2"


async def test_what_cannot_be_pulled_is_told_and_leaves_nothing(
    registry: str, tools: ImageTools, tmp_path: Path
) -> None:
    store, there = DebianImageStore(tmp_path / "images"), named(registry)
    await push_layers(tmp_path / "1", there, [layer({"a": b"1"})])
    await push_layers(tmp_path / "2", named(registry, tag="other"), [layer({"a": b"1"})], architecture="s390x")
    host = registry.rpartition(":")[0]
    for reference, problem in (
        (named(registry, tag="gone"), "the registry has no such image; check the name"),
        (there.at(NOTHING), "the registry has no such image; check the name"),
        (named(registry, tag="other"), "is for linux/s390x, this machine is linux/"),
        (f"{host}:1/small:1", "the registry cannot be reached; check its name"),
    ):
        with pytest.raises(SandboxError, match=problem) as caught:
            await store.build(pulled(reference), print)
        assert str(reference) in str(caught.value) and "\n" not in str(caught.value)
        assert leftovers(store, pulled(reference)) == []


async def test_a_blob_that_was_changed_is_refused(registry: str, tools: ImageTools, tmp_path: Path) -> None:
    reference, store = named(registry), DebianImageStore(tmp_path / "images")
    await push_layers(tmp_path / "1", reference, [layer({"a": b"1" * 4000})])
    name = (await tools.manifest(reference) or {})["layers"][0]["digest"].removeprefix("sha256:")
    (blob,) = (tmp_path / "registry").rglob(f"{name}/data")
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    with pytest.raises(SandboxError, match="not what its digest says"):
        await store.build(pulled(reference), print)
    assert leftovers(store, pulled(reference)) == []


async def test_a_pull_that_is_killed_leaves_nothing_and_can_be_repeated(
    registry: str, tools: ImageTools, root: Path, tmp_path: Path
) -> None:
    (root / "odd/large").write_bytes(os.urandom(4 << 20))
    await push(root, named(registry), "gzip", tools, print)
    async with held_up(registry, 1 << 20) as (address, stalled, go_on):
        spec = pulled(named(address))
        store = DebianImageStore(tmp_path / "images")
        script = f"""
            import asyncio
            from pathlib import Path
            from engine.core.specs import ImageSpec
            from engine.sandbox.images import DebianImageStore
            asyncio.run(DebianImageStore(Path({str(tmp_path / "images")!r})).build({spec!r}, print))
        """
        killed = await asyncio.create_subprocess_exec(sys.executable, "-c", textwrap.dedent(script), cwd=REPOSITORY)
        async with asyncio.timeout(60):
            await stalled.wait()
        assert processes_of(tmp_path)
        killed.send_signal(signal.SIGKILL)
        await killed.wait()
        async with asyncio.timeout(60):
            while processes_of(tmp_path):  # the supervisor hears of it at once, or within its tick
                await asyncio.sleep(0.05)
        assert not store.has(spec)
        assert not store.path(spec).exists()
        go_on.set()
        assert tree(await store.build(spec, print)) == tree(root)
    assert leftovers(store, spec) == [store.path(spec).name]
    assert not [*store.path(spec).parent.glob(".layers/.lego*"), *store.path(spec).parent.rglob("staging/*")]


@contextlib.asynccontextmanager
async def held_up(target: str, after: int) -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Event]]:
    """A relay that stops after so many bytes of one connection until it is told to go on."""
    stalled, go_on = asyncio.Event(), asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                passed += len(data)
                if passed > after:
                    stalled.set()
                    await go_on.wait()
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        host, _, port = target.rpartition(":")
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, back), copy(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", stalled, go_on
    finally:
        go_on.set()
        server.close()
        await asyncio.gather(*tasks)
        await server.wait_closed()


def processes_of(folder: Path) -> list[str]:
    """Command lines that name the image store below `folder`."""
    listing = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if f"{folder}/images/.layers" in line]


async def test_what_another_machine_pushed_is_pulled_instead_of_built(
    registry: str, tools: ImageTools, root: Path, tmp_path: Path
) -> None:
    spec = ImageSpec(name="base", suite="bookworm", packages=("none-of-this-name",), pip=())
    await push(root, named(registry, "images/base", digest(spec)), "zstd", tools, print)
    store = DebianImageStore(tmp_path / "images", registry=f"{registry}/images")
    assert await store.unavailable([spec]) == []
    path = await store.build(spec, print)
    assert path.name == f"base-{digest(spec)}" and tree(path) == tree(root)
    other = ImageSpec(name="plain", suite=None, packages=(), pip=())
    assert (await store.build(other, print) / ".complete").is_file()  # nobody pushed it: it is built


@pytest.mark.parametrize("kind", ["bubblewrap", "podman"])
async def test_a_sandbox_over_a_pulled_image_runs_a_command(
    registry: str, tools: ImageTools, root: Path, tmp_path: Path, kind: str
) -> None:
    runtime = make_runtime(kind)
    if problems := runtime.problems():
        pytest.skip(f"{kind}: {problems[0]}")
    await push(root, named(registry), "zstd:chunked", tools, print)
    spec, store = pulled(named(registry)), DebianImageStore(tmp_path / "images")
    path = await store.build(spec, print)
    before = tree(path)
    await runtime.start(store, f"pulled-{kind}")
    try:
        sandbox = await runtime.create(replace(specification("pulled"), image=spec))
        result = await sandbox.exec(
            ["/bin/sh", "-c", "echo more >> /tmp/own && cat /odd/again"],
            environment={},
            cwd="/",
            timeout_s=60,
            stdin=b"",
        )
        assert (result.exit_code, result.stdout) == (1, b"")  # owned by others, mode 2750
        result = await sandbox.exec(["/bin/cat", "/etc/group"], environment={}, cwd="/", timeout_s=60, stdin=b"")
        assert (result.exit_code, result.stdout[:10]) == (0, b"root:x:0:\n")
    finally:
        await runtime.stop()
    assert tree(path) == before


async def test_the_registry_ends_with_whoever_started_it(tmp_path: Path) -> None:
    skip_without_registry()
    with pytest.raises(ValueError, match="on purpose"):
        async with loopback_registry(tmp_path / "one") as failed:
            assert await answers(failed)
            raise ValueError("on purpose")
    assert not await answers(failed)
    script = f"""
        import asyncio
        from pathlib import Path
        from engine.sandbox.loopback_registry import loopback_registry

        async def serve():
            async with loopback_registry(Path({str(tmp_path / "two")!r})) as address:
                print(address, flush=True)
                await asyncio.sleep(3600)

        asyncio.run(serve())
    """
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(script), cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE
    )
    assert killed.stdout is not None
    address = (await killed.stdout.readline()).decode().strip()
    assert await answers(address)
    killed.send_signal(signal.SIGKILL)
    await killed.wait()
    async with asyncio.timeout(60):
        while await answers(address):
            await asyncio.sleep(0.05)
    killed._transport.close()  # type: ignore[attr-defined]


async def answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True
