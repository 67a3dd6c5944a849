"""A node for the small cluster: pods as real processes of this machine, containers made by bubblewrap.

Each pod has a network of its own, with a cable to this machine and the rules of its network policies; each container
has its image's root, read-only, the pod's volumes, a user without capabilities, and a control group, which is killed
whole when its memory runs out, as kubelets have it.
"""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import subprocess
from asyncio.subprocess import DEVNULL, PIPE, Process
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster_api import Cluster, Json, exit_status
from starlette.websockets import WebSocket, WebSocketDisconnect

from engine.sandbox import mounts
from engine.sandbox.cgroups import Cgroup, Limits, kill_folder

HOST = "10.213.0.1"
"""This machine, as pods see it."""
_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")


@dataclass(kw_only=True)
class Container:
    spec: Json
    root: Path
    cgroup: Cgroup
    process: Process | None = None
    pid: int = 0
    out_of_memory: bool = False

    @property
    def join(self) -> list[str]:
        procs = " ".join(f"{folder}/cgroup.procs" for folder in self.cgroup.folders)
        return ["/bin/sh", "-c", f'for file in {procs}; do echo $$ > $file; done; exec "$@"', "join"]

    def become(self, uid: int) -> list[str]:
        environment = [f"{each['name']}={each['value']}" for each in self.spec.get("env", ())]
        start = ["/usr/bin/setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", "--no-new-privs"]
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return [*start, "--inh-caps=-all", "--bounding-set=-all", "--", "/usr/bin/env", "-i", path, *environment]


@dataclass(kw_only=True)
class Housed:
    folder: Path
    network: Process
    cable: str
    containers: dict[str, Container] = field(default_factory=dict)


def problem() -> str:
    """Why no pod can run here; empty when one can."""
    if os.geteuid() != 0:
        return "pods need root"
    missing = [tool for tool in ("bwrap", "nsenter", "ip", "nft", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"{missing[0]} is not installed"
    tried = subprocess.run(["ip", "link", "add", "lrtry", "type", "veth", "peer", "name", "lrtried"], check=False)
    subprocess.run(["ip", "link", "del", "lrtry"], check=False, capture_output=True)
    return "no network cards can be made here" if tried.returncode else ""


class BubblewrapNode:
    def __init__(self, cluster: Cluster, folder: Path, images: dict[str, Path]) -> None:
        """`images`: reference → root; `folder` becomes a file system in memory."""
        self.images, self.keeps_policies = images, True
        self._cluster, self._folder = cluster, folder
        self._housed: dict[str, Housed] = {}
        self._runs: dict[str, asyncio.Future[None]] = {}
        self._ending: set[str] = set()
        self._numbers = itertools.count(os.getpid() % 100 * 100 + 2)
        mounts.mount_tmpfs(folder, 1024)

    def close(self) -> None:
        mounts.unmount(self._folder, lazy=True)

    def processes(self) -> list[int]:
        return [each.pid for housed in self._housed.values() for each in housed.containers.values() if each.pid]

    # ------------------------------------------------------------ a pod's life

    async def run(self, pod: Json) -> None:
        done = self._runs[pod["metadata"]["name"]] = asyncio.get_running_loop().create_future()
        try:
            await self._run(pod)
        except Exception as error:  # what is wrong with this node should not look like a hanging cluster
            self._cluster.status(pod["metadata"]["name"], phase="Failed", reason="NodeBroken", message=repr(error))
        finally:
            done.set_result(None)

    async def _run(self, pod: Json) -> None:
        name, spec = pod["metadata"]["name"], pod["spec"]
        wanted = [*spec["initContainers"], *spec["containers"]]
        references = [each["image"] for each in wanted]
        references += [each["image"]["reference"] for each in spec["volumes"] if "image" in each]
        for reference in references:
            if reference not in self.images:
                waiting = {"reason": "ErrImagePull", "message": f"{reference}: not found"}
                self._cluster.status(name, containerStatuses=[{"name": "task", "state": {"waiting": waiting}}])
                return
        housed = self._housed[name] = await self._house(pod)
        for each in wanted:
            if name in self._ending:
                return
            container = await self._start(pod, housed, each)
            if "startupProbe" in each:
                while container.process.returncode is None:  # type: ignore[union-attr]
                    command = each["startupProbe"]["exec"]["command"]
                    probe = await self._enter(pod, container, command, DEVNULL)
                    if await probe.wait() == 0 or name in self._ending:
                        break
                    await asyncio.sleep(0.05)
                else:
                    said = (await container.process.stderr.read()).decode()  # type: ignore[union-attr]
                    waiting = {"reason": "CrashLoopBackOff", "message": "back-off"}
                    last = {"terminated": {"exitCode": 1, "message": said}}
                    status = [{"name": each["name"], "state": {"waiting": waiting}, "lastState": last}]
                    self._cluster.status(name, initContainerStatuses=status)
                    return
            elif each in spec["initContainers"]:
                assert await container.process.wait() == 0, await container.process.stderr.read()  # type: ignore
        for each in spec["containers"]:
            self._cluster.spawn(self._watch(name, housed.containers[each["name"]]))
        self._tell(name)

    async def _watch(self, name: str, container: Container) -> None:
        assert container.process is not None
        while container.process.returncode is None:
            if container.cgroup.oom_kills():
                container.out_of_memory = True
                for folder in container.cgroup.folders:
                    kill_folder(folder)
            await asyncio.sleep(0.02)
        self._tell(name)

    def _tell(self, name: str) -> None:
        statuses = []
        if name not in self._housed or name not in self._cluster.objects["pods"]:
            return
        for container in self._housed[name].containers.values():
            if any(container.spec == each for each in self._cluster.objects["pods"][name]["spec"]["containers"]):
                code = container.process.returncode  # type: ignore[union-attr]
                reason = "OOMKilled" if container.out_of_memory else "Error"
                ended = {"terminated": {"exitCode": code, "reason": reason}}
                state = {"running": {}} if code is None else ended
                statuses.append({"name": container.spec["name"], "state": state})
        self._cluster.status(name, phase="Running", containerStatuses=statuses)

    async def end(self, pod: Json) -> None:
        name = pod["metadata"]["name"]
        self._ending.add(name)
        if name in self._runs:  # one that has begun to start a pod ends that first, as kubelets do
            await asyncio.wait([self._runs[name]])
        housed = self._housed.pop(name, None)
        if housed is None:
            return
        for container in housed.containers.values():
            if container.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(container.pid, 9)
            if container.process is not None:
                await container.process.wait()
                container.process._transport.close()  # type: ignore[attr-defined]
            await asyncio.to_thread(container.cgroup.remove)
            mounts.unmount(container.root / "root", lazy=True)
        housed.network.kill()
        await housed.network.wait()
        await _run("ip", "link", "del", housed.cable, check=False)
        for path in housed.folder.glob("volumes/shm"):
            mounts.unmount(path, lazy=True)
        await asyncio.to_thread(shutil.rmtree, housed.folder, True)

    async def evict(self, name: str, message: str) -> None:
        """As a kubelet that is short of something: the status first, then the containers."""
        self._cluster.status(name, phase="Failed", reason="Evicted", message=message)
        await self.end(self._cluster.objects["pods"][name])

    # ------------------------------------------------------------ parts

    async def _house(self, pod: Json) -> Housed:
        folder = self._folder / pod["metadata"]["name"]
        (folder / "volumes").mkdir(parents=True)
        for volume in pod["spec"]["volumes"]:
            path = folder / "volumes" / volume["name"]
            path.mkdir()
            path.chmod(0o777)
            if volume["name"] == "shm":
                mounts.mount_tmpfs(path, 64)
                path.chmod(0o777)
            if "configMap" in volume:
                data = self._cluster.objects["configmaps"][volume["configMap"]["name"]]["data"]
                for item in volume["configMap"]["items"]:
                    (path / item["path"]).parent.mkdir(parents=True, exist_ok=True)
                    (path / item["path"]).write_text(data[item["key"]])
        number = next(self._numbers)
        cable = f"lrt{number}"
        network = await asyncio.create_subprocess_exec(
            "unshare", "-n", "sleep", "infinity", stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
        )
        while Path(f"/proc/{network.pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
            await asyncio.sleep(0.005)
        own = f"10.213.{number >> 8 & 255}.{number & 255}"
        inside = ("nsenter", f"--net=/proc/{network.pid}/ns/net")
        await _run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(network.pid))
        await _run("ip", "address", "add", HOST, "peer", own, "dev", cable)
        await _run("ip", "link", "set", cable, "up")
        await _run(*inside, "ip", "link", "set", "lo", "up")
        await _run(*inside, "ip", "address", "add", own, "peer", HOST, "dev", "eth0")
        await _run(*inside, "ip", "link", "set", "eth0", "up")
        await _run(*inside, "ip", "route", "add", "default", "via", HOST)
        if self.keeps_policies:
            await _run(*inside, "nft", "-f", "-", given=self._rules(pod))
        return Housed(folder=folder, network=network, cable=cable)

    def _rules(self, pod: Json) -> str:
        """A policy's meaning, for one pod."""
        allowed = []
        for policy in self._cluster.objects.get("networkpolicies", {}).values():
            wanted = policy["spec"]["podSelector"]["matchLabels"]
            if all(pod["metadata"]["labels"].get(key) == value for key, value in wanted.items()):
                for rule in policy["spec"]["egress"]:
                    peer, port = rule["to"][0]["ipBlock"]["cidr"], rule["ports"][0]["port"]
                    allowed.append(f"ip daddr {peer} tcp dport {port} accept")
        back = "ct state established accept"
        rules = "\n".join(["oifname lo accept", *allowed])
        return (
            "table inet kube {\n"
            f"chain outgoing {{ type filter hook output priority 0; policy drop; {rules}\n}}\n"
            f"chain incoming {{ type filter hook input priority 0; policy drop; iifname lo accept; {back}\n}}\n}}\n"
        )

    async def _start(self, pod: Json, housed: Housed, spec: Json) -> Container:
        root = housed.folder / spec["name"]
        for name in ("upper", "work", "root"):
            (root / name).mkdir(parents=True)
            (root / name).chmod(0o755)
        (root / "lower").symlink_to(self.images[spec["image"]])
        await asyncio.to_thread(mounts.mount_overlay, root, lower="lower", upper="upper", work="work", target="root")
        cgroup = Cgroup.plan(f"{pod['metadata']['name']}-{spec['name']}")
        memory = int(spec["resources"]["limits"]["memory"].removesuffix("Mi"))
        if spec["name"] == "deliver":  # what it copies goes to a disk elsewhere; here it is memory that counts
            memory = 1024
        await asyncio.to_thread(cgroup.create, Limits(memory_mb=memory, cpus=1.0, pids=512))
        container = Container(spec=spec, root=root, cgroup=cgroup)
        spec.setdefault("env", [])
        if not any(each["name"] == "KUBERNETES_SERVICE_HOST" for each in spec["env"]):
            port = str(self._cluster.port)
            spec["env"] += [{"name": "KUBERNETES_SERVICE_HOST", "value": HOST},
                            {"name": "KUBERNETES_SERVICE_PORT", "value": port}]  # fmt: skip
        housed.containers[spec["name"]] = container
        told, tell = os.pipe()
        uid = spec["securityContext"]["runAsUser"]
        command = ["nsenter", f"--net=/proc/{housed.network.pid}/ns/net", *self._bwrap(pod, housed, container, tell)]
        container.process = await asyncio.create_subprocess_exec(
            *container.join, *command, *container.become(uid), *spec["command"],
            stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, pass_fds=(tell,),
        )  # fmt: skip
        os.close(tell)
        with os.fdopen(told, "rb") as file:
            container.pid = int(json.loads(await asyncio.to_thread(file.read))["child-pid"])
        while not _executes(container.pid, spec["command"][0]) and container.process.returncode is None:
            await asyncio.sleep(0.005)
        return container

    def _bwrap(self, pod: Json, housed: Housed, container: Container, tell: int) -> list[str]:
        options = ["bwrap", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--hostname", "sandbox", "--as-pid-1"]
        options += ["--die-with-parent", "--info-fd", str(tell), "--cap-drop", "ALL"]
        options += [word for name in _CAPABILITIES for word in ("--cap-add", name)]
        options += ["--bind", str(container.root / "root"), "/", "--proc", "/proc", "--dev", "/dev"]
        sources: dict[str, Any] = {each["name"]: each for each in pod["spec"]["volumes"]}
        for mount in container.spec["volumeMounts"]:
            volume = sources[mount["name"]]
            path = housed.folder / "volumes" / mount["name"]
            if "image" in volume:
                path = self.images[volume["image"]["reference"]]
            path = path / mount.get("subPath", "")
            assert path.exists(), f"{mount['name']}: a kubelet would make {path} as root"
            _make_place(container.root / "root", mount["mountPath"], path.is_dir())
            options += ["--ro-bind" if mount.get("readOnly") else "--bind", str(path), mount["mountPath"]]
        return [*options, "--remount-ro", "/", "--chdir", "/", "--"]

    # ------------------------------------------------------------ exec

    async def _enter(self, pod: Json, container: Container, command: list[str], given: int) -> Process:
        uid = container.spec["securityContext"]["runAsUser"]
        enter = ["nsenter", "-t", str(container.pid), "-m", "-p", "-n", "-i", "-u", "-r", "-w", "--"]
        return await asyncio.create_subprocess_exec(
            *container.join, *enter, *container.become(uid), *command, stdin=given, stdout=PIPE, stderr=PIPE
        )

    async def execute(self, pod: Json, container: str, command: list[str], given: WebSocket) -> None:
        inside = self._housed[pod["metadata"]["name"]].containers[container]
        if inside.process is None or inside.process.returncode is not None:
            status = {"status": "Failure", "reason": "InternalError", "message": "container not running"}
            await given.send_bytes(b"\x03" + json.dumps(status).encode())
            await given.close()
            return
        process = await self._enter(pod, inside, command, PIPE)
        assert process.stdin and process.stdout and process.stderr
        feeding = asyncio.create_task(_feed(given, process.stdin))
        try:
            await asyncio.gather(_pass(process.stdout, given, b"\x01"), _pass(process.stderr, given, b"\x02"))
            code = await process.wait()
            status = exit_status(code if code >= 0 else 128 - code)
            await given.send_bytes(b"\x03" + json.dumps(status).encode())
            await given.close()
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            process.stdin.close()
            await process.wait()
            process._transport.close()  # type: ignore[attr-defined]


async def _feed(given: WebSocket, stdin: asyncio.StreamWriter) -> None:
    try:
        while True:
            message = await given.receive_bytes()
            assert message[0] == 0
            stdin.write(message[1:])
            await stdin.drain()
    except (WebSocketDisconnect, ConnectionError, KeyError):
        stdin.close()


async def _pass(stream: asyncio.StreamReader, given: WebSocket, channel: bytes) -> None:
    while chunk := await stream.read(1 << 15):
        await given.send_bytes(channel + chunk)


def _make_place(root: Path, target: str, folder: bool) -> None:
    """Where something is mounted, for bubblewrap would let nobody but root through it."""
    for name in Path(target).parts[1:] if folder else Path(target).parts[1:-1]:
        root = root / name
        if not root.is_dir():
            root.mkdir()
            root.chmod(0o755)


def _executes(pid: int, program: str) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].endswith(program.rpartition("/")[2].encode())
    return False


async def _run(*command: str, given: str = "", check: bool = True) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    _, said = await process.communicate(given.encode())
    assert not check or process.returncode == 0, f"{command}: {said.decode()}"
