"""What runs in a pod's containers beside what every remote sandbox runs; it reaches the pod as a ConfigMap."""

from engine.sandbox.remote import within

MODULES = (
    *within.MODULES,
    "engine/sandbox/kubernetes/__init__.py",
    "engine/sandbox/kubernetes/inpod/__init__.py",
    "engine/sandbox/kubernetes/inpod/main.py",
    "engine/sandbox/kubernetes/inpod/relay.py",
)
ENTRY = within.entry("engine.sandbox.kubernetes.inpod.main")
