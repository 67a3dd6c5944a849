"""What stages ask of each other beside a sample's way: images, models, sandboxes, and how a harness is started in one.

Frozen and keyword-only, as the records are; standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

_NEWER = ("npm", "reference")
"""Fields of an ImageSpec that are shown only where they are used."""


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """A root file system or a folder of packages that can be built once and mounted read-only."""

    name: str
    """Human name, for example `task-base`; the content digest is added by the image store."""
    suite: str | None
    """Debian suite to bootstrap (`bookworm`, `trixie`); None: a plain folder of packages (`pip --target`, `npm`)."""
    packages: tuple[str, ...]
    """Debian packages beside the minimal base."""
    pip: tuple[str, ...]
    """Pinned requirements; with a suite they go into the virtual environment `/opt/venv` of the root."""
    npm: tuple[str, ...] = ()
    """Pinned npm packages (`name@version`), in `node_modules` of a plain folder."""
    reference: str | None = None
    """Image of a registry that is the root (`HOST/PATH@sha256:…`, or a tag, which is resolved once and for all when it
    is first pulled), with nothing else beside it; None: a root or folder that is built here."""

    def __repr__(self) -> str:
        # Fingerprints of tasks and warm starts are made of it: a kind of package that is not used changes none.
        shown = (each.name for each in fields(self) if each.name not in _NEWER or getattr(self, each.name))
        return f"ImageSpec({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """A model on disk: a Hugging Face checkpoint folder and what other stages must know about it."""

    name: str
    path: Path
    """Folder with config.json, safetensors and the tokenizer's files."""
    renderer: str
    """Name of the message renderer (`qwen3`, …) that turns messages into ids and back."""
    max_context: int
    """Tokens of prompt and response together."""
    num_layers: int
    """Routed (MoE) layers; 0 for dense models."""
    top_k: int
    """Experts per token; 0 for dense models."""
    dtype: str
    """float32 or bfloat16."""


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A host folder seen read-only inside a sandbox."""

    source: Path
    target: str


Phase = Literal["setup", "agent", "grade"]
"""What a sandbox is at, and so what its network lets it reach."""


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """What a sandbox must be; the same for every runtime."""

    name: str
    """Unique label, for example the trial's key: used for the container's name and for reaping."""
    image: ImageSpec
    mounts: tuple[Mount, ...]
    workdir: str
    environment: Mapping[str, str]
    memory_mb: int
    cpus: float
    pids: int
    disk_mb: int
    """Size of what may be written; 0: not limited."""
    lasting: bool = False
    """Whether it may be left running when its process ends: `kill` then spares its first process."""
    work_s: float | None = None
    """Seconds that its commands may take together; a runtime ends it some time after these. None: a person may stay in
    it, for as long as the runtime lets one."""
    phase: Phase | None = None
    """The phase that it begins in; None: it reaches nothing."""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a runtime of sandboxes can do as it is configured; compared with what a run asks for before it starts."""

    warm_start: bool
    """Processes can be forked into its sandboxes from warm ones."""
    process_limit: bool
    """`SandboxSpec.pids` is kept for each sandbox by itself."""
    disk_limit: bool
    """Who writes more than `SandboxSpec.disk_mb` is refused, and the sandbox goes on. Where it is ended instead, an
    agent could have its trial excluded by filling the disk."""
    by_hand: bool
    """A person can work in its sandboxes (`attach`), and one can be left running (`leave`)."""
    network_by_phase: bool
    """What its sandboxes reach can be another thing in each phase of a trial."""


@dataclass(frozen=True, kw_only=True)
class ExecResult:
    """A finished command in a sandbox."""

    exit_code: int
    """-1 when it was stopped by the timeout."""
    stdout: bytes
    stderr: bytes
    timed_out: bool
    oom_killed: bool
    duration_s: float


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a harness inside a sandbox finds its model."""

    base_url: str
    """`http://127.0.0.1:PORT/t/TRIAL`, without the protocol's own suffix."""
    api_key: str
    """Token of this trial alone."""
    model: str
    """Model name to ask for."""


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """A Python process that imports a program once, and from which each trial's process is forked into its sandbox.

    It sees nothing but the sandbox's mounts, its own `files` and, if asked for, the image; it has no network, and is
    told nothing of any trial."""

    interpreter: tuple[str, ...]
    """Command that runs a Python script (its path and arguments are appended), from one of the sandbox's mounts, or
    from its image."""
    folder: str
    """Absolute path of the folder that `module` is imported from and that holds `files`."""
    module: str
    """Defines `load() -> None`, called once, and `run(command, environment) -> NoReturn`, called in each trial's
    process when it is inside its sandbox and has given up all rights."""
    files: Mapping[str, bytes]
    """Path below `folder` → contents."""
    image: bool = False
    """Whether it sees the sandbox's image too, read-only: for an interpreter that lies in there."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How to start a harness for one trial."""

    command: tuple[str, ...]
    """What is executed; with `warm`, the `sys.argv` of the process that is forked."""
    environment: Mapping[str, str]
    cwd: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Absolute sandbox path → contents, written before the start (configuration, prompt); outside the repository."""
    warm: WarmStart | None = None
    """None: a cold start."""
