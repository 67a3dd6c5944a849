"""What a pod is made of that lies on this machine: references of its images, and the files of its ConfigMap."""

from importlib import resources
from pathlib import Path

from engine.core.errors import SandboxError
from engine.sandbox.kubernetes.inpod import ENTRY, MODULES
from engine.sandbox.remote.within import HOME, USER


def reference(registry: str, image: Path) -> str:
    """Where a built image or runtime lies in the registry: its folder is named NAME-DIGEST."""
    name, _, digest = image.name.rpartition("-")
    return f"{registry}/{name}:{digest}"


def code(image: Path, uid: int) -> tuple[dict[str, str], dict[str, str]]:
    """What a ConfigMap holds, by key, and where each key lies in the pod. Raises SandboxError."""
    contents = {"pod.py": ENTRY}
    files = {"pod.py": "pod.py", "passwd": "passwd", "group": "group"}
    for module in MODULES:
        key = module.replace("/", ".")
        package, _, name = module.rpartition("/")
        contents[key] = (resources.files(package.replace("/", ".")) / name).read_text(encoding="utf-8")
        files[key] = module
    for name, line in (
        ("passwd", f"{USER}:x:{uid}:{uid}::{HOME}:/bin/sh\n"),
        ("group", f"{USER}:x:{uid}:\n"),
    ):
        path = image / "etc" / name
        if path.is_symlink() or path.parent.is_symlink():
            raise SandboxError(f"/etc/{name} of the image is a link")
        contents[name] = (path.read_text() if path.exists() else "") + line
    return contents, files
