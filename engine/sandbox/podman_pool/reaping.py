"""What dead sessions left on a host, and how much it carries: told by labels and by whether a relay runs.

A sandbox's relay runs while its engine speaks to it, and no longer (see inpod/relay). So a sandbox whose relay runs is
somebody's, whoever asks; one whose relay does not is nobody's any more, but for the moment in which it is made.
"""

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from engine.core.errors import SandboxError
from engine.core.threads import to_the_end
from engine.sandbox.podman_pool.api import MISSING, Api, ApiError
from engine.sandbox.podman_pool.containers import PART, SANDBOX, SESSION

_NEWBORN_S = 300.0
"""A sandbox without a running relay is let be for so long after it was made, where it has never run."""


async def carried(api: Api, session: str, patience_s: float) -> int:
    """How many sandboxes of others run on a host. Raises SandboxError."""
    listed = await _list(api, {"label": [f"{PART}=relay"], "status": ["running"]}, patience_s)
    return sum((each.get("Labels") or {}).get(SESSION) != session for each in listed)


async def reap(api: Api) -> tuple[list[str], list[str]]:
    """Remove what nobody holds any more: names of the sandboxes that went, and what stays and why."""
    try:
        places: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for each in await _list(api, {"label": [PART]}):
            places[each["Names"][0].removesuffix("-relay")].append(each)
    except SandboxError as error:
        return [], [str(error)]
    reaped, problems = [], []
    for name, containers in sorted(places.items()):
        if _held(containers, api.now()):
            continue
        try:
            await to_the_end(remove(api, name))
        except SandboxError as error:
            problems.append(str(error))
        else:
            reaped.append(str((containers[0].get("Labels") or {}).get(SANDBOX, name)))
    return reaped, problems


async def remove(api: Api, name: str) -> None:
    """Remove a sandbox's containers and wait until they are gone; none is fine. Raises SandboxError."""
    for container in (name, f"{name}-relay"):
        with contextlib.suppress(_Gone):
            await _remove(api, container)


async def of_session(api: Api, session: str) -> list[str]:
    """Names of the sandboxes of a session that a host has. Raises SandboxError."""
    listed = await _list(api, {"label": [f"{SESSION}={session}"]})
    return sorted({each["Names"][0].removesuffix("-relay") for each in listed})


class _Gone(Exception):
    """It is not there."""


async def _remove(api: Api, container: str) -> None:
    query = {"force": "true", "timeout": "0", "v": "true"}
    for tries_left in reversed(range(3)):
        try:
            await api.call("DELETE", f"/containers/{container}", query=query)
            return
        except ApiError as error:
            if error.status == MISSING:
                raise _Gone from error
            if not tries_left:  # podman may have been cleaning up after it at the same moment
                raise


async def _list(api: Api, filters: Mapping[str, Any], patience_s: float = 60.0) -> list[Mapping[str, Any]]:
    query = {"all": "true", "filters": json.dumps(filters)}
    return await api.call("GET", "/containers/json", query=query, patience_s=patience_s) or []


def _held(containers: Iterable[Mapping[str, Any]], now: float) -> bool:
    relays = [each for each in containers if (each.get("Labels") or {}).get(PART) == "relay"]
    if any(each["State"] == "running" for each in relays):
        return True
    unborn = [each for each in containers if each["State"] in ("created", "configured", "initialized")]
    return any(now - datetime.fromisoformat(each["Created"]).timestamp() < _NEWBORN_S for each in unborn)
