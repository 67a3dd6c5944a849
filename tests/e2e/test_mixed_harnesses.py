"""Two real programs in one step of one run: planned, rolled out, stored, grouped and made a batch of."""

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from calc_task import write_calc
from command_pieces import make
from harness_pieces import make_runtime, options, task_image
from mini_pieces import make_harness
from plan_pieces import SCHEDULE

from engine.core.contracts import Harness
from engine.core.records import Task, Trial
from engine.harness.client import Client
from engine.inference.scripted import ScriptedEngine
from engine.proxy.app import LlmProxy
from engine.proxy.session import TrialSession
from engine.run.demonstrations import script
from engine.run.drain import Drain
from engine.run.keeper import EngineKeeper
from engine.run.plan import Plan, Sampling
from engine.run.rollout import Rollout
from engine.run.trial import Workshop
from engine.samples.advantages import GroupNormalized
from engine.samples.groups import make_groups
from engine.samples.rows import make_batch
from engine.sandbox.images import DebianImageStore
from engine.store.layout import Layout
from engine.store.ledger import read_ledger
from engine.store.reader import Reader
from engine.train.models import TinyQwen3Moe
from engine.verify.pytest_verifier import PytestVerifier

MINE = {"claude_code": "You are a Claude agent", "mini_swe_agent": "You are a helpful assistant that can interact"}
"""How the system prompt of each begins."""


def harnesses() -> dict[str, Harness]:
    """As configured, but each calls what the other one says a side call, and each holds back in a way of its own."""
    made: dict[str, Any] = {
        "claude_code": make("claude_code", max_turns=6),
        "mini_swe_agent": make_harness(),
    }
    for (name, harness), held in zip(made.items(), ("turn", "tool_call"), strict=True):
        (other,) = (prompt for of, prompt in MINE.items() if of != name)
        harness.client = Client(volatile=harness.client.volatile, side_calls=[other], hold_back=held)
    return made


def two_tasks(folder: Path) -> list[Task]:
    """`add` subtracts; the solution of the second names a line that mends nothing."""
    made = []
    for name, right in (("good", "return a + b"), ("bad", "return b - a")):
        (folder / name).mkdir()
        task = write_calc(folder / name, task_image())
        facts = {"path": "calc/__init__.py", "buggy": "return a - b", "right": right, "wrong": []}
        (task.directory / "solution/repairs.json").write_text(json.dumps(facts))
        made.append(dataclasses.replace(task, memory_mb=1536, agent_timeout_s=120))
    return made


def plan_of(task: Task, names: Sequence[str]) -> Plan:
    """One group of three trials, two of them Claude Code's."""
    mix = {"by": "trajectory", "weights": {"mini_swe_agent": 1, "claude_code": 2}}
    plan = Plan(
        run="mixed",
        seed=0,
        schedule=dataclasses.replace(SCHEDULE, prompts_per_step=1, rollouts_per_prompt=3, harness_mix=mix),
        tasks=(task,),
        harnesses=tuple(names),
        rollout=Sampling(temperature=1.0, top_p=1.0),
    )
    plan.check()
    return plan


def played(trials: Sequence[Trial], used: Mapping[str, Harness], bad: Task) -> ScriptedEngine:
    """Each repairs the line by its own harness's tools, but for the last trial, which makes it worse."""
    *well, badly = trials
    said = script(well, used, 1.0, 0) | script([dataclasses.replace(badly, task=bad)], used, 1.0, 0)
    turns = {
        key: [
            {"text": turn.text, "calls": [{"name": call.name, "arguments": call.arguments} for call in turn.calls]}
            for turn in one
        ]
        for key, one in said.items()
    }
    return ScriptedEngine(script=turns, final_text="Nothing more.", seed=0, probe=None)


class Watched(LlmProxy):
    """Notes with whose rules each trial is served."""

    opened: Mapping[int, str] = {}

    def open(self, trial: Trial, harness: Harness, port: int, folder: Path | None = None) -> TrialSession:
        self.opened = {**self.opened, trial.key.sample: harness.client.hold_back}
        return super().open(trial, harness, port, folder)


async def test_two_harnesses_in_one_step_are_one_group_and_each_has_its_own_rules(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    runtime, images, verifier = make_runtime(), DebianImageStore(), PytestVerifier(**options("verify/pytest.yaml"))
    if missing := runtime.problems():
        pytest.skip(f"this machine cannot run sandboxes: {missing[0]}")
    model, used = TinyQwen3Moe(**options("model/tiny_qwen3_moe.yaml")), harnesses()
    await model.prepare(print)
    for image in (task_image(), verifier.toolchain(), *(one.runtime() for one in used.values())):
        await images.build(image, print)
    good, bad = two_tasks(tmp_path)
    plan = plan_of(good, list(used))
    trials = plan.trials(0, version=0)
    assert [trial.harness for trial in trials] == ["claude_code", "mini_swe_agent", "claude_code"]
    proxy = Watched(**options("proxy/laptop.yaml"))
    proxy.max_prompt_tokens, proxy.max_response_tokens = 40_000, 80_000
    shop = Workshop(
        images=images,
        sandboxes=runtime,
        proxy=proxy,
        harnesses=used,
        defenses=[],
        verifier=verifier,
        scratch=tmp_path / "scratch",
        pids=256,
        disk_mb=512,
    )
    info, layout = dataclasses.replace(model.info(), max_context=131_072), Layout(root=tmp_path / "run")
    engine = played(trials, used, bad)
    await runtime.start(images, "test-mixed")
    await engine.start(info, tmp_path / "engine")
    try:
        await proxy.start(info, engine)
        keeper = EngineKeeper(engine, 0, print)
        rollout = Rollout(shop, keeper, plan.schedule, layout, Drain())
        ended = await rollout.run(0, trials, lambda _: None, lambda _: None)
    finally:
        await proxy.stop()
        await engine.stop()
        await runtime.stop()

    assert proxy.opened == {0: "turn", 1: "tool_call", 2: "turn"}
    for scored in ended:
        harness = scored.trajectory.trial.harness
        assert {one.kind for one in scored.trajectory.exchanges} == {"policy"}, (harness, scored.trajectory.reason)
        assert MINE[harness] in scored.trajectory.exchanges[0].request
    reader = Reader(layout)
    rows = [reader.row(0, "train", name, ("harness", "reward")) for name in reader.trials(0, "train")]
    assert [tuple(row.values()) for row in rows] == [
        ("claude_code", 1.0),
        ("mini_swe_agent", 1.0),
        ("claude_code", 0.0),
    ]
    assert set(read_ledger(layout, 0).values()) == {"finished"}
    (group,) = make_groups(ended, GroupNormalized(ddof=1, epsilon=1e-6))
    assert group.advantages[0] == group.advantages[1] > 0 > group.advantages[2], "compared with each other"
    batch = make_batch([group], step=0, policy_version=0)
    assert (batch.trajectories, len(batch.rows)) == (3, 3)
