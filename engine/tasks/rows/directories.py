"""Of a task row and its repository's tree, a task in Harbor's form, which this engine runs and grades.

    base     = commit + setup patch          what the agent receives
    withheld = base + test patch             of it the files that the ids and the test patch name
    solved   = base + reference

Nothing is installed: the pool's image is the environment, so what needs a build is found out by `job=prepare`, which
tries every reference. Where the tests are the repository's own (SWE-smith) the files of the failing ones are taken
out of what the agent receives. Invariant: a draft's patches apply exactly. Refuses what does not: `PatchError`.
"""

from collections.abc import Mapping

from engine.core.errors import PatchError
from engine.core.records import Patch
from engine.core.specs import ImageSpec
from engine.core.unified import applied, parse
from engine.tasks.grading import Grading
from engine.tasks.harbor import Draft, Limits
from engine.tasks.rows.record import TaskRow

Tree = Mapping[str, tuple[bytes, bool]]


def draft_of(row: TaskRow, tree: Tree, image: ImageSpec, limits: Limits) -> Draft:
    """The task in memory. Raises PatchError that names the diff."""
    base = _with(tree, _applied("setup_patch", row.setup_patch, tree))
    tests = _applied("test_patch", row.test_patch, base)
    tested = _with(base, tests)
    ids = (*row.fail_to_pass, *row.pass_to_pass)
    modules = dict.fromkeys(test.partition("::")[0] for test in ids)
    missing = [path for path in modules if path not in tested]
    if missing:
        raise PatchError(f"{missing[0]}: holds tests of the row, and is neither in the tree nor in test_patch")
    owned = tuple(sorted({*modules, *tests.paths}))
    failing = {test.partition("::")[0] for test in row.fail_to_pass}
    hidden = failing if not row.test_patch else set()
    received = {path: held for path, held in base.items() if path not in hidden}
    reference = _applied("reference", row.reference or "", received)
    return Draft(
        name=f"{row.format}/{row.id}",
        description=f"{row.repository} at {row.base_commit}",
        instruction=row.instruction,
        metadata=_facts(row),
        repository=received,
        withheld={path: tested[path] for path in owned if path in tested},
        grading=Grading(
            test_paths=owned,
            python_path=("src", ".") if any(path.startswith("src/") for path in base) else (".",),
            fail_to_pass=row.fail_to_pass,
            pass_to_pass=row.pass_to_pass,
        ),
        reference=reference,
        workdir=row.workdir,
        image=image,
        limits=limits,
    )


def _applied(name: str, text: str, tree: Tree) -> Patch:
    try:
        return applied(parse(text) if text else (), tree)
    except PatchError as error:
        raise PatchError(f"{name}: {error}") from error


def _with(tree: Tree, patch: Patch) -> Tree:
    """The tree after a patch that was made of it."""
    after = dict(tree)
    for change in patch.changes:
        if change.after is None:
            del after[change.path]
        else:
            after[change.path] = change.after, change.executable
    return after


def _facts(row: TaskRow) -> dict[str, str]:
    facts = {
        "source": row.format,
        "repository": row.repository,
        "base_commit": row.base_commit,
        "version": row.version,
        "created_at": row.created_at,
        "license": row.license,
        "image": row.image,
    }
    return {key: value for key, value in facts.items() if value}
