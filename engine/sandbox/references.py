"""References of images in a registry: `HOST[:PORT]/PATH[:TAG][@sha256:…]`, always with the registry's own name.

Invariant: no short name is ever looked up anywhere, so a reference means one place. Refuses addresses with a scheme,
names without a registry, and credentials (those stand in podman's own file, see `podman login`).
"""

import ipaddress
import re
from dataclasses import dataclass

from engine.core.errors import ConfigError

_HOST = r"(?P<host>localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9-]+(?=:[0-9])|\[[0-9A-Fa-f:.]+\])"
_PATH = r"(?P<path>[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)"
_REFERENCE = re.compile(
    rf"{_HOST}(?P<port>:[0-9]{{1,5}})?/{_PATH}"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_REGISTRY = re.compile(rf"{_HOST}(?P<port>:[0-9]{{1,5}})?(?:/{_PATH})?/?")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One image of one registry."""

    host: str
    """With its port, where one is given."""
    path: str
    tag: str | None
    digest: str | None
    """`sha256:…` of the manifest."""

    @property
    def loopback(self) -> bool:
        return loopback(self.host)

    def at(self, digest: str) -> str:
        """The same image by the digest of its manifest."""
        return f"{self.host}/{self.path}@{digest}"

    def __str__(self) -> str:
        if self.digest:  # podman takes no tag beside it, and needs none
            return self.at(self.digest)
        return f"{self.host}/{self.path}:{self.tag or 'latest'}"


def parse_reference(key: str, text: str) -> Reference:
    """Raises ConfigError, which names `key`."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        _refuse(key, text, "is no reference of an image", "write HOST[:PORT]/PATH:TAG or HOST[:PORT]/PATH@sha256:…")
    assert found is not None
    host = f"{found['host']}{found['port'] or ''}"
    return Reference(host=host, path=found["path"], tag=found["tag"], digest=found["digest"])


def check_registry(key: str, text: str) -> str:
    """`text` without a slash at its end. Raises ConfigError, which names `key`, where it is no registry."""
    if _REGISTRY.fullmatch(text) is None:
        _refuse(key, text, "is no registry", "write HOST[:PORT][/PATH], for example registry.example/lego-rl")
    return text.rstrip("/")


def _refuse(key: str, text: str, problem: str, way_out: str) -> None:
    if "://" in text:
        problem = f"{problem}: it begins with a scheme"
    elif "@" in text.partition("/")[0]:
        text, problem = text.rpartition("@")[2], f"{problem}: credentials never stand in a configuration"
        way_out = "give them to `podman login`"
    raise ConfigError(key, text, problem, way_out)


def loopback(host: str) -> bool:
    """Whether a host (with or without a port) is this machine itself."""
    name = re.sub(r":[0-9]+$", "", host).strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
