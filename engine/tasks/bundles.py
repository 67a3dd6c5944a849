"""What bugs are injected into: bundles of modules that share one tree and one sandbox while they are tried.

A bundle is a package of the index (`data/laptop_packages.json` names archive, hash, source and quick tests) or a family
of generated modules. Invariant: `withheld` holds every file below `test_paths` and nothing else; `repository` holds
none of them. Refuses a file that the list names and the archive lacks.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from engine.core.errors import RunError
from engine.core.patch import under
from engine.tasks.harbor import Tree
from engine.tasks.mutator import Mutant
from engine.tasks.sdists import Sdist, unpack

Kind = Literal["real", "generated"]


@dataclass(frozen=True, kw_only=True)
class Module:
    """One file that bugs go into."""

    path: str
    tests: tuple[str, ...]
    """Test files that judge it."""
    mutants: tuple[Mutant, ...] = ()
    """Given for generated modules; a real one's are made from its source."""
    behaviour: str = ""
    """What the function must do, in words, for generated modules; a real one's issue quotes a failing test."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Modules that are tried together."""

    name: str
    """The package, or the generated family."""
    kind: Kind
    license: str
    repository: Tree
    """The tree without tests."""
    withheld: Tree
    """Test files and what they need, at their paths within the repository."""
    test_paths: tuple[str, ...]
    python_path: tuple[str, ...]
    modules: tuple[Module, ...]


@dataclass(frozen=True, kw_only=True)
class Package:
    """One entry of the project's list."""

    sdist: Sdist
    license: str
    facts: Mapping[str, Any]


@cache
def known_packages() -> tuple[Package, ...]:
    """The project's list, by name."""
    text = (resources.files("engine.tasks") / "data" / "laptop_packages.json").read_text(encoding="utf-8")
    return tuple(
        Package(
            sdist=Sdist(
                package=entry["package"], version=entry["version"], file=entry["sdist"], sha256=entry["sha256"]
            ),
            license=entry["license"],
            facts=entry,
        )
        for entry in json.loads(text)["packages"]
    )


def real_bundle(package: Package) -> Bundle:
    """The bundle of a package whose sdist is in the cache. Raises RunError when the list and the archive differ."""
    facts, archive = package.facts, unpack(package.sdist)
    modules = tuple(Module(path=entry["path"], tests=tuple(entry["tests"])) for entry in facts["modules"])
    tests = {*facts["support"], *(test for module in modules for test in module.tests)}
    source = {
        path: file
        for path, file in archive.items()
        if under(path, [*facts["source"], facts["license_file"]]) and not under(path, facts["test_paths"])
    }
    for path in (*tests, *(module.path for module in modules), facts["license_file"]):
        if path not in archive:
            raise RunError(f"{package.sdist.file} has no {path}, which data/laptop_packages.json names")
    return Bundle(
        name=package.sdist.package,
        kind="real",
        license=package.license,
        repository=source,
        withheld={path: archive[path] for path in sorted(tests)},
        test_paths=tuple(facts["test_paths"]),
        python_path=tuple(facts["python_path"]),
        modules=modules,
    )
