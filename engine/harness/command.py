"""Adapter for any command-line program, by configuration alone: packages, argv, environment, files, exit codes.

In every text of `argv`, `environment` and `files` the placeholders `{runtime}`, `{state}`, `{workdir}`, `{task}`,
`{base_url}`, `{api_key}`, `{model}`, `{max_turns}` and `{machine}` are put in; other braces stay as they are. The
instruction is the program's standard input too. Refuses the trial's key in an argument, a file or a name, which every
process of the sandbox could read; a placeholder that is nearly one of these; a file without a place of its own. An exit
code that is not in the table is a failure of the program.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from engine.core.contracts import ImageStore
from engine.core.errors import ConfigError
from engine.core.records import Task, Termination
from engine.core.specs import Endpoint, ExecResult, ImageSpec, Launch
from engine.harness import commands, runtime
from engine.harness.client import Client

_KEY = "{api_key}"
_NAMES = ("runtime", "state", "workdir", "task", "base_url", "api_key", "model", "max_turns", "machine")
_BRACED = re.compile(r"(?<!\$)\{([a-z_]+)\}")
_TAKEN = (commands.PROMPT, commands.FORGET, runtime.REPORT)


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

    def problems(self, images: ImageStore) -> Sequence[ConfigError]:
        return [*self._exposed(), *self._misspelt(), *self._misplaced(), *super().problems(images)]

    def _exposed(self) -> Iterator[ConfigError]:
        way_out = "give it in `environment`, which is closed to the agent's commands"
        shown = [("argv", text) for text in self._argv] + [("search", text) for text in self._search]
        shown += [("files", text) for file in self._files.items() for text in file]
        for part, text in shown:
            if _KEY in text:
                problem = "the trial's key would be in reach of every command of the agent"
                yield ConfigError(f"harnesses.{self.name}.{part}", text, problem, way_out)

    def _misspelt(self) -> Iterator[ConfigError]:
        """Texts of files are left alone: they are programs, and may have braces of their own."""
        texts = [("argv", text) for text in self._argv] + [("search", text) for text in self._search]
        texts += [("environment", text) for text in self._environment.values()] + [("files", p) for p in self._files]
        for part, text in texts:
            for name in _BRACED.findall(text):
                near = [] if name in _NAMES else get_close_matches(name, _NAMES, n=1, cutoff=0.7)
                if near:
                    problem, way_out = "is no placeholder, and would stay as it is", f"write {{{near[0]}}}"
                    yield ConfigError(f"harnesses.{self.name}.{part}", f"{{{name}}}", problem, way_out)

    def _misplaced(self) -> Iterator[ConfigError]:
        for path in self._files:
            place = commands.filled(
                path, {"state": commands.STATE, "workdir": "/repository", "runtime": runtime.RUNTIME}
            )
            key, way_out = f"harnesses.{self.name}.files", f"give a path below {runtime.FOLDER}"
            if not place.startswith("/") or posixpath.normpath(place) != place:
                yield ConfigError(key, path, "is no absolute path to a file", way_out)
            elif place in _TAKEN:
                yield ConfigError(key, path, "is a file of the engine's own", f"{way_out} with another name")
            elif place.startswith(f"{runtime.RUNTIME}/"):
                yield ConfigError(key, path, "lies in the runtime, which is mounted read-only", way_out)

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
