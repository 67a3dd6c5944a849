"""This project's verdicts beside those of `swebench`, on the release pairs.

    python benchmarks/swebench_grading.py [NAME …]

For the reference and the untouched base of each pair: graded by the run's own verifier, and run once more by plain
`pytest -rA` in the same sandbox, whose log swebench's parsers and rules judge (`harness.log_parsers`,
`get_eval_tests_report`). They must agree on every test whose id its parsers find in the log; ids that they lose (white
space, brackets) are counted. swebench lives in a virtual environment of its own under the cache. Exits with 1 where
they disagree.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path, PurePosixPath
from typing import Any

SWEBENCH = ("swebench==5.0.2", "docker")
PARSERS = ("parse_log_pytest", "parse_log_pytest_v2")
OK = ("passed", "xfailed")


# ---------------------------------------------------------------- with swebench's interpreter


def judge(file: Path) -> None:
    """Replace each log by what swebench reads in it: parser → its statuses and its resolution."""
    from swebench.harness.grading import get_eval_tests_report, get_resolution_status
    from swebench.harness.log_parsers import python

    cases = json.loads(file.read_text())
    for case in cases:
        log, gold = case.pop("log"), {"FAIL_TO_PASS": case["fail_to_pass"], "PASS_TO_PASS": case["pass_to_pass"]}
        case["theirs"] = {}
        for name in PARSERS:
            statuses = getattr(python, name)(log, None)
            report = get_eval_tests_report(statuses, gold)
            case["theirs"][name] = {"statuses": statuses, "resolved": get_resolution_status(report)}
    file.write_text(json.dumps(cases))


# ---------------------------------------------------------------- with this project's


async def graded(names: list[str]) -> list[dict[str, Any]]:
    """One case for each pair and patch, with the log of plain pytest."""
    from grading import configured

    from engine.core.patch import make
    from engine.sandbox.bubblewrap import BubblewrapRuntime
    from engine.sandbox.images import DebianImageStore
    from engine.tasks.release_pairs import ReleasePairs
    from engine.verify.pytest_verifier import PytestVerifier

    pool = ReleasePairs(**configured("tasks/release_pairs", names=names))
    verifier, runtime = (
        PytestVerifier(**configured("verify/pytest")),
        BubblewrapRuntime(**configured("sandbox/bubblewrap")),
    )
    images = DebianImageStore()
    for image in (*pool.images(), verifier.toolchain()):
        await images.build(image, print)
    await pool.prepare(print)
    await runtime.start(images, "benchmark-swebench")
    cases = []
    try:
        for task in pool.load():
            assert task.reference is not None
            for kind, patch in (("reference", task.reference), ("base", make([]))):
                verdict = await verifier.grade(task, patch, runtime, images, f"{task.id}-{kind}")
                cases.append(
                    {
                        "task": task.id,
                        "patch": kind,
                        "fail_to_pass": task.fail_to_pass,
                        "pass_to_pass": task.pass_to_pass,
                        "resolved": verdict.resolved,
                        "tests": {test.id: str(test.outcome) for test in verdict.tests},
                        "log": await plain_log(task, patch, verifier, runtime, images),
                    }
                )
                print(f"{task.id} {kind}: {verdict.evidence.splitlines()[0]}", flush=True)
    finally:
        await runtime.stop()
    return cases


async def plain_log(task: Any, patch: Any, verifier: Any, runtime: Any, images: Any) -> str:
    """What `pytest -rA` says of the same tree, in a sandbox of its own."""
    from engine.verify.tree import assemble

    files = sorted({test.split("::", 1)[0] for test in (*task.fail_to_pass, *task.pass_to_pass)})
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        assemble(task, patch, (), tree)
        sandbox = await runtime.create(verifier._sandbox(task, images, f"{task.id}-plain"))
        try:
            await sandbox.upload(tree, task.workdir)
            paths = ["/opt/grader", *(str(PurePosixPath(task.workdir) / path) for path in task.python_path)]
            result = await sandbox.exec(
                ["python3", "-m", "pytest", "-rA", "--color=no", "-p", "no:cacheprovider", "-o", "addopts=", *files],
                environment={"PYTHONPATH": ":".join(paths), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TZ": "UTC"},
                cwd=task.workdir,
                timeout_s=300,
                stdin=b"",
            )
        finally:
            await sandbox.stop()
    return str(result.stdout.decode(errors="replace"))


def swebench_python() -> Path:
    """swebench's own interpreter; installed at first."""
    from engine.core.paths import cache_dir

    folder = cache_dir() / "benchmarks" / "swebench"
    python = folder / "bin" / "python"
    if not (folder / ".complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *SWEBENCH], check=True)
        (folder / ".complete").touch()
    return python


def compare(cases: list[dict[str, Any]]) -> bool:
    """Print a line for each case; whether no test that both know was judged otherwise."""
    print(f"\n{'task':<28}{'patch':<11}{'ours':>9}{'theirs (pytest, v2)':>28}{'ids found':>20}{'judged otherwise':>18}")
    agree = True
    for case in cases:
        known = case["tests"]
        found, otherwise = [], []
        for name in PARSERS:
            statuses = case["theirs"][name]["statuses"]
            shared = [test for test in known if test in statuses]
            found.append(f"{len(shared)}/{len(known)}")
            otherwise.append(sum((known[t] in OK) != (statuses[t] in ("PASSED", "XFAIL")) for t in shared))
        resolved = ", ".join(case["theirs"][name]["resolved"].removeprefix("RESOLVED_") for name in PARSERS)
        print(
            f"{case['task']:<28}{case['patch']:<11}{'resolved' if case['resolved'] else 'no':>9}{resolved:>28}"
            f"{', '.join(found):>20}{', '.join(map(str, otherwise)):>18}"
        )
        agree = agree and not any(otherwise)
    for name in PARSERS:
        same = sum(case["resolved"] == (case["theirs"][name]["resolved"] == "RESOLVED_FULL") for case in cases)
        print(f"{name}: the same verdict on {same} of {len(cases)}")
    return agree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--judge", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help="pairs or packages; none: all")
    options = parser.parse_args()
    if options.judge:
        judge(options.judge)
        return
    python = swebench_python()
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "cases.json"
        file.write_text(json.dumps(asyncio.run(graded(options.names))))
        subprocess.run([python, __file__, "--judge", str(file)], check=True)
        cases = json.loads(file.read_text())
    sys.exit(0 if compare(cases) else 1)


if __name__ == "__main__":
    main()
