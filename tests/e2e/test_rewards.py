"""Rewards mean what they say, through the whole trial: the reference fix earns 1, a run that fixes nothing earns 0."""

import asyncio
import base64
import json
from pathlib import Path

import pytest
from packaging.version import Version

from engine.config.assemble import assemble
from engine.config.compose import compose
from engine.core.records import Scored, Task, Termination, Trial, TrialKey
from engine.inference.scripted import ScriptedEngine
from engine.run.trial import Workshop, run_trial
from engine.run.workbench import check_machine, images_needed
from engine.samples.alignment import check_batch
from engine.samples.groups import make_groups
from engine.samples.rows import make_batch
from engine.sandbox.images import DebianImageStore
from engine.tasks.release_pairs import known_pairs

PAIR = "pathspec-0.12.0-0.12.1"


def rollout(task: Task, sample: int) -> Trial:
    return Trial(
        key=TrialKey(run="rewards", epoch=0, task=task.id, sample=sample, attempt=0),
        task=task,
        harness="openhands",
        policy_version=0,
        seed=sample,
        temperature=1.0,
        top_p=1.0,
        split="train",
    )


def script_of(task: Task) -> dict[str, object]:
    """Sample 0 looks and gives up; 1 applies the reference fix with the agent's own tools; 2 then floods its budget."""
    assert task.reference is not None
    # encoded, since the agent's terminal is interactive: a tab that is typed asks for completion
    diff = base64.b64encode(task.reference.diff.encode()).decode()
    fix = f"echo {diff} | base64 -d | git apply; git status --short"
    look = {"calls": [{"name": "terminal", "arguments": {"command": "ls; git log --oneline | wc -l"}}]}
    mend = {"text": "I mend it.", "calls": [{"name": "terminal", "arguments": {"command": fix}}]}
    done = {"calls": [{"name": "finish", "arguments": {"message": "Done."}}]}
    flood = {"calls": [{"name": "terminal", "arguments": {"command": "seq 4000"}}]}
    return {"*-s0-*": [look, done], "*-s1-*": [mend, done], "*-s2-*": [mend, flood, done]}


@pytest.mark.parametrize("sandbox", ["bubblewrap", pytest.param("podman", marks=pytest.mark.podman)])
async def test_the_reference_fix_earns_one_and_looking_earns_nothing(tmp_path: Path, sandbox: str) -> None:
    overrides = ["experiment=openhands_gspo", f"sandbox={sandbox}", f"tasks.names=[{PAIR}]", "tasks.validation=[]"]
    built = assemble(compose([*overrides, "inference=scripted", "proxy.max_tokens_per_turn=4096", "job=prepare"]))
    assert await built.job.run(built) == 0
    images = DebianImageStore()
    check_machine(built, images)
    (task,) = built.tasks.load()
    engine = ScriptedEngine(script=script_of(task), final_text="", seed=0, probe=None)
    model = built.model.info()
    await built.sandbox.start(images, f"rewards-{sandbox}")
    await engine.start(model, tmp_path)
    await built.proxy.start(model, engine)
    shop = Workshop(
        images=images,
        sandboxes=built.sandbox,
        proxy=built.proxy,
        harnesses=built.harnesses,
        defenses=built.defense.stages,
        verifier=built.verify,
        scratch=tmp_path / "scratch",
        pids=built.sandbox.pids,
        disk_mb=built.sandbox.disk_mb,
    )
    try:
        looked = await run_trial(rollout(task, 0), shop)
        mended = await run_trial(rollout(task, 1), shop)
        flooded = await run_trial(rollout(task, 2), shop)
    finally:
        await built.proxy.stop()
        await engine.stop()
        await built.sandbox.stop()

    assert_reward(looked, 0.0)
    assert_reward(mended, 1.0)
    assert_reward(flooded, 1.0, Termination.TOKEN_BUDGET, calls=3)
    assert looked.trajectory.patch is not None
    assert looked.trajectory.patch.changes == ()
    assert mended.trajectory.patch is not None
    assert task.reference is not None
    assert {c.path: c.after for c in mended.trajectory.patch.changes} == {
        c.path: c.after for c in task.reference.changes
    }
    seen = json.loads(looked.trajectory.exchanges[1].request)["messages"][-1]["content"]
    assert "\\n1\\n" in json.dumps(seen), "the agent sees a history of one commit"

    groups = make_groups([looked, mended], built.algorithm.advantage)
    assert groups[0].advantages[0] == -groups[0].advantages[1] < 0
    counts = check_batch(groups, make_batch(groups, step=0, policy_version=0))
    assert counts.sampled == counts.trained > 0


def test_nothing_that_is_mounted_for_an_agent_holds_a_fix() -> None:
    """Neither image nor runtime has a task's package at a release newer than the task's base."""
    built = assemble(compose(["experiment=openhands_gspo", "job=prepare"]))
    assert asyncio.run(built.job.run(built)) == 0
    images, base = DebianImageStore(), {pair.package: Version(pair.base.version) for pair in reversed(known_pairs())}
    mounted = [images.path(spec) for key, spec in images_needed(built).items() if "verify" not in key]
    found = [path for root in mounted for path in root.rglob("*.dist-info")]
    assert len(mounted) == 2
    assert len(found) > 100
    for path in found:
        name, _, version = path.name.removesuffix(".dist-info").partition("-")
        assert name not in base or Version(version) <= base[name], path


def assert_reward(
    scored: Scored, reward: float, ending: Termination = Termination.AGENT_COMPLETED, calls: int = 2
) -> None:
    assert scored.trajectory.termination is ending, scored.trajectory.reason
    assert len(scored.trajectory.exchanges) == calls
    assert scored.verdict is not None
    assert scored.verdict.reward == reward, scored.verdict.evidence
    assert scored.verdict.resolved is (reward == 1.0)
