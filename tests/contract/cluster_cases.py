"""What the suites of the Kubernetes runtime share: its settings and a session of it against the small cluster."""

from pathlib import Path

from cluster_api import Cluster
from sandbox_cases import task_image

from engine.core.contracts import ImageStore
from engine.sandbox.kubernetes.code import reference
from engine.sandbox.kubernetes.place import PodPlace
from engine.sandbox.kubernetes.runtime import KubernetesRuntime
from engine.sandbox.remote.inside import RemoteSandbox

REGISTRY = "registry.test/lego"
TOOLS = f"{REGISTRY}/tools:1"


def kubeconfig(folder: Path, url: str, **user: object) -> str:
    file = folder / "kubeconfig"
    file.write_text(f"""
apiVersion: v1
kind: Config
current-context: here
contexts: [{{name: here, context: {{cluster: here, user: me}}}}]
clusters: [{{name: here, cluster: {{server: {url}}}}}]
users: [{{name: me, user: {user or {"token": "t0"}}}}]
""")
    return str(file)


def make_kubernetes(folder: Path, cluster: Cluster, host: str = "127.0.0.1", **changes: object) -> KubernetesRuntime:
    settings: dict[str, object] = {
        "kubeconfig": kubeconfig(folder, cluster.url),
        "context": None,
        "namespace": "lego",
        "registry": REGISTRY,
        "tools_image": TOOLS,
        "image_volumes": "mount",
        "image_pull_secrets": [],
        "gateway": {"host": host, "bind": "0.0.0.0", "port": 0, "pods": {}},
        "uid": 10001,
        "user_namespaces": False,
        "storage": "tmpfs",
        "storage_class": None,
        "writable": ["/home/agent", "/tmp", "/var/tmp", "/run/lego", "/srv"],
        "disk_mb": 64,
        "pids": 64,
        "shm_mb": 64,
        "output_limit_bytes": 65536,
        "require_limits": False,
        "runtime_class": None,
        "node_selector": {},
        "tolerations": [],
        "start_timeout_s": 60.0,
        "grace_s": 600.0,
        "network": {},
    }
    return KubernetesRuntime(**settings | changes)  # type: ignore[arg-type]


def task_reference(images: ImageStore) -> str:
    return reference(REGISTRY, images.path(task_image()))


def pod_of(sandbox: RemoteSandbox) -> str:
    assert isinstance(sandbox.place, PodPlace)
    return sandbox.place.pod


class OneImage:
    """An image store that holds one root, under whatever specification."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, spec: object) -> Path:
        return self.root

    async def build(self, spec: object, say: object) -> Path:
        return self.root
