"""A task of one file, a trial of it and the sandbox for a harness: what benchmarks run, with nothing to be graded."""

import secrets
from pathlib import Path

from engine.core.contracts import Harness, ImageStore
from engine.core.records import Task, Trial, TrialKey
from engine.core.specs import ImageSpec, SandboxSpec


def small_task(folder: Path, image: ImageSpec | None) -> Task:
    """`add` subtracts. Without an image it fits no sandbox."""
    repository = folder / "repository"
    repository.mkdir(exist_ok=True)
    (repository / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    return Task(
        id="benchmark",
        directory=folder,
        instruction="add() in calc.py is wrong.",
        split="train",
        fingerprint="",
        image=image or ImageSpec(name="none", suite=None, packages=(), pip=()),
        workdir="/testbed",
        repository=repository,
        tests=folder,
        test_paths=(),
        python_path=(".",),
        fail_to_pass=(),
        pass_to_pass=(),
        reference=None,
        agent_timeout_s=600,
        grade_timeout_s=60,
        memory_mb=1536,
        cpus=1,
    )


def trial_of(task: Task, harness: str) -> Trial:
    """Never the same twice."""
    return Trial(
        key=TrialKey(run=f"benchmark-{secrets.token_hex(4)}", epoch=0, task=task.id, sample=0, attempt=0),
        task=task,
        harness=harness,
        policy_version=0,
        seed=secrets.randbelow(1 << 30),
        temperature=1.0,
        top_p=1.0,
        split="train",
    )


def sandbox_for(
    task: Task, harness: Harness, images: ImageStore, *, pids: int = 256, disk_mb: int = 512
) -> SandboxSpec:
    """With the harness's runtime in it."""
    return SandboxSpec(
        name="benchmark",
        image=task.image,
        mounts=(harness.mount(images),),
        workdir=task.workdir,
        environment={},
        memory_mb=task.memory_mb,
        cpus=task.cpus,
        pids=pids,
        disk_mb=disk_mb,
    )
