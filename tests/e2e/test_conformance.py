"""Conformance of the real programs: each harness, unmodified, in the sandbox, on every road of the table.

The engine is scripted to the token and fails as the road says; a relay between sandbox and proxy loses answers. Each
trial keeps the books (`Played.check_books`): ids as the engine put them out, trained once if they were for the task.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from atif_pieces import ABOUT, check, check_tokens, inside
from atif_pieces import row as stored
from conformance_pieces import SUBJECTS, Lab, Looks, Played, laboratory
from conformance_table import CASES, COLUMNS, Outcome, matrix
from harness_pieces import ROOT, make_runtime

from engine.core.records import Scored, Verdict
from engine.harness.client import Client
from engine.observe.atif.document import documents
from engine.observe.trials import trial_metrics

pytestmark = pytest.mark.asyncio(loop_scope="module")
CELLS = [
    pytest.param(case, name, id=f"{case}-{name}", marks=[] if name in row.quick else [pytest.mark.slow])
    for name in COLUMNS
    for case, row in CASES.items()
    if isinstance(row.cells[name], Outcome)
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    missing = make_runtime().problems()
    if missing:
        pytest.skip(f"this machine cannot run sandboxes: {missing[0]}")
    async with laboratory(Looks(), tmp_path_factory.mktemp("engine")) as started:
        yield started


@pytest.mark.parametrize(("case", "name"), CELLS)
async def test_each_harness_on_each_road(lab: Lab, case: str, name: str, tmp_path: Path) -> None:
    subject, row = SUBJECTS[name], CASES[case]
    expected, road = row.cells[name], row.road(subject)
    assert isinstance(expected, Outcome)
    harness = subject.make(**{"max_turns": 20, **road.changes})
    if road.hold_back is not None:
        said = harness.client
        harness.client = Client(volatile=said.volatile, side_calls=said.side_calls, hold_back=road.hold_back)
    played = await lab.play(
        harness, road.steps, tmp_path, faults=road.faults, fails_from=road.fails_from, context=road.context
    )
    trajectory = played.trajectory
    told = f"{trajectory.reason} {[exchange.error for exchange in trajectory.exchanges]}"
    assert ("".join(kind[0] for kind in played.kinds), trajectory.termination) == (expected.kinds, expected.ends), told
    _check_segments(played, expected)
    for words in road.shows:
        assert words in trajectory.exchanges[-1].request
    _check_export(played, case)


def _check_segments(played: Played, expected: Outcome) -> None:
    if not isinstance(expected.segments, int):
        said = [exchange.sampled_ids.tolist() for exchange in played.of_kind("policy")]
        wanted = [[token for number in numbers for token in said[number]] for numbers in expected.segments]
        assert sorted(played.targets()) == sorted(wanted)
    elif expected.segments == 1:
        assert played.targets() == [played.sampled("policy")]
    else:
        assert len(played.trajectory.segments) == expected.segments


def _check_export(played: Played, case: str) -> None:
    """Harbor takes it, with all that was captured."""
    files = documents(stored(Scored(trajectory=played.trajectory, verdict=None)), ABOUT)
    for document in files.values():
        check(document)
    check_tokens(played.trajectory.exchanges, files)
    kinds = [one["extra"]["kind"] for document in files.values() for one in inside(document)[1:]]
    if case == "compaction":
        assert kinds == ["summary"]
        assert [document.get("continued_trajectory_ref", "") for document in files.values()] == [list(files)[1], ""]
    elif case == "sub_agent":
        assert kinds == ["sub_agent"]
    if case in ("compaction", "sub_agent"):
        verdict = Verdict(reward=1.0, resolved=True, tests=(), evidence="", findings=(), grade_s=0.0)
        metrics = trial_metrics([Scored(trajectory=played.trajectory, verdict=verdict)])
        counted = (metrics["trials/compactions"], metrics["trials/sub_agents"])
        assert counted == ((1, 0) if case == "compaction" else (0, 1)), "the step's own figures"


async def test_the_guide_shows_this_table() -> None:
    assert matrix() in (ROOT / "docs/guides/harnesses.md").read_text("utf-8"), matrix()
