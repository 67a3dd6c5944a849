"""The containers of one pod, as a remote sandbox wants them: commands in the task's, files through the keeper.

Refuses paths outside the folders that may be written: the rest of the root is the image's, and none but the task's
container sees it.
"""

import json
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.errors import SandboxError
from engine.sandbox.files import parts
from engine.sandbox.kubernetes.api import Api
from engine.sandbox.kubernetes.exec import start
from engine.sandbox.kubernetes.gateway import RelayGateway
from engine.sandbox.kubernetes.manifests import OWN_INTERPRETER
from engine.sandbox.kubernetes.pods import Pods
from engine.sandbox.remote.execution import Execution
from engine.sandbox.remote.fate import Fate

_END_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the runtime hands over when it has started a pod."""

    name: str
    """Of the sandbox."""
    pod: str
    namespace: str
    writable: tuple[str, ...]
    interpreter: tuple[str, ...]
    """Starts our code in the task's container."""
    api: Api
    pods: Pods
    gateway: RelayGateway
    token: str
    remove: Callable[[], Coroutine[Any, Any, None]]
    """Deletes the pod and waits until it is gone."""


class PodPlace:
    """The Place of a pod."""

    kind = "a pod"

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    @property
    def pod(self) -> str:
        """Name of the pod."""
        return self._parts.pod

    def fate(self) -> Fate:
        """As the cluster told it last."""
        return self._parts.pods.fate(self._parts.pod)

    async def until(self, holds: Callable[[], bool], patience_s: float | None) -> bool:
        """Wait until `holds` of what is known; False when that took too long."""
        return await self._parts.pods.until(holds, patience_s)

    async def start(self, role: Sequence[str], on_output: Callable[[bytes], object] | None) -> Execution:
        """Start a process of ours in the container that its role belongs to. Raises SandboxError."""
        keeper = role[0] == "keep"
        command = [*(OWN_INTERPRETER if keeper else self._parts.interpreter), *role]
        where = self._parts.namespace, self._parts.pod, "keeper" if keeper else "task"
        try:
            return await start(self._parts.api, *where, command, on_output)
        except SandboxError as error:
            fate = self.fate()
            if fate.state in ("over", "lost"):
                problem = f"sandbox {self._parts.name} is gone: no command can run in it: {fate.reason}"
                raise SandboxError(problem) from error
            raise

    def check(self, path: str) -> None:
        """Raises SandboxError unless a path lies where the sandbox may write."""
        plain = f"/{'/'.join(parts(path))}"
        if not any(plain == folder or plain.startswith(f"{folder}/") for folder in self._parts.writable):
            problem = f"{path} lies outside of what a pod may write ({', '.join(self._parts.writable)})"
            raise SandboxError(f"{problem}; add its folder to sandbox.writable")

    async def listen(self, port: int) -> socket.socket:
        """A listening socket that stands for 127.0.0.1:port in the pod. Raises SandboxError."""
        return await self._parts.gateway.listen(self._parts.token, port)

    async def settle(self) -> None:
        """Nothing is heard of what is tried."""

    def denied(self) -> list[str]:
        """Nothing: what a pod tries to reach ends at the cluster's network policy, which tells nobody."""
        return []

    async def end(self) -> int:
        """End process 1 of the task's container, and with it all others. Raises SandboxError."""
        told = await self.start(["keep", "end"], None)
        try:
            await told.send(json.dumps({}).encode() + b"\n")
            ended = await told.ended()
        finally:
            await told.close()
        if ended.exit_code != 0:
            raise SandboxError(f"sandbox {self._parts.name} cannot be told to end ({ended.exit_code})")
        if not await self.until(lambda: self.fate().state != "ready", _END_S):
            raise SandboxError(f"sandbox {self._parts.name} does not end")
        fate = self.fate()
        return 0 if fate.oom or fate.state == "lost" else fate.exit_code

    async def remove(self) -> None:
        """Delete the pod. Raises SandboxError."""
        self._parts.gateway.dismiss(self._parts.token)
        await self._parts.remove()
