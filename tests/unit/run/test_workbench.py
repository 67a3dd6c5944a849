"""Components start in an order that refuses early, and all are stopped whatever happens."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.core.errors import RunError
from engine.run.workbench import open_workbench
from engine.store.layout import Layout

PARTS = ("proxy", "sandbox", "inference", "train")


class Part:
    def __init__(self, name: str, log: list[str], fails: str) -> None:
        self.name, self._log, self._fails = name, log, fails
        self.pids = self.disk_mb = 1

    def _do(self, what: str) -> None:
        self._log.append(f"{what} {self.name}")
        if self._fails == f"{what} {self.name}":
            raise RunError(self._fails)


class Async(Part):
    async def start(self, *arguments: Any) -> None:
        self._do("start")

    def check(self, harnesses: Any) -> None:
        """What the proxy is asked before anything else starts."""
        self._do("check")

    async def stop(self) -> None:
        self._do("stop")


class Threaded(Part):
    def start(self, *arguments: Any) -> None:
        self._do("start")

    def stop(self) -> None:
        self._do("stop")


def built(log: list[str], fails: str = "") -> Any:
    parts: dict[str, Any] = {name: (Threaded if name == "train" else Async)(name, log, fails) for name in PARTS}
    rest = dict.fromkeys(("algorithm", "routing_replay", "verify"))
    stages = SimpleNamespace(stages=())
    made = SimpleNamespace(**parts, **rest, model=Model(), seed=0, harnesses={}, defense=stages)
    made.schedule = SimpleNamespace(engine_restarts=0)
    return made


def opened(made: Any, root: Path, tell: Callable[[str], None] = lambda _: None) -> Any:
    return open_workbench(made, Layout(root=root), None, tell, lambda _: None)  # type: ignore[arg-type]


class Model:
    def info(self) -> None: ...


async def open_and_close(root: Path, log: list[str], fails: str = "") -> None:
    async with opened(built(log, fails), root):
        log.append("run")


async def test_what_refuses_soonest_starts_first_and_all_is_stopped(tmp_path: Path) -> None:
    log: list[str] = []
    await open_and_close(tmp_path, log)
    assert log[:3] == ["start proxy", "check proxy", "start sandbox"]
    assert sorted(log[3:5]) == ["start inference", "start train"]
    assert log[5:] == ["run", "stop train", "stop proxy", "stop inference", "stop sandbox"]


async def test_it_tells_what_it_starts_and_waits_for(tmp_path: Path) -> None:
    told: list[str] = []
    made = built([])
    slow = asyncio.Event()

    class Slow(Async):
        async def start(self, *arguments: Any) -> None:
            await slow.wait()

    def tell(what: str) -> None:
        told.append(what)
        if what == "starting inference":
            slow.set()

    made.inference = Slow("inference", [], "")
    async with opened(made, tmp_path, tell):
        told.append("run")
    start = ["starting the proxy", "starting sandboxes", "starting inference and trainer", "starting inference"]
    assert told == [*start, "run", "stopping"]


@pytest.mark.parametrize("name", PARTS)
async def test_a_start_that_fails_stops_everything(tmp_path: Path, name: str) -> None:
    log: list[str] = []
    with pytest.raises(RunError, match=f"start {name}"):
        await open_and_close(tmp_path, log, f"start {name}")
    assert "run" not in log
    assert log[-4:] == ["stop train", "stop proxy", "stop inference", "stop sandbox"]


class Forever(Async):
    async def start(self, *arguments: Any) -> None:
        await super().start()
        try:
            await asyncio.sleep(600)
        finally:
            self._log.append("start of inference ended")


async def test_a_trainer_that_cannot_start_ends_the_engines_start(tmp_path: Path) -> None:
    log: list[str] = []
    made = built(log, "start train")
    made.inference = Forever("inference", log, "")
    with pytest.raises(RunError, match="start train"):
        async with asyncio.timeout(60), opened(made, tmp_path):
            raise AssertionError
    assert log[-5:] == ["start of inference ended", "stop train", "stop proxy", "stop inference", "stop sandbox"]


async def test_an_interrupted_start_stops_everything(tmp_path: Path) -> None:
    log: list[str] = []
    made = built(log)
    made.inference = Forever("inference", log, "")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), opened(made, tmp_path):
            raise AssertionError
    assert log[-5:] == ["start of inference ended", "stop train", "stop proxy", "stop inference", "stop sandbox"]


async def test_what_fails_while_stopping_hides_no_failure(tmp_path: Path) -> None:
    log: list[str] = []
    with pytest.raises(ZeroDivisionError):
        async with opened(built(log, "stop sandbox"), tmp_path):
            raise ZeroDivisionError
    assert log[-1] == "stop sandbox"


@pytest.mark.parametrize("name", ["proxy", "inference", "sandbox"])
async def test_a_stop_that_fails_keeps_no_other_from_stopping(tmp_path: Path, name: str) -> None:
    log: list[str] = []
    with pytest.raises(RunError, match=f"stop {name}"):
        await open_and_close(tmp_path, log, f"stop {name}")
    assert log[-4:] == ["stop train", "stop proxy", "stop inference", "stop sandbox"]


async def test_a_cancellation_while_stopping_keeps_nothing_from_being_stopped(tmp_path: Path) -> None:
    log: list[str] = []
    made = built(log)
    stopping = asyncio.Event()

    class Slow(Async):
        async def stop(self) -> None:
            stopping.set()
            await asyncio.sleep(0.1)
            await super().stop()

    made.proxy = Slow("proxy", log, "")

    async def work() -> None:
        async with opened(made, tmp_path):
            pass

    task = asyncio.create_task(work())
    await stopping.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log[-3:] == ["stop proxy", "stop inference", "stop sandbox"]
