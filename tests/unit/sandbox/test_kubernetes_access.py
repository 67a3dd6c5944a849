"""Where a cluster is and who we are there: what is read, what is renewed, what is refused."""

import base64
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from engine.core.errors import ConfigError, SandboxError
from engine.sandbox.kubernetes import access


def write(folder: Path, cluster: dict[str, object], user: dict[str, object]) -> Path:
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1:6443/", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    file = folder / "config"
    file.write_text(yaml.safe_dump(content))
    return file


async def test_a_kubeconfig_is_read_with_its_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("authority")
    found = access.read(write(tmp_path, {"certificate-authority": "ca.pem"}, {"token": "secret"}), None)
    assert (found.server, found.authority) == ("https://192.0.2.1:6443", b"authority")
    assert await found.headers() == {"Authorization": "Bearer secret"}
    data = base64.b64encode(b"own").decode()
    user = {"client-certificate-data": data, "client-key-data": data}
    found = access.read(write(tmp_path, {}, user), "here")
    assert found.certificate == (b"own", b"own") and await found.headers() == {}


@pytest.mark.parametrize(
    ("cluster", "user", "problem"),
    [
        ({"insecure-skip-tls-verify": True}, {}, "would not be checked"),
        ({"server": "http://192.0.2.1:8080"}, {}, "in the clear"),
        ({}, {"username": "me", "password": "hunter2"}, "passwords"),
        ({}, {"auth-provider": {"name": "gcp"}}, "auth-provider"),
        ({"certificate-authority": "none.pem"}, {}, "certificate-authority cannot be read"),
    ],
)
def test_what_is_unsafe_is_refused(
    tmp_path: Path, cluster: dict[str, object], user: dict[str, object], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        access.read(write(tmp_path, cluster, user), None)
    assert raised.value.key == "sandbox.kubeconfig" and "hunter2" not in str(raised.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no readable kubeconfig"):
        access.read(tmp_path / "none", None)
    (tmp_path / "list").write_text("[1, 2]")
    with pytest.raises(ConfigError, match="is no readable kubeconfig"):
        access.read(tmp_path / "list", None)
    with pytest.raises(ConfigError, match=r"context 'there'.*sandbox\.context of \['here'\]"):
        access.read(write(tmp_path, {}, {}), "there")


async def test_a_token_file_is_read_again_once_it_is_old_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = access.read(write(tmp_path, {}, {"tokenFile": "token"}), None)
    with pytest.raises(SandboxError, match="token"):
        await found.headers()
    (tmp_path / "token").write_text("one\n")
    assert await found.headers() == {"Authorization": "Bearer one"}
    (tmp_path / "token").write_text("two\n")
    assert await found.headers() == {"Authorization": "Bearer one"}
    assert found.refuse()
    assert await found.headers() == {"Authorization": "Bearer two"}
    assert not access.read(write(tmp_path, {}, {"token": "fixed"}), None).refuse()


async def test_a_program_that_gives_tokens_is_asked_again_when_they_run_out(tmp_path: Path) -> None:
    program = tmp_path / "tokens"
    until = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    program.write_text(
        "#!/bin/sh\necho asked >> $LOG\necho be patient >&2\n"
        f'echo "{{\\"status\\": {{\\"token\\": \\"t$(wc -l < $LOG)\\", \\"expirationTimestamp\\": \\"{until}\\"}}}}"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    given = {"command": str(program), "env": [{"name": "LOG", "value": str(tmp_path / "log")}]}
    found = access.read(write(tmp_path, {}, {"exec": given}), None)
    assert await found.headers() == await found.headers() == {"Authorization": "Bearer t1"}
    assert found.refuse()
    assert await found.headers() == {"Authorization": "Bearer t2"}
    program.write_text("#!/bin/sh\nexit 1\n")
    found.refuse()
    with pytest.raises(SandboxError, match="gives no token"):
        await found.headers()


def test_where_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("t")
    (account / "ca.crt").write_text("authority")
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", account)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    found = access.find(None, None)
    assert found.server == "https://[fd00::1]:443" and found.token_file == account / "token"
    file = write(tmp_path, {}, {})
    monkeypatch.setenv("KUBECONFIG", str(file))
    assert access.find(None, None).server == "https://192.0.2.1:6443"
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert access.find(str(file), None).server == "https://192.0.2.1:6443"


def test_certificates_that_are_none_are_told(tmp_path: Path) -> None:
    data = base64.b64encode(b"nonsense").decode()
    found = access.read(write(tmp_path, {"certificate-authority-data": data}, {}), None)
    with pytest.raises(SandboxError, match="certificates"):
        found.context()
    assert access.read(write(tmp_path, {"server": "http://127.0.0.1:1"}, {}), None).context() is None
