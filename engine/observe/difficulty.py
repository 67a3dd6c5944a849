"""How hard pools of tasks are, side by side: `reports/difficulty.html`, and the same for a terminal.

One column a run: the share of its tasks at each solve count with Wilson's 95 % interval, and the mean pass rate with
the interval of `engine.observe.estimates`, both over the tasks that were tried often enough.
"""

import html
from collections.abc import Iterator, Sequence

from engine.core.naming import first
from engine.core.whole import write_whole
from engine.observe.estimates import METHOD
from engine.observe.figures import Figure, Trace
from engine.observe.headline import NONE, Table, spread
from engine.observe.page import Page, rendered
from engine.observe.solves import Difficulty, Share
from engine.store.layout import Layout
from engine.tasks.counts import SolveCount

_BAR = 20
"""Characters of a bar that stands for all tasks."""
_NAMED = 20
"""Tasks that a line names."""
_CAPTION = (
    "Share of the tasks that so many of their first rollouts solved. Whiskers: Wilson's 95 % interval. "
    f"Mean pass rate: {METHOD}."
)
_TABLES = "One row a task: rollouts that solved it, of how many that were counted, and how many more were excluded."
_PATTERNS = ("", "/", "x", ".", "-", "+")


def write_page(layout: Layout, runs: Sequence[Difficulty]) -> None:
    """Write the page about `runs` into the run of `layout`, the first of them. Raises RunError on a full disk."""
    write_whole(layout.difficulty, page(runs).encode())


def page(runs: Sequence[Difficulty]) -> str:
    """The whole page; the first run is what it is about."""
    return rendered(
        Page(
            title=f"Difficulty: {runs[0].name}",
            summary=_summary(runs[0]),
            headline=table(runs, bars=False),
            figures=[figure(runs)],
            tables_are=_TABLES,
            tables=[(run.name, _tasks(run)) for run in runs],
        )
    )


def table(runs: Sequence[Difficulty], *, bars: bool) -> Table:
    """One column a run; `bars`: with a histogram drawn in letters."""
    of = runs[0].of
    rows = [
        ["tasks", *(str(len(run.counts)) for run in runs)],
        [f"with fewer than {of} kept rollouts", *(str(len(run.few)) for run in runs)],
        ["rollouts excluded", *(str(sum(one.excluded for one in run.counts)) for run in runs)],
        ["policy version", *(_range(run.versions) for run in runs)],
        ["mean pass rate", *(_pass_rate(run) for run in runs)],
    ]
    shares = [run.shares() for run in runs]
    for solved in range(of + 1):
        cells = [NONE if shown is None else _cell(shown[solved], bars) for shown in shares]
        rows.append([f"solved {solved} of {of}", *cells])
    return ["", *(run.name for run in runs)], rows


def flags(run: Difficulty) -> Iterator[str]:
    """A line for the tasks that teach nothing, and for those of which too little is known."""
    yield from _named(f"{run.name}: never solved", [one.task for one in run.enough if one.solved == 0])
    yield from _named(f"{run.name}: always solved", [one.task for one in run.enough if one.solved == one.of])
    few = [f"{one.task} ({one.of} kept, {one.excluded} excluded)" for one in run.few]
    yield from _named(f"{run.name}: fewer than {run.of} kept rollouts", few)


def figure(runs: Sequence[Difficulty]) -> Figure:
    """A bar for each run at each solve count."""
    return Figure(
        id="solved",
        title=f"Tasks by how many of {runs[0].of} rollouts solved them",
        caption=_CAPTION,
        y_title="share of tasks",
        traces=[_bars(index, run, shares) for index, run in enumerate(runs) if (shares := run.shares())],
        y_axis={"rangemode": "tozero", "tickformat": ".0%"},
        x_title=f"rollouts of {runs[0].of} that solved the task",
    )


def _bars(index: int, run: Difficulty, shares: Sequence[Share]) -> Trace:
    name, colour = html.escape(run.name), f"colour:{index}"
    return {
        "type": "bar",
        "x": list(range(len(shares))),
        "y": [one.share for one in shares],
        "name": name,
        "text": [html.escape(_cell(one, bars=False)) for one in shares],
        "textposition": "none",
        "hovertemplate": f"solved %{{x}} of {run.of}<br>%{{text}}<extra>{name}</extra>",
        "marker": {"color": colour, "pattern": {"shape": _PATTERNS[index % len(_PATTERNS)]}},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [one.high - one.share for one in shares],
            "arrayminus": [one.share - one.low for one in shares],
            "color": "colour:text",
            "thickness": 1.2,
        },
    }


def _summary(run: Difficulty) -> str:
    rate = run.pass_rate()
    if rate is None:
        return f"No task has {run.of} kept rollouts yet."
    never = sum(one.solved == 0 for one in run.enough)
    always = sum(one.solved == one.of for one in run.enough)
    return (
        f"Mean pass rate {rate.mean:.3f} ({rate.low:.3f} to {rate.high:.3f}); of {len(run.enough)} tasks {never} never "
        f"solved, {always} always."
    )


def _cell(one: Share, bars: bool) -> str:
    some = "task" if len(one.tasks) == 1 else "tasks"
    text = f"{one.share:.1%} ({one.low:.1%} to {one.high:.1%}), {len(one.tasks)} {some}"
    return f"{'█' * round(one.share * _BAR):<{_BAR}} {text}" if bars else text


def _pass_rate(run: Difficulty) -> str:
    rate = run.pass_rate()
    return NONE if rate is None else spread(rate)


def _range(versions: tuple[int, int]) -> str:
    low, high = versions
    return str(low) if low == high else f"{low} to {high}"


def _named(what: str, tasks: Sequence[str]) -> Iterator[str]:
    if tasks:
        yield f"{what} ({len(tasks)}): {first(tasks, _NAMED)}"


def _tasks(run: Difficulty) -> Table:
    def row(one: SolveCount) -> list[str]:
        return [one.task, str(one.solved), str(one.of), str(one.excluded), _range(one.policy_versions)]

    heads = ["task", "solved", "of", "excluded", "policy version"]
    return heads, [row(one) for one in sorted(run.counts, key=lambda one: (-one.of, one.solved, one.task))]
