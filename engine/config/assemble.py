"""From a composed configuration to everything a job needs: validate → check → build.

Invariant: nothing of the configuration's classes is imported before the whole configuration has passed.
"""

from engine.config.build import build
from engine.config.built import Built
from engine.config.bundle import configuration_hash, run_directory
from engine.config.checks import check_run
from engine.config.composed import Composed
from engine.config.schemas import load_registry
from engine.config.validate import validate
from engine.config.written import explained
from engine.core.errors import ConfigErrors


def assemble(composed: Composed) -> Built:
    """Raises ConfigErrors with one line a problem."""
    config, registry = composed.config, load_registry()
    try:
        validate(composed, registry)
    except ConfigErrors as errors:
        raise explained(composed, errors) from errors
    check_run(config)
    objects = build(config, registry)
    run = objects.pop("run")
    return Built(
        config=config,
        hash=configuration_hash(config),
        directory=run_directory(config),
        command_line=composed.command_line,
        interpolated=composed.interpolated,
        written=composed.written,
        origins=composed.origins,
        fresh=run["fresh"],
        other_data=run["other_data"],
        **objects,
    )
