"""The funnel of a pool of injected bugs: from mutants found to tasks admitted, with the reasons of all that fell out.

Invariant: everything that was tried is counted once: held, or rejected under a reason. A record for people and for
`report.json`; the pool reads only `tasks` of it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from engine.tasks.audit import Audit
from engine.tasks.injected import task_name
from engine.tasks.selection import SPLITS, Chosen


def funnel(
    audits: Sequence[Audit], chosen: Sequence[Chosen], refused: Mapping[str, str], seconds: float
) -> dict[str, Any]:
    """The report: totals, one entry a bundle, numbers by split, and the tasks."""
    rejected = Counter[str]()
    for item in audits:
        rejected.update({reason: number for reason, number in item.rejected.items() if number})
    rejected.update(refused.values())
    totals = {key: sum(getattr(item, key) for item in audits) for key in ("modules", "left", "found", "lines", "tried")}
    bugs = Counter(item.bundle for item in audits for _ in item.bugs)
    tasks = Counter(item.bug.bundle for item in chosen)
    return {
        "totals": {
            **totals,
            "bugs": bugs.total(),
            "tasks": len(chosen),
            "generated_share": round(sum(item.bug.kind == "generated" for item in chosen) / max(1, len(chosen)), 3),
            "seconds": round(seconds, 1),
        },
        "rejected": dict(sorted(rejected.items())),
        "bundles": [
            {
                "name": item.bundle,
                "kind": item.kind,
                **{key: getattr(item, key) for key in ("modules", "left", "found", "lines", "tried")},
                "bugs": bugs[item.bundle],
                "tasks": tasks[item.bundle],
            }
            for item in audits
        ],
        "splits": {split: _numbers([item for item in chosen if item.split == split]) for split in SPLITS},
        "tasks": [
            {"name": task_name(item.bug), "split": item.split, "kind": item.bug.kind, "family": item.bug.family}
            for item in chosen
        ],
    }


def _numbers(chosen: Sequence[Chosen]) -> dict[str, Any]:
    return {
        "tasks": len(chosen),
        "kinds": dict(sorted(Counter(item.bug.kind for item in chosen).items())),
        "families": dict(sorted(Counter(item.bug.family for item in chosen).items())),
        "functions": len({item.bug.unit for item in chosen}),
    }


def funnel_lines(report: Mapping[str, Any]) -> list[str]:
    """The report as a table of plain lines."""
    columns = ("modules", "left", "found", "lines", "tried", "bugs", "tasks")
    lines = [f"{'bundle':<12} {'kind':<10}" + "".join(f"{column:>9}" for column in columns)]
    total = {"name": "all", "kind": "", **report["totals"]}
    for entry in (*report["bundles"], total):
        numbers = "".join(f"{entry[column]:>9}" for column in columns)
        lines.append(f"{entry['name']:<12} {entry['kind']:<10}{numbers}")
    lines += [f"  {number:>5}  {reason}" for reason, number in report["rejected"].items()]
    for split, entry in report["splits"].items():
        kinds = ", ".join(f"{number} {kind}" for kind, number in entry["kinds"].items()) or "none"
        lines.append(f"{split}: {entry['tasks']} tasks ({kinds}) of {entry['functions']} functions")
    totals = report["totals"]
    lines.append(f"{totals['generated_share']:.0%} of the tasks are generated; {totals['seconds']:.0f} s")
    return lines
