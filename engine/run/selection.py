"""What a pool that leaves out tasks means for a run: it is told, and a warm start takes no notice of it.

A policy that was measured on a pool would be another one if leaving out tasks made its warm start anew.
"""

import sys
from dataclasses import replace

from engine.config.built import Built
from engine.core.task_contracts import SelectingPool, TaskPool


def unselected(built: Built) -> Built:
    """The same with the pool that is selected from."""
    pool: TaskPool = built.tasks
    while isinstance(pool, SelectingPool):
        pool = pool.pool
    return built if pool is built.tasks else replace(built, tasks=pool)


def left_out(pool: TaskPool) -> list[str]:
    """What a pool leaves out, as lines for a person; the innermost selection first."""
    return [*left_out(pool.pool), *pool.told()] if isinstance(pool, SelectingPool) else []


def tell_left_out(pool: TaskPool) -> None:
    """The same on standard error."""
    for line in left_out(pool):
        print(line, file=sys.stderr, flush=True)
