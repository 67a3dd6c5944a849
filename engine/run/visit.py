"""A person, or the commands that one gives, in the sandbox of a trial: as the agent, with its environment and limits.

Consumes a started sandbox; produces what is typed there, which the trial takes for the agent's work. Waits for the end
of the shell, without a limit, or of each command, as long as an agent may take. A sandbox that breaks is told, and is
then the trial's to judge.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.core.contracts import Sandbox
from engine.core.errors import SandboxError
from engine.core.records import Exchange
from engine.observe.watch import Watch
from engine.run.terminal import talk

When = Literal["none", "before", "after"]
_SHELL = ("/bin/sh", "-c", "command -v bash >/dev/null && exec bash --noprofile --norc -i; exec sh -i")
"""Files that an agent may have left for shells to read are not read."""
_TERM = re.compile(r"[A-Za-z0-9+._-]{1,40}")


@dataclass(frozen=True, kw_only=True)
class Doing:
    """What is done in the sandbox."""

    commands: Sequence[str]
    """Run one after the other by `sh`; none: a shell on the person's terminal."""
    cwd: str
    timeout_s: float
    """Of each command."""
    label: str
    """Stands in the shell's prompt."""
    show: Callable[[bytes], None]
    """Takes what commands print."""


@dataclass(kw_only=True)
class Visit:
    """A `Visitor` of `engine.run.trial`."""

    when: When
    doing: Doing
    lasting: bool
    watch: Watch
    left: str = ""
    """Name of the sandbox that was left running; empty: none was."""
    _environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def stays(self) -> bool:
        return self.when != "none"

    def heard(self, exchange: Exchange) -> None:
        self.watch.heard(exchange)

    async def before(self, sandbox: Sandbox, environment: Mapping[str, str]) -> None:
        self._environment = environment
        if self.when == "before":
            await self._go(sandbox)

    async def after(self, sandbox: Sandbox) -> None:
        if self.when == "after":
            await self._go(sandbox)

    async def leave(self, sandbox: Sandbox) -> None:
        if not self.lasting:
            return
        try:
            self.left = await sandbox.leave(self._environment, self.doing.cwd)
        except SandboxError as failure:
            self.watch.say(f"the sandbox is not kept: {failure}")

    async def _go(self, sandbox: Sandbox) -> None:
        try:
            await visit(sandbox, self.doing, self._environment, self.watch)
        except SandboxError as failure:
            self.watch.say(f"the visit is over: {failure}")


async def visit(sandbox: Sandbox, doing: Doing, environment: Mapping[str, str], watch: Watch) -> int:
    """Run the commands, or a shell; returns the exit code of the last. Raises SandboxError."""
    code = 0
    for command in doing.commands:
        watch.say(f"$ {command}")
        result = await sandbox.exec(
            ("/bin/sh", "-c", f"exec 2>&1\n{command}"),
            environment=environment,
            cwd=doing.cwd,
            timeout_s=doing.timeout_s,
            stdin=b"",
        )
        doing.show(result.stdout)
        code = result.exit_code
        if result.timed_out:
            watch.say(f"stopped after {doing.timeout_s:.0f} s")
        elif code:
            watch.say(f"exit code {code}")
    if doing.commands:
        return code
    watch.say("a shell in the sandbox, as the agent's user; Ctrl-D or exit ends it, and the trial goes on")
    term = os.environ.get("TERM", "")
    shown = {"TERM": term if _TERM.fullmatch(term) else "dumb", "PS1": f"[{doing.label}] \\w\\$ "}
    with watch.silent():
        return await sandbox.attach(_SHELL, environment={**environment, **shown}, cwd=doing.cwd, talk=talk)
