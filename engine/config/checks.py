"""The rules that span groups: what each schema allows by itself but would not work, or not count, together.

Invariant: reads a validated, plain configuration and nothing else, so it is quick and needs no component. A rule whose
keys a component does not have says nothing.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from math import ceil
from typing import Any

from engine.config import harness_checks, network_checks
from engine.core.errors import ConfigError, ConfigErrors

Config = Mapping[str, Any]
Rule = Callable[[Config], Iterator[ConfigError]]


def check_run(config: Config) -> None:
    """Raises ConfigErrors naming every broken rule."""
    errors = [error for rule in RULES for error in rule(config)]
    if errors:
        raise ConfigErrors(errors)


def _name_is_free(config: Config) -> Iterator[ConfigError]:
    """Below `run.root` only runs lie, but for this one; its schema keeps out paths, and `~`, which marks what is set
    aside."""
    name = _at(config, "run.name")
    if name is not None and name.lower() == "sweeps":  # some disks do not tell the cases apart
        yield ConfigError("run.name", name, "is the folder of the sweeps' records", "choose another name")


def _group_has_spread(config: Config) -> Iterator[ConfigError]:
    rollouts = config["schedule"]["rollouts_per_prompt"]
    if rollouts < 2 and _at(config, "algorithm.advantage._target_") == "engine.samples.advantages.GroupNormalized":
        problem = "a group of one has nothing to be compared with, so every advantage would be 0"
        yield ConfigError("schedule.rollouts_per_prompt", rollouts, problem, "set it to at least 2")


def _every_harness_has_a_weight(config: Config) -> Iterator[ConfigError]:
    weights, harnesses = _weights(config), list(config["harnesses"])
    if not weights:
        return
    for name in weights:
        if name not in harnesses:
            problem = f"there is no such harness in this mix ({', '.join(harnesses)})"
            yield ConfigError(f"{_WEIGHTS}.{name}", weights[name], problem, "leave it out, or add it to harness=[…]")
    missing = [name for name in harnesses if name not in weights]
    if missing:
        problem = f"no weight for {', '.join(missing)}"
        yield ConfigError(_WEIGHTS, dict(weights), problem, "give one to each harness of the mix, or to none")


def _every_harness_runs(config: Config) -> Iterator[ConfigError]:
    """In every group of a mix by trajectory; of one by task the plan knows more."""
    rollouts, harnesses, weights = (
        config["schedule"]["rollouts_per_prompt"],
        list(config["harnesses"]),
        _weights(config),
    )
    if _at(config, "schedule.harness_mix.by") == "task" or (weights and set(weights) != set(harnesses)):
        return
    if not weights and len(harnesses) > rollouts:
        problem = f"fewer rollouts than harnesses ({', '.join(harnesses)}), so some would never run"
        yield ConfigError("schedule.rollouts_per_prompt", rollouts, problem, f"set it to at least {len(harnesses)}")
    if weights:
        exact = {name: Fraction(str(weight)) for name, weight in weights.items()}
        least = min(exact, key=exact.__getitem__)
        needed = ceil(sum(exact.values()) / exact[least])
        if rollouts < needed:
            problem = f"too few for one rollout of harness {least} in each group, with weight {weights[least]}"
            way_out = f"set it to at least {needed}, give {least} more weight, or set schedule.harness_mix.by=task"
            yield ConfigError("schedule.rollouts_per_prompt", rollouts, problem, way_out)


_WEIGHTS = "schedule.harness_mix.weights"


def _weights(config: Config) -> Mapping[str, Any]:
    return _at(config, _WEIGHTS) or {}


def _partial_rollouts_are_stale(config: Config) -> Iterator[ConfigError]:
    schedule = config["schedule"]
    if schedule["partial_rollouts"] and schedule["staleness_threshold"] == 0:
        problem = "a trial that goes on across an update is sampled from two versions of the weights"
        way_out = "set schedule.staleness_threshold to at least 1, or schedule.partial_rollouts=false"
        yield ConfigError("schedule.partial_rollouts", True, problem, way_out)


def _training_takes_turns(config: Config) -> Iterator[ConfigError]:
    staleness = config["schedule"]["staleness_threshold"]
    if staleness and _at(config, "job._target_") == "engine.run.jobs.train.TrainJob":
        problem = "job=train lets rollouts and updates take turns, it cannot run them at once yet"
        way_out = "set schedule.staleness_threshold=0 and schedule.partial_rollouts=false"
        yield ConfigError("schedule.staleness_threshold", staleness, problem, way_out)


def _engine_has_weights(config: Config) -> Iterator[ConfigError]:
    engine = _at(config, "inference") or {}
    if _at(config, "job._target_") == "engine.run.jobs.train.TrainJob" and engine.get("probe", ...) is None:
        problem = "this engine has no weights, so an update cannot be shown to have reached it"
        yield ConfigError("inference.probe", None, problem, "train with another engine, for example inference=vllm")


def _log_probabilities_compare(config: Config) -> Iterator[ConfigError]:
    top_p = _at(config, "proxy.top_p")
    if top_p is not None and top_p < 1 and _at(config, "job._target_") == "engine.run.jobs.train.TrainJob":
        problem = "captured log-probabilities would be over the nucleus, the trainer's over the whole vocabulary"
        way_out = "set proxy.top_p=1.0 and lower proxy.temperature instead"
        yield ConfigError("proxy.top_p", top_p, problem, way_out)


def _budget_fits_context(config: Config) -> Iterator[ConfigError]:
    prompt, response = _at(config, "proxy.max_prompt_tokens"), _at(config, "proxy.max_response_tokens")
    context = _at(config, "model.max_context")
    if None in (prompt, response, context) or prompt + response <= context:
        return
    problem = f"with proxy.max_prompt_tokens={prompt} more than model.max_context={context}, so never used up"
    way_out = f"set it to at most {context - prompt}" if prompt < context else "lower proxy.max_prompt_tokens"
    yield ConfigError("proxy.max_response_tokens", response, problem, way_out)


def _turn_fits_budget(config: Config) -> Iterator[ConfigError]:
    turn, response = _at(config, "proxy.max_tokens_per_turn"), _at(config, "proxy.max_response_tokens")
    if turn is not None and response is not None and turn > response:
        problem = f"more than proxy.max_response_tokens={response}, the budget of the whole trial"
        yield ConfigError("proxy.max_tokens_per_turn", turn, problem, f"set it to at most {response}")


def _calls_can_be_read(config: Config) -> Iterator[ConfigError]:
    chosen = _at(config, "model.renderer")
    if not isinstance(chosen, str) or chosen.removesuffix("-thinking").rstrip(":") != "template":
        return
    problem = f"model.renderer={chosen} shows the model no tools and reads no calls in its answers"
    for name, harness in config["harnesses"].items():
        if "native_tool_calling" not in harness:
            way_out = "choose harness=mini_swe_agent with native_tool_calling=false, which works in plain text"
            yield ConfigError(f"harnesses.{name}._target_", _at(harness, "_target_"), problem, way_out)
        elif harness["native_tool_calling"]:
            yield ConfigError(f"harnesses.{name}.native_tool_calling", True, problem, "set it to false")


def _clients_wait_for_the_engine(config: Config) -> Iterator[ConfigError]:
    """Nothing is sent while a turn is held back, and who gives up first asks again for what is still being sampled."""
    engine = _at(config, "inference.request_timeout_s")
    for name, harness in config["harnesses"].items():
        client = _at(harness, "llm_timeout_s")
        if engine is not None and client is not None and client <= engine:
            problem = f"gives up no later than the engine (inference.request_timeout_s={engine}), and asks it twice"
            way_out = f"set it to more than {engine}, or lower inference.request_timeout_s"
            yield ConfigError(f"harnesses.{name}.llm_timeout_s", client, problem, way_out)


def _patterns_can_be_read(config: Config) -> Iterator[ConfigError]:
    for key, pattern in _patterns(config):
        try:
            everywhere = re.search(pattern, "") is not None
        except re.error as error:
            way_out = "give one of Python's `re`; a backslash takes a letter's sense"
            yield ConfigError(key, pattern, f"is no regular expression: {error}", way_out)
            continue
        if everywhere:
            problem = "is found in every text, so every one would be meant by it"
            yield ConfigError(key, pattern, problem, "let it match one letter at least (`+` for `*`)")


def _patterns(config: Config) -> Iterator[tuple[str, str]]:
    for name, harness in config["harnesses"].items():
        for key in ("volatile", "side_calls"):
            for index, pattern in enumerate(_at(harness, f"client.{key}") or ()):
                yield f"harnesses.{name}.client.{key}[{index}]", pattern
    for index, stage in enumerate(_at(config, "defense.stages") or ()):
        for key in ("added", "paths", "said"):
            for sign, pattern in (_at(stage, key) or {}).items():
                yield f"defense.stages[{index}].{key}[{sign!r}]", pattern


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SANDBOXS_OWN = ("PATH", "HOME", "USER", "BASH_ENV", "SHLVL")


def _variables_can_be_forgotten(config: Config) -> Iterator[ConfigError]:
    """Every bash of the agent forgets a harness's variables by name: one that it needs itself would be gone there."""
    for harness, settings in config["harnesses"].items():
        for name in _at(settings, "environment") or ():
            key = f"harnesses.{harness}.environment"
            if not _VARIABLE.fullmatch(name):
                yield ConfigError(key, name, "is no name of a variable", "use letters, digits and `_`")
            elif name in _SANDBOXS_OWN:
                problem = "belongs to the sandbox, and the agent's commands would be left without it"
                yield ConfigError(key, name, problem, "leave it out; a program of your own may set it for itself")


def _mini_batches_are_filled(config: Config) -> Iterator[ConfigError]:
    schedule, parts = config["schedule"], _at(config, "train.mini_batches")
    trajectories = schedule["prompts_per_step"] * schedule["rollouts_per_prompt"]
    if parts is not None and parts > trajectories:
        problem = f"more than the {trajectories} trajectories of a step"
        yield ConfigError("train.mini_batches", parts, problem, f"set it to at most {trajectories}")


_MAKE_A_WARM_START = frozenset(f"engine.run.jobs.{name}" for name in ("prepare.PrepareJob", "sft.SftJob"))
_WARM_START_JOBS = _MAKE_A_WARM_START | {"engine.run.jobs.train.TrainJob"}
_POOLS_WITHOUT_WARM_START = frozenset(
    f"engine.tasks.{name}" for name in ("directory.HarborDirectory", "release_pairs.ReleasePairs", "row_pool.TaskRows")
)


def _warm_start_has_tasks(config: Config) -> Iterator[ConfigError]:
    warm = _at(config, "model._target_") == "engine.train.warm_start.WarmStarted"
    if not warm or _at(config, "job._target_") not in _WARM_START_JOBS:
        return
    key, _ = _pool(config)
    pool = _at(config, f"{key}._target_")
    if pool in _POOLS_WITHOUT_WARM_START:
        problem = f"has no tasks for the warm start of model.name={_at(config, 'model.name')!r}"
        way_out = "set model=tiny_qwen3_moe, whose weights are random, or take warm-start tasks from tasks=laptop"
        yield ConfigError(key, pool, problem, way_out)


def _warm_start_has_demonstrations(config: Config) -> Iterator[ConfigError]:
    """Nobody but the configuration knows how a policy speaks to a harness."""
    warm = _at(config, "model._target_") == "engine.train.warm_start.WarmStarted"
    if not warm or _at(config, "job._target_") not in _WARM_START_JOBS:
        return
    for name, harness in config["harnesses"].items():
        if _at(harness, "demonstration") == []:
            problem = f"the warm start of model.name={_at(config, 'model.name')!r} would learn nothing of this harness"
            way_out = "write the turns that mend a line, or set model=tiny_qwen3_moe, whose weights are random"
            yield ConfigError(f"harnesses.{name}.demonstration", [], problem, way_out)


def _harnesses_know_their_names(config: Config) -> Iterator[ConfigError]:
    for key, harness in config["harnesses"].items():
        name = _at(harness, "name")
        if name is not None and name != key:
            yield ConfigError(f"harnesses.{key}.name", name, "not the key it stands under", f"set it to {key}")


def _goals_leave_room(config: Config) -> Iterator[ConfigError]:
    low, high = _at(config, "job.goals.solve_low"), _at(config, "job.goals.solve_high")
    if low is not None and high is not None and low > high:
        problem = f"more than job.goals.solve_high={high}, so no policy could meet both"
        yield ConfigError("job.goals.solve_low", low, problem, f"set it to at most {high}")


def _pool_has_what_the_job_takes(config: Config) -> Iterator[ConfigError]:
    """Told before the pool is made, which takes minutes."""
    job, schedule = _at(config, "job._target_"), config["schedule"]
    wanted = {"warm_start": 0, "train": 0}
    if _at(config, "model._target_") == "engine.train.warm_start.WarmStarted" and job in _MAKE_A_WARM_START:
        wanted["warm_start"] = 1
    if job == "engine.run.jobs.sft.SftJob":
        wanted["train"] = 1
    if job == "engine.run.jobs.train.TrainJob":
        wanted["train"] = schedule["prompts_per_step"] if schedule.get("drop_last") else 1
    key, pool = _pool(config)
    for split, number in wanted.items():
        real, generated = _at(pool, f"real.{split}"), _at(pool, f"generated.{split}")
        if real is not None and generated is not None and real + generated < number:
            problem = f"with {key}.generated.{split}={generated} fewer tasks than the {number} that this job takes"
            way_out = f"set it to at least {number - generated}"
            yield ConfigError(f"{key}.real.{split}", real, problem, way_out)


def _selection_can_keep_tasks(config: Config) -> Iterator[ConfigError]:
    for key, pool in _pools(config):
        least, most, of = (_at(pool, name) for name in ("solved_least", "solved_most", "of"))
        if None in (least, most, of):
            continue
        if most > of:
            yield ConfigError(f"{key}.solved_most", most, f"more than {key}.of={of}", f"set it to at most {of}")
        if least > most:
            problem = f"more than {key}.solved_most={most}, so no task could be kept"
            yield ConfigError(f"{key}.solved_least", least, problem, f"set it to at most {most}")


def _pools(config: Config) -> Iterator[tuple[str, Config]]:
    """The pool of tasks with its key, then the one that it selects from, and so on."""
    key, pool = "tasks", _at(config, "tasks")
    while isinstance(pool, Mapping):
        yield key, pool
        key, pool = f"{key}.pool", pool.get("pool")


def _pool(config: Config) -> tuple[str, Config]:
    """The innermost pool: it says which tasks there are."""
    none: list[tuple[str, Config]] = [("tasks", {})]
    return [*none, *_pools(config)][-1]


def _trial_says_when(config: Config) -> Iterator[ConfigError]:
    job = _at(config, "job") or {}
    if job.get("_target_") != "engine.run.jobs.trial.TrialJob":
        return
    if job["commands"] and job["shell"] == "none" and job["harness"] != "none" and job["enter"] is None:
        problem = "nothing says when they are run"
        way_out = "set job.shell=before or after (the agent), or job.harness=none"
        yield ConfigError("job.commands", job["commands"], problem, way_out)
    if job["enter"] is not None and job["task"] is not None:
        problem = f"a sandbox that is there is entered (job.enter={job['enter']}), and no trial is run"
        yield ConfigError("job.task", job["task"], problem, "leave one of the two out")


RULES: tuple[Rule, ...] = (
    _name_is_free,
    _group_has_spread,
    _every_harness_has_a_weight,
    _every_harness_runs,
    _partial_rollouts_are_stale,
    _training_takes_turns,
    _engine_has_weights,
    _log_probabilities_compare,
    _budget_fits_context,
    _turn_fits_budget,
    _calls_can_be_read,
    _clients_wait_for_the_engine,
    _patterns_can_be_read,
    _variables_can_be_forgotten,
    _mini_batches_are_filled,
    _warm_start_has_tasks,
    _warm_start_has_demonstrations,
    _harnesses_know_their_names,
    *harness_checks.RULES,
    *network_checks.RULES,
    _goals_leave_room,
    _pool_has_what_the_job_takes,
    _selection_can_keep_tasks,
    _trial_says_when,
)


def _at(config: Config, key: str) -> Any:
    """The value at a dotted key; None where a component has no such key."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
