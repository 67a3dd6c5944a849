"""What is missing on a machine is named before anything starts, and nothing heavy is loaded to find out."""

import subprocess
import sys

import pytest

from engine.sandbox import cgroups, local
from engine.sandbox.bubblewrap import BubblewrapRuntime
from engine.sandbox.cgroups import Hierarchies
from engine.sandbox.local import LocalRuntime
from engine.sandbox.podman import PodmanRuntime

SETTINGS = {
    "uid": 10001,
    "storage": "loop",
    "disk_mb": 64,
    "pids": 64,
    "shm_mb": 64,
    "output_limit_bytes": 4096,
    "require_limits": True,
    "grace_s": 600,
    "keep_s": 86400,
    "network": {},
}


@pytest.fixture(params=[BubblewrapRuntime, PodmanRuntime])
def make(request: pytest.FixtureRequest) -> type[LocalRuntime]:
    return request.param  # type: ignore[no-any-return]


def words(runtime: LocalRuntime) -> str:
    return "\n".join(str(problem) for problem in runtime.problems())


def test_an_absent_tool_is_named_with_its_package(make: type[LocalRuntime], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "find", lambda tool: None if tool == "catatonit" else f"/usr/bin/{tool}")
    problem = next(problem for problem in make(**SETTINGS).problems() if "catatonit" in str(problem))
    assert problem.key == "sandbox"
    assert problem.way_out == "apt-get install -y --no-install-recommends catatonit"


def test_root_is_needed(make: type[LocalRuntime], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.os, "geteuid", lambda: 1000)
    assert "run as root" in words(make(**SETTINGS))


def test_limits_that_cannot_be_kept_are_refused_unless_configured(
    make: type[LocalRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = ["memory"]
    monkeypatch.setattr(Hierarchies, "missing", lambda self: tuple(missing))
    refused = make(**SETTINGS).problems()
    assert [problem.key for problem in refused if "memory" in str(problem)] == ["sandbox.require_limits"]
    assert "memory" not in words(make(**SETTINGS | {"require_limits": False}))
    missing += ["pids", "cpu"]  # without any group there would be no sure way to kill a command
    assert "memory" in words(make(**SETTINGS | {"require_limits": False}))


def test_loop_devices_are_asked_for_only_where_they_are_used(
    make: type[LocalRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "find", lambda tool: None if tool == "mkfs.ext4" else f"/usr/bin/{tool}")
    assert "e2fsprogs" in words(make(**SETTINGS))
    assert "e2fsprogs" not in words(make(**SETTINGS | {"storage": "tmpfs"}))
    assert "e2fsprogs" not in words(make(**SETTINGS | {"disk_mb": 0}))


def test_looking_loads_nothing_heavy_and_starts_nothing() -> None:
    script = (
        "import sys; from engine.sandbox.podman import PodmanRuntime; from engine.sandbox.bubblewrap import "
        f"BubblewrapRuntime; settings = {SETTINGS!r}; PodmanRuntime(**settings).problems(); "
        "BubblewrapRuntime(**settings).problems(); "
        "print([name for name in ('podman', 'requests', 'urllib3', 'torch', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_this_machine_keeps_every_limit_or_says_which_not() -> None:
    missing = cgroups.hierarchies().missing()
    assert set(missing) <= {"memory", "pids", "cpu"}
