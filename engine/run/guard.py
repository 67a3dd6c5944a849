"""Says loudly where not every defence of a run enforces: its rewards may then be cheated for.

So does a network that lets an agent, or what grades it, reach more than its model.

Invariant: reads a validated configuration alone. A defence's strongest mode is the first that its schema names; one of
this project's that is in no list of stages counts as off.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from engine.config.network_checks import lists
from engine.config.schemas import load_registry

_OWN = "engine.defense."


def warning(config: Mapping[str, Any]) -> str:
    """One line a warning; empty where every defence enforces, or does all it can, and nothing is reached."""
    weak = [f"{name} {mode}" for name, mode in _weak(config)]
    lines = [f"WARNING: not every defence enforces ({', '.join(weak)}): rewards can be cheated for"] if weak else []
    reached = lists(config)
    for phase, what in (("agent", "fixes can be fetched"), ("grade", "verdicts can depend on the network")):
        if places := reached.get(phase):
            lines.append(f"WARNING: sandbox.network.{phase} lets through {', '.join(places)}: {what}")
    return "\n".join(lines)


def warn(config: Mapping[str, Any]) -> None:
    """Say it on standard error."""
    lines = warning(config)
    if lines:
        print(lines, file=sys.stderr, flush=True)


def _weak(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name of a defence, and what it does instead."""
    registry = load_registry()
    defense = config["defense"]
    stages = {stage["_target_"]: stage for stage in defense["stages"]}
    own = [target for target in registry.roles()["defense_stage"] if target.startswith(_OWN)]
    for target in dict.fromkeys((*own, *stages)):
        modes = registry.components[target]["properties"].get("mode", {}).get("enum", ())
        mode = stages[target].get("mode") if target in stages else "off"
        if mode == "enforce":
            mode = defense["at_most"]
        if modes and mode != modes[0]:
            yield target.split(".")[-2], mode
    verify = config["verify"]
    made = verify.get("canary_files", 1) + verify.get("canary_clones", 0)
    canaries = verify.get("canaries", "enforce") if made else "off"
    if canaries != "enforce":
        yield "canaries", canaries
