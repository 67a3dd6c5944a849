"""A network namespace that reaches in each phase what that phase's list allows, and tells what was tried beyond it.

A phase with an empty list has no process that could let anything out: it is as if this module were not there. One with
a list gets a process of its own (see sidecar) when a command is first about to run in it, and its end is the phase's:
so no connection, and nothing that was on its way, crosses from one phase to the next, whatever both allow.

Invariant: where that process is missing, dead or silent, nothing goes out, and the sandbox says so (`SandboxError`).
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from engine.core.errors import SandboxError
from engine.core.reach import SYNTHETIC, Reach, is_address
from engine.sandbox.egress import Egress
from engine.sandbox.network.way_out import WayOut

_UDP = "/udp"
_BACKWARDS = tuple(f".{network.network_address.packed[1]}.198.in-addr.arpa" for network in SYNTHETIC.subnets())


class PhasedNetwork:
    """The network of one sandbox, or of one build."""

    def __init__(
        self,
        namespace: int,
        lists: Mapping[str, Sequence[str]],
        phase: str | None,
        hosts: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`namespace`: a descriptor, which the caller keeps open. `lists`: phase → what it reaches; a phase that has
        none, or None, reaches nothing. `hosts`: names that are not looked up. Raises OSError."""
        self._egress: Egress | None = Egress(namespace)
        self._namespace, self._lists, self._hosts = namespace, lists, hosts or {}
        self._phase = phase
        self._way_out: WayOut | None = None
        self._lost = ""
        self._one = asyncio.Lock()
        self._names: dict[str, str] = {}
        self._denied: dict[str, None] = {}
        self._reached: list[str] = []

    @property
    def way_out(self) -> WayOut | None:
        """The process of this phase; None: nothing goes out."""
        return self._way_out

    async def ready(self) -> None:
        """Before a command runs: have this phase's process. Raises SandboxError."""
        async with self._one:
            self.require()
            reach = self._reach()
            if reach and self._way_out is None:
                self._way_out = await WayOut.open(self._namespace, reach, self._names, self._hosts)

    def require(self) -> None:
        """Raises SandboxError when what the phase reaches had a way out, and has it no more."""
        if self._way_out is not None and not self._way_out.alive:
            self._lost = "the process through which it reached the network has ended"
        if self._lost:
            raise SandboxError(self._lost)

    def lists(self, port: int) -> bool:
        """Whether some phase takes connections at it, beside who listens there himself."""
        return any(port in Reach(entries).ports for entries in self._lists.values())

    async def enter(self, phase: str | None) -> None:
        """Cut everything, then be in another phase. Raises SandboxError when the last one had lost its way out."""
        async with self._one:
            self._phase = None
            await self._cut()
            self._phase = phase

    async def close(self) -> None:
        """Cut everything for good; safe to call twice."""
        with contextlib.suppress(SandboxError):
            await self.enter(None)

    def forget(self) -> None:
        """Let go of what hears, in a network that is closed; may take a moment, and be called by any thread."""
        egress, self._egress = self._egress, None
        if egress is not None:
            egress.close()

    def denied(self) -> list[str]:
        """What was tried in vain since the last call, each once: names, `192.0.2.1:443`, and `name:port at address`
        where a name stood for an address that it may not stand for."""
        self._hear()
        found, self._denied = list(self._denied), {}
        return found

    def reached(self) -> list[str]:
        """What was reached since the last call, as text: of phases that are over."""
        found, self._reached = self._reached, []
        return found

    def _reach(self) -> Sequence[str]:
        return self._lists.get(self._phase, ()) if self._phase is not None else ()

    async def _cut(self) -> None:
        way_out = self._way_out
        if way_out is None:
            return
        try:
            await way_out.end()
        except SandboxError as error:
            self._lost = str(error)
            raise
        finally:
            self._hear()  # by the ports of the phase that ends
            self._way_out = None
            self._names |= way_out.names
            self._reached += [_told(place, *counts) for place, counts in way_out.reached.items()]

    def _hear(self) -> None:
        attempts = self._egress.attempts() if self._egress is not None else ()
        if self._way_out is None:
            self._denied |= dict.fromkeys(self._by_name(one) for one in attempts)
            return
        told = self._way_out.take_denied()
        self._names |= self._way_out.names
        reach = Reach(self._way_out.reach)
        own = [one for one in attempts if not _is_taken(one, reach)]
        self._denied |= dict.fromkeys(self._by_name(one) for one in (*own, *told))

    def _by_name(self, attempt: str) -> str:
        """An attempt at the address that a name has inside, in the name's own words."""
        host, colon, port = attempt.rpartition(":")
        names = {address: name for name, address in self._names.items()} if colon else {}
        return f"{names[host]}:{port}" if host in names else attempt


def _is_taken(attempt: str, reach: Reach) -> bool:
    """Whether the process of the phase has this attempt, and tells itself if it denied it."""
    host, colon, port = attempt.rpartition(":")
    if not colon or not is_address(host):
        return reach.knows(attempt) or attempt.endswith(_BACKWARDS)
    return not port.endswith(_UDP) and int(port) in (*reach.ports, 53)


def _told(place: str, connections: int, sent: int, received: int) -> str:
    return f"{place} ({connections} connections, {sent} bytes sent, {received} received)"
