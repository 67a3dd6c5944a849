"""What a run asks of its sandboxes, compared with what their runtime says of itself, before anything starts.

Invariant: reads the configuration and the runtime's `Capabilities` alone. What a runtime lacks is refused where it is
asked for, never left out in silence: a limit that is not kept lets one trial disturb or exclude others.
"""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from engine.config.built import Built
from engine.core.errors import ConfigError
from engine.core.specs import Phase


def unmet(built: Built) -> list[ConfigError]:
    """What the runtime cannot do and the configuration asks for; empty when all can be had."""
    able, config = built.sandbox.capabilities, built.config
    found: list[ConfigError] = []
    if not able.warm_start:
        found += _warm_starts(config)
    if not able.by_hand:
        found += _by_hand(config)
    if not able.network_by_phase:
        found += _phases(config)
    if _of(config, "sandbox").get("require_limits", True):
        if not able.process_limit:
            found += _limits(config, "pids", "processes of a sandbox are not counted by themselves", _COUNT)
        if not able.disk_limit:
            found += _limits(
                config,
                "disk_mb",
                "who fills the disk ends or disturbs others, and a trial could be excluded by it",
                _MEASURE,
            )
    return [*found, *_deadlines(config)]


_COUNT = "set sandbox.user_namespaces=true, or sandbox.require_limits=false where the kubelet's podPidsLimit will do"
_MEASURE = (
    "set sandbox.storage to one that limits it (kubernetes: tmpfs or volume; podman_pool: quota), or "
    "sandbox.require_limits=false"
)


def _warm_starts(config: Mapping[str, Any]) -> Iterator[ConfigError]:
    places = {"verify": _of(config, "verify")}
    places |= {f"harnesses.{name}": harness for name, harness in config["harnesses"].items()}
    for key, settings in places.items():
        if settings.get("start") == "warm":
            problem = f"no process can be forked into a sandbox of {_of(config, 'sandbox')['_target_']}"
            yield ConfigError(f"{key}.start", "warm", problem, f"set {key}.start=cold")


def _phases(config: Mapping[str, Any]) -> Iterator[ConfigError]:
    for phase in get_args(Phase):
        wanted = _of(_of(config, "sandbox"), "network").get(phase)
        if wanted:
            problem = f"the network of a sandbox of {_of(config, 'sandbox')['_target_']} is the same in every phase"
            way_out = "leave it empty, or use sandboxes of this machine (sandbox=bubblewrap)"
            yield ConfigError(f"sandbox.network.{phase}", list(wanted), problem, way_out)


def _by_hand(config: Mapping[str, Any]) -> Iterator[ConfigError]:
    """What `job=trial` may ask for beside a trial."""
    job = _of(config, "job")
    if job.get("_target_") != "engine.run.jobs.trial.TrialJob":
        return
    problem = f"nobody can work in a sandbox of {_of(config, 'sandbox')['_target_']}"
    for name, without in (("shell", "none"), ("harness", None), ("keep", False)):
        if job[name] != without and (name != "harness" or job[name] == "none"):
            yield ConfigError(f"job.{name}", job[name], problem, "use one of this machine's (sandbox=bubblewrap)")


def _limits(config: Mapping[str, Any], name: str, problem: str, way_out: str) -> Iterator[ConfigError]:
    for group in ("sandbox", "verify"):
        value = _of(config, group).get(name)
        if value:
            yield ConfigError(f"{group}.{name}", value, problem, way_out)


def _deadlines(config: Mapping[str, Any]) -> Iterator[ConfigError]:
    """A sandbox is ended when its work's limit and a grace are over: no grace may be over while one is still graded."""
    grace, tasks = _of(config, "sandbox").get("grace_s"), _of(config, "tasks")
    for place, limits in (("tasks", tasks), ("tasks.limits", _of(tasks, "limits"))):
        wanted = limits.get("grade_timeout_s")
        if grace is not None and wanted is not None and grace <= wanted:
            problem = f"is not longer than grading may take ({place}.grade_timeout_s={wanted:g})"
            yield ConfigError("sandbox.grace_s", grace, problem, f"set it to more than {wanted:g}")


def _of(config: Mapping[str, Any], group: str) -> Mapping[str, Any]:
    found = config.get(group)
    return found if isinstance(found, Mapping) else {}
