"""The network in which an image is built: a namespace of the build's own, whose only way out is what may be reached.

A build runs as root on this machine, with this machine's files; what is closed is its network. Questions for names go
to the build's own name server, since the files that say otherwise (resolver, hosts, services of names) are replaced
within its mounts. Invariant: an attempt at any other place ends the build, with an error that names the place and the
key; nothing of it goes out meanwhile.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from engine.core.errors import SandboxError
from engine.core.naming import first
from engine.core.threads import in_thread, to_the_end
from engine.sandbox.egress import new_namespace
from engine.sandbox.network.phases import PhasedNetwork

T = TypeVar("T")

_PHASE = "build"
_LOOK_S = 0.2
_NAMED = 5
_FILES = {
    "resolv.conf": "nameserver 127.0.0.1\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\n",
}
_ENTER = """set -e
for file in "$1"/*; do
    [ ! -e "/etc/${file##*/}" ] || mount --bind "$file" "/etc/${file##*/}"
done
[ ! -d /run/nscd ] || mount -t tmpfs none /run/nscd
shift
exec "$@"
"""
"""A daemon that remembers names (nscd) would answer past the name server of the namespace."""


class BuildNetwork:
    """Where the commands of one build run."""

    def __init__(self, namespace: int, network: PhasedNetwork, folder: Path) -> None:
        self._namespace, self._network, self._folder = namespace, network, folder

    def command(self, command: Sequence[str]) -> list[str]:
        """What runs a command in it, while this process lives."""
        entered = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self._namespace}", "--"]
        mounts = ["unshare", "--mount", "--propagation", "private", "--"]
        return [*entered, *mounts, "/bin/sh", "-c", _ENTER, "sh", str(self._folder), *command]

    async def attend(self, work: Awaitable[T]) -> T:
        """What `work` gives, unless it tries to reach another place: it is cancelled then. Raises SandboxError."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=_LOOK_S)
                self._refuse()
            return task.result()
        finally:
            task.cancel()
            await to_the_end(_settle(task))

    def _refuse(self) -> None:
        # A name of one word is this machine's own, or a neighbour's whom a tool looks for; it has no answer here.
        tried = [place for place in self._network.denied() if "." in place or ":" in place]
        if tried:
            way_out = "add it to sandbox.network.build (HOST:PORT), or build without what asks for it"
            raise SandboxError(f"the build tried to reach {first(tried, _NAMED)}, which it may not: {way_out}")
        self._network.require()


@asynccontextmanager
async def build_network(reach: Sequence[str], folder: Path) -> AsyncIterator[BuildNetwork]:
    """A network that reaches these places; `folder`, which is made, holds what its builds are told of names."""
    try:
        namespace = await in_thread(new_namespace)
    except OSError as error:
        raise SandboxError(f"a build cannot have a network of its own here: {error.strerror}") from error
    try:
        network = await in_thread(PhasedNetwork, namespace, {_PHASE: reach}, _PHASE)
        try:
            await in_thread(_write, folder)
            await network.ready()
            yield BuildNetwork(namespace, network, folder)
        finally:
            await to_the_end(network.close())
            await in_thread(network.forget)
    finally:
        os.close(namespace)


def _write(folder: Path) -> None:
    folder.mkdir()
    hosts = f"127.0.0.1 localhost {socket.gethostname()}\n"  # one: who is taken at ::1 tries no other
    for name, text in (_FILES | {"hosts": hosts}).items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)


async def _settle(task: "asyncio.Future[T]") -> None:
    await asyncio.wait([task])
