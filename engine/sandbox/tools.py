"""Where programs are: this machine's, and those of any Debian root."""

import os
import shutil

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def host_path() -> str:
    """PATH with the system's folders, which a login of root may lack."""
    return f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"


def find(tool: str) -> str | None:
    """Full path of a program, also where PATH lacks the system's folders; None: not installed."""
    return shutil.which(tool, path=host_path())
