"""Rules that span groups, by their exact message."""

from typing import Any

import pytest

from engine.config import harness_checks
from engine.config.checks import RULES, check_run
from engine.core.errors import ConfigErrors

GOOD: dict[str, Any] = {
    "job": {"_target_": "engine.run.jobs.train.TrainJob"},
    "model": {"max_context": 1000},
    "harnesses": {"a": {"native_tool_calling": False}, "b": {"native_tool_calling": False}},
    "proxy": {"max_prompt_tokens": 400, "max_response_tokens": 600, "max_tokens_per_turn": 600},
    "algorithm": {"advantage": {"_target_": "engine.samples.advantages.GroupNormalized"}},
    "train": {"mini_batches": 8},
    "schedule": {"prompts_per_step": 4, "rollouts_per_prompt": 2, "partial_rollouts": False, "staleness_threshold": 0},
}

CASES = {
    "a name that is taken": (
        {"run": {"name": "Sweeps"}},
        ["run.name='Sweeps': is the folder of the sweeps' records; choose another name"],
    ),
    "schedule.rollouts_per_prompt": (
        {"harnesses": {"a": {}}, "schedule.rollouts_per_prompt": 1, "train.mini_batches": 4},
        [
            "schedule.rollouts_per_prompt=1: a group of one has nothing to be compared with, so every advantage "
            "would be 0; set it to at least 2"
        ],
    ),
    "harnesses": (
        {"harnesses": {"a": {}, "b": {}, "c": {}}},
        [
            "schedule.rollouts_per_prompt=2: fewer rollouts than harnesses (a, b, c), so some would never run; "
            "set it to at least 3"
        ],
    ),
    "clients that give up first": (
        {"inference": {"request_timeout_s": 600}, "harnesses": {"a": {"llm_timeout_s": 600}, "b": {}}},
        [
            "harnesses.a.llm_timeout_s=600: gives up no later than the engine (inference.request_timeout_s=600), and "
            "asks it twice; set it to more than 600, or lower inference.request_timeout_s"
        ],
    ),
    "places that mean something else": (
        {"sandbox": {"network": {"build": ["a.test", "10.0.0.1/8:80"], "agent": ["2001:db8::1"]}}},
        [
            "sandbox.network.build[1]='10.0.0.1/8:80': has bits beyond its mask: 10.0.0.0/8 holds it; write HOST, "
            "HOST:PORT, *.DOMAIN:PORT, ADDRESS:PORT, NETWORK/BITS:PORT or [IPv6]:PORT",
            "sandbox.network.agent[0]='2001:db8::1': has no form that is known: an IPv6 address stands in brackets; "
            "write HOST, HOST:PORT, *.DOMAIN:PORT, ADDRESS:PORT, NETWORK/BITS:PORT or [IPv6]:PORT",
        ],
    ),
    "weights of other harnesses": (
        {"schedule.harness_mix": {"by": "trajectory", "weights": {"a": 1, "c": 2}}},
        [
            "schedule.harness_mix.weights.c=2: there is no such harness in this mix (a, b); leave it out, or add it "
            "to harness=[…]",
            "schedule.harness_mix.weights={'a': 1, 'c': 2}: no weight for b; give one to each harness of the mix, or "
            "to none",
        ],
    ),
    "a weight too small": (
        {"schedule.harness_mix": {"by": "trajectory", "weights": {"a": 3, "b": 1}}},
        [
            "schedule.rollouts_per_prompt=2: too few for one rollout of harness b in each group, with weight 1; set it "
            "to at least 4, give b more weight, or set schedule.harness_mix.by=task"
        ],
    ),
    "partial rollouts": (
        {"schedule.partial_rollouts": True},
        [
            "schedule.partial_rollouts=True: a trial that goes on across an update is sampled from two versions of "
            "the weights; set schedule.staleness_threshold to at least 1, or schedule.partial_rollouts=false"
        ],
    ),
    "staleness": (
        {"schedule.staleness_threshold": 1},
        [
            "schedule.staleness_threshold=1: job=train lets rollouts and updates take turns, it cannot run them at "
            "once yet; set schedule.staleness_threshold=0 and schedule.partial_rollouts=false"
        ],
    ),
    "volatile text": (
        {"harnesses": {"a": {"client": {"volatile": ["fine", "(open"], "side_calls": ["*"]}}, "b": {}}},
        [
            "harnesses.a.client.volatile[1]='(open': is no regular expression: missing ), unterminated subpattern at "
            "position 0; give one of Python's `re`; a backslash takes a letter's sense",
            "harnesses.a.client.side_calls[0]='*': is no regular expression: nothing to repeat at position 0; give one "
            "of Python's `re`; a backslash takes a letter's sense",
        ],
    ),
    "signs of an attack": (
        {"defense": {"stages": [{}, {"added": {"fine": "a+", "an end": "exit("}, "paths": {}}]}},
        [
            "defense.stages[1].added['an end']='exit(': is no regular expression: missing ), unterminated subpattern "
            "at position 4; give one of Python's `re`; a backslash takes a letter's sense"
        ],
    ),
    "text that is everywhere": (
        {"harnesses": {"a": {"client": {"volatile": ["x*", "x+"], "side_calls": [".*title"]}}, "b": {}}},
        [
            "harnesses.a.client.volatile[0]='x*': is found in every text, so every one would be meant by it; let it "
            "match one letter at least (`+` for `*`)"
        ],
    ),
    "variables of the agent's own shell": (
        {"harnesses": {"a": {"environment": {"MY-VAR; ls": "1", "PATH": "/x", "FINE_1": ""}}, "b": {}}},
        [
            "harnesses.a.environment='MY-VAR; ls': is no name of a variable; use letters, digits and `_`",
            "harnesses.a.environment='PATH': belongs to the sandbox, and the agent's commands would be left without "
            "it; leave it out; a program of your own may set it for itself",
        ],
    ),
    "nucleus": (
        {"proxy": {"top_p": 0.9}},
        [
            "proxy.top_p=0.9: captured log-probabilities would be over the nucleus, the trainer's over the whole "
            "vocabulary; set proxy.top_p=1.0 and lower proxy.temperature instead"
        ],
    ),
    "an engine without weights": (
        {"inference": {"probe": None}},
        [
            "inference.probe=None: this engine has no weights, so an update cannot be shown to have reached it; "
            "train with another engine, for example inference=vllm"
        ],
    ),
    "commands that nothing says when to run": (
        {
            "job": {
                "_target_": "engine.run.jobs.trial.TrialJob",
                "task": "a",
                "harness": None,
                "shell": "none",
                "commands": ["ls"],
                "enter": None,
            }
        },
        [
            "job.commands=['ls']: nothing says when they are run; set job.shell=before or after (the agent), or "
            "job.harness=none"
        ],
    ),
    "a trial in a sandbox that was left": (
        {
            "job": {
                "_target_": "engine.run.jobs.trial.TrialJob",
                "task": "a",
                "harness": None,
                "shell": "none",
                "commands": ["ls"],
                "enter": "b",
            }
        },
        [
            "job.task='a': a sandbox that is there is entered (job.enter=b), and no trial is run; leave one of the two "
            "out"
        ],
    ),
    "goals": (
        {"job": {"goals": {"solve_low": 0.6, "solve_high": 0.5}}},
        [
            "job.goals.solve_low=0.6: more than job.goals.solve_high=0.5, so no policy could meet both; "
            "set it to at most 0.5"
        ],
    ),
    "a warm start of nothing": (
        {
            "job": {"_target_": "engine.run.jobs.prepare.PrepareJob"},
            "model": {"_target_": "engine.train.warm_start.WarmStarted"},
            "tasks": {name: {"warm_start": 0, "train": 0, "validation": 1} for name in ("real", "generated")},
        },
        [
            "tasks.real.warm_start=0: with tasks.generated.warm_start=0 fewer tasks than the 1 that this job takes; "
            "set it to at least 1"
        ],
    ),
    "no training tasks to try": (
        {
            "job": {"_target_": "engine.run.jobs.sft.SftJob"},
            "tasks": {name: {"warm_start": 1, "train": 0, "validation": 1} for name in ("real", "generated")},
        },
        [
            "tasks.real.train=0: with tasks.generated.train=0 fewer tasks than the 1 that this job takes; "
            "set it to at least 1"
        ],
    ),
    "a batch that is never full": (
        {
            "schedule.drop_last": True,
            "tasks": {name: {"warm_start": 1, "train": 1, "validation": 1} for name in ("real", "generated")},
        },
        [
            "tasks.real.train=1: with tasks.generated.train=1 fewer tasks than the 4 that this job takes; "
            "set it to at least 3"
        ],
    ),
    "context": (
        {"model.max_context": 999},
        [
            "proxy.max_response_tokens=600: with proxy.max_prompt_tokens=400 more than model.max_context=999, so "
            "never used up; set it to at most 599"
        ],
    ),
    "turn": (
        {"proxy.max_tokens_per_turn": 601},
        [
            "proxy.max_tokens_per_turn=601: more than proxy.max_response_tokens=600, the budget of the whole trial; "
            "set it to at most 600"
        ],
    ),
    "calls in plain text": (
        {"model.renderer": "template", "harnesses.b": {"native_tool_calling": True}},
        [
            "harnesses.b.native_tool_calling=True: model.renderer=template shows the model no tools and reads no calls "
            "in its answers; set it to false"
        ],
    ),
    "calls in plain text by another spelling": (
        {"model.renderer": "template:-thinking", "harnesses.b": {"native_tool_calling": True}},
        [
            "harnesses.b.native_tool_calling=True: model.renderer=template:-thinking shows the model no tools and "
            "reads no calls in its answers; set it to false"
        ],
    ),
    "calls of a program that speaks in calls alone": (
        {"model.renderer": "template", "harnesses.b": {"_target_": "engine.harness.codex.Codex"}},
        [
            "harnesses.b._target_='engine.harness.codex.Codex': model.renderer=template shows the model no tools and "
            "reads no calls in its answers; choose harness=mini_swe_agent with native_tool_calling=false, which works "
            "in plain text"
        ],
    ),
    "a name of another": (
        {"harnesses.b": {"native_tool_calling": True, "name": "c"}},
        ["harnesses.b.name='c': not the key it stands under; set it to b"],
    ),
    "warm start without a word": (
        {
            "model": {"_target_": "engine.train.warm_start.WarmStarted", "name": "warm"},
            "harnesses.b": {"native_tool_calling": True, "demonstration": []},
        },
        [
            "harnesses.b.demonstration=[]: the warm start of model.name='warm' would learn nothing of this harness; "
            "write the turns that mend a line, or set model=tiny_qwen3_moe, whose weights are random"
        ],
    ),
    "mini-batches": (
        {"train.mini_batches": 9},
        ["train.mini_batches=9: more than the 8 trajectories of a step; set it to at most 8"],
    ),
    "warm start from a pool without tasks for it": (
        {
            "model": {"_target_": "engine.train.warm_start.WarmStarted", "name": "warm"},
            "tasks": {"_target_": "engine.tasks.directory.HarborDirectory"},
        },
        [
            "tasks='engine.tasks.directory.HarborDirectory': has no tasks for the warm start of model.name='warm'; set "
            "model=tiny_qwen3_moe, whose weights are random, or take warm-start tasks from tasks=laptop"
        ],
    ),
    "warm start from tasks selected from such a pool": (
        {
            "model": {"_target_": "engine.train.warm_start.WarmStarted", "name": "warm"},
            "tasks": {"_target_": "a.Pool", "pool": {"_target_": "engine.tasks.directory.HarborDirectory"}},
        },
        [
            "tasks.pool='engine.tasks.directory.HarborDirectory': has no tasks for the warm start of "
            "model.name='warm'; set model=tiny_qwen3_moe, whose weights are random, or take warm-start tasks from "
            "tasks=laptop"
        ],
    ),
    "bounds of a selection, and of the one that it selects from": (
        {
            "tasks": {
                "solved_least": 3,
                "solved_most": 2,
                "of": 4,
                "pool": {"solved_least": 0, "solved_most": 5, "of": 4, "pool": {}},
            }
        },
        [
            "tasks.solved_least=3: more than tasks.solved_most=2, so no task could be kept; set it to at most 2",
            "tasks.pool.solved_most=5: more than tasks.pool.of=4; set it to at most 4",
        ],
    ),
    "several": (
        {"train.mini_batches": 9, "proxy.max_tokens_per_turn": 601},
        [
            "proxy.max_tokens_per_turn=601: more than proxy.max_response_tokens=600, the budget of the whole trial; "
            "set it to at most 600",
            "train.mini_batches=9: more than the 8 trajectories of a step; set it to at most 8",
        ],
    ),
}


def _with(changes: dict[str, Any]) -> dict[str, Any]:
    config = {name: dict(group) for name, group in GOOD.items()}
    for key, value in changes.items():
        group, _, name = key.partition(".")
        config[group] = {**config[group], name: value} if name else value
    return config


@pytest.mark.parametrize("case", CASES)
def test_rule(case: str) -> None:
    changes, expected = CASES[case]
    with pytest.raises(ConfigErrors) as caught:
        check_run(_with(changes))
    assert str(caught.value).splitlines() == expected


def test_every_rule_has_a_case() -> None:
    broken = {rule for changes, _ in CASES.values() for rule in RULES if list(rule(_with(changes)))}
    others = harness_checks.RULES  # have cases of their own
    assert [rule.__name__ for rule in RULES if rule not in (*broken, *others)] == []


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"schedule.staleness_threshold": 1, "schedule.partial_rollouts": True, "job": {"_target_": "other.Job"}},
        {"proxy": {}, "model": {}, "train": {}},
        {"harnesses": {"a": {}, "b": {}, "c": {}}, "schedule.harness_mix": {"by": "task", "weights": None}},
        {"schedule.harness_mix": {"by": "trajectory", "weights": {"a": 1, "b": 1.0}}},
        {"proxy": {"top_p": 1.0}},
        {"model.renderer": "template", "harnesses.b": {"native_tool_calling": False}},
        {"model.renderer": "template:qwen3", "harnesses.b": {"native_tool_calling": True}},
        {"proxy": {"top_p": 0.9}, "job": {"_target_": "other.Job"}},
        {"model": {"_target_": "engine.train.warm_start.WarmStarted"}, "tasks": {"_target_": "another.package.Pool"}},
        {
            "job": {
                "_target_": "engine.run.jobs.trial.TrialJob",
                "task": "a",
                "harness": "none",
                "shell": "none",
                "commands": ["ls"],
                "enter": None,
            }
        },
    ],
)
def test_what_works_together_passes(changes: dict[str, Any]) -> None:
    check_run(_with(changes))
