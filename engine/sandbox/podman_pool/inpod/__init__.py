"""What runs in a sandbox's two containers on a podman host; it gets there as a small image, mounted read-only."""

from engine.sandbox.remote import within

MODULES = (
    *within.MODULES,
    "engine/sandbox/egress.py",
    "engine/sandbox/packets.py",
    "engine/sandbox/podman_pool/__init__.py",
    "engine/sandbox/podman_pool/inpod/__init__.py",
    "engine/sandbox/podman_pool/inpod/main.py",
    "engine/sandbox/podman_pool/inpod/relay.py",
    "engine/sandbox/remote/within/streams.py",
)
ENTRY = within.entry("engine.sandbox.podman_pool.inpod.main")
