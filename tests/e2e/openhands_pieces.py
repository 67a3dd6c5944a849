"""Pieces of the OpenHands trials: a scripted chat-completions server, and the real SDK in a real sandbox."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from engine.core.records import Endpoint, ExecResult, ImageSpec, SandboxSpec, Task
from engine.harness.condensers import CondenserOff
from engine.harness.openhands import OpenHands
from engine.sandbox.bubblewrap import BubblewrapRuntime
from engine.sandbox.images import DebianImageStore
from engine.sandbox.inside import ContainedSandbox

ROOT = Path(__file__).parents[2]
PORT = 8080
KEY = "sk-of-this-trial"
BUGGY = "def add(a, b):\n    return a - b\n"
CHECK = "from calc import add\n\nassert add(2, 2) == 4\nprint('the check passes')\n"


def options(path: str) -> dict[str, Any]:
    """A group file's own keys."""
    loaded = yaml.safe_load((ROOT / "configs" / path).read_text())
    return {key: value for key, value in loaded.items() if key != "_target_"}


def make_harness(**changes: object) -> OpenHands:
    """The harness as configured, quick to give up."""
    quick = {"max_turns": 6, "condenser": CondenserOff(), "attempts": 2, "retry_min_wait_s": 0, "retry_max_wait_s": 1}
    return OpenHands(**{**options("harness/openhands.yaml"), **quick, **changes})


def make_runtime() -> BubblewrapRuntime:
    return BubblewrapRuntime(**options("sandbox/bubblewrap.yaml"))


def task_image() -> ImageSpec:
    image = options("tasks/release_pairs.yaml")["image"]
    return ImageSpec(
        name=image["name"], suite=image["suite"], packages=tuple(image["packages"]), pip=tuple(image["pip"])
    )


def make_task(folder: Path) -> Task:
    """A repository of two files with one bug."""
    repository = folder / "repository"
    repository.mkdir()
    (repository / "calc.py").write_text(BUGGY)
    (repository / "check.py").write_text(CHECK)
    return Task(
        id="calc",
        directory=folder,
        instruction="add() in calc.py is wrong; `python3 check.py` must pass.",
        split="train",
        fingerprint="0" * 64,
        image=task_image(),
        workdir="/testbed",
        repository=repository,
        tests=folder,
        test_paths=(),
        python_path=(".",),
        fail_to_pass=("check.py::check",),
        pass_to_pass=(),
        reference=None,
        agent_timeout_s=120,
        grade_timeout_s=60,
        memory_mb=1024,
        cpus=1,
    )


# ---------------------------------------------------------------- what the scripted policy says


def say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(name: str, arguments: Mapping[str, Any] | str, number: int) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function = {"name": name, "arguments": text}
    tool_call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [tool_call]}


def shell(command: str, number: int) -> dict[str, Any]:
    return call("terminal", {"command": command}, number)


@dataclass(frozen=True)
class Refusal:
    """An error that the server answers with."""

    status: int
    code: str
    message: str


HANG = object()
"""The server takes the request and never answers."""


@dataclass
class ChatServer:
    """Plays a script over HTTP/1.1 on a given listening socket; the last entry is repeated.

    Entries are assistant messages, refusals, HANG, or functions from a request's body to one of these.
    """

    script: Sequence[Any]
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def on(self, listener: socket.socket) -> AsyncIterator["ChatServer"]:
        tasks: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                while await self._answer_one(reader, writer):
                    pass
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(connected, sock=listener)
        try:
            yield self
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.paths.add(first.split()[1])
        self.keys.add(headers.get("authorization", ""))
        step = self.script[min(len(self.requests), len(self.script) - 1)]
        self.requests.append(json.loads(body))
        if callable(step):
            step = step(self.requests[-1])
        if step is HANG:
            await asyncio.Event().wait()
        status, answer = self._answer(step)
        payload = json.dumps(answer).encode()
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n".encode()
            + payload
        )
        await writer.drain()
        return True

    def _answer(self, step: Any) -> tuple[int, dict[str, Any]]:
        if isinstance(step, Refusal):
            kind = "server_error" if step.status >= 500 else "invalid_request_error"
            return step.status, {"error": {"message": step.message, "type": kind, "code": step.code, "param": None}}
        choice = {"index": 0, "message": step, "finish_reason": "tool_calls" if "tool_calls" in step else "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        name = f"chatcmpl-{len(self.requests)}"
        return 200, {
            "id": name,
            "object": "chat.completion",
            "created": 1,
            "model": "policy",
            "choices": [choice],
            "usage": usage,
        }

    def tool_outputs(self) -> list[str]:
        """Text of the tool messages in the last request."""
        messages = self.requests[-1]["messages"]
        return [
            "".join(part["text"] for part in message["content"]) for message in messages if message["role"] == "tool"
        ]


# ---------------------------------------------------------------- one trial


@dataclass(frozen=True)
class Ended:
    """What one trial left behind."""

    result: ExecResult
    report: bytes | None
    server: ChatServer
    tree: Path


@contextlib.asynccontextmanager
async def sandbox_of(task: Task, harness: OpenHands, folder: Path) -> AsyncIterator[ContainedSandbox]:
    """A started sandbox with the repository and the harness's runtime in it."""
    images, runtime = DebianImageStore(), make_runtime()
    await runtime.start(images, f"test-{folder.name}")
    try:
        sandbox = await runtime.create(
            SandboxSpec(
                name="trial",
                image=task.image,
                mounts=(harness.mount(images),),
                workdir=task.workdir,
                environment={},
                memory_mb=task.memory_mb,
                cpus=2,
                pids=256,
                disk_mb=256,
            )
        )
        await sandbox.upload(task.repository, task.workdir)
        yield sandbox
    finally:
        await runtime.stop()


async def run_trial(
    script: Sequence[Any] | ChatServer, folder: Path, *, timeout_s: float = 300.0, **changes: object
) -> Ended:
    """The real SDK in a real sandbox against a scripted server on the sandbox's own loopback."""
    chat = script if isinstance(script, ChatServer) else ChatServer(script)
    task, harness = make_task(folder), make_harness(**changes)
    endpoint = Endpoint(base_url=f"http://127.0.0.1:{PORT}/t/trial", api_key=KEY, model="policy")
    async with (
        sandbox_of(task, harness, folder) as sandbox,
        chat.on(await sandbox.listen(PORT)) as server,
    ):
        launch = harness.launch(task, endpoint)
        await sandbox.write(launch.files)
        result = await sandbox.exec(
            launch.command, environment=launch.environment, cwd=launch.cwd, timeout_s=timeout_s, stdin=b""
        )
        report = await sandbox.read(harness.report_path, 1 << 20)
        await sandbox.kill()
        await sandbox.download(task.workdir, folder / "tree")
    return Ended(result=result, report=report, server=server, tree=folder / "tree")
