"""The Protocols by which stages meet. A stage imports these, never a sibling stage.

A component's constructor takes its configuration alone (keyword-only, no defaults) and does nothing. `start` does the
heavy work and takes the collaborators it needs; `stop` is idempotent and safe to call at any time.
"""

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from engine.core.errors import ConfigError
from engine.core.records import (
    Exchange,
    Generation,
    Segment,
    Task,
    Termination,
    Trial,
)
from engine.core.specs import (
    Capabilities,
    Endpoint,
    ExecResult,
    ImageSpec,
    Launch,
    ModelInfo,
    Mount,
    Phase,
    SandboxSpec,
    WarmStart,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Say = Callable[[str], None]
"""Takes one line of progress for a person."""
Talk = Callable[[int], Awaitable[None]]
"""Carries what is typed and shown between a person and an open terminal (its master's file descriptor), until nothing
holds the other end any more, or until it is cancelled."""


@runtime_checkable
class Preparable(Protocol):
    """A component that needs something built once on this machine (image, runtime, tasks, weights)."""

    def problems(self) -> Sequence[ConfigError]:
        """What is missing or wrong on this machine, in under a second and without heavy imports; empty when ready."""
        ...

    async def prepare(self, say: Say) -> None:
        """Build what is missing; does nothing when all is there; an interrupted build leaves nothing half-made."""
        ...


class ImageStore(Protocol):
    """Content-addressed images and runtimes in the user's cache."""

    def path(self, spec: ImageSpec) -> Path:
        """Where the built image is or would be; `(path / ".complete")` exists once it is whole."""
        ...

    async def build(self, spec: ImageSpec, say: Say) -> Path:
        """Build unless present; returns `path(spec)`."""
        ...


class Sandbox(Protocol):
    """One started sandbox: a file system, processes, no network but loopback."""

    async def exec(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: str,
        timeout_s: float,
        stdin: bytes,
        warm: WarmStart | None = None,
    ) -> ExecResult:
        """Run a command to its end. A non-zero exit is a result; only a broken sandbox raises SandboxError.

        With `warm`, nothing is executed: a process forked from the warm one, which is started when first needed,
        runs its program with `command` as `sys.argv`; all else is the same. HarnessError: it cannot be started."""
        ...

    async def attach(self, command: Sequence[str], *, environment: Mapping[str, str], cwd: str, talk: Talk) -> int:
        """Run a command as `exec` does, on a terminal of the sandbox's own and for as long as it takes; returns its
        exit code. When `talk` ends first, the person is gone and the command is killed (-1)."""
        ...

    async def write(self, files: Mapping[str, bytes]) -> None:
        """Write files (absolute sandbox path → contents), making parent folders; owned by the sandbox's user."""
        ...

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host folder's contents into a sandbox folder."""
        ...

    async def download(self, source: str, target: Path) -> None:
        """Copy a sandbox folder's contents into a new host folder, links kept as links and never followed.

        A folder that the sandbox's processes took away holds nothing: no agent may lose its sandbox that way.

        Runs nothing inside the sandbox, so it is right to call after `kill`."""
        ...

    async def read(self, path: str, limit: int) -> bytes | None:
        """Contents of a regular file (never through a link), at most `limit` bytes; None when there is none."""
        ...

    async def listen(self, port: int) -> socket.socket:
        """A listening socket on 127.0.0.1:port *inside* the sandbox's network namespace, served by the caller."""
        ...

    async def phase(self, name: Phase) -> None:
        """Enter another phase of a trial: every connection that leaves the sandbox is cut, also to what both phases
        may reach, and from the next command on it reaches what the new one's list allows."""
        ...

    def denied(self) -> Sequence[str]:
        """Names (`pypi.org`) and addresses (`10.0.0.1:443`) that its processes tried in vain to reach since the last
        call, each once; also after `kill`."""
        ...

    def reached(self) -> Sequence[str]:
        """What its processes reached beyond it since the last call, as text (`pypi.org:443 (3 connections, …)`): of
        phases that are over, as all are after `kill`."""
        ...

    async def kill(self) -> int:
        """Kill every process of the sandbox, cut its network; returns how many outlived the last command. Files stay.

        Of a lasting sandbox the first process lives on: nothing of anybody's runs, but commands can be started."""
        ...

    async def leave(self, environment: Mapping[str, str], cwd: str) -> str:
        """Leave a lasting sandbox running when this process ends: `stop` then removes nothing. Returns the name by
        which another process enters it, with that environment and current folder (`engine.sandbox.reentry`)."""
        ...

    async def stop(self) -> None:
        """Remove all of it: processes, mounts, files."""
        ...


class SandboxRuntime(Preparable, Protocol):
    """Makes sandboxes."""

    @property
    def capabilities(self) -> Capabilities:
        """What its sandboxes can do, known without anything being started."""
        ...

    async def start(self, images: ImageStore, owner: str) -> None:
        """`owner` names the run: everything that is started carries it, so that it can be reaped."""
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox: ...

    async def stop(self) -> None: ...


@runtime_checkable
class RemoteRuntime(SandboxRuntime, Protocol):
    """A runtime whose sandboxes lie on other machines, so that this one's ledger knows nothing of them."""

    async def reap(self) -> tuple[list[str], list[str]]:
        """Remove what dead runs left there; names, and what could not be removed and why. Needs no start."""
        ...


HoldBack = Literal["none", "tool_call", "turn"]
"""What a client that asked for a stream gets only when the turn is whole: nothing; its tool calls; all of it."""


class HarnessClient(Protocol):
    """How a harness behaves as a client of the model's API; the proxy reckons with it."""

    volatile: Sequence[str]
    """Regular expressions of text that it changes or moves between requests without meaning anything by it."""
    side_calls: Sequence[str]
    """Regular expressions: a request whose system messages hold one is no step of the task (titles, topics)."""
    hold_back: HoldBack


class Harness(Protocol):
    """An adapter for one unmodified agent program."""

    name: str
    client: HarnessClient
    max_turns: int
    """LLM calls after which the proxy ends the trial; the harness's own limit is set alike."""
    demonstration: Sequence[Mapping[str, Any]]
    """How a scripted solver mends a line with this harness's tools: `{name, arguments}` of one call a turn."""

    def runtime(self) -> ImageSpec:
        """The self-contained runtime that is mounted at `runtime_target`."""
        ...

    def mount(self, images: ImageStore) -> Mount: ...

    def problems(self, images: ImageStore) -> Sequence[ConfigError]: ...

    def launch(self, task: Task, endpoint: Endpoint) -> Launch: ...

    def judge(self, result: ExecResult, report: bytes | None) -> tuple[Termination, str]:
        """From the exit status and the launcher's own report file to a termination and one line of reason.

        Raises HarnessError when the harness failed for reasons that are not the model's."""
        ...

    @property
    def report_path(self) -> str:
        """Absolute sandbox path of the report that the launcher writes at its end."""
        ...


class Probe(Protocol):
    """Shows after a weight update that engine and trainer hold the same weights."""

    async def check(
        self,
        model: ModelInfo,
        engine: Callable[["NDArray[np.int32]"], Awaitable["NDArray[np.float32]"]],
        trainer: Callable[["NDArray[np.int32]"], "NDArray[np.float32]"],
    ) -> Mapping[str, float]:
        """Score fixed tokens with both; returns metrics `probe/…`; raises WeightSyncError when they disagree."""
        ...


TokenSink = Callable[[Sequence[int]], None]
"""Takes more sampled ids of a generation that is running; called on the event loop."""


class Inference(Preparable, Protocol):
    """A token-in, token-out engine."""

    probe: Probe | None
    """None: an engine without weights, which can play but not be trained."""

    def failure(self) -> str:
        """Why the engine can serve nothing any more (one line); empty while it can."""
        ...

    async def start(self, model: ModelInfo, directory: Path) -> None:
        """Start serving `model`; logs and scratch files go under `directory`."""
        ...

    async def generate(
        self,
        prompt_ids: "NDArray[np.int32]",
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        seed: int,
        stop_token_ids: Sequence[int],
        routed_start: int,
        session: str,
        sink: TokenSink | None = None,
    ) -> Generation:
        """Sample one continuation. `session` names the trial. Raises InferenceError.

        `sink` is handed the sampled ids as they come, in order; together they are the ids of the Generation. After an
        InferenceError what it was handed is void."""
        ...

    async def score(self, token_ids: "NDArray[np.int32]") -> "NDArray[np.float32]":
        """log p(token i+1 | tokens ≤ i) at temperature 1: float32 [n - 1]. For the probe after a weight update."""
        ...

    async def update_weights(self, weights: Path, version: int) -> None:
        """Load a safetensors file of Hugging Face names; drops every prefix cache; later tokens carry `version`."""
        ...

    async def restart(self) -> None:
        """Start again what ended by itself. Where it served updated weights it refuses to sample until it has some:
        those of the checkpoint would be another policy's. Raises as `start`."""
        ...

    async def stop(self) -> None: ...


class Session(Protocol):
    """The proxy's side of one trial."""

    endpoint: Endpoint
    heard: Callable[[Exchange], None] | None
    """Is told of each call as it is answered or comes to nothing, on the event loop; what it is shown may still be
    taken back (a turn that is lost). None: nobody watches."""

    async def serve(self, listener: socket.socket) -> None:
        """Serve this trial, and no other, on a listening socket."""
        ...

    async def close(self) -> tuple[tuple[Exchange, ...], tuple[Segment, ...], Termination | None]:
        """Stop serving; return what was captured, and why the proxy itself ended the trial, if it did."""
        ...


class Proxy(Protocol):
    """Speaks the harness's protocol in front of a token engine."""

    async def start(self, model: ModelInfo, inference: Inference) -> None: ...

    def check(self, harnesses: Mapping[str, Harness]) -> None:
        """After `start`, before anything else is. Raises ConfigErrors where what the model writes would not reach a
        harness as it was meant."""
        ...

    def open(self, trial: Trial, harness: Harness, port: int, folder: Path | None = None) -> Session:
        """A session for one trial; `folder` takes what is too big for memory until `close` (None: the system's)."""
        ...

    async def stop(self) -> None: ...


@runtime_checkable
class DrainableJob(Protocol):
    """A job that can end in order before it is done."""

    def drain(self) -> bool:
        """Finish and write what is running, begin nothing new. From the event loop's thread; once is enough.

        Returns whether there is anything to finish: a job that is still starting is simply cancelled."""
        ...


@runtime_checkable
class EndlessJob(Protocol):
    """A job that goes on until it is asked to end, which leaves nothing to go on with."""

    ended: str
    """What is said then."""
