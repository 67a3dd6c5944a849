"""What a run asks of sandboxes that cannot do it is refused with key, value and way out, before anything starts."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine.core.errors import ConfigErrors
from engine.core.specs import Capabilities
from engine.run.capabilities import unmet
from engine.run.jobs import prepare
from engine.run.workbench import check_grading, check_machine
from engine.sandbox.bubblewrap import BubblewrapRuntime
from engine.sandbox.podman import PodmanRuntime

ALL = Capabilities(warm_start=True, process_limit=True, disk_limit=True, by_hand=True, network_by_phase=True)
NONE = Capabilities(warm_start=False, process_limit=False, disk_limit=False, by_hand=False, network_by_phase=False)


def built(able: Capabilities, **changes: Any) -> Any:
    config: dict[str, Any] = {
        "sandbox": {"_target_": "some.Runtime", "pids": 512, "disk_mb": 4096},
        "verify": {"start": "warm", "pids": 256, "disk_mb": 0},
        "harnesses": {"openhands": {"start": "warm"}, "codex": {}, "mini": {"start": "cold"}},
        "job": {"_target_": "engine.run.jobs.trial.TrialJob", "shell": "none", "harness": "mini", "keep": False},
        "tasks": {"agent_timeout_s": 900, "grade_timeout_s": 120},
    }
    for key, value in changes.items():
        group, _, name = key.partition("__")
        config[group][name] = value
    return SimpleNamespace(sandbox=SimpleNamespace(capabilities=able), config=config)


def test_a_runtime_that_can_do_all_is_asked_for_nothing() -> None:
    assert unmet(built(ALL)) == []
    for runtime in (BubblewrapRuntime, PodmanRuntime):
        assert runtime.capabilities == ALL


def test_everything_that_is_lacking_is_named_where_it_is_asked_for() -> None:
    found = {error.key: (error.value, error.way_out) for error in unmet(built(NONE))}
    assert found["verify.start"] == ("warm", "set verify.start=cold")
    assert found["harnesses.openhands.start"] == ("warm", "set harnesses.openhands.start=cold")
    assert found["sandbox.pids"][0] == 512 and "sandbox.user_namespaces=true" in found["sandbox.pids"][1]
    assert found["sandbox.disk_mb"][0] == 4096 and "tmpfs or volume" in found["sandbox.disk_mb"][1]
    assert set(found) == {
        "verify.start", "harnesses.openhands.start", "sandbox.pids", "verify.pids", "sandbox.disk_mb"}  # fmt: skip


def test_lists_of_phases_are_refused_where_all_have_one_network() -> None:
    network = {"build": ["a.test"], "setup": ["b.test"], "agent": [], "grade": ["c.test"]}
    assert unmet(built(ALL, sandbox__network=network)) == []
    found = [error for error in unmet(built(NONE, sandbox__network=network)) if "network" in error.key]
    assert [(error.key, error.value) for error in found] == [
        ("sandbox.network.setup", ["b.test"]), ("sandbox.network.grade", ["c.test"])]  # fmt: skip
    assert "sandbox=bubblewrap" in found[0].way_out


def test_limits_may_be_done_without_on_purpose_and_warm_starts_may_not() -> None:
    keys = [error.key for error in unmet(built(NONE, sandbox__require_limits=False))]
    assert keys == ["verify.start", "harnesses.openhands.start"]


@pytest.mark.parametrize("change", [{"shell": "after"}, {"harness": "none"}, {"keep": True}])
def test_nobody_is_let_into_a_sandbox_that_has_no_door(change: dict[str, Any]) -> None:
    (name, value), *_ = change.items()
    assert unmet(built(ALL, **{f"job__{name}": value})) == []
    errors = [error for error in unmet(built(NONE, **{f"job__{name}": value})) if error.key.startswith("job.")]
    assert [(error.key, error.value) for error in errors] == [(f"job.{name}", value)]


def test_a_sandbox_has_a_grace_that_is_longer_than_grading() -> None:
    assert unmet(built(ALL, sandbox__grace_s=121)) == []
    (error,) = unmet(built(ALL, sandbox__grace_s=120))
    assert (error.key, error.value, error.way_out) == ("sandbox.grace_s", 120, "set it to more than 120")
    assert "tasks.grade_timeout_s=120" in str(error)
    (error,) = unmet(built(ALL, sandbox__grace_s=500, tasks__limits={"grade_timeout_s": 600.0}))
    assert "tasks.limits.grade_timeout_s=600" in str(error)


async def test_nothing_starts_before_it_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = built(NONE)
    ready: Any = SimpleNamespace(problems=list)
    asked.sandbox.problems = list
    asked.inference = asked.model = asked.tasks = ready
    asked.harnesses, asked.compute = {}, SimpleNamespace(device="cpu")
    monkeypatch.setattr("engine.run.workbench._unbuilt", lambda *_: [])
    monkeypatch.setattr("engine.run.workbench.warm_start.bind", lambda _: True)
    for check in (check_machine, check_grading):
        with pytest.raises(ConfigErrors, match=r"verify\.start='warm'"):
            check(asked, ready)
    with pytest.raises(ConfigErrors, match=r"verify\.start='warm'"):  # nor is anything built
        await prepare.PrepareJob(registry=None, plain_http=False).run(asked)
