"""Where the cluster is and who we are there: a kubeconfig file, or the service account of the pod that we run in.

Tokens are read when they are needed: a file of one is rotated, a program that gives them out says until when they hold.
Refuses (ConfigError) what would be unsafe or is not spoken here: a server whose certificate is not checked, plain HTTP
to another machine, user names with passwords.
"""

import asyncio
import base64
import json
import os
import ssl
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from engine.core.errors import ConfigError, SandboxError
from engine.core.processes import run_checked

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_KEY = "sandbox.kubeconfig"
_FILE_S = 60.0
"""How long a token that was read from a file is used."""
_AHEAD_S = 30.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(kw_only=True)
class Access:
    """A cluster and credentials for it; nothing has been asked of it yet."""

    server: str
    proxy: str | None
    authority: bytes | None
    """PEM of whom the server's certificate must come from; None: of the machine's own authorities."""
    server_name: str | None
    """Whom the certificate names where that is not the server's address."""
    certificate: tuple[bytes, bytes] | None
    """PEM of our own certificate and key."""
    token: str = ""
    token_file: Path | None = None
    command: tuple[Sequence[str], Mapping[str, str]] | None = None
    """A program that prints an `ExecCredential`, and what it adds to the environment."""
    _until_s: float = field(default=0.0, init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def headers(self) -> dict[str, str]:
        """`Authorization`, where a token is used. Raises SandboxError where none can be had."""
        async with self._lock:
            if time.time() >= self._until_s:
                await self._renew()
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def refuse(self) -> bool:
        """The server did not take the token: whether there may be another."""
        self._until_s = 0.0
        return self.token_file is not None or self.command is not None

    async def _renew(self) -> None:
        if self.token_file is not None:
            try:
                self.token = self.token_file.read_text().strip()
            except OSError as error:
                raise SandboxError(f"cannot read the cluster's token {self.token_file}: {error.strerror}") from error
            self._until_s = time.time() + _FILE_S
        elif self.command is not None:
            await self._ask(*self.command)

    async def _ask(self, command: Sequence[str], added: Mapping[str, str]) -> None:
        info = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "spec": {"interactive": False},
        }
        environment = {**os.environ, **added, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        try:
            code, text = await run_checked(command, environment=environment)
            status = json.JSONDecoder().raw_decode(text, text.index("{"))[0]["status"] if code == 0 else {}
            self.token = status["token"]
        except (OSError, ValueError, KeyError) as error:
            raise SandboxError(f"{command[0]} gives no token for the cluster (kubeconfig, users.exec)") from error
        expires = status.get("expirationTimestamp")
        self._until_s = datetime.fromisoformat(expires).timestamp() - _AHEAD_S if expires else time.time() + _FILE_S

    def context(self) -> ssl.SSLContext | None:
        """How to check the server and to prove who we are; None for plain HTTP. Raises SandboxError."""
        if urlsplit(self.server).scheme != "https":
            return None
        try:
            made = ssl.create_default_context(cadata=self.authority.decode() if self.authority else None)
            if self.certificate is not None:  # the library takes files alone
                with tempfile.NamedTemporaryFile() as file:
                    file.write(b"\n".join(self.certificate))
                    file.flush()
                    made.load_cert_chain(file.name)
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise SandboxError(f"the certificates of {self.server} cannot be read: {error}") from error
        return made


def find(kubeconfig: str | None, context: str | None) -> Access:
    """By the given kubeconfig, by `$KUBECONFIG`, by the pod's service account, or by `~/.kube/config`.

    Raises ConfigError."""
    if kubeconfig is not None:
        return read(Path(kubeconfig).expanduser(), context)
    if os.environ.get("KUBECONFIG"):
        return read(Path(os.environ["KUBECONFIG"].split(os.pathsep)[0]), context)
    if context is None and (SERVICE_ACCOUNT / "token").exists() and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster()
    return read(Path("~/.kube/config").expanduser(), context)


def in_cluster() -> Access:
    """By the service account of the pod that this process runs in."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return Access(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        proxy=None,
        authority=(SERVICE_ACCOUNT / "ca.crt").read_bytes(),
        server_name=None,
        certificate=None,
        token_file=SERVICE_ACCOUNT / "token",
    )


def read(file: Path, context: str | None) -> Access:
    """By one kubeconfig file. Raises ConfigError naming what is missing in it."""
    try:
        content = yaml.safe_load(file.read_text())
        names = {kind: {each["name"]: each for each in content.get(f"{kind}s") or ()} for kind in _KINDS}
        chosen = context or content.get("current-context")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        way_out = "name one with sandbox.kubeconfig, or run in a pod that has a service account"
        raise ConfigError(_KEY, str(file), f"is no readable kubeconfig ({type(error).__name__})", way_out) from error
    try:
        where = names["context"][chosen]["context"]
        cluster, user = names["cluster"][where["cluster"]]["cluster"], names["user"][where["user"]]["user"]
        server = cluster["server"].rstrip("/")
    except (KeyError, TypeError) as error:
        way_out = f"choose one with sandbox.context of {sorted(names['context'])}"
        problem = f"context {chosen!r} is not in it, or names a cluster or user that is not"
        raise ConfigError(_KEY, str(file), problem, way_out) from error
    _refuse_unsafe(file, server, cluster, user)
    certificate, key = _data(file, user, "client-certificate"), _data(file, user, "client-key")
    return Access(
        server=server,
        proxy=cluster.get("proxy-url"),
        authority=_data(file, cluster, "certificate-authority"),
        server_name=cluster.get("tls-server-name"),
        certificate=(certificate, key) if certificate and key else None,
        token=user.get("token", ""),
        token_file=file.parent / user["tokenFile"] if user.get("tokenFile") else None,
        command=_command(user.get("exec")),
    )


_KINDS = ("cluster", "user", "context")


def _refuse_unsafe(file: Path, server: str, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> None:
    address = urlsplit(server)
    if cluster.get("insecure-skip-tls-verify"):
        problem = "its cluster's certificate would not be checked (insecure-skip-tls-verify)"
        raise ConfigError(_KEY, str(file), problem, "give certificate-authority-data instead")
    if address.scheme != "https" and address.hostname not in _LOOPBACK:
        problem = f"tokens would go to {server} in the clear"
        raise ConfigError(_KEY, str(file), problem, "name the server with https://")
    if "username" in user or "auth-provider" in user:
        problem = "user names with passwords and auth-provider are not spoken any more"
        raise ConfigError(_KEY, str(file), problem, "use a token, tokenFile, client-certificate or exec")


def _data(file: Path, of: Mapping[str, Any], name: str) -> bytes | None:
    try:
        if of.get(f"{name}-data"):
            return base64.b64decode(of[f"{name}-data"])
        return (file.parent / of[name]).read_bytes() if of.get(name) else None
    except (OSError, ValueError) as error:
        raise ConfigError(_KEY, str(file), f"its {name} cannot be read", "mend it, or renew the file") from error


def _command(given: Mapping[str, Any] | None) -> tuple[Sequence[str], Mapping[str, str]] | None:
    if given is None:
        return None
    added = {each["name"]: each["value"] for each in given.get("env") or ()}
    return [given["command"], *(given.get("args") or ())], added
