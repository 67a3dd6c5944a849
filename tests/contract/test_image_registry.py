"""Images over a registry for real: Debian's docker-registry on loopback, pushed to and pulled from by podman."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from registry_pieces import layer, push_layers, skip_without_registry, small_root, tree

from engine.core.errors import SandboxError
from engine.core.specs import ImageSpec
from engine.sandbox.image_tools import ImageTools
from engine.sandbox.images import DebianImageStore
from engine.sandbox.loopback_registry import counting_relay, loopback_registry
from engine.sandbox.pushed import Format, format_of, push
from engine.sandbox.references import Reference, parse_reference

pytestmark = pytest.mark.podman
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
