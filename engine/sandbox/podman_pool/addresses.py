"""Where a podman service listens: `unix:///PATH`, `ssh://[USER@]HOST[:PORT]/PATH` or `tcp://HOST:PORT`.

Refuses (ConfigError) plain TCP to another machine unless the host says `unencrypted: true`: whoever reaches that port
is root there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from engine.core.errors import ConfigError

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, kw_only=True)
class Address:
    """One service."""

    path: str
    """Of its unix socket, here or over there; empty: it is reached by TCP."""
    host: str
    """Empty: this machine's socket."""
    port: int
    """0: the protocol's own."""
    user: str

    @property
    def ssh(self) -> bool:
        return bool(self.host and self.path)


def parse(key: str, host: Mapping[str, Any]) -> Address:
    """`key` names the host in errors. Raises ConfigError."""
    text = host["address"]
    try:
        url = urlsplit(text)
        port = url.port or 0
    except ValueError as error:
        raise ConfigError(f"{key}.address", text, f"is no address ({error})", _WAY_OUT) from error
    name, user = url.hostname or "", url.username or ""
    if url.query or url.fragment or url.password is not None or name.startswith("-") or user.startswith("-"):
        raise ConfigError(f"{key}.address", text, "has parts that an address here does not have", _WAY_OUT)
    if url.scheme == "unix" and not name and url.path.startswith("/"):
        return Address(path=url.path, host="", port=0, user="")
    if url.scheme == "ssh" and name and url.path.startswith("/") and len(url.path) > 1:
        return Address(path=url.path, host=name, port=port, user=user)
    if url.scheme == "tcp" and name and port and url.path in ("", "/") and not user:
        if name not in _LOOPBACK and not host["unencrypted"]:
            problem = "is neither encrypted nor asks who calls: whoever reaches it is root there"
            way_out = "use ssh://, or set unencrypted=true for a network that nobody else is on"
            raise ConfigError(f"{key}.address", text, problem, way_out)
        return Address(path="", host=name, port=port, user="")
    raise ConfigError(f"{key}.address", text, "is no address of a podman service", _WAY_OUT)


_WAY_OUT = "write unix:///run/podman/podman.sock, ssh://root@host/run/podman/podman.sock or tcp://127.0.0.1:PORT"
