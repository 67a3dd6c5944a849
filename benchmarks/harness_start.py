"""What a harness costs, cold and warm: `python benchmarks/harness_start.py [--runs N] [--concurrent N] [--harness H]`.

Run it alone on the machine. Each run is a trial of two turns (one command, the end) in a fresh sandbox, against a
model that answers at once; programs that are executed (Claude Code, Codex, …) are ended at their first request.
Seconds to the first request are counted from the task (the sandbox is made on the way) and from the harness's start;
processor seconds are those of this process and all its children, whatever they do for the trial. The first run, which
starts the warm process, is shown apart. "At most" is what the project wants of the first p50.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from small_trial import sandbox_for, small_task

from engine.config.assemble import assemble
from engine.config.built import Built
from engine.config.compose import compose
from engine.core.contracts import Harness
from engine.core.records import Task
from engine.core.specs import Endpoint
from engine.sandbox.images import DebianImageStore

PORT = 8080
TURNS: Mapping[str, Sequence[tuple[str, Mapping[str, str]]]] = {
    "openhands": (
        ("file_editor", {"command": "view", "path": "/testbed/calc.py"}),
        ("finish", {"message": "Done."}),
    ),
    "mini_swe_agent": (
        ("bash", {"command": "cat calc.py"}),
        ("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}),
    ),
}
"""What the model calls, turn by turn."""
EXECUTED = ("claude_code", "codex", "opencode", "qwen_code")
BARS_S = {"openhands": 1.0, "mini_swe_agent": 1.0, "claude_code": 1.5, "codex": 1.5}
"""From the task to the first request, warm where that can be."""


@dataclass(frozen=True)
class Cost:
    """Seconds of one run."""

    from_task: float
    from_start: float
    whole: float
    cpu: float


class Model:
    """Answers chat completions with the calls of a list, and notes when the first was asked for; without a list nothing
    is answered that is asked of a model (POST), and all else with an empty object."""

    def __init__(self, turns: Sequence[tuple[str, Mapping[str, str]]] | None) -> None:
        self._turns, self._asked = turns, 0
        self.first = 0.0
        self.asked = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if not head.startswith(b"POST "):
                    body = b"" if head.startswith(b"HEAD ") else b"{}"
                    writer.write(
                        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n" + body
                    )
                    continue
                self.first = self.first or time.perf_counter()
                self.asked.set()
                if self._turns is None:
                    continue
                lines = head.decode().lower().split("\r\n")
                length = next(line.partition(":")[2] for line in lines if line.startswith("content-length:"))
                await reader.readexactly(int(length))
                body = json.dumps(self._answer()).encode()
                kind = "content-type: application/json"
                writer.write(f"HTTP/1.1 200 OK\r\n{kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _answer(self) -> dict[str, Any]:
        assert self._turns is not None
        name, arguments = self._turns[self._asked]
        self._asked += 1
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"call_{self._asked}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return {
            "id": f"chatcmpl-{self._asked}",
            "object": "chat.completion",
            "created": 1,
            "model": "policy",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }


async def trial(built: Built, harness: Harness, task: Task, images: DebianImageStore) -> tuple[float, float, float]:
    """Seconds from the task and from the start to the first request, and to the harness's end."""
    begun, model = time.perf_counter(), Model(TURNS.get(harness.name))
    spec = sandbox_for(task, harness, images, pids=built.sandbox.pids, disk_mb=built.sandbox.disk_mb)
    sandbox = await built.sandbox.create(spec)
    try:
        await sandbox.upload(task.repository, task.workdir)
        server = await asyncio.start_server(model.serve, sock=await sandbox.listen(PORT))
        launch = harness.launch(task, Endpoint(base_url=f"http://127.0.0.1:{PORT}/t", api_key="key", model="policy"))
        await sandbox.write(launch.files)
        started = time.perf_counter()
        options: dict[str, Any] = {"environment": launch.environment, "cwd": launch.cwd, "timeout_s": 120, "stdin": b""}
        running = asyncio.create_task(sandbox.exec(launch.command, warm=launch.warm, **options))
        if harness.name in EXECUTED:
            asked = asyncio.create_task(model.asked.wait())
            await asyncio.wait({asked, running}, return_when=asyncio.FIRST_COMPLETED)
            if not model.first:
                raise SystemExit(f"{harness.name} asked for nothing: {(await running).stderr.decode()[-2000:]}")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        else:
            harness.judge(await running, await sandbox.read(harness.report_path, 1 << 20))
        ended = time.perf_counter()
        server.close()
    finally:
        await sandbox.stop()
    return model.first - begun, model.first - started, ended - started


def processor_seconds(pid: int) -> float:
    """Of a process and all below it, those that ended and were reaped included."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        below = [word for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]
    except OSError:
        return 0.0
    own = sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor_seconds(int(child)) for child in below)


async def measure(name: str, start: str, overrides: Sequence[str], runs: int, concurrent: int) -> list[Cost]:
    """The first run, then `runs` more, `concurrent` at a time."""
    how = () if name in EXECUTED else (f"harnesses.{name}.start={start}",)
    built = assemble(compose([f"harness={name}", *how, "job=show", *overrides]))
    harness, images = built.harnesses[name], DebianImageStore()
    (image,) = built.tasks.images()
    for spec in (image, harness.runtime()):
        await images.build(spec, print)
    await built.sandbox.start(images, "benchmark")
    costs: list[Cost] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            task = small_task(Path(folder), image)
            for wave in [1, *[concurrent] * (runs // concurrent)]:
                before = processor_seconds(os.getpid())
                seconds = await asyncio.gather(*(trial(built, harness, task, images) for _ in range(wave)))
                cpu = (processor_seconds(os.getpid()) - before) / wave
                costs += [Cost(*each, cpu) for each in seconds]
    finally:
        await built.sandbox.stop()
    return costs


def show(name: str, start: str, costs: Sequence[Cost]) -> None:
    first, rest = costs[0], costs[1:]
    columns = [[getattr(cost, field) for cost in rest] for field in ("from_task", "from_start", "whole", "cpu")]
    p90 = [statistics.quantiles(column, n=10, method="inclusive")[8] for column in columns[:2]]
    p50 = [statistics.median(column) for column in columns]
    bar = BARS_S.get(name, "") if start == "warm" or name in EXECUTED else ""
    print(
        f"{name:27} {start:5} {p50[0]:9.2f} {p90[0]:5.2f} {bar:>7} {p50[1]:10.2f} {p90[1]:5.2f} {p50[2]:9.2f}"
        f" {statistics.mean(columns[3]):9.2f} {first.from_start:9.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--concurrent", type=int, default=1)
    parser.add_argument("--harness", action="append", default=[], choices=[*TURNS, *EXECUTED])
    chosen = parser.parse_args()
    print("seconds                           first request p50, p90                  whole    cpu per    first run,")
    print("                                  from the task at most  from its start    trial      trial    its start")
    for name in chosen.harness or [*TURNS, *EXECUTED]:
        variants = {name: ()}
        if name == "openhands":
            variants["openhands, no terminal"] = (f"harnesses.{name}.tools=[file_editor]",)
        for title, overrides in variants.items():
            for start in ("cold",) if name in EXECUTED else ("cold", "warm"):
                costs = asyncio.run(measure(name, start, overrides, chosen.runs, chosen.concurrent))
                show(title, start, costs)


if __name__ == "__main__":
    main()
