"""`state.json`: phase, step and heartbeat, rewritten whole at each change."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from engine.core.errors import Interrupted, LegoError, RunError
from engine.core.whole import write_whole
from engine.store.layout import Layout

Phase = Literal["starting", "rollout", "train", "sync", "validation", "checkpoint", "finished", "failed", "interrupted"]


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


def read_state(layout: Layout) -> dict[str, Any] | None:
    """The contents of `state.json`; None before the first start. Raises RunError when it is damaged."""
    try:
        state: dict[str, Any] = json.loads(layout.state.read_text())
        numbers = {name: float(state[name]) for name in ("started_s", "wall_s")} | {"steps": int(state.get("steps", 0))}
        return {"phase": str(state["phase"]), **state} | numbers
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        way_out = "delete it, no trial or weight depends on it, and the same command goes on"
        raise RunError(f"{layout.state} is damaged ({error}); {way_out}") from error


class StateFile:
    """Keeps `state.json` true over restarts: `wall_s` adds up the work of all of them. Safe to call from threads."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._begun = time.monotonic()
        self._written = float("-inf")
        self._lock = threading.Lock()
        now = time.time()
        before = read_state(layout) or {"wall_s": 0.0, "started_s": now}
        self._wall_before: float = before["wall_s"]
        self.state = State(
            phase="starting",
            reason="",
            step=0,
            steps=0,
            policy_version=0,
            pid=os.getpid(),
            heartbeat_s=now,
            started_s=before["started_s"],
            wall_s=self._wall_before,
        )

    @property
    def wall_s(self) -> float:
        return self._wall_before + time.monotonic() - self._begun

    def update(self, phase: Phase, **changes: object) -> None:
        """Write a new phase; `changes` are fields of State."""
        with self._lock:
            self._write(replace(self.state, phase=phase, **changes))  # type: ignore[arg-type]

    @contextmanager
    def told(self, interrupted: str) -> Iterator[None]:
        """Write how what is done within ends, unless it ends well; `interrupted` says what an interruption leaves."""
        try:
            yield
        except (asyncio.CancelledError, KeyboardInterrupt, Interrupted):
            self.update("interrupted", reason=interrupted)
            raise
        except LegoError as error:
            self.update("failed", reason=str(error))
            raise
        except Exception as error:
            self.update("failed", reason=f"{type(error).__name__}: {error}")
            raise

    def beat(self, after_s: float) -> None:
        """Write again that the run is alive, unless something was written within the last `after_s` seconds."""
        with self._lock:
            if time.monotonic() - self._written >= after_s:
                self._write(self.state)

    def _write(self, state: State) -> None:
        self.state = replace(state, heartbeat_s=time.time(), wall_s=self.wall_s)
        self._written = time.monotonic()
        write_whole(self._layout.state, (json.dumps(asdict(self.state), indent=2) + "\n").encode())
