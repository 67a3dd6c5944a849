"""Where this machine gets its packages, as places that a build may reach: what apt, pip, npm and the proxies of its
environment are configured with, and nothing beside.

What the machine itself is configured with is trusted: such a name may stand for a private address. Where it goes out
by a proxy, the proxy is what is reached, and what lies behind it is the proxy's to allow.
"""

import json
import os
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from engine.core.processes import run_checked
from engine.core.reach import is_address, parse_place

_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_PYPI, _PYPI_FILES = "https://pypi.org/simple", "https://files.pythonhosted.org"
_DEBIAN = ("http://deb.debian.org/debian", "https://deb.debian.org/debian")
"""Of debootstrap where no mirror is given, with the archive's keys and without."""


def of_debian(mirror: str) -> list[str]:
    """`mirror`: the address that debootstrap is given; empty: none."""
    return _places([mirror] if mirror else _DEBIAN)


def of_pip(settings: Mapping[str, str]) -> list[str]:
    """`settings`: pip's own, by option."""
    index = settings.get("index-url", _PYPI)
    more = [settings.get(name, "") for name in ("extra-index-url", "find-links")]
    urls = [word for text in (index, *more) for word in text.split() if "://" in word]
    if any(urlsplit(url).hostname == urlsplit(_PYPI).hostname for url in urls):
        urls.append(_PYPI_FILES)  # the index names its files there
    return _places([*urls, settings.get("proxy", "")])


async def of_npm(environment: Mapping[str, str]) -> list[str]:
    """As npm itself tells."""
    code, text = await run_checked(["npm", "config", "list", "--json"], environment=environment)
    try:
        settings = json.loads(text) if code == 0 else {}
    except ValueError:
        settings = {}
    names = [name for name in settings if name in ("registry", "proxy", "https-proxy") or name.endswith(":registry")]
    urls = [settings[name] for name in names if isinstance(settings[name], str)]
    return _places(urls or ["https://registry.npmjs.org"])


def of_proxies() -> list[str]:
    """By which this machine goes out."""
    return _places(value for name, value in sorted(os.environ.items()) if name.lower() in _PROXIES)


def _places(urls: Iterable[str]) -> list[str]:
    """Each once; without what is no address of a host (`file:`)."""
    found: dict[str, None] = {}
    for url in urls:
        place = _place(url)
        if place:
            found[place] = None
    return list(found)


def _place(url: str) -> str:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
        if not host or port is None:
            return ""
        text = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if host != "localhost" and not is_address(host):
            text += " private"
        parse_place(text)
    except ValueError:
        return ""
    return text
