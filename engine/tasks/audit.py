"""Tries injected bugs in a sandbox and keeps those that a bundle's own tests tell from the right code.

Invariants of a `Bug`: the reference's tests passed three times under different hash seeds; with the bug, between one
and `MOST_FAILING` of them fail, the same ones under two hash seeds; nothing hangs, dies or fails to import; the buggy
line stands once in its file; each wrong repair fails one of the task's tests too; and all these lines are `is_plain`.
Same bundle, seed, image and number of bugs that are enough: same bugs.
Refuses (`RunError`) a sandbox in which the runner itself does not work.
"""

import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.tasks.bundles import Bundle, Kind, Module
from engine.tasks.mutator import Mutant, by_line, mutants
from engine.tasks.trials import Bench, Trials, Tried, Variant, open_trials

HASH_SEEDS = (0, 1, 2)
MOST_FAILING = 10
MOST_PASSING = 30
"""Tests of a task that pass with the bug, fewer where there are not so many: each rollout pays for them."""
LINES_PER_FUNCTION = 2
LINES_PER_MODULE = 10
MUTANTS_PER_LINE = 4
WRONG_REPAIRS = 2
LINE_CHARS = range(8, 91)
"""Characters of a line, without indentation, that is worth showing."""
BUGS_PER_MODULE: Mapping[Kind, int] = {"real": 5, "generated": 1}
"""How many bugs a module may be expected to give: that many fewer modules are tried at first."""
LINES_PER_BUG = 1.4
"""How many lines are expected to be tried for a bug."""


@dataclass(frozen=True, kw_only=True)
class Bug:
    """One line that was made wrong, and what is known about it."""

    bundle: str
    kind: str
    module: str
    function: str
    line: int
    family: str
    right: str
    """The line as it must be, without its end."""
    buggy: str
    wrong: tuple[str, ...]
    """Other repairs that the tests refuse."""
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    message: str
    """What the first failing test says; empty where it is not the same each time."""
    behaviour: str

    @property
    def unit(self) -> tuple[str, str, str]:
        """What no two splits share: bundle, module, function."""
        return self.bundle, self.module, self.function


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What became of one bundle."""

    bundle: str
    kind: str
    modules: int
    """Modules that were tried."""
    left: int
    """Modules that were not, since enough bugs hold."""
    found: int
    """Mutants that the source allows."""
    lines: int
    """Lines that were tried."""
    tried: int
    rejected: Mapping[str, int]
    """Reason → number of modules, lines or mutants."""
    bugs: tuple[Bug, ...]

    def text(self) -> str:
        """JSON."""
        return json.dumps(self, default=lambda value: value.__dict__, indent=1, ensure_ascii=False) + "\n"


def read_audit(text: str) -> Audit:
    """The audit that `Audit.text` wrote."""
    values = json.loads(text)
    lists = ("wrong", "fail_to_pass", "pass_to_pass")
    bugs = tuple(Bug(**bug | {key: tuple(bug[key]) for key in lists}) for bug in values["bugs"])
    return Audit(**values | {"bugs": bugs})


@dataclass(kw_only=True)
class _Work:
    """A module under way."""

    module: Module
    source: str
    stable: tuple[str, ...] = ()
    """Tests of the reference that pass under every hash seed."""
    covered: Mapping[int, frozenset[str]] = field(default_factory=dict)
    lines: tuple[tuple[Mutant, ...], ...] = ()
    tried: dict[Mutant, Tried] = field(default_factory=dict)

    def judges(self, mutant: Mutant) -> tuple[str, ...]:
        """Reliable tests that run the line; all of them when importing the module does."""
        tests = self.covered[mutant.line]
        return self.stable if "" in tests else tuple(test for test in self.stable if test in tests)

    def variant(self, mutant: Mutant) -> Variant:
        """The module with a bug, run by the tests that can tell."""
        changed = {self.module.path: mutant.apply(self.source)}
        return Variant(module=self.module, write=changed, select=self.judges(mutant), most=MOST_FAILING + 1)

    def failing(self, mutant: Mutant, tried: Tried) -> tuple[str, ...]:
        """Tests that the bug makes fail; beyond `MOST_FAILING` the run was cut short."""
        return tuple(test for test in self.judges(mutant) if tried.outcomes.get(test) != "passed")


async def audit(bundle: Bundle, bench: Bench, seed: int, enough: int) -> Audit:
    """Try a bundle in a sandbox of its own, module after module in a drawn order, until `enough` bugs hold."""
    left = list(bundle.modules)
    random.Random(f"{seed}/{bundle.name}").shuffle(left)  # noqa: S311
    rejected, found, bugs = Counter[str](), 0, list[Bug]()
    works: list[_Work] = []
    async with open_trials(bundle, bench) as trials:
        while left and len(bugs) < enough:
            count = math.ceil((enough - len(bugs)) / BUGS_PER_MODULE[bundle.kind])
            wave = [_Work(module=module, source=_source(bundle, module)) for module in left[:count]]
            del left[:count]
            most = min(LINES_PER_MODULE, math.ceil((enough - len(bugs)) * LINES_PER_BUG / len(wave)))
            for work in await _reference(wave, trials, rejected):
                possible = work.module.mutants or mutants(work.source)
                found += len(possible)
                chance = random.Random(f"{seed}/{bundle.name}/{work.module.path}")  # noqa: S311
                work.lines = _choose(work, possible, most, chance, rejected)
            await _try(wave, trials, bundle)
            bugs += await _confirm(wave, trials, bundle, rejected)
            works += wave
    return Audit(
        bundle=bundle.name,
        kind=bundle.kind,
        modules=len(works),
        left=len(left),
        found=found,
        lines=sum(len(work.lines) for work in works),
        tried=sum(len(work.tried) for work in works),
        rejected=dict(sorted(rejected.items())),
        bugs=tuple(bugs),
    )


def is_plain(line: str) -> bool:
    """Whether a line reads the same in an issue, in JSON and on a command line: printable ASCII without quote marks
    that JSON or Markdown give a meaning, and without backslashes."""
    text = line.strip()
    return text.isascii() and text.isprintable() and not set(text) & set('"`\\')


def _source(bundle: Bundle, module: Module) -> str:
    return bundle.repository[module.path][0].decode()


async def _reference(works: Sequence[_Work], trials: Trials, rejected: Counter[str]) -> list[_Work]:
    """Run the right code under every hash seed; returns the modules whose tests can be relied on."""
    runs = [
        await trials.run([Variant(module=work.module) for work in works], hash_seed=hash_seed, first=index == 0)
        for index, hash_seed in enumerate(HASH_SEEDS)
    ]
    kept = []
    for work, *tried in zip(works, *runs, strict=True):
        work.covered = tried[0].lines if not work.module.mutants else {work.module.mutants[0].line: frozenset({""})}
        if all(run.whole for run in tried):
            work.stable = tuple(
                test for test in tried[0].outcomes if all(run.outcomes.get(test) == "passed" for run in tried)
            )
        if len(work.stable) > 1:
            kept.append(work)
        else:
            rejected["module: its own tests do not pass three times"] += 1
    return kept


def _choose(
    work: _Work, possible: Sequence[Mutant], most: int, chance: random.Random, rejected: Counter[str]
) -> tuple[tuple[Mutant, ...], ...]:
    """At most `most` lines to try, each with the mutants to try: a few a function, spread over the module."""
    functions: dict[str, list[tuple[Mutant, ...]]] = {}
    for line in by_line(possible):
        if not all(map(is_plain, (line[0].before, *(mutant.after for mutant in line)))):
            rejected["line: holds marks that JSON or Markdown change"] += 1
        elif line[0].line not in work.covered or not work.judges(line[0]):
            rejected["line: no test runs it"] += 1
        elif len(line) <= WRONG_REPAIRS:
            rejected["line: too few mutants"] += 1
        elif len(line[0].before.strip()) not in LINE_CHARS:
            rejected["line: too long or too short"] += 1
        else:
            functions.setdefault(line[0].function, []).append(line)
    for lines in functions.values():
        chance.shuffle(lines)
    order = sorted(functions)
    chance.shuffle(order)
    turns = [
        functions[name][turn] for turn in range(LINES_PER_FUNCTION) for name in order if turn < len(functions[name])
    ]
    left_out = sum(map(len, functions.values())) - len(turns[:most])
    if left_out:
        rejected["line: left out, enough of its function or module"] += left_out
    return tuple(tuple(chance.sample(line, min(len(line), MUTANTS_PER_LINE))) for line in turns[:most])


async def _try(works: Sequence[_Work], trials: Trials, bundle: Bundle) -> None:
    """As many mutants of each line as a bug needs, and then the others of lines that may still give one."""
    for number in (WRONG_REPAIRS + 1, MUTANTS_PER_LINE):
        pairs = [
            (work, mutant)
            for work in works
            for line in work.lines
            if not any(mutant in work.tried for mutant in line) or _undecided(work, line, bundle)
            for mutant in line[:number]
            if mutant not in work.tried
        ]
        runs = await trials.run([work.variant(mutant) for work, mutant in pairs], hash_seed=HASH_SEEDS[0], first=False)
        for (work, mutant), tried in zip(pairs, runs, strict=True):
            work.tried[mutant] = tried


def _undecided(work: _Work, line: Sequence[Mutant], bundle: Bundle) -> bool:
    """Whether some mutant of the line was found out and yet it gave no bug."""
    found_out = [mutant for mutant in line if mutant in work.tried and work.failing(mutant, work.tried[mutant])]
    return bool(found_out) and not list(_bugs(work, line, bundle, Counter()))


async def _confirm(works: Sequence[_Work], trials: Trials, bundle: Bundle, rejected: Counter[str]) -> tuple[Bug, ...]:
    """One bug a line, run once more under another hash seed."""
    bugs = [(work, *made) for work in works for line in work.lines for made in _bugs(work, line, bundle, rejected)]
    variants = [work.variant(mutant) for work, mutant, _ in bugs]
    again = await trials.run(variants, hash_seed=HASH_SEEDS[1], first=False)
    kept = []
    for (work, mutant, bug), second in zip(bugs, again, strict=True):
        first = work.tried[mutant]
        if not second.whole or work.failing(mutant, first) != work.failing(mutant, second):
            rejected["bug: not the same under another hash seed"] += 1
            continue
        said = [_message(tried.messages.get(bug.fail_to_pass[0], "")) for tried in (first, second)]
        kept.append(replace(bug, message=said[0] if said[0] == said[1] else ""))
    return tuple(kept)


def _bugs(work: _Work, line: Sequence[Mutant], bundle: Bundle, rejected: Counter[str]) -> Iterator[tuple[Mutant, Bug]]:
    """The first mutant of a line that makes a task, if there is one."""
    tried = {mutant: work.tried[mutant] for mutant in line if mutant in work.tried}
    failing = {mutant: work.failing(mutant, run) for mutant, run in tried.items() if run.whole}
    rejected["mutant: hangs, dies or cannot be imported"] += len(tried) - len(failing)
    rejected["mutant: no test fails"] += sum(not tests for tests in failing.values())
    killed = [mutant for mutant, tests in failing.items() if tests]
    for mutant in killed:
        wrong = [other.after for other in killed if other is not mutant][:WRONG_REPAIRS]
        tests = failing[mutant]
        if len(wrong) < WRONG_REPAIRS:
            rejected["line: too few wrong repairs that tests refuse"] += 1
            return
        if len(tests) > MOST_FAILING or len(tests) == len(work.stable):
            rejected["mutant: too many tests fail"] += 1
        elif mutant.apply(work.source).count(mutant.after.strip()) != 1:
            rejected["mutant: its line stands twice in the file"] += 1
        else:
            yield (
                mutant,
                Bug(
                    bundle=bundle.name,
                    kind=bundle.kind,
                    module=work.module.path,
                    function=mutant.function,
                    line=mutant.line,
                    family=mutant.family,
                    right=mutant.before,
                    buggy=mutant.after,
                    wrong=tuple(wrong),
                    fail_to_pass=tests,
                    pass_to_pass=_passing(
                        work, mutant, tests, [tried[other] for other in killed if other.after in wrong]
                    ),
                    message="",
                    behaviour=work.module.behaviour,
                ),
            )
            return


def _passing(work: _Work, mutant: Mutant, failing: Sequence[str], wrong: Sequence[Tried]) -> tuple[str, ...]:
    """Tests that must still pass: one at least that refuses each wrong repair, then those that run the line, then the
    others of the files that judge, then the rest; in the module's own order."""
    refusing = [[test for test in work.stable if run.outcomes.get(test, "passed") != "passed"] for run in wrong]
    needed = {tests[0] for tests in refusing if tests and not set(tests) & set(failing)}
    files = {test.split("::", 1)[0] for test in failing}
    judges = set(work.judges(mutant))
    order = sorted(
        (test for test in work.stable if test not in failing),
        key=lambda test: (test not in needed, test.split("::", 1)[0] not in files, test not in judges),
    )
    kept = set(order[:MOST_PASSING])
    return tuple(test for test in work.stable if test in kept)


def _message(text: str) -> str:
    """First line of what a failing test says, without addresses."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return re.sub(r"0x[0-9a-fA-F]+", "0x…", first)[:120]
