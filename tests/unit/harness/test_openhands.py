"""The OpenHands adapter without a sandbox: what it writes, how it starts, how it judges."""

import json
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

from engine.core.errors import HarnessError
from engine.core.records import Endpoint, ExecResult, ImageSpec, Task, Termination
from engine.harness.condensers import CondenserOff, SummarisingCondenser
from engine.harness.launchers import openhands as launcher
from engine.harness.openhands import OpenHands
from engine.tasks.release_pairs import known_pairs

ROOT = Path(__file__).parents[3]
ENDPOINT = Endpoint(base_url="http://127.0.0.1:8080/t/abc", api_key="sk-trial", model="policy")


def harness(**changes: object) -> OpenHands:
    options: dict[str, object] = yaml.safe_load((ROOT / "configs/harness/openhands.yaml").read_text())
    del options["_target_"]
    options |= {"max_turns": 7, "condenser": CondenserOff()} | changes
    return OpenHands(**options)  # type: ignore[arg-type]


def result(
    code: int, *, stdout: bytes = b"", stderr: bytes = b"", timed_out: bool = False, oom: bool = False
) -> ExecResult:
    return ExecResult(
        exit_code=code, stdout=stdout, stderr=stderr, timed_out=timed_out, oom_killed=oom, duration_s=12.0
    )


def report(error: str) -> bytes:
    return json.dumps({"error": error}).encode()


STARTED = launcher.STARTED.encode() + b"\n"


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(
        id="demo",
        directory=tmp_path,
        instruction="Fix it.",
        split="train",
        fingerprint="0" * 64,
        image=ImageSpec(name="task", suite="bookworm", packages=(), pip=()),
        workdir="/testbed",
        repository=tmp_path,
        tests=tmp_path,
        test_paths=(),
        python_path=(".",),
        fail_to_pass=("t.py::a",),
        pass_to_pass=(),
        reference=None,
        agent_timeout_s=60,
        grade_timeout_s=60,
        memory_mb=512,
        cpus=1,
    )


class Images:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, spec: ImageSpec) -> Path:
        return self.folder / spec.name

    async def build(self, spec: ImageSpec, say: object) -> Path:
        return self.path(spec)


def test_settings_and_launcher_are_written_outside_the_repository(task: Task) -> None:
    launch = harness().launch(task, ENDPOINT)
    assert launch.cwd == "/testbed"
    assert not [path for path in launch.files if path.startswith("/testbed")]
    assert set(launch.command[-2:]) == set(launch.files)
    settings = json.loads(launch.files[launch.command[-1]])
    assert settings["llm"]["base_url"] == "http://127.0.0.1:8080/t/abc/v1"
    assert settings["llm"]["api_key"] == "sk-trial"
    assert settings["llm"]["model"] == "openai/policy"
    assert settings["conversation"]["max_iteration_per_run"] == 7
    assert settings["instruction"] == "Fix it."


def test_start_leaks_nothing_into_the_environment_or_the_command_line(task: Task) -> None:
    launch = harness().launch(task, ENDPOINT)
    assert launch.environment == {}
    assert "sk-trial" not in " ".join(launch.command)
    assert launch.command[0].startswith("/opt/agent/usr/lib/")
    assert "-I" in launch.command


@pytest.mark.parametrize(
    ("machine", "loader"),
    [
        ("x86_64", "/opt/agent/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
        ("aarch64", "/opt/agent/usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1"),
    ],
)
def test_loader_of_the_machine(task: Task, monkeypatch: pytest.MonkeyPatch, machine: str, loader: str) -> None:
    monkeypatch.setattr("engine.harness.openhands.platform.machine", lambda: machine)
    assert harness().launch(task, ENDPOINT).command[0] == loader


def test_every_package_of_the_runtime_is_pinned() -> None:
    pip = harness().runtime().pip
    assert pip[:2] == ("openhands-sdk==1.58.2", "openhands-tools==1.58.2")
    assert len(pip) > 100
    assert all(line.count("==") == 1 for line in pip)
    names = [line.split("==")[0].lower() for line in pip]
    assert len(set(names)) == len(names)


def test_the_runtime_shows_the_agent_no_fix_of_a_task() -> None:
    """It is mounted in the agent's sandbox: a package that is a task too stands there at the oldest base release."""
    pinned = dict(line.lower().split("==") for line in harness().runtime().pip)
    for pair in known_pairs():
        if pair.package in pinned:
            assert Version(pinned[pair.package]) <= Version(pair.base.version), pair.name


def test_a_version_without_a_lock_pins_the_harness_itself() -> None:
    assert harness(version="9.9.9").runtime().pip == ("openhands-sdk==9.9.9", "openhands-tools==9.9.9")


def test_missing_runtime_is_a_problem_with_its_way_out(tmp_path: Path) -> None:
    images = Images(tmp_path)
    (problem,) = harness().problems(images)
    assert "harnesses.openhands.version='1.58.2'" in str(problem)
    assert "run the same command with job=prepare" in str(problem)
    (tmp_path / "openhands").mkdir()
    (tmp_path / "openhands" / ".complete").touch()
    assert not harness().problems(images)


def test_a_machine_without_a_runtime_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.harness.openhands.platform.machine", lambda: "riscv64")
    assert any("riscv64" in str(problem) for problem in harness().problems(Images(tmp_path)))


@pytest.mark.parametrize(("max_events", "keep_first", "fine"), [(80, 4, True), (10, 3, True), (10, 4, False)])
def test_condenser_bounds_are_those_of_the_sdk(tmp_path: Path, max_events: int, keep_first: int, fine: bool) -> None:
    condenser = SummarisingCondenser(max_events=max_events, keep_first=keep_first)
    problems = [str(p) for p in harness(condenser=condenser).problems(Images(tmp_path)) if "condenser" in str(p)]
    assert problems == [] if fine else "keep_first=4" in problems[0]


@pytest.mark.parametrize(
    ("ended", "words", "termination"),
    [
        (result(launcher.EXIT_FINISHED), b"{}", Termination.AGENT_COMPLETED),
        (result(launcher.EXIT_FINISHED), None, Termination.AGENT_COMPLETED),
        (result(launcher.EXIT_MAX_ITERATIONS), report("limit"), Termination.MAX_TURNS),
        (result(launcher.EXIT_STUCK), b"{}", Termination.NO_PROGRESS),
        (result(launcher.EXIT_CONTEXT_OVERFLOW), report("too long"), Termination.CONTEXT_OVERFLOW),
        (result(launcher.EXIT_OUT_OF_RESOURCES), None, Termination.AGENT_OOM),
        (result(-1, timed_out=True), None, Termination.AGENT_TIMEOUT),
        (result(137, timed_out=True, oom=True), None, Termination.AGENT_TIMEOUT),
        (result(137, oom=True), None, Termination.AGENT_OOM),
        (result(-9, stdout=STARTED), None, Termination.AGENT_COMPLETED),
        (result(143, stdout=STARTED), None, Termination.AGENT_COMPLETED),
        # A child that ran out of memory while the harness went on is the agent's own affair.
        (result(launcher.EXIT_FINISHED, oom=True), None, Termination.AGENT_COMPLETED),
    ],
)
def test_judged_as(ended: ExecResult, words: bytes | None, termination: Termination) -> None:
    judged, reason = harness().judge(ended, words)
    assert judged is termination
    assert reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (result(launcher.EXIT_CRASHED, stderr=b"Traceback\nImportError: no\n"), "ImportError: no"),
        (result(launcher.EXIT_UNSERVED, stdout=STARTED), "no answer"),
        (result(launcher.EXIT_REFUSED, stdout=STARTED), "refused"),
        (result(127, stderr=b"bwrap: execvp: No such file or directory"), "No such file"),
        (result(1), "exited with 1"),
        (result(-9), "SIGKILL"),
        (result(139), "SIGSEGV"),
    ],
)
def test_failures_of_the_harness(ended: ExecResult, expected: str) -> None:
    with pytest.raises(HarnessError, match=expected) as raised:
        harness().judge(ended, None)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "forged",
    [
        b'{"error": "HarnessError", "exit_code": 70}',
        b'{"status": "crashed", "exit_code": 75, "error": ["x"]}',
        b"[1, 2",
        b"\xff\xfe",
        b"[]",
        b'{"error": {"a": 1}}',
    ],
)
def test_a_forged_report_cannot_buy_an_exclusion(forged: bytes) -> None:
    judged, _ = harness().judge(result(launcher.EXIT_FINISHED), forged)
    assert judged is Termination.AGENT_COMPLETED
    with pytest.raises(HarnessError):
        harness().judge(result(launcher.EXIT_CRASHED), b'{"status": "finished", "error": ""}')


def test_words_of_a_report_are_one_bounded_line() -> None:
    _, reason = harness().judge(result(launcher.EXIT_STUCK), report("a\nb " + "c" * 5000))
    assert "a b" in reason
    assert len(reason) < 700
