"""Who runs which pods, so that none outlives its run: a lease for each session, and the removal of what the dead left.

Liveness is the lease, renewed while the process lives, by the server's own clock; a session whose lease is over, or
that has none, is dead, and everything with its label goes, from whatever machine it was started. Beyond that the
cluster ends a pod that is over its time where nobody ever comes to reap, and a reaper removes it though its session
lives: its owner hangs.
"""

import asyncio
import logging
import math
import os
import socket
import time
from datetime import UTC, datetime

from engine.core.errors import SandboxError
from engine.core.threads import to_the_end
from engine.sandbox.kubernetes.api import Api, Json
from engine.sandbox.kubernetes.manifests import MANAGED, PREFIX, Session, lease

_log = logging.getLogger(__name__)
LEASE_S = 60
_SLACK_S = 60
"""After a lease, or a pod's time, is over, before its session is taken for dead or hung."""
_NEWBORN_S = 300
"""A pod without a lease is let be for so long: it may be younger than the list of leases."""
_VANISH_S = 90.0


class LiveSession:
    """This process's claim to its pods."""

    def __init__(self, api: Api, namespace: str, session: Session) -> None:
        self._api, self._namespace, self._session = api, namespace, session
        self._renewing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        body = lease(
            self._namespace,
            self._session,
            holder=f"{socket.gethostname()}/{os.getpid()}",
            seconds=LEASE_S,
            renewed=_stamp(self._api.now()),
        )
        await self._api.create(_leases(self._namespace), body, ours=self._path)
        self._renewing = asyncio.create_task(self._renew())

    @property
    def _path(self) -> str:
        return f"{_leases(self._namespace)}/{self._session.name}"

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 4)
            try:
                await self._api.patch(self._path, {"spec": {"renewTime": _stamp(self._api.now())}})
            except SandboxError as error:  # whoever reaps us ends our pods: then each trial says so
                _log.warning("the session's lease is not renewed: %s", error)

    async def close(self) -> None:
        """Remove all that is left of the session. Raises SandboxError naming what stays. Safe to call again."""
        renewing, self._renewing = self._renewing, None
        if renewing is None:
            return
        try:
            left = await remove(self._api, self._namespace, self._session.name)
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        if left:
            raise SandboxError(f"pods that are not gone yet, to be removed by the next start: {', '.join(left)}")


async def reap(api: Api, namespace: str) -> tuple[list[str], list[str]]:
    """Remove what dead sessions left: names of the sandboxes that went, and what stays and why."""
    labels = ",".join(f"{key}={value}" for key, value in MANAGED.items())
    leases = await api.get(_leases(namespace), labelSelector=labels)  # before the pods: a session begins with its lease
    pods = await api.get(_pods(namespace), labelSelector=labels)
    now = api.now()
    living = {_session_of(each) for each in leases["items"] if not _expired(each, now)}
    dead = {_session_of(each) for each in leases["items"]} - living
    dead |= {_session_of(each) for each in pods["items"] if now - _made(each) > _NEWBORN_S} - living
    reaped, problems = [], []
    for session in sorted(dead):
        names = [_name(each) for each in pods["items"] if _session_of(each) == session]
        try:
            left = await to_the_end(remove(api, namespace, session))
        except SandboxError as error:
            problems.append(str(error))
            continue
        problems += [f"pod {name} is not gone yet" for name in left]
        reaped += names
    for pod in pods["items"]:
        if _session_of(pod) in living and now > _expires(pod) + _SLACK_S:
            try:
                await api.delete(f"{_pods(namespace)}/{pod['metadata']['name']}")
            except SandboxError as error:
                problems.append(str(error))
                continue
            reaped.append(f"{_name(pod)} (over its time, and its owner, who lives, did not end it)")
    return reaped, problems


async def remove(api: Api, namespace: str, session: str) -> list[str]:
    """Remove a session's objects, the lease last: what is cut short is found again. Returns pods that stay."""
    selector = f"{PREFIX}/session={session}"
    await api.delete(_pods(namespace), labelSelector=selector)
    deadline = time.monotonic() + _VANISH_S
    while left := (await api.get(_pods(namespace), labelSelector=selector))["items"]:
        if time.monotonic() > deadline:
            return [each["metadata"]["name"] for each in left]
        await asyncio.sleep(0.2)
    # Not before: pods without a policy would have the network that the cluster gives everybody.
    await api.delete(f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies", labelSelector=selector)
    await api.delete(f"/api/v1/namespaces/{namespace}/configmaps", labelSelector=selector)
    await api.delete(f"{_leases(namespace)}/{session}")
    return []


def _leases(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


def _pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def _session_of(item: Json) -> str:
    return str(item["metadata"]["labels"].get(f"{PREFIX}/session", ""))


def _name(pod: Json) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(f"{PREFIX}/sandbox", pod["metadata"]["name"]))


def _expired(item: Json, now: float) -> bool:
    spec = item["spec"]
    return now > _time(spec.get("renewTime")) + int(spec.get("leaseDurationSeconds") or 0) + _SLACK_S


def _expires(pod: Json) -> float:
    """Unix time at which its time is over; one that does not say lives as long as its session."""
    said = str((pod["metadata"].get("annotations") or {}).get(f"{PREFIX}/expires", ""))
    return float(said) if said.isdecimal() else math.inf


def _made(item: Json) -> float:
    return _time(item["metadata"].get("creationTimestamp"))


def _time(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def _stamp(seconds: float) -> str:
    """RFC 3339 with microseconds, as leases have it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
