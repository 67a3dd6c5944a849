"""What the machine's pip is told about indexes and certificates, carried into a chroot for one build.

Takes settings that mean something inside another root (indexes by URL, trusted hosts, certificates, proxies, timeouts)
and leaves out those that name folders of this machine.
"""

import ast
import os
import shutil
import sys
from pathlib import Path

from engine.core.processes import run_checked

QUIET = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_ROOT_USER_ACTION": "ignore"}
_CARRIED = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout", "retries")
_SECTIONS = ("global", "install", ":env:")
"""pip's sections that an installation reads, the more specific last."""
_CERTIFICATES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE")


async def for_chroot(folder: Path, inside: str) -> dict[str, str]:
    """Environment for pip inside a root; `folder` (seen there as `inside`) receives the certificates."""
    settings = await configured()
    environment = QUIET | {"PIP_NO_CACHE_DIR": "1", "PIP_CONFIG_FILE": os.devnull}
    for name in _CARRIED:
        value = " ".join(word for word in settings.get(name, "").split() if not word.startswith(("file:", "/")))
        if value:
            environment[f"PIP_{name.replace('-', '_').upper()}"] = value
    for candidate in (settings.get("cert"), *(os.environ.get(name) for name in _CERTIFICATES)):
        if candidate and Path(candidate).is_file():
            shutil.copyfile(candidate, folder / "certificates.pem")
            bundle = f"{inside}/certificates.pem"
            environment |= {"PIP_CERT": bundle, "SSL_CERT_FILE": bundle, "REQUESTS_CA_BUNDLE": bundle}
            break
    return environment


async def configured() -> dict[str, str]:
    """pip's settings from its files and PIP_* variables, by option name; the more specific wins."""
    _, output = await run_checked([sys.executable, "-m", "pip", "config", "list"])
    settings: dict[str, tuple[int, str]] = {}
    for line in output.splitlines():
        key, equals, literal = line.partition("=")
        section, dot, name = key.rpartition(".")
        if equals and dot and section in _SECTIONS:
            found = (_SECTIONS.index(section), str(ast.literal_eval(literal)))
            settings[name] = max(settings.get(name, found), found)
    return {name: value for name, (_, value) in settings.items()}
