"""The warm start on the real thing: pool, harness, sandboxes, tokeniser, fit, engine and gate, as small as can be."""

import json
import subprocess
import sys
from pathlib import Path

from engine.config.assemble import assemble
from engine.config.compose import compose
from engine.run import warm_start
from engine.run.demonstrations import read_repairs
from engine.tokens.load import load_renderer
from engine.tokens.tokenizer import CheckpointTokenizer

ROOT = Path(__file__).parents[2]
SMALL = (
    "experiment=mini_swe_agent_gspo",
    "tasks.real={warm_start: 0, train: 0, validation: 0}",
    "tasks.generated={warm_start: 2, train: 1, validation: 1}",
    "model.demonstrations.samples_per_task=1",
    "model.sft.epochs=1",
)


def engine(*overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "engine", *SMALL, *overrides]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)


def test_a_policy_is_taught_and_its_gate_informs(tmp_path: Path) -> None:
    made = engine("job=prepare")
    assert made.returncode == 0, made.stderr
    built = assemble(compose([*SMALL, "job=prepare"]))
    assert warm_start.bind(built)
    info = built.model.info()

    # The tokeniser knows a held-out task's lines as single tokens: they are what the policy copies.
    tokenizer, renderer = CheckpointTokenizer(info.path), load_renderer(info)
    (held_out,) = (task for task in built.tasks.load() if task.split == "validation")
    for line in (read_repairs(held_out).buggy, read_repairs(held_out).right):
        assert len(tokenizer.encode(line)) == 1
    assert len(renderer.render([{"role": "user", "content": held_out.instruction}], ())) < 100

    again = engine("job=prepare")
    assert again.returncode == 0, again.stderr
    assert "demonstrations" not in again.stderr, "what is made is not made again"

    done = engine("job=sft", "job.gate_trials=2", f"run.root={tmp_path}")
    assert done.returncode == 0, done.stderr
    (report,) = tmp_path.glob("*/reports/warm_start.json")
    gate = json.loads(report.read_text())
    assert gate["trials"] + gate["excluded"] == 2
    assert set(gate) >= {"valid_calls", "junk", "solve", "outcomes", "model"}
    assert sum(gate["outcomes"].values()) == gate["trials"]
    assert done.stdout.count("gate: ") == 4
