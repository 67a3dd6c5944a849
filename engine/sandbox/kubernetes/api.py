"""The cluster's API over HTTP: objects and watches, with what a busy or restarting server asks of its clients.

Invariants: what failed for a reason that passes (429 with its Retry-After, 5xx, a broken connection) is tried again for
a bounded time; a create that is tried again and finds the object there takes it for its own only if the caller says so;
the clock by which leases are judged is the server's. Raises ApiError, a SandboxError that knows its status.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from engine.core.errors import SandboxError
from engine.sandbox.kubernetes.access import Access

Json = dict[str, Any]
_PATIENCE_S = 60.0
"""How long a call is tried again."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 10.0
_CALL_S = 30.0
_WATCH_S = 300
"""After which the server ends a watch, and it is begun anew."""
_AGAIN = frozenset({429, 500, 502, 503, 504})
GONE, CONFLICT, MISSING = 410, 409, 404


class ApiError(SandboxError):
    """The API said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """One cluster."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.context = access.context()
        self._ahead_s = 0.0
        extensions = {"sni_hostname": access.server_name} if access.server_name else {}
        self._extensions = extensions
        self._client = httpx.AsyncClient(
            base_url=access.server,
            verify=self.context if self.context is not None else True,
            proxy=access.proxy,
            timeout=_CALL_S,
            limits=httpx.Limits(max_connections=100, max_keepalive_connections=20),
        )

    async def close(self) -> None:
        await self._client.aclose()

    def now(self) -> float:
        """Unix time by the server's clock."""
        return time.time() + self._ahead_s

    async def get(self, path: str, **parameters: str) -> Json:
        return await self._call("GET", path, parameters)

    async def create(self, path: str, body: Json, *, ours: str = "", **parameters: str) -> Json:
        """POST. `ours`: path of the object, where an existing one is ours: of an earlier try whose answer was lost, or
        one that has this very content."""
        try:
            return await self._call("POST", path, parameters, body)
        except ApiError as error:
            if error.status != CONFLICT or not ours:
                raise
        return await self.get(ours)

    async def patch(self, path: str, body: Json) -> Json:
        """A merge patch."""
        return await self._call("PATCH", path, {}, body, kind="application/merge-patch+json")

    async def delete(self, path: str, *, grace_s: int | None = None, **parameters: str) -> None:
        """What is not there is fine."""
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self._call("DELETE", path, parameters, body)
        except ApiError as error:
            if error.status != MISSING:
                raise

    async def watch(self, path: str, **parameters: str) -> AsyncIterator[Json]:
        """Events (`type`, `object`) until the server ends the watch. Raises ApiError: with status 410, list again."""
        wanted = {**parameters, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCH_S)}
        request = await self._request("GET", path, wanted, None, "")
        request.extensions["timeout"] = httpx.Timeout(_CALL_S, read=_WATCH_S + _CALL_S).as_dict()
        try:
            answer = await self._client.send(request, stream=True)
            try:
                if answer.status_code != httpx.codes.OK:
                    await answer.aread()
                    self._may_try_another_token(answer.status_code)
                    raise _error(answer)
                async for line in answer.aiter_lines():
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise ApiError(int(event["object"].get("code", 0)), _message(event["object"]))
                    yield event
            finally:
                await answer.aclose()
        except (httpx.HTTPError, ValueError) as error:
            raise ApiError(0, f"the watch of {path} broke off: {type(error).__name__}") from error

    # ------------------------------------------------------------ one call

    async def _call(
        self, method: str, path: str, parameters: Mapping[str, str], body: Json | None = None, kind: str = ""
    ) -> Json:
        deadline, pause, refused = time.monotonic() + _PATIENCE_S, _PAUSE_S, False
        while True:
            request = await self._request(method, path, parameters, body, kind)
            try:
                answer = await self._client.send(request)
                await answer.aread()
                self._ahead_s = _clock(answer) - time.time() if "date" in answer.headers else self._ahead_s
                if answer.is_success:
                    found: Json = answer.json()
                    return found
                error = _error(answer)
                if not refused and self._may_try_another_token(answer.status_code):
                    refused = True
                    continue
                if answer.status_code not in _AGAIN:
                    raise error
                asked = answer.headers.get("retry-after", "")
                wait = float(asked) if asked.isdigit() else pause
            except (httpx.HTTPError, ValueError) as broken:
                reason = " ".join(str(broken).split()) or type(broken).__name__
                error, wait = ApiError(0, f"the cluster's API {self.access.server} does not answer: {reason}"), pause
            if time.monotonic() + wait > deadline:
                raise error
            await asyncio.sleep(wait)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    async def _request(
        self, method: str, path: str, parameters: Mapping[str, str], body: Json | None, kind: str
    ) -> httpx.Request:
        content = None if body is None else json.dumps(body).encode()
        headers = await self.access.headers()
        if content is not None:
            headers["Content-Type"] = kind or "application/json"
        return self._client.build_request(
            method, path, params=dict(parameters), content=content, headers=headers, extensions=dict(self._extensions)
        )

    def _may_try_another_token(self, status: int) -> bool:
        return status == httpx.codes.UNAUTHORIZED and self.access.refuse()


def _clock(answer: httpx.Response) -> float:
    try:
        return parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (TypeError, ValueError):
        return time.time()


def _error(answer: httpx.Response) -> ApiError:
    try:
        said = _message(answer.json())
    except ValueError:
        said = " ".join(answer.text.split())[:300]
    what = f"{answer.request.method} {answer.request.url.path}"
    return ApiError(answer.status_code, f"the cluster's API refuses {what} ({answer.status_code}): {said}")


def _message(status: Any) -> str:
    return " ".join(str(status.get("message") or status.get("reason") or status).split())[:500]
