"""The peers of `benchmarks/proxy.py`: each installed from the index into a virtual environment of its own, once."""

import hashlib
import json
import subprocess
import sys
import venv
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
    streams: bool = True
    """Whether its proxy can stream at all."""

    @property
    def folder(self) -> Path:
        told = json.dumps([self.requirements, sys.version_info[:2]])
        return cache() / "peers" / f"{self.name}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"

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


PEERS = (
    Peer(name="rllm-model-gateway", requirements=("rllm-model-gateway==0.1.0",)),
    Peer(name="verifiers", requirements=("verifiers==0.4.0", "renderers==0.1.12")),
    Peer(name="litellm", requirements=("litellm[proxy]==1.110.2",)),
    Peer(name="agentlightning", requirements=("agentlightning==0.3.0",)),
)
