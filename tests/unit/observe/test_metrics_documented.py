"""Every metric that the code records stands in docs/reference/metrics.md, and nothing else does."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
GROUPS = "reward|groups|trials|calls|validation|tokens|loss|ratio|clip_fraction|train|alignment|probe|time"
NAME = f"(?:{GROUPS})/[a-z_]+(?:/[a-z]+)?"


def test_metrics_and_their_reference_agree() -> None:
    files = [file for folder in ("run", "train", "inference") for file in (ROOT / "engine" / folder).rglob("*.py")]
    files.append(ROOT / "engine/observe/trials.py")
    recorded = {name for file in files for name in re.findall(f'"({NAME})"', file.read_text())}
    rows = [line for line in (ROOT / "docs/reference/metrics.md").read_text().splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(f"`({NAME})`", row.split(" | ")[0])}
    assert {name for name in recorded if not name.startswith("alignment/stale_")} == documented
