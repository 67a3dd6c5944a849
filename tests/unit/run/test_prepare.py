"""`job=prepare`: what is told before anything is fetched or built."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.core.errors import ConfigErrors, EnvironmentFailure
from engine.core.records import Finding
from engine.core.specs import ImageSpec, Mount
from engine.observe.progress import PlainProgress
from engine.run.jobs.prepare import _fetch_and_build, inspect_tasks
from engine.sandbox import tools
from engine.sandbox.images import DebianImageStore

PLAIN = ImageSpec(name="plain", suite=None, packages=(), pip=())
ROOTS = [ImageSpec(name=name, suite="bookworm", packages=(), pip=()) for name in ("one", "two")]


async def test_all_that_keeps_images_from_being_built_is_told_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tools, "host_path", lambda: "/no/such/folder")
    fetched: list[object] = []

    async def prepare(say: object) -> None:
        fetched.append(say)

    built: Any = SimpleNamespace(
        tasks=SimpleNamespace(images=lambda: tuple(ROOTS), prepare=prepare),
        verify=SimpleNamespace(toolchain=lambda: PLAIN),
        harnesses={},
    )
    with (tmp_path / "progress").open("w") as stream, pytest.raises(ConfigErrors) as caught:
        await _fetch_and_build(built, DebianImageStore(), PlainProgress(stream, 8.0))
    told = str(caught.value)
    assert [told.count(f"image {spec.name}='bookworm': debootstrap is not installed") for spec in ROOTS] == [1, 1]
    assert not fetched
    assert not (tmp_path / "cache").exists()


async def test_tasks_whose_images_a_defence_refuses_are_all_named_before_a_run(tmp_path: Path) -> None:
    async def inspect(task: Any, image: Path) -> list[Finding]:
        assert image in (tmp_path, tmp_path / "runtime")
        if task.id == "fine" and image == tmp_path:
            return [Finding(stage="own", phase="build", detail="large", paths=("usr/x",))]
        if (task.id, image) in (("a", tmp_path), ("b", tmp_path / "runtime")):
            raise EnvironmentFailure(f"it shows {task.id}")
        return []

    tasks = [SimpleNamespace(id=name, image=ROOTS[0]) for name in ("a", "fine", "b")]
    built: Any = SimpleNamespace(
        tasks=SimpleNamespace(load=lambda: tasks),
        harnesses={
            "own": SimpleNamespace(mount=lambda images: Mount(source=tmp_path / "runtime", target="/opt/agent"))
        },
        defense=SimpleNamespace(stages=[SimpleNamespace(name="own", inspect=inspect)]),
    )
    store: Any = SimpleNamespace(path=lambda spec: tmp_path)
    said: list[str] = []
    with pytest.raises(ConfigErrors) as caught:
        await inspect_tasks(built, store, said.append)
    told = str(caught.value)
    assert [line.partition(";")[0] for line in told.splitlines()] == ["tasks='a': it shows a", "tasks='b': it shows b"]
    assert said == ["task fine: large (usr/x)"]
