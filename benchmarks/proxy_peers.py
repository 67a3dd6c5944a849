"""The peers of `benchmarks/proxy.py`: each installed from the index into a virtual environment of its own, once."""

import hashlib
import json
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from proxy_texts import cache

INSTALL_S = 1800


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One peer."""

    name: str
    requirements: tuple[str, ...]
    """Pinned, so that two runs compare the same."""
    launch: Callable[[Path, int, int, Path], Sequence[str]]
    """From its virtual environment's folder, its own port, the engine's, and a folder for its files, to a command."""
    path: str = "/v1"
    """Of its API."""

    @property
    def folder(self) -> Path:
        told = json.dumps([self.requirements, sys.version_info[:2]])
        return cache() / "peers" / f"{self.name}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"

    def command(self, port: int, engine: int, scratch: Path) -> Sequence[str]:
        return self.launch(self.folder, port, engine, scratch)

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def install(self) -> str:
        """Why it cannot be had here; empty when it is there."""
        done = self.folder / ".complete"
        if done.exists():
            return ""
        venv.create(self.folder, with_pip=True, clear=True)
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


def _rllm(venv_folder: Path, port: int, engine: int, scratch: Path) -> Sequence[str]:
    worker = f"http://127.0.0.1:{engine}/v1"
    gateway = [str(venv_folder / "bin/python"), "-m", "rllm_model_gateway", "--host", "127.0.0.1", "--port", str(port)]
    return [*gateway, "--worker", worker, "--db-path", str(scratch / "traces.db")]


def _litellm(venv_folder: Path, port: int, engine: int, scratch: Path) -> Sequence[str]:
    behind = {"model": "hosted_vllm/model", "api_base": f"http://127.0.0.1:{engine}/v1", "api_key": "none"}
    settings = {"model_list": [{"model_name": "model", "litellm_params": behind}]}
    (scratch / "config.yaml").write_text(json.dumps(settings))  # JSON is YAML
    command = [str(venv_folder / "bin/litellm"), "--config", str(scratch / "config.yaml"), "--host", "127.0.0.1"]
    return [*command, "--port", str(port)]


PEERS = (
    Peer(name="rllm-model-gateway", requirements=("rllm-model-gateway==0.1.0",), launch=_rllm),
    Peer(name="litellm", requirements=("litellm[proxy]==1.110.2",), launch=_litellm),
)
