"""What runs in a pod's containers, by the Python of an image of ours: standard library only, and the few modules of
the project that `MODULES` names. It reaches the pod as a ConfigMap."""

MODULES = (
    "engine/__init__.py",
    "engine/core/__init__.py",
    "engine/core/credentials.py",
    "engine/core/errors.py",
    "engine/sandbox/__init__.py",
    "engine/sandbox/enter.py",
    "engine/sandbox/files.py",
    "engine/sandbox/seccomp.py",
    "engine/sandbox/kubernetes/__init__.py",
    "engine/sandbox/kubernetes/inpod/__init__.py",
    "engine/sandbox/kubernetes/inpod/archive.py",
    "engine/sandbox/kubernetes/inpod/command.py",
    "engine/sandbox/kubernetes/inpod/keeper.py",
    "engine/sandbox/kubernetes/inpod/main.py",
    "engine/sandbox/kubernetes/inpod/relay.py",
)
ENTRY = """\
import sys
sys.path.insert(0, "/.lego/code")
from engine.sandbox.kubernetes.inpod.main import main
main(sys.argv[1:])
"""
"""The script that the containers start: they take no module from where it lies by themselves (`-I`)."""
