"""Adapter for any command-line program, by configuration alone: packages, argv, environment, files, exit codes.

In every text of `argv`, `environment` and `files` the placeholders `{runtime}`, `{state}`, `{workdir}`, `{task}`,
`{base_url}`, `{api_key}`, `{model}`, `{max_turns}` and `{machine}` are put in; other braces stay as they are. The
instruction is the program's standard input too. What cannot be put in, or has no place, is refused before an adapter is
made (`engine.config.harness_checks`). An exit code that is not in the table is a failure of the program.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.core.records import Task, Termination
from engine.core.specs import Endpoint, ExecResult, ImageSpec, Launch
from engine.harness import commands, runtime
from engine.harness.client import Client


class CommandHarness(commands.Program):
    """`harnesses.NAME` of a user's own: one process per trial."""

    def __init__(
        self,
        *,
        name: str,
        version: str,
        packages: Sequence[str],
        argv: Sequence[str],
        environment: Mapping[str, str],
        files: Mapping[str, str],
        search: Sequence[str],
        exits: Mapping[str, commands.Ending],
        native_tool_calling: bool,
        max_turns: int,
        client: Client,
        demonstration: Sequence[Mapping[str, Any]],
    ) -> None:
        self.name, self.max_turns, self.client, self.demonstration = name, max_turns, client, demonstration
        self.native_tool_calling = native_tool_calling
        self._version, self._packages, self._argv = version, tuple(packages), tuple(argv)
        self._environment, self._files, self._search = environment, files, tuple(search)
        self._exits = {int(code): ending for code, ending in exits.items()}

    def runtime(self) -> ImageSpec:
        values = {"version": self._version, "machine": commands.machine()}
        return commands.npm_runtime(self.name, *(commands.filled(package, values) for package in self._packages))

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        values = {
            "runtime": runtime.RUNTIME,
            "state": commands.STATE,
            "workdir": task.workdir,
            "task": task.instruction,
            "base_url": endpoint.base_url,
            "api_key": endpoint.api_key,
            "model": endpoint.model,
            "max_turns": str(self.max_turns),
            "machine": commands.machine(),
        }
        return commands.launch(
            task,
            [commands.filled(text, values) for text in self._argv],
            {name: commands.filled(text, values) for name, text in self._environment.items()},
            {
                commands.filled(path, values): commands.filled(text, values).encode()
                for path, text in self._files.items()
            },
            [commands.filled(folder, values) for folder in self._search],
        )

    def judge(self, result: ExecResult, report: bytes | None) -> tuple[Termination, str]:  # noqa: ARG002
        return commands.judge(self.name, result, self._exits)
