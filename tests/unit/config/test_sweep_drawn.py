"""A sweep's points are those that its command names, at each call: what draws them anew is refused."""

from pathlib import Path
from typing import Any

import pytest

from engine.config.command import run_command
from engine.config.composed import Composed
from engine.config.schemas import Tree
from engine.core.errors import ConfigError, ConfigErrors


class Never:
    """A program of which nothing may start."""

    def take_point(self, name: str, composed: Composed) -> None:
        raise AssertionError(name)

    def begin_sweep(self) -> Path:
        raise AssertionError

    def run_point(self, index: int, composed: Composed) -> int:
        raise AssertionError

    def __call__(self, composed: Composed) -> int:
        raise AssertionError


class Named(Never):
    """One that holds each point against its name."""

    def __init__(self) -> None:
        self.points: list[str] = []
        self.run: list[Any] = []

    def take_point(self, name: str, composed: Composed) -> None:
        self.points.append(name)

    def begin_sweep(self) -> Path:
        return Path("sweeps")

    def run_point(self, index: int, composed: Composed) -> int:
        assert self.points[index] == f"seed={composed.config['seed']}"
        self.run.append(composed.config["seed"])
        return 0


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


DRAWN = {
    "values": "shuffle(1,2,3)",
    "a choice": "shuffle(choice(1,2,3))",
    "a range": "shuffle(range(1,4))",
    "by its name": "shuffle(sweep=range(1,4))",
    "a list within": "choice(shuffle([1,2,3]))",
    "within another": "sort(shuffle(range(1,4)))",
    "within a tag": "tag(mine,shuffle(1,2,3))",
    "a cast": "int(shuffle(1,2,3))",
}


@pytest.mark.parametrize("case", DRAWN)
def test_what_shuffles_is_refused(tree: Tree, case: str) -> None:
    with pytest.raises(ConfigError) as refused:
        run_command(["-m", f"seed={DRAWN[case]}"], Never(), tree)
    assert str(refused.value) == (
        f"seed={DRAWN[case]!r}: shuffle draws another order at each call, so the same command would not go on with its "
        "points; give the values in the order in which they are to run"
    )


def test_a_fixed_value_that_is_drawn_is_refused_beside_other_problems(tree: Tree) -> None:
    with pytest.raises(ConfigErrors) as refused:
        run_command(["-m", "seed=1,2", "engine.path=shuffle([a,b])", "seed=choice("], Never(), tree)
    assert [error.key for error in refused.value.errors] == ["engine.path", "seed"]
    assert "shuffle draws another order" in str(refused.value).splitlines()[0]


@pytest.mark.parametrize(
    "swept", ["3,1,2", "sort(3,1,2)", "range(1,4)", "sort(range(1,4),reverse=true)", "tag(a,choice(1,2))"]
)
def test_what_does_not_draw_runs_the_points_that_it_names(tree: Tree, swept: str) -> None:
    named = Named()
    assert run_command(["-m", f"seed={swept}"], named, tree) == 0
    assert len(named.run) >= 2


def test_points_of_the_sweeper_s_own_keys_are_refused(tree: Tree) -> None:
    with pytest.raises(ConfigError) as refused:
        run_command(["-m", "seed=1", "+hydra.sweeper.params.seed='1,2'"], Never(), tree)
    assert str(refused.value) == (
        "hydra.sweeper.params.seed=\"'1,2'\": adds points that nobody has looked at; write -m key=a,b"
    )
