"""Notes what the agent tried to reach beyond its proxy, and what a list let it reach. The sandbox's network holds it
back, whatever stands here.

Invariant: nothing is changed. What a harness asks for by itself (telemetry, updates) is not the agent's doing, and is
named by the configuration.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from engine.core.contracts import Sandbox
from engine.core.naming import first
from engine.core.records import Finding, Task
from engine.core.task_contracts import Mode
from engine.defense.stage import Stage

NAME = "denied_egress"
_NAMED = 10


class DeniedEgress(Stage):
    """Denied attempts become findings (`task_contracts.Defense`).

    Args:
        mode: what holds it back is the sandbox, so observe or off.
        ignored: patterns (`*.example.com`, `*:123/udp`) of names and addresses that are not noted.
    """

    name = NAME

    def __init__(self, *, mode: Mode, ignored: Sequence[str]) -> None:
        self.mode = mode
        self.ignored = ignored

    async def settle(self, task: Task, sandbox: Sandbox, outlived: int) -> Sequence[Finding]:
        """One finding that names the first of them, and one of what `sandbox.network.agent` let through."""
        reached = [*sandbox.reached()]
        let = f"reached {first(reached, _NAMED)}, which sandbox.network.agent allows"
        found = (Finding(stage=NAME, phase="agent", detail=let),) if reached else ()
        tried = [one for one in sandbox.denied() if not any(fnmatchcase(one, pattern) for pattern in self.ignored)]
        if not tried:
            return found
        detail = f"tried to reach {first(tried, _NAMED)}"
        return (*found, Finding(stage=NAME, phase="agent", detail=detail))
