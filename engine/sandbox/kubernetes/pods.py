"""All pods of a session, as the cluster tells of them: one list and one watch for however many sandboxes.

Invariant: what `fate` says is what the server said last; a watch that ends, breaks or is too old (410 Gone) is begun
anew from a fresh list, so that nothing that happened meanwhile is missed.
"""

import asyncio
import logging
from collections.abc import Callable

from engine.sandbox.kubernetes.api import GONE, MISSING, Api, ApiError, Json
from engine.sandbox.kubernetes.fate import tell
from engine.sandbox.remote.fate import Fate

_log = logging.getLogger(__name__)
_PAUSE_S = 1.0


class Pods:
    """Fates by name."""

    def __init__(self, api: Api, path: str, selector: str) -> None:
        """`path`: of the namespace's pods; `selector`: the session's labels."""
        self._api, self._path, self._selector = api, path, selector
        self._known: dict[str, Json | None] = {}
        """Those that are expected; empty: not seen yet; None: seen, and gone since."""
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Safe to call again."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def fate(self, name: str) -> Fate:
        """A pod that was not seen yet is starting."""
        return tell(self._known.get(name, {}))

    def gone(self, name: str) -> bool:
        """Whether a pod was seen and is there no more."""
        return self._known.get(name, {}) is None

    def expect(self, name: str) -> None:
        """Ahead of its being made, so that nothing of it is missed."""
        self._known[name] = {}

    def forget(self, name: str) -> None:
        self._known.pop(name, None)

    async def until(self, holds: Callable[[], bool], patience_s: float | None) -> bool:
        """Wait until `holds` of what is known; False when that took too long."""
        try:
            async with asyncio.timeout(patience_s), self._changed:
                await self._changed.wait_for(holds)
        except TimeoutError:
            return False
        return True

    async def _follow(self) -> None:
        while True:
            try:
                version = await self._list()
                await self._watch(version)
            except ApiError as error:
                if error.status != GONE:
                    _log.warning("%s", error)
                    await asyncio.sleep(_PAUSE_S)

    async def _list(self) -> str:
        listed = await self._api.get(self._path, labelSelector=self._selector)
        there = {each["metadata"]["name"]: each for each in listed.get("items") or ()}
        for name in [name for name, pod in self._known.items() if pod and name not in there]:
            # It may have been made after the list was: only a second look tells.
            there[name] = await self._look(name)
        for name, pod in there.items():
            await self._note(name, pod)
        return str(listed["metadata"]["resourceVersion"])

    async def _look(self, name: str) -> Json | None:
        try:
            return await self._api.get(f"{self._path}/{name}")
        except ApiError as error:
            if error.status != MISSING:
                raise
            return None

    async def _watch(self, version: str) -> None:
        """Follow until the server ends the watch, and go on from there."""
        while True:
            async for event in self._api.watch(self._path, labelSelector=self._selector, resourceVersion=version):
                metadata = event["object"]["metadata"]
                version = str(metadata["resourceVersion"])
                if event["type"] != "BOOKMARK":
                    await self._note(metadata["name"], None if event["type"] == "DELETED" else event["object"])

    async def _note(self, name: str, pod: Json | None) -> None:
        async with self._changed:
            if name in self._known:
                self._known[name] = pod
                self._changed.notify_all()
