"""`state.json`: phase, step and heartbeat, rewritten whole at each change."""

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from typing import Literal

from engine.store.layout import Layout, write_whole

Phase = Literal["starting", "rollout", "train", "sync", "validation", "finished", "failed", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class State:
    """What a run is doing; fields as in `schemas/records/state.json`."""

    phase: Phase
    reason: str
    step: int
    steps: int
    policy_version: int
    pid: int
    heartbeat_s: float
    started_s: float
    wall_s: float


class StateFile:
    """Keeps `state.json` true over restarts: `wall_s` adds up the work of all of them."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._begun = time.monotonic()
        now = time.time()
        before: dict[str, float] = {}
        if layout.state.exists():
            before = json.loads(layout.state.read_text())
        self._wall_before = float(before.get("wall_s", 0.0))
        self.state = State(
            phase="starting",
            reason="",
            step=0,
            steps=0,
            policy_version=0,
            pid=os.getpid(),
            heartbeat_s=now,
            started_s=float(before.get("started_s", now)),
            wall_s=self._wall_before,
        )

    @property
    def wall_s(self) -> float:
        return self._wall_before + time.monotonic() - self._begun

    def update(self, phase: Phase, **changes: object) -> None:
        """Write a new phase; `changes` are fields of State."""
        self.state = replace(
            self.state,
            phase=phase,
            heartbeat_s=time.time(),
            wall_s=self.wall_s,
            **changes,  # type: ignore[arg-type]
        )
        write_whole(self._layout.state, (json.dumps(asdict(self.state), indent=2) + "\n").encode())
