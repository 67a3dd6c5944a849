"""Where this machine's programs are."""

import os
import shutil

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find(tool: str) -> str | None:
    """Full path of a program, also where PATH lacks the system's folders; None: not installed."""
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")
