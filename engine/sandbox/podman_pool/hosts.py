"""One host of the pool: its API, its images, what it carries, and whether it answers.

A host that does not answer is set aside and told of once; it is asked again every while, and gets sandboxes again when
it answers. What was on it is lost when its streams break, or when it has not answered for `lost_after_s`: a busy host
is no dead one. Refuses (SandboxError) hosts that answer and cannot do: rootless podman, another kind of machine.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.core.errors import SandboxError
from engine.sandbox.oci_layout import ARCHITECTURES
from engine.sandbox.podman_pool.addresses import Address
from engine.sandbox.podman_pool.api import Api, Unreachable
from engine.sandbox.podman_pool.images import HostImages
from engine.sandbox.podman_pool.placement import Seats
from engine.sandbox.podman_pool.reaping import carried, reap
from engine.sandbox.podman_pool.way import Way

_log = logging.getLogger(__name__)
_PROBE_PATIENCE_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Watch:
    """How hosts are watched."""

    probe_s: float
    lost_after_s: float
    machine: str
    owner: str
    session: str


class Host:
    """What lives between start and stop, for one host."""

    def __init__(self, name: str, address: Address, capacity: int | None, watch: Watch, folder: Path) -> None:
        self.name = name
        self.api = Api(name, address, folder)
        self.images = HostImages(name, self.api)
        self.seats = Seats(capacity=capacity)
        self.ways: set[Way] = set()
        self._watch = watch
        self._silent_since = 0.0
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Ask what it is. A host that does not answer is set aside. Raises SandboxError for one that cannot do."""
        try:
            told = await self.api.call("GET", "/info", patience_s=_PROBE_PATIENCE_S * 2)
        except Unreachable as error:
            self.set_aside(str(error))
            return
        machine = ARCHITECTURES.get(self._watch.machine, self._watch.machine)
        if told["host"]["arch"] != machine:
            raise SandboxError(f"host {self.name} is {told['host']['arch']}; images are built for {machine}")
        if told["host"]["security"]["rootless"]:
            raise SandboxError(f"podman on {self.name} runs without root: name the socket of root's service")
        self.seats.processors = int(told["host"]["cpus"])
        await self._look()

    def watch(self, on_change: Callable[[], None]) -> None:
        """Begin to ask it every while; `on_change` is called after each answer."""
        self._watching = asyncio.create_task(self._follow(on_change))

    def set_aside(self, reason: str) -> None:
        """Put nothing on it until it answers; told once."""
        if not self.seats.away:
            _log.warning("host %s is set aside: %s", self.name, reason)
            self._silent_since = asyncio.get_running_loop().time()
        self.seats.away = reason

    async def close(self) -> None:
        """Safe to call again."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        await self.images.close()
        await self.api.close()

    async def _follow(self, on_change: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(self._watch.probe_s)
            was_away = bool(self.seats.away)
            try:
                if was_away:
                    await self.open()
                else:
                    await self._look()
            except SandboxError as error:  # it does not answer, or not as it should
                self.set_aside(str(error))
            if self.seats.away and asyncio.get_running_loop().time() - self._silent_since > self._watch.lost_after_s:
                for way in tuple(self.ways):
                    way.lose(f"its host {self.name} has not answered for {self._watch.lost_after_s:g} s")
            on_change()

    async def _look(self) -> None:
        """How much others have on it. Raises SandboxError."""
        self.seats.elsewhere = await carried(self.api, self._watch.session, _PROBE_PATIENCE_S)
        if self.seats.away:
            self.seats.away = ""
            self.images.forget()
            _log.warning("host %s answers again", self.name)
            _, problems = await reap(self.api)
            for problem in problems:
                _log.warning("host %s: %s", self.name, problem)
