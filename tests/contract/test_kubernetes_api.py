"""The Kubernetes runtime against a small API with faults: what passes is waited for, what is lost says why."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cluster_api import Cluster, exit_status
from cluster_cases import OneImage, kubeconfig, make_kubernetes, pod_of
from sandbox_cases import WORKDIR, shell, specification
from starlette.websockets import WebSocket

from engine.core.errors import SandboxError
from engine.sandbox.kubernetes import access as kubernetes_access
from engine.sandbox.kubernetes import api as kubernetes_api
from engine.sandbox.kubernetes import sessions as kubernetes_sessions
from engine.sandbox.kubernetes.api import Api, ApiError
from engine.sandbox.kubernetes.exec import start
from engine.sandbox.kubernetes.manifests import MANAGED, PREFIX
from engine.sandbox.kubernetes.pods import Pods
from engine.sandbox.kubernetes.runtime import KubernetesRuntime
from engine.sandbox.remote import inside as remote_inside
from engine.sandbox.remote.execution import Cut
from engine.sandbox.remote.inside import RemoteSandbox

PODS = "/api/v1/namespaces/lego/pods"
RUNNING = {"state": {"running": {}}}


class ScriptedNode:
    """Pods that are ready at once, and a relay that only says hello."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._relays: dict[str, asyncio.StreamWriter] = {}
        self.execute: Callable[..., Awaitable[None]] = self._nothing
        self.ready = True

    async def run(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        if not self.ready:
            return
        (relay,) = [each for each in pod["spec"]["initContainers"] if each["name"] == "relay"]
        told = json.loads(relay["env"][0]["value"])
        _, writer = await asyncio.open_connection(*told["gateway"])
        writer.write(f"control {told['token']}\n".encode())
        self._relays[name] = writer
        self._cluster.status(name, containerStatuses=[{"name": each, **RUNNING} for each in ("task", "keeper")])

    async def end(self, pod: dict[str, Any]) -> None:
        writer = self._relays.pop(pod["metadata"]["name"], None)
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _nothing(self, pod: Any, container: str, command: list[str], given: WebSocket) -> None:
        await told(given, 0)


async def told(given: WebSocket, code: int, output: bytes = b"", errors: bytes = b"") -> None:
    """A process that ends."""
    for channel, content in ((1, output), (2, errors), (3, json.dumps(exit_status(code)).encode())):
        if content:
            await given.send_bytes(bytes([channel]) + content)
    await given.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An image as the cache has it, with nothing in it."""
    made = tmp_path / "task-0123456789ab"
    (made / "etc").mkdir(parents=True)
    (made / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (made / ".complete").touch()
    return made


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster().serving() as made:
        yield made


@pytest.fixture
async def api(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Api]:
    made = Api(kubernetes_access.find(kubeconfig(tmp_path, cluster.url), None))
    yield made
    await made.close()


@pytest.fixture
def node(cluster: Cluster) -> ScriptedNode:
    made = cluster.node = ScriptedNode(cluster)
    return made


@pytest.fixture
async def runtime(
    cluster: Cluster,
    node: ScriptedNode,
    tmp_path: Path,
    root: Path,
) -> AsyncIterator[KubernetesRuntime]:
    made = make_kubernetes(tmp_path, cluster)
    await made.start(OneImage(root), "a-run")
    yield made
    await made.stop()


@pytest.fixture
async def sandbox(runtime: KubernetesRuntime) -> RemoteSandbox:
    return await runtime.create(specification())


def a_pod(name: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"session": "s"}}, "status": status}


# ---------------------------------------------------------------- calls


async def test_a_busy_server_is_asked_again_when_it_says_so(
    api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    really = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await really(min(seconds, 0.01))

    monkeypatch.setattr(asyncio, "sleep", sleep)  # the server's too
    cluster.fail("GET .*/pods$", 429, retry_after="7")
    cluster.fail("GET .*/pods$", 503)
    assert (await api.get(PODS))["items"] == []
    assert slept.count(7.0) == 1 and cluster.calls == [f"GET {PODS}"] * 3


async def test_what_a_server_refuses_for_good_is_told_at_once(api: Api, cluster: Cluster) -> None:
    cluster.fail("POST .*/pods$", 403, 'pods is forbidden: User "me" cannot create')
    with pytest.raises(ApiError, match=r"refuses POST .*/pods \(403\): pods is forbidden") as raised:
        await api.create(PODS, a_pod("one"))
    assert raised.value.status == 403 and cluster.calls == [f"POST {PODS}"]


async def test_a_create_whose_answer_was_lost_finds_its_own(api: Api, cluster: Cluster) -> None:
    cluster.put("pods", a_pod("one", phase="Running"), "ADDED")
    cluster.fail("POST .*/pods$", 504)  # the first try reached the server all the same
    assert (await api.create(PODS, a_pod("one"), ours=f"{PODS}/one"))["status"]["phase"] == "Running"
    with pytest.raises(ApiError, match="already exists"):
        await api.create(PODS, a_pod("one"))


async def test_what_is_deleted_already_is_fine(api: Api) -> None:
    await api.delete(f"{PODS}/none")


async def test_a_token_that_was_rotated_is_read_again(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old\n")
    api = Api(kubernetes_access.find(kubeconfig(tmp_path, cluster.url, tokenFile="token"), None))
    try:
        cluster.tokens = {"old"}
        await api.get(PODS)
        cluster.tokens = {"new"}
        (tmp_path / "token").write_text("new\n")
        await api.get(PODS)
        cluster.put("pods", a_pod("one"), "ADDED")
        cluster.tokens = {"newer"}
        (tmp_path / "token").write_text("newer\n")
        cluster.execute = lambda given, command: told(given, 0)
        running = await start(api, "lego", "one", "task", ["true"])
        assert (await running.ended()).exit_code == 0
        await running.close()
        cluster.tokens = {"newest"}  # and one that stays refused is not asked for ever
        with pytest.raises(ApiError, match="401"):
            await api.get(PODS)
    finally:
        await api.close()


async def test_a_server_that_is_gone_is_told_with_its_address(
    api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "_PATIENCE_S", 0.0)
    api.access.server = "http://127.0.0.1:9"
    dead = Api(api.access)
    try:
        with pytest.raises(ApiError, match=r"http://127\.0\.0\.1:9 does not answer"):
            await dead.get(PODS)
    finally:
        await dead.close()


# ---------------------------------------------------------------- watching


@pytest.fixture
async def pods(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pods]:
    monkeypatch.setattr("engine.sandbox.kubernetes.pods._PAUSE_S", 0.01)
    made = Pods(api, PODS, "session=s")
    for name in ("one", "two"):
        made.expect(name)
    made.start()
    yield made
    await made.stop()


def running(name: str) -> dict[str, Any]:
    return a_pod(name, containerStatuses=[{"name": each, **RUNNING} for each in ("task", "keeper")])


async def test_a_watch_tells_what_becomes_of_a_pod(pods: Pods, cluster: Cluster) -> None:
    cluster.put("pods", a_pod("one"), "ADDED")
    assert not await pods.until(lambda: pods.fate("one").state == "ready", 0.05)
    cluster.put("pods", running("one"))
    assert await pods.until(lambda: pods.fate("one").state == "ready", 30)
    cluster.put("pods", running("one"), "DELETED")
    assert await pods.until(lambda: pods.gone("one"), 30)


async def test_a_watch_that_is_too_old_begins_anew_and_misses_nothing(pods: Pods, cluster: Cluster) -> None:
    cluster.put("pods", running("one"), "ADDED")
    cluster.put("pods", running("two"), "ADDED")
    assert await pods.until(lambda: {pods.fate(name).state for name in ("one", "two")} == {"ready"}, 30)
    cluster.objects["pods"].pop("one")  # and nobody is told
    cluster.objects["pods"]["two"]["status"]["phase"] = "Failed"
    cluster.compact()
    assert await pods.until(lambda: pods.gone("one") and pods.fate("two").state == "lost", 30)
    assert cluster.calls.count(f"GET {PODS}/one") == 1  # what a list lacks is looked for by itself


async def test_a_watch_that_ends_or_fails_goes_on(pods: Pods, cluster: Cluster) -> None:
    cluster.put("pods", a_pod("one"), "ADDED")
    for _ in range(3):
        cluster.fail(f"GET {PODS}$", 500)
        cluster.end_watches()
    cluster.put("pods", running("one"))
    assert await pods.until(lambda: pods.fate("one").state == "ready", 30)


# ---------------------------------------------------------------- exec


async def test_an_end_is_only_what_the_server_said(api: Api, cluster: Cluster) -> None:
    cluster.put("pods", a_pod("one"), "ADDED")

    async def run(given: WebSocket, command: list[str]) -> None:
        if command == ["cut"]:
            await given.send_bytes(b"\x01half of an")
            await given.close(1011)
        elif command == ["silent"]:
            await given.close()
        elif command == ["unknown"]:
            status = {"status": "Failure", "reason": "InternalError", "message": "no such container"}
            await given.send_bytes(b"\x03" + json.dumps(status).encode())
            await given.close()
        else:
            await told(given, 7, b"out", b"err")

    cluster.execute = run
    done = await start(api, "lego", "one", "task", ["false", "a b&c"])
    ended = await done.ended()
    assert (ended.exit_code, ended.output, ended.errors) == (7, b"out", b"err")
    await done.close()
    for command in ("cut", "silent"):
        done = await start(api, "lego", "one", "task", [command])
        with pytest.raises(Cut):
            await done.ended()
        await done.close()
    done = await start(api, "lego", "one", "task", ["unknown"])
    with pytest.raises(SandboxError, match="no such container"):
        await done.ended()
    await done.close()
    with pytest.raises(ApiError, match=r"\(404\).*pod not found"):
        await start(api, "lego", "none", "task", ["true"])


async def test_a_busy_server_is_asked_again_for_a_command(api: Api, cluster: Cluster) -> None:
    cluster.put("pods", a_pod("one"), "ADDED")
    cluster.execute = lambda given, command: told(given, 0)
    cluster.fail("EXEC", 429, retry_after="0")
    cluster.fail("EXEC", 503)
    running = await start(api, "lego", "one", "task", ["true"])
    assert (await running.ended()).exit_code == 0
    await running.close()
    assert len([call for call in cluster.calls if call.startswith("EXEC")]) == 3


async def test_nothing_of_a_trial_stands_in_an_address(sandbox: RemoteSandbox, node: ScriptedNode) -> None:
    addresses: list[str] = []

    async def run(pod: Any, container: str, command: list[str], given: WebSocket) -> None:
        addresses.append(str(given.url))
        await given.receive_bytes()
        answer = {"exit": 0, "timed_out": False, "oom_kills": 0, "duration_s": 0.0, "out": 0, "err": 0}
        await told(given, 0, json.dumps(answer).encode() + b"\n")

    node.execute = run
    environment = {"OPENAI_API_KEY": "sk-trial-secret"}
    await sandbox.exec(["agent", "--flag"], environment=environment, cwd=WORKDIR, timeout_s=9, stdin=b"instruction")
    assert len(addresses) == 1 and "container=task" in addresses[0]
    assert not any(word in addresses[0] for word in ("secret", "agent", "instruction"))


async def test_a_command_whose_stream_is_cut_has_no_exit_code(
    sandbox: RemoteSandbox, node: ScriptedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(pod: Any, container: str, command: list[str], given: WebSocket) -> None:
        await given.receive_bytes()
        await given.send_bytes(b'\x01{"exit": 0, "timed_out": false')
        await given.close(1012)

    monkeypatch.setattr(remote_inside, "_SETTLE_S", 0.05)
    node.execute = run
    with pytest.raises(SandboxError, match="ended while a command ran: the connection to a command was cut off"):
        await shell(sandbox, "true")


async def test_a_pod_that_is_lost_while_its_stream_hangs_is_told(
    sandbox: RemoteSandbox, node: ScriptedNode, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(pod: Any, container: str, command: list[str], given: WebSocket) -> None:
        await given.receive_bytes()
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
        cluster.status(pod_of(sandbox), conditions=[condition])
        await given.receive_bytes()

    monkeypatch.setattr(remote_inside, "_SETTLE_S", 0.05)
    node.execute = run
    with pytest.raises(SandboxError, match="ended while a command ran: DeletionByTaintManager"):
        await shell(sandbox, "sleep 600")


async def test_what_cannot_be_entered_is_no_result_of_the_command(sandbox: RemoteSandbox, node: ScriptedNode) -> None:
    async def run(pod: Any, container: str, command: list[str], given: WebSocket) -> None:
        await told(given, 1, errors=b"Traceback\nOSError: no space left\n")

    node.execute = run
    with pytest.raises(SandboxError, match=r"cannot be entered \(1\): OSError: no space left"):
        await shell(sandbox, "true")


async def test_a_command_that_nobody_waits_for_any_more_in_the_pod_is_over_its_time(
    sandbox: RemoteSandbox, node: ScriptedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []

    async def run(pod: Any, container: str, command: list[str], given: WebSocket) -> None:
        commands.append(command[-1])
        if command[-1] == "sweep":
            await told(given, 0)
        else:
            await asyncio.sleep(600)

    monkeypatch.setattr(remote_inside, "_GRACE_S", 0.2)
    node.execute = run
    result = await shell(sandbox, "true", timeout_s=0.1)
    assert result.timed_out and result.exit_code == -1 and commands == ["run", "sweep"]


# ---------------------------------------------------------------- starting


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": {"major": "1", "minor": "30+", "gitVersion": "v1.30.1-eks"}}, r"v1\.30\.1-eks; pods need 1\.33"),
        ({"drops": ("image",)}, r"does not know image volumes: it dropped spec\.volumes\[\]\.image"),
        ({"drops": ("hostUsers",)}, r"sandbox\.user_namespaces=false"),
    ],
)
async def test_a_cluster_that_lacks_something_is_refused_and_left_as_it_was(
    cluster: Cluster,
    tmp_path: Path,
    root: Path,
    change: dict[str, Any],
    reason: str,
) -> None:
    for name, value in change.items():
        setattr(cluster, name, value)
    made = make_kubernetes(tmp_path, cluster, user_namespaces=True)
    with pytest.raises(SandboxError, match=reason):
        await made.start(OneImage(root), "a-run")
    assert not any(cluster.objects.values())
    await made.stop()


async def test_a_pod_that_is_not_admitted_is_known_before_the_first_trial(
    cluster: Cluster,
    tmp_path: Path,
    root: Path,
) -> None:
    cluster.fail("POST .*/pods$", 403, 'violates PodSecurity "restricted:latest"')
    made = make_kubernetes(tmp_path, cluster)
    with pytest.raises(SandboxError, match="violates PodSecurity"):
        await made.start(OneImage(root), "a-run")
    assert not any(cluster.objects.values())


async def test_no_room_is_told_when_the_time_is_over(
    runtime: KubernetesRuntime, node: ScriptedNode, cluster: Cluster
) -> None:
    node.ready, runtime._start_timeout_s = False, 0.5
    creating = asyncio.create_task(runtime.create(specification("waiting")))
    while not cluster.names("pods"):
        await asyncio.sleep(0.01)
    (name,) = cluster.names("pods")
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes available"}
    cluster.status(name, phase="Pending", conditions=[condition])
    event = {"metadata": {"name": "e"}, "involvedObject": {"name": name}, "message": "Insufficient cpu"}
    cluster.put("events", event, "ADDED")
    with pytest.raises(SandboxError, match=r"within sandbox\.start_timeout_s=0\.5: Unsch.*0/3.*\(Insufficient cpu\)"):
        await creating
    assert not cluster.names("pods")


async def test_a_pod_of_a_sandbox_is_made_once_though_its_answer_is_lost(
    runtime: KubernetesRuntime, node: ScriptedNode, cluster: Cluster
) -> None:
    await runtime.create(specification("one"))
    assert len(cluster.names("pods")) == 1
    cluster.fail("POST .*/pods$", 504)
    await runtime.create(specification("two"))
    assert len(cluster.names("pods")) == 2 and len(cluster.names("configmaps")) == 1


async def test_stopping_leaves_nothing_in_the_cluster(runtime: KubernetesRuntime, cluster: Cluster) -> None:
    await asyncio.gather(*(runtime.create(specification(f"t{number}")) for number in range(3)))
    assert len(cluster.names("pods")) == 3
    await runtime.stop()
    await runtime.stop()
    assert not any(cluster.objects.values())


# ---------------------------------------------------------------- sessions


def left_by(
    session: str, *, age_s: float, lease: bool = True, ahead_s: float = 0.0
) -> list[tuple[str, dict[str, Any]]]:
    """What a process that stopped renewing its lease `age_s` ago has in the cluster."""
    then = datetime.now(UTC) + timedelta(seconds=ahead_s - age_s)
    labels = {**MANAGED, f"{PREFIX}/session": session}
    stamp = then.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    meta = {"labels": labels, "creationTimestamp": then.strftime("%Y-%m-%dT%H:%M:%SZ")}
    spec = {"renewTime": stamp, "leaseDurationSeconds": 60}
    found = [(kind, {"metadata": {**meta, "name": session}}) for kind in ("networkpolicies", "configmaps")]
    annotations = {f"{PREFIX}/sandbox": f"trial-of-{session}"}
    found.append(("pods", {"metadata": {**meta, "name": f"pod-{session}", "annotations": annotations}}))
    return found + ([("leases", {"metadata": {**meta, "name": session}, "spec": spec})] if lease else [])


@pytest.mark.parametrize("ahead_s", [0.0, 7200.0, -7200.0])
async def test_what_the_dead_left_goes_and_what_lives_stays(cluster: Cluster, tmp_path: Path, ahead_s: float) -> None:
    cluster.ahead_s = ahead_s
    states = {
        "dead": left_by("dead", age_s=600, ahead_s=ahead_s),
        "living": left_by("living", age_s=50, ahead_s=ahead_s),
        "unleased": left_by("unleased", age_s=3600, lease=False, ahead_s=ahead_s),
        "newborn": left_by("newborn", age_s=10, lease=False, ahead_s=ahead_s),
    }
    for kind, item in [each for state in states.values() for each in state]:
        cluster.put(kind, item, "ADDED")
    cluster.put("pods", {"metadata": {"name": "somebody-elses", "labels": {"app": "web"}}}, "ADDED")
    names, problems = await make_kubernetes(tmp_path, cluster).reap()
    assert (sorted(names), problems) == (["trial-of-dead", "trial-of-unleased"], [])
    assert cluster.names("pods") == ["pod-living", "pod-newborn", "somebody-elses"]
    assert cluster.names("leases") == ["living"]
    assert cluster.names("networkpolicies") == cluster.names("configmaps") == ["living", "newborn"]


async def test_a_pod_over_its_time_goes_though_its_session_lives(cluster: Cluster, tmp_path: Path) -> None:
    """Its owner renews the lease and hangs: what is within its time, or within a minute of it, stays."""
    now = datetime.now(UTC).timestamp()
    for name, ends_s in (("over", now - 90), ("nearly", now - 30), ("within", now + 600)):
        for kind, item in left_by(name, age_s=10):
            if kind == "pods":
                item["metadata"]["annotations"][f"{PREFIX}/expires"] = str(int(ends_s))
            cluster.put(kind, item, "ADDED")
    names, problems = await make_kubernetes(tmp_path, cluster).reap()
    assert (names, problems) == (["trial-of-over (over its time, and its owner, who lives, did not end it)"], [])
    assert cluster.names("pods") == ["pod-nearly", "pod-within"]
    assert len(cluster.names("leases")) == 3


async def test_a_pod_lives_for_its_start_its_work_and_a_grace(runtime: KubernetesRuntime, cluster: Cluster) -> None:
    await runtime.create(specification("told", work_s=30.5))
    (pod,) = cluster.objects["pods"].values()
    assert pod["spec"]["activeDeadlineSeconds"] == 60 + 31 + 600  # start_timeout_s, the work, grace_s


async def test_a_start_removes_what_the_dead_left_of_any_run(
    cluster: Cluster,
    node: ScriptedNode,
    tmp_path: Path,
    root: Path,
) -> None:
    for kind, item in left_by("dead", age_s=600):
        cluster.put(kind, item, "ADDED")
    made = make_kubernetes(tmp_path, cluster)
    await made.start(OneImage(root), "another-run")
    assert "pod-dead" not in cluster.names("pods") and "dead" not in cluster.names("leases")
    await made.stop()


async def test_reaping_tells_what_it_cannot_reach(cluster: Cluster, tmp_path: Path) -> None:
    cluster.fail("GET .*/leases", 403, "leases is forbidden")
    names, problems = await make_kubernetes(tmp_path, cluster).reap()
    assert names == [] and "leases is forbidden" in problems[0]
    names, problems = await make_kubernetes(tmp_path, cluster, kubeconfig=str(tmp_path / "none")).reap()
    assert names == [] and "is no readable kubeconfig" in problems[0]


async def test_a_session_that_lives_renews_its_lease(
    cluster: Cluster,
    node: ScriptedNode,
    tmp_path: Path,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kubernetes_sessions, "LEASE_S", 0.04)
    cluster.ahead_s = 3600.0
    made = make_kubernetes(tmp_path, cluster)
    await made.start(OneImage(root), "a-run")
    (name,) = cluster.names("leases")
    first = cluster.objects["leases"][name]["spec"]["renewTime"]
    async with asyncio.timeout(30):
        while cluster.objects["leases"][name]["spec"]["renewTime"] == first:
            await asyncio.sleep(0.01)
    by_the_server = datetime.fromisoformat(first).timestamp() - time.time()
    assert abs(by_the_server - 3600) < 60  # leases are judged by one clock
    await made.stop()
