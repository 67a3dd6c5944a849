"""References of images, what tools say of them in one line, and what a specification with one is."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from engine.core.errors import ConfigError, SandboxError
from engine.core.specs import ImageSpec
from engine.sandbox import pushed
from engine.sandbox.image_tools import ImageTools, UnknownImage, told
from engine.sandbox.images import DebianImageStore, digest
from engine.sandbox.pushed import format_of, missing_converter, push
from engine.sandbox.references import check_registry, parse_reference

DIGEST = "sha256:" + "ab" * 32
SWEB = "swebench/sweb.eval.x86_64.a_1776_b"
BASE = ImageSpec(name="base", suite="bookworm", packages=(), pip=())
PULLED = ImageSpec(name="own", suite=None, packages=(), pip=(), reference=f"registry.example/a/b@{DIGEST}")
REFERENCE = parse_reference("key", "registry.example/a/b:1")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("registry.example/a/b:tag", "registry.example/a/b:tag"),
        ("registry.example:5000/a", "registry.example:5000/a:latest"),
        ("localhost/a__b/c-d.e:1", "localhost/a__b/c-d.e:1"),
        ("[::1]:5000/a:1", "[::1]:5000/a:1"),
        (
            f"docker.io/swebench/sweb.eval.x86_64.a_1776_b:latest@{DIGEST}",
            f"docker.io/swebench/sweb.eval.x86_64.a_1776_b@{DIGEST}",
        ),
    ],
)
def test_a_reference_is_read(text: str, written: str) -> None:
    assert str(parse_reference("key", text)) == written


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("debian:12", "is no reference of an image"),  # of which registry?
        ("https://registry.example/a:1", "begins with a scheme"),
        ("me:secret@registry.example/a:1", "credentials never stand in a configuration; give them to `podman login`"),
        ("registry.example/A:1", "is no reference of an image"),
        ("registry.example/a@sha256:12", "is no reference of an image"),
        ("registry.example/a:1 --help", "is no reference of an image"),
        ("--tls-verify=false/a:1", "is no reference of an image"),
    ],
)
def test_what_is_no_reference_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        parse_reference("job.x", text)
    assert str(caught.value).startswith("job.x=") and "secret" not in str(caught.value)


def test_a_registry_has_no_scheme_and_needs_no_path() -> None:
    assert check_registry("job.registry", "r.example") == "r.example"
    assert check_registry("job.registry", "r.example:5000/a/") == "r.example:5000/a"
    with pytest.raises(
        ConfigError, match=r"^job\.registry='http://r\.example': is no registry: it begins with a scheme"
    ):
        check_registry("job.registry", "http://r.example")


def test_plain_http_is_for_loopback_unless_said(tmp_path: Path) -> None:
    for text, plain, verified in (
        ("registry.example/a:1", False, "true"),
        ("registry.example/a:1", True, "false"),
        ("127.0.0.1:5000/a:1", False, "false"),
        ("localhost:5000/a:1", False, "false"),
        ("[::1]:5000/a:1", False, "false"),
        ("127.0.0.1.example/a:1", False, "true"),
    ):
        tools = ImageTools(tmp_path, plain_http=plain)
        assert tools.tls(parse_reference("key", text)) == f"--tls-verify={verified}"


def test_a_reference_changes_no_fingerprint_of_images_without_one() -> None:
    assert repr(BASE) == "ImageSpec(name='base', suite='bookworm', packages=(), pip=())"
    assert repr(PULLED).endswith(f"pip=(), reference='registry.example/a/b@{DIGEST}')")
    assert len({digest(PULLED), digest(replace(PULLED, reference="registry.example/a/b:1")), digest(BASE)}) == 3


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"suite": "bookworm"}, "is taken as it is; name no suite"),
        ({"pip": ("a==1",)}, "is taken as it is; name no suite"),
        ({"reference": "debian:12"}, "is no reference of an image"),
    ],
)
def test_an_image_of_a_registry_stands_alone(tmp_path: Path, changes: dict[str, object], problem: str) -> None:
    (found,) = DebianImageStore(tmp_path).problems([replace(PULLED, **changes)])  # type: ignore[arg-type]
    assert problem in str(found) and str(found).startswith("image own=")


def test_missing_tools_are_named_with_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.sandbox.image_tools.find", lambda tool: None if tool == "skopeo" else tool)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (found,) = DebianImageStore(tmp_path).problems([PULLED])
    assert "skopeo is not installed; apt-get install -y --no-install-recommends skopeo" in str(found)


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("reading manifest 1 in r/a: manifest unknown: x", "the registry has no such image; check the name"),
        ("unauthorized: authentication required", "does not let us in; run `podman login registry.example`"),
        ("dial tcp: lookup r: no such host", "the registry cannot be reached; check its name"),
        ("http: server gave HTTP response to HTTPS client", "set job.plain_http=true"),
        ("write /x: no space left on device", "the disk is full; free some of it"),
        ("Digest did not match, expected a, got b", "what came is not what its digest says"),
        ("no image found in manifest list for architecture amd64", "none for this machine's architecture"),
        ("tls: failed to verify certificate: x509: unknown authority", "put its authority in certs.d/registry.example"),
        ("what\\nnobody\\nknows", "what nobody knows"),
    ],
)
def test_what_tools_say_is_one_line_with_a_way_out(output: str, line: str) -> None:
    error = told(REFERENCE, output.replace("\\n", "\n"))
    assert str(error).startswith("image registry.example/a/b:1: ")
    assert line in str(error) and "\n" not in str(error)
    assert isinstance(error, UnknownImage) is ("manifest unknown" in output)


def test_a_format_is_told_by_the_manifest() -> None:
    oci, docker = "application/vnd.oci.image.layer.v1.tar", "application/vnd.docker.image.rootfs.diff.tar.gzip"
    for kind, annotation, form in (
        (f"{oci}+gzip", None, "gzip"),
        (docker, None, "gzip"),
        (f"{oci}+zstd", None, "zstd"),
        (f"{oci}+zstd", "io.containers.zstd-chunked.manifest-checksum", "zstd:chunked"),
        (f"{oci}+gzip", "containerd.io/snapshot/stargz/toc.digest", "estargz"),
        ("application/vnd.oci.image.layer.nydus.blob.v1", "containerd.io/snapshot/nydus-blob", "nydus"),
        (oci, None, oci),
    ):
        layer = {"mediaType": kind, "annotations": {annotation: "x"} if annotation else None}
        assert format_of({"layers": [layer]}) == form


@pytest.mark.parametrize(("form", "program"), [("estargz", "ctr-remote"), ("nydus", "nydusify")])
async def test_formats_of_snapshotters_are_made_by_their_own_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: pushed.Format, program: str
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    (missing,) = missing_converter("job.format", form)
    assert str(missing).startswith(f"job.format='{form}': {program}, which makes it, is not installed; install it from")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / program
    script.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    script.chmod(0o755)
    assert missing_converter("job.format", form) == []
    sent: list[str] = []

    async def send(folder: Path, reference: object, form: str, tools: ImageTools, say: object) -> None:
        sent.append(str(reference))
        (tmp_path / "calls").touch()

    async def there(self: ImageTools, reference: object) -> dict[str, object] | None:
        calls = (tmp_path / "calls").read_text().split() if sent else []
        return {} if str(reference) in (*sent, *calls[-1:]) else None

    monkeypatch.setattr(pushed, "_send", send)
    monkeypatch.setattr(ImageTools, "manifest", there)
    target = parse_reference("key", "127.0.0.1:5000/a/b:123")
    assert await push(tmp_path, target, form, ImageTools(tmp_path, plain_http=False), print)
    assert sent == ["127.0.0.1:5000/a/b:123-plain"]
    calls = (tmp_path / "calls").read_text().splitlines()
    if form == "nydus":
        assert calls == [f"convert --source-insecure --target-insecure --source {sent[0]} --target {target}"]
    else:
        assert calls[1:] == [f"images convert --oci --estargz {sent[0]} {target}", f"images push --plain-http {target}"]
    script.write_text("#!/bin/sh\necho broken\nexit 3\n")
    with pytest.raises(SandboxError, match=f"{program} .*failed: broken"):
        await pushed._convert(parse_reference("key", sent[0]), target, form)
