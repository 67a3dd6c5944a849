"""`job=ablation`: medians over pairs, and what is worth too little is named. The real one starts sandboxes for minutes:
`python -m engine experiment=sandbox_ablation`; its toolchain alone is in `tests/e2e/test_ablation_job.py`."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from engine.core.errors import RunError
from engine.core.specs import ImageSpec
from engine.run.jobs import ablation
from engine.run.jobs.ablation import AblationJob, Pairs

SPEC = ImageSpec(name="base", suite="bookworm", packages=(), pip=())
BUILT: Any = SimpleNamespace(
    config={},
    observe=SimpleNamespace(progress_interval_s=60.0),
    tasks=SimpleNamespace(images=lambda: (SPEC, SPEC)),
    harnesses={"one": SimpleNamespace(problems=lambda images: [], runtime=lambda: SPEC)},
    verify=SimpleNamespace(toolchain=lambda: SPEC),
)


def test_a_ratio_is_the_median_of_the_pairs_own() -> None:
    assert Pairs(name="x", at_hand=[1.0, 2.0, 4.0], installed=[30.0, 20.0, 400.0]).ratio == 30.0


@pytest.mark.parametrize(("least", "low"), [(10.0, ""), (25.0, r"mounted agent runtime \(one\)$")])
def test_what_is_worth_too_little_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], least: float, low: str
) -> None:
    async def ready(built: Any, part: str, spec: ImageSpec, store: Any, say: Any) -> float:
        at_hand = store._folder is None
        return 0.1 if at_hand else {"image": 9.0, "runtime": 2.0, "toolchain": 0.2}[part]

    monkeypatch.setattr(ablation, "_ready", ready)
    monkeypatch.setattr(ablation, "check_grading", lambda built, images: None)
    job = AblationJob(parts=["image", "runtime", "toolchain"], pairs=2, least_ratio=least)
    if low:
        with pytest.raises(RunError, match=low):
            asyncio.run(job.run(BUILT))
    else:
        assert asyncio.run(job.run(BUILT)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-2] for line in lines[1:]] == ["90", "20", "2"]


def test_a_pull_of_what_differs_stands_against_one_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def part(seconds: float) -> Any:
        return SimpleNamespace(second=SimpleNamespace(seconds=seconds))

    async def measure(self: Any, built: Any, image: Any, modes: Any, progress: Any) -> Any:
        return {mode: [part({"gzip": 12.0, "zstd:chunked": 4.0}[mode])] * self.pairs for mode in modes}

    monkeypatch.setattr(ablation.DeliveryJob, "measure", measure)
    monkeypatch.setattr(ablation.DeliveryJob, "check", lambda self, built: None)
    monkeypatch.setattr(ablation, "check_grading", lambda built, images: None)
    assert asyncio.run(AblationJob(parts=["pull"], pairs=2, least_ratio=15).run(BUILT)) == 0
    last = capsys.readouterr().out.splitlines()[-1].split()
    assert last == ["pull", "of", "what", "differs,", "of", "all", "(base)", "4.00", "s", "12.0", "s", "3", "×"]
