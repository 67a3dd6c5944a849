"""`job=push` against a real registry: all that a run needs, once; and what is refused before anything is sent."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from registry_pieces import skip_without_registry, tree

from engine.core.errors import ConfigError, ConfigErrors
from engine.core.specs import ImageSpec
from engine.run.jobs.push import PushJob
from engine.sandbox import pushed
from engine.sandbox.images import DebianImageStore, digest
from engine.sandbox.loopback_registry import loopback_registry

pytestmark = pytest.mark.podman
SPECS = {name: ImageSpec(name=name, suite="bookworm", packages=(name,), pip=()) for name in ("base", "grader", "agent")}


def built(registry: str | None = None) -> Any:
    sandbox = {} if registry is None else {"registry": registry}
    return SimpleNamespace(
        config={"sandbox": {"_target_": "any", **sandbox}},
        observe=SimpleNamespace(progress_interval_s=60.0),
        tasks=SimpleNamespace(images=lambda: (SPECS["base"],)),
        verify=SimpleNamespace(toolchain=lambda: SPECS["grader"]),
        harnesses={"one": SimpleNamespace(runtime=lambda: SPECS["agent"])},
    )


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DebianImageStore:
    """A cache in which they are built: a file each."""
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path / "cache"))
    store = DebianImageStore()
    for spec in SPECS.values():
        folder = store.path(spec)
        folder.mkdir(parents=True)
        (folder / "name").write_text(spec.name)
        (folder / ".complete").write_text("{}")
    return store


def job(registry: str | None, form: pushed.Format = "gzip") -> PushJob:
    return PushJob(registry=registry, format=form, plain_http=False)


async def test_a_run_s_images_are_pushed_once_and_pulled_elsewhere(
    tmp_path: Path, cache: DebianImageStore, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without_registry()
    async with loopback_registry(tmp_path / "registry") as address:
        registry = f"{address}/lego"
        assert await job(registry).run(built()) == 0
        assert await job(None).run(built(registry)) == 0  # sandbox.registry, of sandbox=kubernetes
        ends = [line for line in capsys.readouterr().out.splitlines() if " has " in line]
        assert ends == [f"{registry} has 3 images as gzip; {sent} were sent now" for sent in (3, 0)]
        elsewhere = DebianImageStore(tmp_path / "elsewhere", registry=registry)
        for spec in SPECS.values():
            path = await elsewhere.build(spec, print)
            assert path.name == f"{spec.name}-{digest(spec)}" and tree(path) == tree(cache.path(spec))


async def test_what_is_refused(cache: DebianImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushed, "find", lambda program: None)
    for asked, error in (
        (job(None), r"job\.registry=None: no registry is named; set it, for example registry\.example/lego-rl"),
        (job("https://registry.example/a"), r"job\.registry='https://registry\.example/a': is no registry"),
        (job("registry.example/a", "nydus"), r"job\.format='nydus': nydusify, which makes it, is not installed"),
    ):
        with pytest.raises(ConfigError, match=error):
            await asked.run(built())
    (cache.path(SPECS["agent"]) / ".complete").unlink()
    with pytest.raises(ConfigErrors, match=r"harnesses\.one \(runtime\)='agent': is not built .* job=prepare first"):
        await job("registry.example/a").run(built())
