"""What lies beside the runs: sweeps with a line a point, and what the gates of warm starts found.

Invariant: as the runs' own pages, from the files alone; a damaged record is told in its place and hides no other.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.store.sweeps import read_sweep, sweep_names
from engine.ui.places import Asked, Page, gate_folders, noted, run_names


def sweeps_page(root: Path, asked: Asked) -> Page:  # noqa: ARG001 (every page is given what was asked)
    """All sweeps, the one that changed last first; a point whose run is under the same root leads to it."""
    runs = set(run_names(root))
    sweeps = []
    for name in sweep_names(root):
        problems: list[str] = []
        points: list[dict[str, Any]] = []
        with noted(problems):
            points = [point | {"run": _run_of(point, runs)} for point in read_sweep(root, name)]
        sweeps.append({"name": name, "points": points, "problem": problems[0] if problems else ""})
    return {"root": str(root.absolute()), "sweeps": sweeps}


def _run_of(point: Mapping[str, Any], runs: set[str]) -> str | None:
    name = Path(str(point["directory"] or "")).name
    return name if name in runs else None


def gates_page(root: Path, asked: Asked) -> Page:  # noqa: ARG001 (as above)
    """The trials of each warm start's gate, and the report that was made of the last."""
    gates = []
    for name, folder in gate_folders(root).items():
        problems: list[str] = []
        report: Mapping[str, Any] = {}
        with noted(problems):
            report = Reader(Layout(root=folder.parent.parent)).warm_start() or {}
        trials = len(Reader(Layout(root=folder)).trials(0, "train"))
        # A report is of one model and names it; gates of earlier ones may lie beside it.
        about = Path(str(report.get("model", ""))).name
        figures = report if about and folder.name.startswith(about) else {}
        gates.append({"name": name, "trials": trials, "report": dict(figures), "problem": (problems or [""])[0]})
    return {"root": str(root.absolute()), "gates": gates}
