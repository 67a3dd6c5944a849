"""The rules that span groups: what each schema allows by itself but would not work together.

Invariant: reads a validated, plain configuration and nothing else, so it is quick and needs no component.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from engine.core.errors import ConfigError, ConfigErrors

Config = Mapping[str, Any]


def check_run(config: Config) -> None:
    """Raises ConfigErrors naming every broken rule."""
    errors = [error for rule in RULES for error in rule(config)]
    if errors:
        raise ConfigErrors(errors)


def _groups_have_spread(config: Config) -> Iterator[ConfigError]:
    rollouts = config["schedule"]["rollouts_per_prompt"]
    if rollouts < 2:
        problem = "one rollout has no group to be compared with, so every advantage would be 0"
        yield ConfigError("schedule.rollouts_per_prompt", rollouts, problem, "set it to at least 2")


def _partial_needs_staleness(config: Config) -> Iterator[ConfigError]:
    schedule = config["schedule"]
    if schedule["partial_rollouts"] and schedule["staleness_threshold"] == 0:
        problem = "a trial that goes on across an update samples from two versions"
        way_out = "set schedule.staleness_threshold to at least 1, or schedule.partial_rollouts=false"
        yield ConfigError("schedule.partial_rollouts", True, problem, way_out)


RULES = (_groups_have_spread, _partial_needs_staleness)
