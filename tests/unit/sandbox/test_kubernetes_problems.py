"""What keeps pods from being made is named before a cluster is asked; what they can do follows from the settings."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.core.contracts import RemoteRuntime
from engine.core.specs import Capabilities
from engine.sandbox.bubblewrap import BubblewrapRuntime
from engine.sandbox.kubernetes.runtime import KubernetesRuntime

SETTINGS: dict[str, Any] = {
    "kubeconfig": "/nowhere/config",
    "context": None,
    "namespace": "lego",
    "registry": "registry.test/lego/",
    "tools_image": "registry.test/lego/tools:1",
    "image_volumes": "mount",
    "image_pull_secrets": [],
    "gateway": {"host": "192.0.2.1", "bind": "0.0.0.0", "port": 0, "pods": {}},
    "uid": 10001,
    "user_namespaces": True,
    "storage": "tmpfs",
    "storage_class": None,
    "writable": ["/tmp"],
    "disk_mb": 64,
    "pids": 64,
    "shm_mb": 64,
    "output_limit_bytes": 4096,
    "require_limits": True,
    "runtime_class": None,
    "node_selector": {},
    "tolerations": [],
    "start_timeout_s": 60.0,
    "grace_s": 600.0,
    "network": {},
}


def keys(**changes: Any) -> set[str]:
    return {problem.key for problem in KubernetesRuntime(**SETTINGS | changes).problems()}


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert keys() == {"sandbox.kubeconfig"}
    gateway = SETTINGS["gateway"] | {"host": "999.0.0.1"}
    assert keys(gateway=gateway) == {"sandbox.kubeconfig", "sandbox.gateway.host"}
    assert keys(storage="volume", disk_mb=0) == {"sandbox.kubeconfig", "sandbox.disk_mb"}


@pytest.mark.parametrize(
    ("changes", "processes", "disk"),
    [
        ({}, True, True),
        ({"user_namespaces": False}, False, True),
        ({"storage": "volume"}, True, True),
        ({"storage": "node"}, True, False),
    ],
)
def test_what_pods_can_do_follows_from_the_settings(changes: dict[str, Any], processes: bool, disk: bool) -> None:
    able = KubernetesRuntime(**SETTINGS | changes).capabilities
    assert able == Capabilities(
        warm_start=False, process_limit=processes, disk_limit=disk, by_hand=False, network_by_phase=False
    )


def test_only_sandboxes_on_other_machines_are_reaped_by_their_runtime() -> None:
    assert isinstance(KubernetesRuntime(**SETTINGS), RemoteRuntime)
    assert not hasattr(BubblewrapRuntime, "reap")


def test_looking_asks_no_cluster_and_loads_nothing_heavy() -> None:
    script = (
        "import sys; from engine.sandbox.kubernetes.runtime import KubernetesRuntime; "
        f"KubernetesRuntime(**{SETTINGS!r}).problems(); "
        "print([name for name in ('torch', 'numpy', 'vllm', 'uvicorn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
