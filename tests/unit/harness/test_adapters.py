"""What every adapter owes a trial, without a sandbox: what it writes, how it starts, what it needs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mini_pieces import make_harness as make_mini_swe_agent
from openhands_pieces import make_harness as make_openhands
from packaging.version import Version

from engine.core.records import Task
from engine.core.specs import Endpoint, ImageSpec
from engine.tasks.bundles import known_packages
from engine.tasks.release_pairs import known_pairs

ENDPOINT = Endpoint(base_url="http://127.0.0.1:8080/t/abc", api_key="sk-trial", model="policy")
PINNED = {
    "openhands": ("openhands-sdk==1.58.2", "openhands-tools==1.58.2"),
    "mini_swe_agent": ("mini-swe-agent==2.4.6",),
}


class Images:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, spec: ImageSpec) -> Path:
        return self.folder / spec.name

    async def build(self, spec: ImageSpec, say: object) -> Path:
        return self.path(spec)


@pytest.fixture(params=[make_openhands, make_mini_swe_agent], ids=list(PINNED))
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_all_files_stand_outside_the_repository_and_the_key_in_the_settings_alone(
    make: Any, task: Task, start: str
) -> None:
    launch = make(start=start).launch(task, ENDPOINT)
    program, settings = launch.command[-2:]
    assert launch.cwd == "/testbed"
    assert {path for path in launch.files if not path.startswith(f"{program}/")} == {settings}
    assert program.startswith("/run/lego/")
    assert (f"{program}/__main__.py" in launch.files) is (start == "cold")
    assert [path for path, content in launch.files.items() if b"sk-trial" in content] == [settings]
    content = json.loads(launch.files[settings])
    assert (content["runtime"], content["instruction"]) == ("/opt/agent", "Fix it.")
    assert "http://127.0.0.1:8080/t/abc/v1" in launch.files[settings].decode()
    assert "openai/policy" in launch.files[settings].decode()


def test_launchers_import_nothing_of_the_engine(make: Any, task: Task) -> None:
    cold, warm = make(start="cold").launch(task, ENDPOINT), make(start="warm").launch(task, ENDPOINT).warm
    files = {**cold.files, **warm.files}
    sources = [content.decode() for path, content in files.items() if path.endswith("py")]
    assert len(sources) == 8
    lines = [line.strip() for source in sources for line in source.splitlines()]
    assert not [line for line in lines if line.startswith(("import engine", "from engine"))]


def test_start_leaks_nothing_into_the_environment_or_the_command_line(make: Any, task: Task) -> None:
    launch = make(start="cold").launch(task, ENDPOINT)
    assert launch.environment == {}
    assert "sk-trial" not in " ".join(launch.command)
    assert launch.command[0].startswith("/opt/agent/usr/lib/")
    assert "-I" in launch.command
    assert launch.warm is None


def test_a_warm_start_is_told_nothing_of_the_trial_and_is_the_same_for_all(make: Any, task: Task) -> None:
    launch = make(start="warm").launch(task, ENDPOINT)
    cold = make(start="cold").launch(task, ENDPOINT)
    assert launch.command == cold.command[-2:], "sys.argv"
    assert launch.environment == cold.environment
    assert (*launch.warm.interpreter, *launch.command) == cold.command
    other = replace(task, instruction="Another.", workdir="/testbed")
    endpoint = Endpoint(base_url="http://127.0.0.1:8080/t/other", api_key="sk-other", model="other")
    assert make(start="warm").launch(other, endpoint).warm == launch.warm
    assert "Fix it." not in repr(launch.warm)
    assert "sk-trial" not in repr(launch.warm)


@pytest.mark.parametrize(
    ("machine", "loader"),
    [
        ("x86_64", "/opt/agent/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
        ("aarch64", "/opt/agent/usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1"),
    ],
)
def test_loader_of_the_machine(
    make: Any, task: Task, monkeypatch: pytest.MonkeyPatch, machine: str, loader: str
) -> None:
    monkeypatch.setattr("engine.harness.runtime.platform.machine", lambda: machine)
    assert make(start="cold").launch(task, ENDPOINT).command[0] == loader
    assert make(start="warm").launch(task, ENDPOINT).warm.interpreter[0] == loader


def test_every_package_of_the_runtime_is_pinned(make: Any) -> None:
    pip = make().runtime().pip
    assert pip[: len(PINNED[make().name])] == PINNED[make().name]
    assert len(pip) > 50
    assert all(line.count("==") == 1 for line in pip)
    names = [line.split("==")[0].lower() for line in pip]
    assert len(set(names)) == len(names)


def test_the_runtime_shows_the_agent_no_fix_of_a_task(make: Any) -> None:
    """It is mounted in the agent's sandbox: a package that is a task too stands there at the oldest base release."""
    pinned = dict(line.lower().split("==") for line in make().runtime().pip)
    for pair in known_pairs():
        if pair.package in pinned:
            assert Version(pinned[pair.package]) <= Version(pair.base.version), pair.name


def test_the_runtime_shows_the_agent_no_right_line_of_the_laptop_pool(make: Any) -> None:
    """A line that was made wrong in one copy of a module is right in every other copy."""
    pinned = {line.lower().partition("==")[0] for line in make().runtime().pip}
    assert not pinned & {package.sdist.package for package in known_packages()}


def test_a_version_without_a_lock_pins_the_harness_itself(make: Any) -> None:
    wanted = [line.partition("==")[0] for line in PINNED[make().name]]
    assert make(version="9.9.9").runtime().pip == tuple(f"{package}==9.9.9" for package in wanted)


def test_missing_runtime_is_a_problem_with_its_way_out(make: Any, tmp_path: Path) -> None:
    images, harness = Images(tmp_path), make()
    (problem,) = harness.problems(images)
    version = harness.runtime().pip[0].partition("==")[2]
    assert f"harnesses.{harness.name}.version='{version}'" in str(problem)
    assert "run the same command with job=prepare" in str(problem)
    root = images.path(harness.runtime())
    root.mkdir()
    (root / ".complete").touch()
    assert not harness.problems(images)
    assert (harness.mount(images).source, harness.mount(images).target) == (root, "/opt/agent")


def test_a_machine_without_a_runtime_is_a_problem(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.harness.runtime.platform.machine", lambda: "riscv64")
    assert any("riscv64" in str(problem) for problem in make().problems(Images(tmp_path)))
