"""Help, composing and instantiating every option import nothing heavy: bad input is told at once."""

import os
import subprocess
import sys

import pytest
from test_components import APART, OPTIONS, REQUIRED

HEAVY = (
    "torch",
    "vllm",
    "megatron",
    "transformers",
    "ray",
    "podman",
    "tensorboard",
    "renderers",
    "tokenizers",
    "plotly",
    "gguf",
)

HELP = """
import runpy, sys
sys.argv = ["engine", "--help"]
try:
    runpy.run_module("engine", run_name="__main__")
except SystemExit as done:
    assert not done.code, done.code
"""

EVERY_OPTION = """
from engine.config.assemble import assemble
from engine.config.compose import compose
for overrides in {commands!r}:
    assemble(compose(overrides))
"""

BAD = """
from engine.__main__ import main
assert main(["scale=paper", "algorithm.clip_lo=1"]) == 2
"""

REPORT = """
import sys
print("LOADED", *sorted({heavy!r} & {{name.partition(".")[0] for name in sys.modules}}))
"""


def _commands() -> list[list[str]]:
    return [
        [f"{group}={option}", *REQUIRED.get((group, option), []), *APART.get((group, option), [])]
        for group, option in OPTIONS
    ]


@pytest.mark.parametrize(
    "script", [HELP, EVERY_OPTION.format(commands=_commands()), BAD], ids=["help", "every option", "bad input"]
)
def test_nothing_heavy_is_imported(script: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", script + REPORT.format(heavy=set(HEAVY))],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "LOADED"
