"""Makes a task of a bug that holds: the tree with the buggy line, the issue's words, the reference.

Invariant: the reference changes one line of one file. The agent's tree holds the package's source and licence, no
test; what other repairs were tried stands in `solution/repairs.json`, which no sandbox sees.
"""

import json
import random
import re
from pathlib import PurePosixPath

from engine.core.patch import difference
from engine.core.specs import ImageSpec
from engine.tasks.audit import Bug
from engine.tasks.bundles import Bundle
from engine.tasks.grading import Grading
from engine.tasks.harbor import Draft, Limits
from engine.tasks.mutator import Mutant


def task_name(bug: Bug) -> str:
    """`bundle-module-line`, unique within a pool."""
    module = str(PurePosixPath(bug.module).with_suffix("")).removeprefix("src/").removesuffix("/__init__")
    parts = [part.removeprefix(f"{bug.bundle}_") for part in module.split("/") if part != bug.bundle]
    return re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join([bug.bundle, *parts, str(bug.line)])).replace("--", "-")


def make_draft(bug: Bug, bundle: Bundle, *, place: int | None, image: ImageSpec, limits: Limits, workdir: str) -> Draft:
    """The task of a bug of this bundle; `place`: see `instruction`."""
    source, executable = bundle.repository[bug.module]
    mutant = Mutant(family=bug.family, function=bug.function, line=bug.line, before=bug.right, after=bug.buggy)
    files = bundle.repository if bundle.kind == "real" else {bug.module: (source, executable)}
    base = {**files, bug.module: (mutant.apply(source.decode()).encode(), executable)}
    module = next(module for module in bundle.modules if module.path == bug.module)
    judges = {test.split("::", 1)[0] for test in (*bug.fail_to_pass, *bug.pass_to_pass)}
    dropped = {test for other in bundle.modules for test in other.tests} - {*module.tests, *judges}
    return Draft(
        name=f"lego-rl/{task_name(bug)}",
        description=f"One wrong line in {bug.function} of {bug.module} ({bundle.name}).",
        instruction=instruction(bug, place),
        metadata={
            "kind": bug.kind,
            "package": bundle.name,
            "license": bundle.license,
            "family": bug.family,
            "function": bug.function,
            "source": "injected bug",
        },
        repository=base,
        withheld={path: file for path, file in bundle.withheld.items() if path not in dropped},
        grading=Grading(
            test_paths=bundle.test_paths,
            python_path=bundle.python_path,
            fail_to_pass=bug.fail_to_pass,
            pass_to_pass=bug.pass_to_pass,
        ),
        reference=difference(base, files),
        workdir=workdir,
        image=image,
        limits=limits,
    )


def instruction(bug: Bug, place: int | None) -> str:
    """The issue: file, function, what is wrong, which line; with a `place` the lines too that might be right, the
    right one there and the others in a drawn order."""
    wrong = bug.behaviour or _symptom(bug)
    text = f"`{bug.function}` in `{bug.module}` is wrong. {wrong}\nThe fault is in this line:\n\n{bug.buggy.strip()}\n"
    if place is not None:
        lines = [line.strip() for line in bug.wrong]
        random.Random("\n".join((task_name(bug), *lines))).shuffle(lines)  # noqa: S311
        lines.insert(place, bug.right.strip())
        text += "\nOne of these lines is right:\n\n" + "".join(f"{line}\n" for line in lines)
    return text + "\nChange that line alone.\n"


def _symptom(bug: Bug) -> str:
    """What a failing test says, for code whose purpose nobody wrote down."""
    test = bug.fail_to_pass[0].split("::")[-1]
    return f"The test `{test}` fails" + (f": {bug.message}" if bug.message else "") + "."


def repairs(bug: Bug) -> str:
    """JSON for a scripted solver: the buggy line, the right one and others that the tests refuse."""
    facts = {
        "path": bug.module,
        "line": bug.line,
        "function": bug.function,
        "kind": bug.kind,
        "family": bug.family,
        "buggy": bug.buggy,
        "right": bug.right,
        "wrong": list(bug.wrong),
    }
    return json.dumps(facts, indent=1, ensure_ascii=False) + "\n"
