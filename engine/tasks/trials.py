"""Runs the tests of many variants of one bundle within one sandbox, by `try_variants.py`.

Invariant: one result a variant, in order. Modules of a generated bundle know nothing of each other, so variants of
different ones share a run of pytest; those of a package never do.
"""

import base64
import json
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from engine.core.contracts import Sandbox, SandboxRuntime
from engine.core.errors import RunError
from engine.core.specs import ImageSpec, Mount, SandboxSpec
from engine.core.temporary import temporary_folder
from engine.tasks.bundles import Bundle, Module
from engine.tasks.harbor import write_tree

RUNNER = Path(__file__).with_name("try_variants.py")
_TOOLCHAIN = "/opt/grader"
_HOME = "/tmp/audit"  # noqa: S108 - within the sandbox
_BATCH = 32
"""Runs a start of the runner, whose answer must fit what a sandbox keeps of a command's output."""
_FIRST_FACTOR = 6
"""How much longer the first run may take: it compiles, and notes executed lines."""
_WALL_FACTOR = 8
"""Wall-clock seconds a processor second allowed: for tests that wait for ever."""
_SLACK_S = 30.0
_ARGUMENTS = ("-q", "--tb=short", "-p", "no:cacheprovider", "--import-mode=prepend", "--continue-on-collection-errors")
_SITES = ("/usr/local/lib/{version}/dist-packages", "/usr/lib/python3/dist-packages")
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108 - within the sandbox
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where bundles are tried."""

    runtime: SandboxRuntime
    toolchain: Path
    """Host folder that holds pytest; mounted read-only."""
    image: ImageSpec
    workdir: str
    memory_mb: int
    cpus: float
    cpu_s: int
    """Processor seconds that the tests of one module may take: what else the machine does changes nothing."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One module of the bundle, as it is or changed."""

    module: Module
    write: Mapping[str, str] = field(default_factory=dict)
    """Path → text."""
    select: tuple[str, ...] = ()
    """Test ids to run; empty: all of the module's test files."""
    most: int = 0
    """Failures after which the run stops; 0: it never does."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What became of one variant."""

    whole: bool
    """Ended by itself, every file imported."""
    outcomes: Mapping[str, str]
    messages: Mapping[str, str]
    lines: Mapping[int, frozenset[str]]
    """Executed line → tests that ran it; an empty id stands for what is run on import. Of first runs alone."""


@asynccontextmanager
async def open_trials(bundle: Bundle, bench: Bench) -> AsyncIterator["Trials"]:
    """A sandbox with the bundle's tree and tests."""
    spec = SandboxSpec(
        name=f"audit-{bundle.name}",
        image=bench.image,
        mounts=(Mount(source=bench.toolchain, target=_TOOLCHAIN),),
        workdir=bench.workdir,
        environment={},
        memory_mb=bench.memory_mb,
        cpus=bench.cpus,
        pids=256,
        disk_mb=1024,
    )
    sandbox = await bench.runtime.create(spec)
    try:
        with temporary_folder("audit") as folder:
            write_tree({**bundle.repository, **bundle.withheld}, folder / "tree")
            await sandbox.upload(folder / "tree", bench.workdir)
        await sandbox.write({f"{_HOME}/runner.py": RUNNER.read_bytes(), f"{_HOME}/pytest.ini": b"[pytest]\n"})
        yield Trials(sandbox, bench, bundle)
    finally:
        await sandbox.stop()


class Trials:
    """Runs variants in one sandbox."""

    def __init__(self, sandbox: Sandbox, bench: Bench, bundle: Bundle) -> None:
        self._sandbox, self._bench, self._bundle = sandbox, bench, bundle

    async def run(self, variants: Sequence[Variant], *, hash_seed: int, first: bool) -> list[Tried]:
        """One result a variant. `first`: nothing is changed; bytecode is kept and executed lines are noted."""
        rounds = list(
            _rounds(variants) if self._bundle.kind == "generated" else ([place] for place in range(len(variants)))
        )
        results: dict[int, Tried] = {}
        for start in range(0, len(rounds), _BATCH):
            batch = rounds[start : start + _BATCH]
            answers = await self._start([[variants[place] for place in places] for places in batch], hash_seed, first)
            for places, answer in zip(batch, answers, strict=True):
                results |= {place: _tried(answer, variants[place]) for place in places}
        return [results[place] for place in range(len(variants))]

    async def _start(self, rounds: Sequence[Sequence[Variant]], hash_seed: int, first: bool) -> list[Mapping[str, Any]]:
        root, bench = self._bench.workdir, self._bench
        cpu_s = bench.cpu_s * (_FIRST_FACTOR if first else 1)
        requests = [_request(together, cpu_s, first) for together in rounds]
        spec = {
            "root": root,
            "toolchain": _TOOLCHAIN,
            "sites": _SITES,
            "python_path": [str(PurePosixPath(root) / path) for path in self._bundle.python_path],
            "arguments": [*_ARGUMENTS, "-c", f"{_HOME}/pytest.ini", "--rootdir", root, "--confcutdir", root],
            "memory_mb": max(256, bench.memory_mb // 2),
            "keep_bytecode": first,
            "variants": requests,
        }
        result = await self._sandbox.exec(
            ("/usr/bin/python3", "-s", "-S", f"{_HOME}/runner.py"),
            environment=_ENVIRONMENT | {"PYTHONHASHSEED": str(hash_seed)},
            cwd="/",
            timeout_s=sum(request["wall_s"] for request in requests) + _SLACK_S,
            stdin=json.dumps(spec).encode(),
        )
        head, _, packed = result.stdout.decode("utf-8", "replace").rpartition("RESULT ")
        if result.exit_code != 0 or head:
            said = result.stderr.decode("utf-8", "replace").strip().splitlines() or ["no output"]
            raise RunError(f"trying {self._bundle.name}: the runner ended with {result.exit_code}: {said[-1]}")
        answers: list[Mapping[str, Any]] = json.loads(zlib.decompress(base64.b64decode(packed)))
        return answers


def _rounds(variants: Sequence[Variant]) -> Iterator[list[int]]:
    """Places of variants that may run together: at most one of each module a round."""
    waiting: dict[str, list[int]] = {}
    for place, variant in enumerate(variants):
        waiting.setdefault(variant.module.path, []).append(place)
    for turn in range(max(map(len, waiting.values()), default=0)):
        yield [places[turn] for places in waiting.values() if turn < len(places)]


def _request(together: Sequence[Variant], cpu_s: int, trace: bool) -> dict[str, Any]:
    alone = together[0] if len(together) == 1 else None
    return {
        "write": {path: text for variant in together for path, text in variant.write.items()},
        "tests": [test for variant in together for test in variant.module.tests],
        "select": [test for variant in together for test in variant.select],
        "most": alone.most if alone else 0,
        "trace": alone.module.path if alone and trace else "",
        "cpu_s": cpu_s * len(together),
        "wall_s": cpu_s * len(together) * _WALL_FACTOR,
    }


def _tried(answer: Mapping[str, Any], variant: Variant) -> Tried:
    tests = [*answer["outcomes"], ""]  # place -1 is the import's
    mine = {
        test: outcome for test, outcome in answer["outcomes"].items() if test.split("::")[0] in variant.module.tests
    }
    return Tried(
        whole=answer["ended"] == "exited" and not answer["broken"] and bool(mine),
        outcomes=mine,
        messages={test: text for test, text in answer["messages"].items() if test in mine},
        lines={int(line): frozenset(tests[place] for place in places) for line, places in answer["lines"].items()},
    )
