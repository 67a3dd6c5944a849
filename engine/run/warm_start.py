"""The warm start: a policy that has read a scripted solver's conversations before reinforcement begins.

    scripted trials → texts → the model's tokeniser and random weights → rows → supervised fit → checkpoint

The trials go through the real harness, sandbox, proxy and verifier. They are kept beside the models' cache, one file
each, so an interrupted warm start goes on with what is missing; the checkpoint appears whole or not at all.

Invariant: a checkpoint belongs to one fingerprint: of the model's settings and recipe, the harnesses and all tasks.
Refuses a pool without warm-start tasks and a demonstration that was not kept.
"""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.config.built import Built
from engine.core.contracts import ImageStore, Say
from engine.core.errors import ConfigError, RunError
from engine.core.paths import cache_dir
from engine.core.records import Demonstration, Scored, Task, Trial, TrialKey
from engine.core.specs import ModelInfo
from engine.core.temporary import temporary_folder
from engine.core.training_contracts import WarmStartedModel
from engine.inference.script import Turn
from engine.inference.scripted import ScriptedEngine
from engine.proxy.app import LlmProxy
from engine.run import demonstrations
from engine.run.demonstrations import read_repairs, row, script
from engine.run.drain import Drain
from engine.run.keeper import EngineKeeper
from engine.run.plan import derived_seed
from engine.run.rollout import Rollout
from engine.run.trial import Workshop
from engine.store.layout import Layout
from engine.tokens.load import load_renderer
from engine.tokens.tokenizer import CheckpointTokenizer

_CONTEXT = 1 << 17
"""Tokens of context while demonstrating: nothing samples, and the words have no short tokens yet."""
_TURN = 1 << 14
_SAY_EVERY = 20
_HEARD = 2
"""Times that the tokeniser hears each issue: a line that is heard once is no word."""
_AROUND = 4
"""Lines on each side of a faulty one that are heard with it: as many as an editor shows of what it changed."""


@dataclass(frozen=True, kw_only=True)
class _Demonstrated:
    """Trials in order, and what was said in each."""

    blank: ModelInfo
    """The checkpoint in whose tokens they went by."""
    scored: tuple[Scored, ...]
    turns: tuple[tuple[Turn, ...], ...]


def bind(built: Built) -> bool:
    """Tell a model that is warm-started what its demonstrations are made of; whether the model can be asked now.

    Where the tasks are not prepared it cannot: what it lacks is then theirs to say."""
    model = built.model
    if not isinstance(model, WarmStartedModel):
        return True
    if built.tasks.problems():
        return False
    model.bind(hashlib.sha256(json.dumps(_facts(built), sort_keys=True).encode()).hexdigest())
    return True


def _facts(built: Built) -> dict[str, Any]:
    """What the demonstrations are made with, the player's own code included."""
    return {
        "player": [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in (__file__, demonstrations.__file__)],
        "harnesses": built.config["harnesses"],
        "runtimes": [repr(harness.runtime()) for harness in built.harnesses.values()],
        "tasks": sorted((task.id, task.fingerprint) for task in built.tasks.load()),
        "seed": built.seed,
    }


async def make(built: Built, images: ImageStore, say: Say) -> None:
    """Make the checkpoint of a warm-started model unless it is there; sandboxes are started and stopped."""
    model = built.model
    if not isinstance(model, WarmStartedModel) or model.info().path.is_dir():
        return
    tasks = built.tasks.load()
    taught = [task for task in tasks if task.split == "warm_start"]
    if not taught:
        way_out = "choose a pool that has some (tasks=laptop), or a model that is not warm-started"
        raise ConfigError("tasks", built.config["tasks"]["_target_"], "has no task for the warm start", way_out)
    with temporary_folder("warm-start", cache_dir() / "models") as folder:
        draft = folder / "draft"
        demonstrated = await _demonstrate(built, model, taught, images, (folder, say))
        say("warm start: training the tokeniser")
        texts = await asyncio.to_thread(_texts, demonstrated, tasks)
        info = await asyncio.to_thread(model.draft, texts, draft)
        rows = await asyncio.to_thread(_rows, demonstrated, info)
        say(f"warm start: {len(rows)} conversations, {np.mean([len(row.token_ids) for row in rows]):.0f} tokens each")
        metrics = await asyncio.to_thread(model.fit, draft, rows, say)
        path = model.settle(draft)
    say("warm start: " + ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()))
    say(f"warm start: checkpoint in {path}")


# ---------------------------------------------------------------- demonstrations


async def _demonstrate(
    built: Built, model: WarmStartedModel, taught: Sequence[Task], images: ImageStore, place: tuple[Path, Say]
) -> _Demonstrated:
    """Run every demonstration through the real trial path. Raises RunError when one is lost for good."""
    folder, say = place
    trials = _trials(built, model, taught)
    said = script(trials, built.harnesses, model.demonstrations.right_share, built.seed)
    engine = ScriptedEngine(script=said, final_text="", seed=built.seed, probe=None)
    blank = replace(model.draft((), folder / "blank"), max_context=_CONTEXT)
    limits = {"max_prompt_tokens": _CONTEXT // 2, "max_response_tokens": _CONTEXT // 2, "max_tokens_per_turn": _TURN}
    proxy = LlmProxy(**{key: value for key, value in built.config["proxy"].items() if key != "_target_"} | limits)
    layout = Layout(root=cache_dir() / "demonstrations" / _digest(built, blank, said))
    layout.root.mkdir(parents=True, exist_ok=True)
    done: list[Scored] = []

    def show(scored: Scored) -> None:
        done.append(scored)
        if len(done) % _SAY_EVERY == 0 or len(done) == len(trials):
            say(f"warm start: {len(done)} of {len(trials)} demonstrations")

    def again(scored: Scored) -> None:
        say(f"warm start: trying {scored.trajectory.trial.key} again: {scored.trajectory.reason}")

    say(f"warm start: {len(trials)} demonstrations on {len(taught)} tasks")
    try:
        await engine.start(blank, folder)
        await proxy.start(blank, engine)
        await built.sandbox.start(images, f"warm-start-{built.hash}")
        shop = Workshop.of(built, images, proxy, folder / "scratch")
        rollout = Rollout(shop, EngineKeeper(engine, 0, say), built.schedule, layout, Drain())
        scored = await rollout.run(0, trials, show, again)
    finally:
        await proxy.stop()
        await engine.stop()
        await built.sandbox.stop()
    for one in scored:
        if one.trajectory.termination.excluded:
            raise RunError(f"demonstration {one.trajectory.trial.key} was lost: {one.trajectory.reason}")
    turns = tuple(tuple(said[str(trial.key)]) for trial in trials)
    return _Demonstrated(blank=blank, scored=tuple(scored), turns=turns)


def _digest(built: Built, blank: ModelInfo, said: Mapping[str, Sequence[Turn]]) -> str:
    """Of what decides how demonstrations go by: how the policy is fitted to them later does not."""
    facts = [_facts(built), sorted((name, [repr(turn) for turn in turns]) for name, turns in said.items())]
    tokens = (blank.path / "tokenizer.json").read_bytes()
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode() + tokens).hexdigest()[:16]


def _trials(built: Built, model: WarmStartedModel, taught: Sequence[Task]) -> list[Trial]:
    """`samples_per_task` of each harness on each task."""
    return [
        Trial(
            key=TrialKey(run="warm-start", epoch=0, task=task.id, sample=sample, attempt=0),
            task=task,
            harness=harness,
            policy_version=0,
            seed=derived_seed(built.seed, "warm-start", task.id, sample),
            temperature=1.0,
            top_p=1.0,
            split="warm_start",
        )
        for task in taught
        for sample, harness in enumerate(sorted(built.harnesses) * model.demonstrations.samples_per_task)
    ]


# ---------------------------------------------------------------- texts and rows


def _texts(demonstrated: _Demonstrated, tasks: Sequence[Task]) -> list[str]:
    """What the tokeniser learns from: whole conversations as an engine sees them, one text each, and one text of
    every task's issue and of the code around its faulty line, numbered as an agent's tools show it.

    All splits are read, as a user's own tokeniser would know the words of the code that it works on; how any of it
    should read is told by none."""
    blank = CheckpointTokenizer(demonstrated.blank.path)
    texts = [
        blank.decode(segment.token_ids.tolist())
        for scored in demonstrated.scored
        for segment in scored.trajectory.segments
    ]
    words = [text for task in tasks for text in (task.instruction, _around(task))]
    return [*texts, "\n".join(words * _HEARD)]


def _around(task: Task) -> str:
    repairs = read_repairs(task)
    source = (task.repository / repairs.path).read_text(encoding="utf-8")
    lines, fault = source.split("\n"), source.partition(repairs.buggy)[0].count("\n")
    near = range(max(0, fault - _AROUND), min(len(lines), fault + _AROUND + 1))
    return "\n".join(f"{number + 1:6}\t{lines[number]}" for number in near)


def _rows(demonstrated: _Demonstrated, model: ModelInfo) -> list[Demonstration]:
    """The conversations in the model's tokens.

    Writing them down again is first proved on the tokens in which they really went by: those must come out the same."""
    blank, own = _Writer(demonstrated.blank), _Writer(model)
    rows = []
    for scored, turns in zip(demonstrated.scored, demonstrated.turns, strict=True):
        went_by, again = scored.trajectory.segments, blank.row(scored, turns)
        same = len(went_by) == 1 and np.array_equal(went_by[0].token_ids, again.token_ids)
        if not same or not np.array_equal(went_by[0].target, again.sampled):
            raise RunError(f"demonstration {scored.trajectory.trial.key}: its tokens cannot be written down again")
        rows.append(own.row(scored, turns))
    return rows


class _Writer:
    """Writes conversations in a checkpoint's tokens."""

    def __init__(self, model: ModelInfo) -> None:
        self._renderer, self._tokenizer = load_renderer(model), CheckpointTokenizer(model.path)
        stop = self._tokenizer.eos_token_id
        if stop is None or stop not in self._renderer.stop_token_ids:
            raise RunError(f"the tokeniser's eos token {stop} does not end a turn of renderer {model.renderer}")
        self._stop = stop

    def row(self, scored: Scored, turns: Sequence[Turn]) -> Demonstration:
        return row(scored, turns, self._renderer, self._encode)

    def _encode(self, text: str) -> NDArray[np.int32]:
        return np.asarray([*self._tokenizer.encode(text), self._stop], np.int32)
