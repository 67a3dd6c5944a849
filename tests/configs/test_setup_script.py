"""`scripts/setup` counts what it said it would install."""

import re
import subprocess
from pathlib import Path

from engine.config.schemas import ROOT

SCRIPT = (ROOT / "scripts/setup").read_text(encoding="utf-8")


def test_what_is_installed_is_counted_as_it_was_announced(tmp_path: Path) -> None:
    """pip comes with every .venv, and this project lies in it too: neither is in the lock."""
    (tmp_path / "requirements.lock").write_text("# Pins.\nabc==1\nb-c==2\n")
    for name in ("abc-1", "b_c-2", "pip-23.2.1", "lego_rl-0.1.0"):
        (tmp_path / f".venv/lib/python3.11/site-packages/{name}.dist-info").mkdir(parents=True)
    found = re.search(r"^locked\(\).*?^}$", SCRIPT, re.DOTALL | re.MULTILINE)
    assert found, "the two functions stand together"
    done = subprocess.run(
        ["bash", "-c", f"{found[0]}\nlocked; installed"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["2", "2"]


def test_the_lock_names_neither() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert not re.search(r"^(pip|lego[-_]rl)==", lock, re.MULTILINE)
