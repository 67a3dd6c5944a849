"""How long a harness takes to its first LLM request: `python benchmarks/harness_start.py [--runs N] [--harness NAME]…`.

Run it alone on the machine. Each run makes a fresh sandbox and ends it once the first bytes of a request arrive.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from engine.config.assemble import assemble
from engine.config.built import Built
from engine.config.compose import compose
from engine.core.contracts import Harness
from engine.core.records import Endpoint, ImageSpec, SandboxSpec, Task
from engine.sandbox.images import DebianImageStore

PORT = 8080


def small_task(folder: Path, image: ImageSpec) -> Task:
    """A repository of one file; nothing is graded."""
    repository = folder / "repository"
    repository.mkdir()
    (repository / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    return Task(
        id="benchmark",
        directory=folder,
        instruction="add() in calc.py is wrong.",
        split="train",
        fingerprint="",
        image=image,
        workdir="/testbed",
        repository=repository,
        tests=folder,
        test_paths=(),
        python_path=(".",),
        fail_to_pass=(),
        pass_to_pass=(),
        reference=None,
        agent_timeout_s=120,
        grade_timeout_s=60,
        memory_mb=1024,
        cpus=1,
    )


async def first_request(built: Built, harness: Harness, task: Task, images: DebianImageStore) -> tuple[float, float]:
    """Seconds from the task, and from the harness's start, to the first bytes of a request."""
    begun, asked = time.perf_counter(), asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        asked.set()
        writer.close()

    spec = SandboxSpec(
        name="benchmark",
        image=task.image,
        mounts=(harness.mount(images),),
        workdir=task.workdir,
        environment={},
        memory_mb=task.memory_mb,
        cpus=task.cpus,
        pids=built.sandbox.pids,
        disk_mb=built.sandbox.disk_mb,
    )
    sandbox = await built.sandbox.create(spec)
    try:
        await sandbox.upload(task.repository, task.workdir)
        server = await asyncio.start_server(connected, sock=await sandbox.listen(PORT))
        launch = harness.launch(task, Endpoint(base_url=f"http://127.0.0.1:{PORT}/t", api_key="key", model="policy"))
        await sandbox.write(launch.files)
        started = time.perf_counter()
        options: dict[str, Any] = {"environment": launch.environment, "cwd": launch.cwd, "timeout_s": 120, "stdin": b""}
        running = asyncio.create_task(sandbox.exec(launch.command, **options))
        async with asyncio.timeout(120):
            await asked.wait()
        ended = time.perf_counter()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        server.close()
    finally:
        await sandbox.stop()
    return ended - begun, ended - started


async def measure(name: str, runs: int) -> None:
    built = assemble(compose([f"harness={name}", "job=show"]))
    harness, images = built.harnesses[name], DebianImageStore()
    (image,) = built.tasks.images()
    for spec in (image, harness.runtime()):
        await images.build(spec, print)
    await built.sandbox.start(images, "benchmark")
    try:
        with tempfile.TemporaryDirectory() as folder:
            task = small_task(Path(folder), image)
            times = [await first_request(built, harness, task, images) for _ in range(runs)]
    finally:
        await built.sandbox.stop()
    for what, values in zip(("from the task", "from its start"), zip(*times, strict=True), strict=True):
        p50, p90 = statistics.median(values), statistics.quantiles(values, n=10, method="inclusive")[8]
        print(f"{name:16} {what:16} p50 {p50:5.2f} s   p90 {p90:5.2f} s   ({runs} runs)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--harness", action="append", default=[])
    arguments = parser.parse_args()
    for chosen in arguments.harness or ["openhands", "mini_swe_agent"]:
        asyncio.run(measure(chosen, arguments.runs))
