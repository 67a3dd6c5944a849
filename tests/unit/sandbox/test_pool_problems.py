"""What the pool refuses before any host is asked, and the command by which it reaches one over ssh."""

import ast
import os
import textwrap
from pathlib import Path

import pytest
from pool_services import settings

from engine.core.errors import ConfigError
from engine.sandbox.podman_pool.addresses import Address, parse
from engine.sandbox.podman_pool.api import Api, Unreachable
from engine.sandbox.podman_pool.images import code, reference
from engine.sandbox.podman_pool.inpod import MODULES
from engine.sandbox.podman_pool.runtime import PodmanPoolRuntime


def host(address: str, **changes: object) -> dict[str, object]:
    return {"name": "a", "address": address, "capacity": None, "unencrypted": False} | changes


def test_addresses_are_read() -> None:
    assert parse("k", host("unix:///run/podman/podman.sock")) == Address(
        path="/run/podman/podman.sock", host="", port=0, user=""
    )
    assert parse("k", host("ssh://root@big:2222/run/p.sock")) == Address(
        path="/run/p.sock", host="big", port=2222, user="root"
    )
    assert parse("k", host("tcp://127.0.0.1:8888")).port == 8888
    assert parse("k", host("tcp://10.0.0.9:8888", unencrypted=True)).host == "10.0.0.9"


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("tcp://10.0.0.9:8888", "neither encrypted"),
        ("/run/podman.sock", "no address of a podman service"),
        ("unix://run/podman.sock", "no address of a podman service"),
        ("ssh://big", "no address of a podman service"),
        ("ssh://-oProxyCommand=x/run/p.sock", "has parts"),
        ("ssh://root:secret@big/run/p.sock", "has parts"),
        ("ssh://big:99999/run/p.sock", "is no address"),
        ("tcp://127.0.0.1", "no address of a podman service"),
        ("http://big/x", "no address of a podman service"),
    ],
)
def test_other_addresses_are_refused_by_key(address: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        parse("sandbox.hosts.3", host(address))
    assert refused.value.key == "sandbox.hosts.3.address"


def test_two_hosts_of_one_name_are_refused() -> None:
    runtime = PodmanPoolRuntime(**settings(host("unix:///a"), host("unix:///b")))  # type: ignore[arg-type]
    (problem,) = runtime.problems()
    assert problem.key == "sandbox.hosts.1.name"
    assert not PodmanPoolRuntime(**settings(host("unix:///a"))).problems()  # type: ignore[arg-type]


def test_only_a_quota_limits_what_is_written() -> None:
    for storage, limited in (("layer", False), ("quota", True)):
        changed = settings(host("unix:///a")) | {"storage": storage}
        assert PodmanPoolRuntime(**changed).capabilities.disk_limit is limited  # type: ignore[arg-type]


def test_the_names_of_images_tell_their_contents(tmp_path: Path) -> None:
    built = tmp_path / "task-base-21b22f7ac82b"
    built.mkdir()
    (built / ".complete").touch()
    assert reference(built) == "localhost/lego-rl/task-base:21b22f7ac82b"
    (tmp_path / "x-00112233").mkdir()
    plain = reference(tmp_path / "x-00112233")  # no image of the store, whatever it is called
    (tmp_path / "x-00112233/file").write_text("a")
    one = reference(tmp_path / "x-00112233")
    (tmp_path / "x-00112233/file").chmod(0o700)
    assert len({plain, one, reference(tmp_path / "x-00112233")}) == 3
    assert code() == code() and len(code()[1]) < 1 << 20


def test_our_code_needs_nothing_that_is_not_sent() -> None:
    root = Path(__file__).resolve().parents[3]
    for module in MODULES:
        for node in ast.walk(ast.parse((root / module).read_text())):
            named = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            named += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            for name in named:
                if name.startswith("engine"):
                    path = name.replace(".", "/")
                    assert {f"{path}.py", f"{path}/__init__.py"} & set(MODULES), f"{module} imports {name}"


async def test_a_host_is_reached_through_the_machines_own_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for ssh notes how it was called and fails as ssh does; nothing answers without a tunnel."""
    script = tmp_path / "ssh"
    script.write_text(
        textwrap.dedent(f"""\
        #!/bin/sh
        printf '%s\\n' "$@" > {tmp_path}/asked
        echo "root@big: Permission denied (publickey)." >&2
        exit 255
        """)
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    api = Api("far", Address(path="/run/p.sock", host="big", port=2222, user="root"), tmp_path)
    with pytest.raises(Unreachable, match="Permission denied"):
        await api.call("GET", "/_ping")
    await api.close()
    asked = (tmp_path / "asked").read_text().splitlines()
    assert f"{tmp_path}/ssh-far:/run/p.sock" in asked and asked[-1] == "root@big"
    assert "BatchMode=yes" in asked and "2222" in asked and not any("StrictHostKey" in each for each in asked)


async def test_a_host_that_does_not_answer_is_told_apart_from_one_that_refuses(tmp_path: Path) -> None:
    api = Api("gone", Address(path=str(tmp_path / "none"), host="", port=0, user=""), tmp_path)
    with pytest.raises(Unreachable, match="podman on gone does not answer"):
        await api.call("GET", "/_ping")
    with pytest.raises(Unreachable):
        await api.hijack("/x", {}, None)
    await api.close()
