"""A small Kubernetes API over real HTTP and websockets: objects, selectors, watches, exec, and faults on demand.

What executes is a node's to say (`cluster_node`, or a scripted one); without one, pods stay as a test sets them.
"""

import asyncio
import contextlib
import itertools
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

Json = dict[str, Any]
Handler = Callable[[WebSocket, list[str]], Awaitable[None]]


class Node(Protocol):
    async def run(self, pod: Json) -> None: ...
    async def end(self, pod: Json) -> None: ...
    async def execute(self, pod: Json, container: str, command: list[str], given: WebSocket) -> None: ...


class Cluster:
    """State and faults; `url` is its address."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Json]] = {}
        self.calls: list[str] = []
        self.tokens: set[str] = set()
        """Those that are taken; empty: all."""
        self.faults: list[tuple[str, Callable[[], Response]]] = []
        """The first whose pattern matches `METHOD path` answers, once."""
        self.execute: Handler | None = None
        self.node: Node | None = None
        self.drops: tuple[str, ...] = ()
        """Fields that this server does not know: `image`, `hostUsers`."""
        self.version = {"major": "1", "minor": "37", "gitVersion": "v1.37.0"}
        self.ahead_s = 0.0
        """Of this server's clock."""
        self.port = 0
        self._versions = itertools.count(100)
        self._watches: dict[asyncio.Queue[Json | None], tuple[str, Callable[[Json], bool]]] = {}
        self._log: list[tuple[int, str, Json]] = []
        self.compacted = 0
        """Versions up to this one are gone."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["Cluster"]:
        listener = socket.create_server(("0.0.0.0", 0))
        self.port = listener.getsockname()[1]
        routes = [
            Route("/version", self._version),
            WebSocketRoute("/api/v1/namespaces/{namespace}/pods/{name}/exec", self._exec),
            *(Route(f"{base}/{{kind}}", self._collection, methods=["GET", "POST", "DELETE"]) for base in _BASES),
            *(Route(f"{base}/{{kind}}/{{name}}", self._one, methods=["GET", "PATCH", "DELETE"]) for base in _BASES),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes), lifespan="off", log_level="error", ws="websockets-sansio", date_header=False
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield self
        finally:
            for pod in list(self.objects.get("pods", {}).values()):
                if self.node is not None:
                    await self.node.end(pod)
            self.end_watches()
            for running in self._tasks:
                running.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            server.should_exit = True
            server.force_exit = True
            await task
            listener.close()

    # ------------------------------------------------------------ state

    def names(self, kind: str) -> list[str]:
        return sorted(self.objects.get(kind, {}))

    def put(self, kind: str, item: Json, event: str = "MODIFIED") -> Json:
        item["metadata"]["resourceVersion"] = str(next(self._versions))
        if event == "DELETED":
            self.objects[kind].pop(item["metadata"]["name"], None)
        else:
            self.objects.setdefault(kind, {})[item["metadata"]["name"]] = item
        told = json.loads(json.dumps(item))
        self._log.append((int(item["metadata"]["resourceVersion"]), kind, {"type": event, "object": told}))
        for queue, (wanted, chooses) in self._watches.items():
            if wanted == kind and chooses(item):
                queue.put_nowait({"type": event, "object": told})
        return item

    def status(self, name: str, **status: Any) -> None:
        """Change a pod's status, as a kubelet does."""
        pod = self.objects["pods"].get(name)
        if pod is not None:
            pod["status"] = {**pod.get("status", {}), **status}
            self.put("pods", pod)

    def end_watches(self) -> None:
        for queue in self._watches:
            queue.put_nowait(None)

    def compact(self) -> None:
        """Whoever watches from an older version than now is told 410."""
        self.compacted = next(self._versions)
        self.end_watches()

    def fail(self, pattern: str, status: int, message: str = "no", **headers: str) -> None:
        """Answer the next call that matches so."""
        body = {"kind": "Status", "status": "Failure", "message": message, "code": status}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.faults.append((pattern, lambda: JSONResponse(body, status, headers=named)))

    def spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------ HTTP

    def _fault(self, request: Any, method: str) -> Response | None:
        call = f"{method} {request.url.path}"
        self.calls.append(call)
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.tokens and token not in self.tokens:
            return _refusal(401, "Unauthorized")
        for fault in self.faults:
            if re.search(fault[0], call):
                self.faults.remove(fault)
                return fault[1]()
        return None

    async def _version(self, request: Request) -> Response:
        return self._fault(request, "GET") or self._answer(self.version)

    def _answer(self, body: Json, status: int = 200) -> Response:
        date = formatdate(datetime.now(UTC).timestamp() + self.ahead_s, usegmt=True)
        return JSONResponse(body, status, headers={"date": date})

    async def _collection(self, request: Request) -> Response:
        kind = request.path_params["kind"]
        fault = self._fault(request, request.method)
        if fault is not None:
            return fault
        chooses = _selector(request)
        if request.method == "POST":
            return await self._create(kind, await request.json(), "dryRun" in request.query_params)
        chosen = [item for item in list(self.objects.get(kind, {}).values()) if chooses(item)]
        if request.method == "DELETE":
            for item in chosen:
                self._delete(kind, item)
            return self._answer({"kind": "Status", "status": "Success"})
        if request.query_params.get("watch"):
            return self._watch(kind, chooses, int(request.query_params["resourceVersion"]))
        return self._answer({"metadata": {"resourceVersion": str(next(self._versions))}, "items": chosen})

    async def _create(self, kind: str, item: Json, dry: bool) -> Response:
        name = item["metadata"]["name"]
        if name in self.objects.get(kind, {}):
            return _refusal(409, f'{kind} "{name}" already exists')
        item["metadata"]["creationTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if "image" in self.drops:
            for volume in item["spec"].get("volumes", ()):
                volume.pop("image", None)
        if "hostUsers" in self.drops:
            item["spec"].pop("hostUsers", None)
        if not dry:
            self.put(kind, item, "ADDED")
            if kind == "pods" and self.node is not None:
                self.spawn(self.node.run(item))
        return self._answer(item, 201)

    async def _one(self, request: Request) -> Response:
        kind, name = request.path_params["kind"], request.path_params["name"]
        fault = self._fault(request, request.method)
        if fault is not None:
            return fault
        item = self.objects.get(kind, {}).get(name)
        if item is None:
            return _refusal(404, f'{kind} "{name}" not found')
        if request.method == "PATCH":
            for key, value in (await request.json()).items():
                item[key] = {**item.get(key, {}), **value}
            self.put(kind, item)
        if request.method == "DELETE":
            self._delete(kind, item)
        return self._answer(item)

    def _delete(self, kind: str, item: Json) -> None:
        if kind != "pods" or self.node is None:
            self.put(kind, item, "DELETED")
            return
        if "deletionTimestamp" not in item["metadata"]:
            item["metadata"]["deletionTimestamp"] = datetime.now(UTC).isoformat()
            self.put(kind, item)
            self.spawn(self._end(item))

    async def _end(self, pod: Json) -> None:
        assert self.node is not None
        await self.node.end(pod)
        self.put("pods", pod, "DELETED")

    def _watch(self, kind: str, chooses: Callable[[Json], bool], since: int) -> Response:
        if since < self.compacted:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            return StreamingResponse(iter([json.dumps({"type": "ERROR", "object": gone}) + "\n"]))
        queue: asyncio.Queue[Json | None] = asyncio.Queue()
        for version, of, event in self._log:
            if version > since and of == kind and chooses(event["object"]):
                queue.put_nowait(event)
        self._watches[queue] = (kind, chooses)

        async def lines() -> AsyncIterator[str]:
            try:
                bookmark = {"metadata": {"resourceVersion": str(max(since, self.compacted))}}
                yield json.dumps({"type": "BOOKMARK", "object": bookmark}) + "\n"
                while (event := await queue.get()) is not None:
                    yield json.dumps(event) + "\n"
            finally:
                self._watches.pop(queue, None)

        return StreamingResponse(lines())

    # ------------------------------------------------------------ exec

    async def _exec(self, given: WebSocket) -> None:
        fault = self._fault(given, "EXEC")
        if fault is not None:
            await given.send_denial_response(fault)
            return
        pod = self.objects.get("pods", {}).get(given.path_params["name"])
        if pod is None:
            await given.send_denial_response(_refusal(404, "pod not found"))
            return
        await given.accept(subprotocol=given.scope["subprotocols"][0])
        command = given.query_params.getlist("command")
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            if self.execute is not None:
                await self.execute(given, command)
            elif self.node is not None:
                await self.node.execute(pod, given.query_params["container"], command, given)


_BASES = (
    "/api/v1/namespaces/{namespace}",
    "/apis/coordination.k8s.io/v1/namespaces/{namespace}",
    "/apis/networking.k8s.io/v1/namespaces/{namespace}",
)


def exit_status(code: int) -> Json:
    if code == 0:
        return {"status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return {"status": "Failure", "reason": "NonZeroExitCode", "message": "failed", "details": {"causes": causes}}


def _refusal(status: int, message: str) -> Response:
    return JSONResponse({"kind": "Status", "status": "Failure", "message": message, "code": status}, status)


def _selector(request: Request) -> Callable[[Json], bool]:
    labels = [pair.split("=", 1) for pair in request.query_params.get("labelSelector", "").split(",") if pair]
    fields = dict(pair.split("=", 1) for pair in request.query_params.get("fieldSelector", "").split(",") if pair)

    def chooses(item: Json) -> bool:
        has = item["metadata"].get("labels", {})
        involved = item.get("involvedObject", {}).get("name")
        return all(has.get(key) == value for key, value in labels) and (
            "involvedObject.name" not in fields or fields["involvedObject.name"] == involved
        )

    return chooses
