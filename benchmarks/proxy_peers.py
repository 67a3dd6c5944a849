"""The peers of `benchmarks/proxy.py`: each installed from the index into a virtual environment of its own, once.

Each is started as its makers start it and records what it is made to record: a peer that is cheap because nothing is
kept would say nothing. What no proxy of the index can be made to do is said in `NOT_MEASURED`.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proxy_client import Endpoint, post
from proxy_texts import cache, checkpoint

HERE = Path(__file__).parent
INSTALL_S = 1800
MODEL = "model"
KEY = "sk-none"
NOT_MEASURED = (
    "slime and Lego-RL do not install from the package index; rllm-model-gateway's only release there, 0.1.0, has no "
    "cumulative mode: not measured"
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a peer runs."""

    python: Path
    """Of its virtual environment."""
    port: int
    engine: int
    """The engine's port."""
    scratch: Path
    """A folder for its files."""
    sessions: int


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One peer."""

    name: str
    requirements: tuple[str, ...]
    """Pinned, so that two runs compare the same."""
    launch: Callable[[Place], Sequence[str]]
    """Its command."""
    path: str
    """Of its API; `{}` is a session's number."""
    renders: bool = False
    """It samples by ids, as this project does; others send the engine messages."""
    prepare: Callable[[Place], Awaitable[None]] | None = None
    """What it is told once it serves."""
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[int, int] = (3, 11)
    """Python, at least."""

    @property
    def folder(self) -> Path:
        told = json.dumps([self.requirements, self.needs, sys.version_info[:2]])
        return cache() / "peers" / f"{self.name}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def endpoints(self, place: Place) -> list[Endpoint]:
        keys = place.scratch / "keys.json"
        given = json.loads(keys.read_text()) if keys.exists() else [KEY] * place.sessions
        base = f"http://127.0.0.1:{place.port}"
        return [Endpoint(url=base + self.path.format(n), key=key, model=MODEL) for n, key in enumerate(given)]

    def install(self) -> str:
        """Why it cannot be had here; empty when it is there."""
        done = self.folder / ".complete"
        if done.exists():
            return ""
        python = _python(self.needs)
        if python is None:
            return f"needs Python {self.needs[0]}.{self.needs[1]} or newer, and there is none on the path"
        shutil.rmtree(self.folder, ignore_errors=True)
        made = subprocess.run([python, "-m", "venv", str(self.folder)], capture_output=True, text=True, check=False)
        if made.returncode == 0:
            command = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            try:
                made = subprocess.run(
                    [*command, *self.requirements], capture_output=True, text=True, timeout=INSTALL_S, check=False
                )
            except subprocess.TimeoutExpired:
                return f"pip took longer than {INSTALL_S} s"
        if made.returncode:
            lines = [line for line in made.stderr.splitlines() if line.strip()]
            return next((line for line in lines if "ERROR" in line), lines[-1] if lines else "pip failed")
        done.touch()
        return ""


def _python(needs: tuple[int, int]) -> str | None:
    """An interpreter that is new enough: this one, one on the path, one of pyenv's."""
    if sys.version_info[:2] >= needs:
        return sys.executable
    names = [f"python3.{minor}" for minor in range(needs[1], needs[1] + 3)]
    own = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(name) for name in names]
    found += [path for name in names for path in sorted(own.glob(f"versions/*/bin/{name}"))]
    runs = (path for path in found if path and not subprocess.run([path, "-V"], capture_output=True).returncode)
    return next(runs, None)


# ---------------------------------------------------------------- rllm-model-gateway


def _rllm(place: Place) -> Sequence[str]:
    """A request is recorded only under `/sessions/…`; the records go to its database, as by default."""
    gateway = [str(place.python), "-m", "rllm_model_gateway", "--host", "127.0.0.1", "--port", str(place.port)]
    worker = f"http://127.0.0.1:{place.engine}/v1"
    return [*gateway, "--worker", worker, "--db-path", str(place.scratch / "traces.db"), "--log-level", "warning"]


# ---------------------------------------------------------------- litellm


def _litellm(place: Place) -> Sequence[str]:
    behind = {"model": f"hosted_vllm/{MODEL}", "api_base": f"http://127.0.0.1:{place.engine}/v1", "api_key": "none"}
    settings = {
        "model_list": [{"model_name": MODEL, "litellm_params": behind}],
        "general_settings": {"master_key": KEY},  # it does not start without one
    }
    file = place.scratch / "config.yaml"
    file.write_text(json.dumps(settings))  # JSON is YAML
    command = [str(place.python.with_name("litellm")), "--config", str(file), "--host", "127.0.0.1"]
    return [*command, "--port", str(place.port)]


# ---------------------------------------------------------------- agentlightning


def _agentlightning(place: Place) -> Sequence[str]:
    command = [str(place.python), "-m", "agentlightning.server", "host=127.0.0.1", f"port={place.port}"]
    return [*command, f"default_proxy.model_name={MODEL}", f"hydra.run.dir={place.scratch}"]


async def _open_rollouts(place: Place) -> None:
    server = {"model": MODEL, "endpoint": f"http://127.0.0.1:{place.engine}/v1"}
    await post(place.port, "/api/models", [server])
    rollouts = [{"input": "", "rollout_id": f"r{number}"} for number in range(place.sessions)]
    await post(place.port, "/api/rollouts", rollouts)


# ---------------------------------------------------------------- verifiers


def _verifiers(place: Place) -> Sequence[str]:
    """A library: a small program starts its interception server, with its renderer client."""
    command = [str(place.python), str(HERE / "proxy_verifiers.py"), "--port", str(place.port)]
    command += ["--engine-port", str(place.engine), "--sessions", str(place.sessions)]
    return [*command, "--model", str(checkpoint()), "--keys", str(place.scratch / "keys.json")]


PEERS = (
    Peer(
        name="agentlightning",
        requirements=("agentlightning==1.0.2",),
        launch=_agentlightning,
        path="/proxy/rollout/r{}/attempt/0/mode/train/openai/v1",
        prepare=_open_rollouts,
        needs=(3, 12),
    ),
    Peer(
        name="rllm-model-gateway",
        requirements=("rllm-model-gateway==0.1.0",),
        launch=_rllm,
        path="/sessions/s{}/v1",
    ),
    Peer(
        name="verifiers",
        requirements=("verifiers==0.4.0",),
        launch=_verifiers,
        path="/v1",
        renders=True,
    ),
    Peer(
        name="litellm",
        requirements=("litellm[proxy]==1.108.7",),
        launch=_litellm,
        path="/v1",
        environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},  # or it asks another host for prices when it starts
    ),
)
