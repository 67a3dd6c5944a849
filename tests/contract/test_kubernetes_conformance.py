"""The sandbox suite against pods: real containers of this machine behind a small cluster's real API.

What is the same for every runtime is the very test of `test_sandbox_conformance` and `test_sandbox_endings`; what a pod
does in its own way stands below. No cluster is asked: kubelets, container runtimes and networks are only imitated.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from http.server import HTTPServer
from pathlib import Path

import pytest
from cluster_api import Cluster
from cluster_cases import REGISTRY, TOOLS, make_kubernetes, pod_of, task_reference
from cluster_node import HOST, BubblewrapNode, problem
from sandbox_cases import WORKDIR, processes_with, python, shell, specification, task_image
from test_sandbox_conformance import (  # noqa: F401
    test_a_cancelled_command_is_killed,
    test_a_command_has_its_exit_code_and_both_outputs,
    test_a_process_left_in_the_background_does_not_hold_the_command,
    test_a_timeout_kills_the_whole_tree_and_nothing_else,
    test_a_tree_made_to_break_the_copy_is_copied_without_harm,
    test_commands_run_side_by_side,
    test_files_go_in_and_out,
    test_files_survive_the_kill_and_are_gone_after_the_stop,
    test_links_are_never_followed,
    test_output_beyond_the_limit_keeps_both_ends,
    test_standard_input_is_given_whole,
    test_the_environment_is_the_callers_and_nothing_else,
    test_the_folder_is_the_asked_one_and_the_user_owns_it,
    test_the_kernels_side_doors_are_closed,
    test_the_user_has_no_rights,
    test_two_sandboxes_do_not_see_each_other,
    test_what_cannot_start_is_a_result_like_a_shells,
)
from test_sandbox_endings import (  # noqa: F401
    test_a_command_that_runs_when_the_sandbox_is_killed_says_so,
    test_init_survives_everything_that_the_user_sends,
    test_kill_counts_what_outlived_the_last_command,
)

from engine.core.errors import SandboxError
from engine.core.specs import Mount
from engine.sandbox.images import DebianImageStore
from engine.sandbox.kubernetes.runtime import KubernetesRuntime
from engine.sandbox.remote.inside import RemoteSandbox

pytestmark = pytest.mark.skipif(bool(problem()), reason=problem() or "pods can run")


@pytest.fixture
async def cluster(images: DebianImageStore, tmp_path: Path) -> AsyncIterator[Cluster]:
    (tmp_path / "node").mkdir()
    made = Cluster()
    root = images.path(task_image())
    node = made.node = BubblewrapNode(made, tmp_path / "node", {task_reference(images): root, TOOLS: root})
    try:
        async with made.serving():
            yield made
    finally:
        node.close()


@pytest.fixture
async def runtime(cluster: Cluster, images: DebianImageStore, tmp_path: Path) -> AsyncIterator[KubernetesRuntime]:
    made = make_kubernetes(tmp_path, cluster, HOST)
    await made.start(images, "conformance")
    try:
        yield made
    finally:
        await made.stop()
        assert not any(cluster.names(kind) for kind in ("pods", "leases", "networkpolicies", "configmaps"))


@pytest.fixture
async def sandbox(runtime: KubernetesRuntime) -> AsyncIterator[RemoteSandbox]:
    made = await runtime.create(specification())
    try:
        yield made
    finally:
        await made.stop()


def node_of(cluster: Cluster) -> BubblewrapNode:
    assert isinstance(cluster.node, BubblewrapNode)
    return cluster.node


async def test_mounts_are_images_and_read_only(runtime: KubernetesRuntime, cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "runtime-00ff"
    folder.mkdir()
    (folder / "tool").write_text("tool")
    folder.chmod(0o777)
    node_of(cluster).images[f"{REGISTRY}/runtime:00ff"] = folder
    sandbox = await runtime.create(specification(mounts=(Mount(source=folder, target="/opt/agent"),)))
    result = await shell(sandbox, "cat /opt/agent/tool; echo x > /opt/agent/x; echo x > /usr/x; echo x > /x")
    assert result.stdout == b"tool" and result.stderr.count(b"Read-only file system") == 3
    assert [path.name for path in folder.iterdir()] == ["tool"]


async def test_runtimes_can_be_copied_where_image_volumes_cannot_be_executed(
    cluster: Cluster, images: DebianImageStore, tmp_path: Path
) -> None:
    folder = tmp_path / "runtime-00ff"
    folder.mkdir()
    (folder / "tool").write_text("#!/bin/sh\necho works\n")
    (folder / "tool").chmod(0o711)
    node = node_of(cluster)
    node.images |= {f"{REGISTRY}/runtime:00ff": folder}
    made = make_kubernetes(tmp_path, cluster, HOST, image_volumes="copy")
    await made.start(images, "copies")
    try:
        spec = specification(mounts=(Mount(source=folder, target="/opt/agent"),))
        sandbox = await made.create(spec)
        listed = await shell(sandbox, "stat -c %a /opt/agent/tool; echo x > /opt/agent/x")
        assert listed.stdout == b"711\n" and b"Read-only file system" in listed.stderr
    finally:
        await made.stop()


async def test_nothing_but_the_gateway_is_reachable(
    sandbox: RemoteSandbox, cluster: Cluster, host_server: HTTPServer
) -> None:
    (policy,) = cluster.objects["networkpolicies"].values()
    gateway = policy["spec"]["egress"][0]["ports"][0]["port"]
    ports = {"api": cluster.port, "host": host_server.server_address[1], "gateway": gateway}
    answers = await python(
        sandbox,
        f"""
        import socket
        for name, port in {ports!r}.items():
            try: socket.create_connection(({HOST!r}, port), 1); print(name, "connected")
            except OSError as error: print(name, "closed")
        try: socket.getaddrinfo("example.org", 80); print("resolved")
        except OSError: print("no name")
        stranger = socket.create_connection(({HOST!r}, {gateway}), 1)
        stranger.sendall(b"stream 00 8080\\nGET / HTTP/1.0\\r\\n\\r\\n")
        print(stranger.recv(10))
        """,
    )
    assert answers.splitlines() == ["api closed", "host closed", "gateway connected", "no name", "b''"]


async def test_an_open_network_is_refused(cluster: Cluster, images: DebianImageStore, tmp_path: Path) -> None:
    node_of(cluster).keeps_policies = False
    made = make_kubernetes(tmp_path, cluster, HOST)
    await made.start(images, "open")
    for policy in cluster.objects["networkpolicies"].values():
        policy["spec"]["egress"] = []
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("engine.sandbox.kubernetes.manifests._PROBES", 1)
            with pytest.raises(SandboxError, match=r"the network is open .* keeps no network policy"):
                await made.create(specification())
    finally:
        await made.stop()
    assert not cluster.names("pods")


async def test_a_listener_serves_the_pod_from_here(sandbox: RemoteSandbox) -> None:
    listener = await sandbox.listen(8080)
    assert listener.family == socket.AF_UNIX  # no port of this machine's is opened for it

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(answer, sock=listener):
        fetch = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/t/1').read().decode())"
        assert await python(sandbox, fetch) == "hello"
        with pytest.raises(SandboxError, match="8080"):
            await sandbox.listen(8080)
    taken = await shell(sandbox, "python3 -c 'import socket, time; s = socket.create_server((\"127.0.0.1\", 9001)); "
                                 "open(\"bound\", \"w\"); time.sleep(600)' >/dev/null 2>&1 &")  # fmt: skip
    assert taken.exit_code == 0
    while await sandbox.read(f"{WORKDIR}/bound", 1) is None:
        await asyncio.sleep(0.05)
    with pytest.raises(SandboxError, match=r"9001.*in use"):
        await sandbox.listen(9001)


async def test_running_out_of_memory_ends_the_container_and_leaves_the_files(
    sandbox: RemoteSandbox, tmp_path: Path
) -> None:
    result = await shell(sandbox, "echo kept > kept; python3 -c 'x = bytearray(600 << 20)'")
    assert result.oom_killed and result.exit_code == 137 and not result.timed_out
    with pytest.raises(SandboxError, match=r"gone.*memory_mb"):
        await shell(sandbox, "true")
    assert await sandbox.kill() == 0
    await sandbox.download(WORKDIR, tmp_path / "after")
    assert (tmp_path / "after/kept").read_text() == "kept\n"


async def test_an_eviction_while_a_command_runs_is_no_exit_code(sandbox: RemoteSandbox, cluster: Cluster) -> None:
    running = asyncio.create_task(shell(sandbox, "touch begun; sleep 613"))
    while await sandbox.read(f"{WORKDIR}/begun", 1) is None:
        await asyncio.sleep(0.02)
    await node_of(cluster).evict(pod_of(sandbox), "The node was low on resource: memory")
    with pytest.raises(SandboxError, match="ended while a command ran: Evicted: The node was low on resource"):
        await running
    with pytest.raises(SandboxError, match="Evicted"):
        await sandbox.read(f"{WORKDIR}/begun", 1)


async def test_who_kills_what_waits_for_it_is_killed_alone(sandbox: RemoteSandbox) -> None:
    result = await shell(sandbox, "kill -9 $PPID; sleep 614")
    assert result.exit_code == 137 and not result.oom_killed
    assert (await shell(sandbox, "echo alive")).stdout == b"alive\n"


async def test_the_process_that_tells_the_end_is_out_of_reach(sandbox: RemoteSandbox) -> None:
    answers = await python(
        sandbox,
        """
        import ctypes, os
        for pid in (1, os.getppid()):
            for name in ("environ", "mem", "fd/1"):
                try: open(f"/proc/{pid}/{name}", "rb"); print("open")
                except OSError as error: print(type(error).__name__)
            print(ctypes.CDLL(None).ptrace(16, pid, 0, 0))
        """,
    )
    assert set(answers.split()) == {"PermissionError", "-1"}


async def test_paths_outside_of_what_may_be_written_are_refused(sandbox: RemoteSandbox) -> None:
    for touch in (sandbox.read("/etc/hostname", 1), sandbox.write({"/usr/new": b""})):
        with pytest.raises(SandboxError, match=r"add its folder to sandbox\.writable"):
            await touch


async def test_stop_leaves_nothing_and_may_be_repeated(runtime: KubernetesRuntime, cluster: Cluster) -> None:
    sandbox = await runtime.create(specification("gone"))
    await shell(sandbox, "sleep 615 &")
    await asyncio.gather(sandbox.stop(), sandbox.stop())
    await sandbox.stop()
    assert not cluster.names("pods") and not processes_with("sleep 615")


async def test_a_cancelled_create_leaves_nothing(runtime: KubernetesRuntime, cluster: Cluster) -> None:
    for delay in (0.0, 0.1, 0.5):
        creating = asyncio.create_task(runtime.create(specification("cancelled")))
        await asyncio.sleep(delay)
        creating.cancel()
        done = await asyncio.gather(creating, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError)
        assert not cluster.names("pods")


async def test_a_create_that_fails_says_why_and_leaves_nothing(
    runtime: KubernetesRuntime, cluster: Cluster, tmp_path: Path
) -> None:
    unknown = tmp_path / "runtime-dead"
    unknown.mkdir()
    with pytest.raises(SandboxError, match=r"ErrImagePull: registry\.test/lego/runtime:dead: not found.*push it"):
        await runtime.create(specification("failed", mounts=(Mount(source=unknown, target="/opt/agent"),)))
    with pytest.raises(SandboxError, match="/no/such/folder"):
        nothing = Mount(source=Path("/no/such/folder"), target="/opt/agent")
        await runtime.create(specification("failed", mounts=(nothing,)))
    assert not cluster.names("pods")


def test_pods_of_this_machine_leave_nothing() -> None:
    assert not list(Path("/sys/class/net").glob("lrt*"))
