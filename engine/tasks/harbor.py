"""Reads and writes Harbor-format task directories (`task.toml` schema 1.4).

    TASK/
      task.toml                   limits and metadata
      instruction.md              the issue text
      environment/Dockerfile      the same environment, for users of Harbor
      environment/repository/     the tree that the agent receives
      tests/test.sh               grades in a container and writes /logs/verifier/reward.txt, for users of Harbor
      tests/grading.json          which tests judge: `engine.tasks.grading`
      tests/files/                the withheld tests, at their paths within the repository
      solution/solve.sh           lays the reference over the repository, for users of Harbor
      solution/files/             the reference's files; solution/deleted.txt names files that it deletes
      solution/artifacts/         what it makes beside them, at absolute paths (`engine.tasks.artifacts`)

Invariant: `read_task(write_task(...))` gives the same task. Refuses, naming file and key, what this engine would
have to ignore: several steps, commands that collect artefacts, GPUs, networks, other users.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from engine.core.errors import ConfigError, PatchError
from engine.core.patch import difference, read_tree, under
from engine.core.records import Patch, Split, Task
from engine.core.specs import ImageSpec
from engine.tasks.artifacts import read_artifacts, reference_artifacts
from engine.tasks.grading import Grading, read_grading

SCHEMA_VERSION = "1.4"
_GUIDE = "see docs/guides/tasks.md"
_REFUSED = {
    ("steps",): "tasks of several steps are not supported",
    ("environment", "healthcheck"): "services in the environment are not supported",
    ("environment", "allowed_hosts"): "the agent has no network",
    ("environment", "docker_image"): "images are built from the pool's `image`, not pulled",
    ("agent", "user"): "the agent's user is the sandbox's",
    ("verifier", "user"): "the grader's user is the sandbox's",
    ("verifier", "collect"): "nothing is run between the agent and the grading",
    ("verifier", "env"): "the grader's environment is empty",
}

Tree = Mapping[str, tuple[bytes, bool]]
"""Relative POSIX path → (contents, executable), as `engine.core.patch.read_tree` gives it."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a trial of a task may use."""

    agent_timeout_s: float
    grade_timeout_s: float
    memory_mb: int
    cpus: float


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A task in memory, before it is written."""

    name: str
    """`organisation/name`."""
    description: str
    instruction: str
    metadata: Mapping[str, str]
    """Free facts: licence, package, …"""
    repository: Tree
    withheld: Tree
    grading: Grading
    reference: Patch
    workdir: str
    image: ImageSpec
    limits: Limits
    artifacts: tuple[str, ...] = ()
    """Declared beside the patch, absolute; the reference holds its own."""


def write_task(draft: Draft, directory: Path) -> Path:
    """Write a new task directory; returns it."""
    write_tree(draft.repository, directory / "environment/repository")
    write_tree(draft.withheld, directory / "tests/files")
    changes = draft.reference.changes
    kept = {change.path: (change.after, change.executable) for change in changes if change.after is not None}
    write_tree(kept, directory / "solution/files")
    if draft.reference.artifacts:
        made = {one.path.lstrip("/"): (one.contents, one.executable) for one in draft.reference.artifacts}
        write_tree(made, directory / "solution/artifacts")
    deleted = [change.path for change in changes if change.after is None]
    if deleted:
        (directory / "solution/deleted.txt").write_text("".join(f"{path}\n" for path in deleted), encoding="utf-8")
    (directory / "task.toml").write_text(_toml(draft), encoding="utf-8")
    (directory / "instruction.md").write_text(draft.instruction, encoding="utf-8")
    (directory / "environment/Dockerfile").write_text(_dockerfile(draft), encoding="utf-8")
    (directory / "tests/grading.json").write_text(draft.grading.text(), encoding="utf-8")
    data = resources.files("engine.tasks") / "data"
    (directory / "tests/run_tests.py").write_bytes((data / "harbor_run_tests.py.txt").read_bytes())
    _script(directory / "tests/test.sh", f"exec python3 /tests/run_tests.py {draft.workdir}")
    _script(directory / "solution/solve.sh", _solve(draft, deleted))
    return directory


def read_task(directory: Path, *, split: Split, image: ImageSpec) -> Task:
    """Read and check one task directory. Raises ConfigError that names file and key."""
    config = _config(directory / "task.toml")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", directory.name):
        raise ConfigError(
            str(directory), directory.name, "is no task name", "use letters, digits, dot, dash, underscore"
        )
    instruction = _instruction(directory / "instruction.md")
    repository = _folder(directory / "environment/repository", "the tree that the agent receives")
    withheld = _folder(directory / "tests/files", "the withheld tests at their paths within the repository")
    grading = read_grading(directory / "tests/grading.json", withheld)
    workdir = _value(config, directory, "environment", "workdir", str)
    if not workdir.startswith("/"):
        raise ConfigError(f"{directory}/task.toml: environment.workdir", workdir, "is not absolute", "start it with /")
    artifacts = read_artifacts(config, directory / "task.toml", workdir, grading.test_paths)
    try:
        base, tests = read_tree(repository), read_tree(withheld)
        reference = _reference(directory / "solution", base, artifacts)
    except PatchError as error:
        raise ConfigError(str(directory), None, str(error), "keep regular files alone in the task") from error
    for path in tests:
        if not under(path, grading.test_paths):
            raise ConfigError(str(withheld / path), path, "lies outside test_paths", "add its path to test_paths")
    return Task(
        id=directory.name,
        directory=directory,
        instruction=instruction,
        split=split,
        fingerprint=_fingerprint(base, tests, [instruction, grading.text(), workdir], image, artifacts),
        image=image,
        workdir=workdir,
        repository=repository,
        tests=withheld,
        test_paths=grading.test_paths,
        python_path=grading.python_path,
        fail_to_pass=grading.fail_to_pass,
        pass_to_pass=grading.pass_to_pass,
        reference=reference,
        agent_timeout_s=_positive(config, directory, "agent", "timeout_sec"),
        grade_timeout_s=_positive(config, directory, "verifier", "timeout_sec"),
        memory_mb=int(_positive(config, directory, "environment", "memory_mb")),
        cpus=_positive(config, directory, "environment", "cpus"),
        artifacts=artifacts,
    )


# ---------------------------------------------------------------- reading


def _config(file: Path) -> Mapping[str, Any]:
    try:
        config = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(str(file), None, "the file is missing", f"a task directory has one; {_GUIDE}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(file), None, f"is not TOML: {error}", "mend it") from error
    version = str(config.get("schema_version", config.get("version", "")))
    if not re.fullmatch(r"1\.[0-4]", version):
        raise ConfigError(f"{file}: schema_version", version or None, "is not 1.0 to 1.4", f'write "{SCHEMA_VERSION}"')
    for path, problem in _REFUSED.items():
        value: Any = config
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value:
            raise ConfigError(f"{file}: {'.'.join(path)}", value, problem, "remove the key or leave out the task")
    for section in ("environment", "agent", "verifier"):
        mode = config.get(section, {}).get("network_mode", "no-network")
        if mode != "no-network":
            raise ConfigError(
                f"{file}: {section}.network_mode", mode, "sandboxes have no network", 'write "no-network"'
            )
    if config.get("environment", {}).get("gpus", 0):
        raise ConfigError(f"{file}: environment.gpus", config["environment"]["gpus"], "no GPU in a sandbox", "write 0")
    return config


def _value(config: Mapping[str, Any], directory: Path, section: str, key: str, kind: type | tuple[type, ...]) -> Any:
    value = config.get(section, {}).get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        problem = "is missing" if value is None else f"has the wrong type {type(value).__name__}"
        raise ConfigError(f"{directory}/task.toml: {section}.{key}", value, problem, f"set it; {_GUIDE}")
    return value


def _positive(config: Mapping[str, Any], directory: Path, section: str, key: str) -> float:
    value = float(_value(config, directory, section, key, (int, float)))
    if not 0 < value < float("inf"):
        raise ConfigError(f"{directory}/task.toml: {section}.{key}", value, "is not positive", "give a positive number")
    return value


def _instruction(file: Path) -> str:
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if not text.strip():
        raise ConfigError(str(file), None, "is missing or empty", "write what the agent is told")
    return text


def _folder(folder: Path, holds: str) -> Path:
    if not folder.is_dir():
        raise ConfigError(str(folder), None, "the folder is missing", f"it holds {holds}; {_GUIDE}")
    return folder


def _reference(solution: Path, base: Tree, artifacts: Sequence[str]) -> Patch | None:
    if not any((solution / name).is_dir() for name in ("files", "artifacts")):
        return None
    after = {**base, **(read_tree(solution / "files") if (solution / "files").is_dir() else {})}
    deleted = solution / "deleted.txt"
    for path in deleted.read_text(encoding="utf-8").splitlines() if deleted.is_file() else ():
        if after.pop(path, None) is None:
            raise ConfigError(str(deleted), path, "is not in the repository", "name files of the repository")
    return replace(difference(base, after), artifacts=reference_artifacts(solution, artifacts))


def _fingerprint(base: Tree, tests: Tree, texts: Sequence[str], image: ImageSpec, artifacts: Sequence[str]) -> str:
    """sha256 over all that decides the task; every part is length-prefixed by its JSON form."""
    digest = hashlib.sha256()
    spec = [image.name, image.suite, image.packages, image.pip]
    digest.update(json.dumps([*texts, spec, *([list(artifacts)] if artifacts else [])]).encode())
    for tree in (base, tests):
        listing = [[path, hashlib.sha256(data).hexdigest(), mode] for path, (data, mode) in sorted(tree.items())]
        digest.update(json.dumps(listing).encode())
    return digest.hexdigest()


# ---------------------------------------------------------------- writing


def write_tree(tree: Tree, folder: Path) -> None:
    """Write files into a folder, making it where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, (data, executable) in tree.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(0o755 if executable else 0o644)


def _script(file: Path, body: str) -> None:
    file.write_text(f"#!/bin/sh\nset -eu\n{body}\n", encoding="utf-8")
    file.chmod(0o755)


def _solve(draft: Draft, deleted: list[str]) -> str:
    workdir, lines = draft.workdir, [f"cp -R /solution/files/. {draft.workdir}/"]
    if draft.reference.artifacts:
        lines.append("cp -R /solution/artifacts/. /")
    if deleted:
        lines.append(f'while IFS= read -r path; do rm -- "{workdir}/$path"; done < /solution/deleted.txt')
    return "\n".join(lines)


def _toml(draft: Draft) -> str:
    """TOML text; its basic strings take JSON's escapes."""
    quote = json.dumps
    limits = draft.limits
    metadata = "".join(f"{key} = {quote(value, ensure_ascii=False)}\n" for key, value in draft.metadata.items())
    artifacts = f"artifacts = {quote(list(draft.artifacts), ensure_ascii=False)}\n" if draft.artifacts else ""
    return (
        f"schema_version = {quote(SCHEMA_VERSION)}\n{artifacts}\n"
        f"[task]\nname = {quote(draft.name)}\ndescription = {quote(draft.description, ensure_ascii=False)}\n\n"
        f"[metadata]\n{metadata}\n"
        f"[environment]\nworkdir = {quote(draft.workdir)}\ncpus = {limits.cpus:g}\nmemory_mb = {limits.memory_mb}\n"
        'network_mode = "no-network"\n\n'
        f"[agent]\ntimeout_sec = {limits.agent_timeout_s:g}\n\n"
        f'[verifier]\ntimeout_sec = {limits.grade_timeout_s:g}\nenvironment_mode = "shared"\n'
    )


def _dockerfile(draft: Draft) -> str:
    """The image that the engine builds from `ImageSpec`, stated for Harbor."""
    image = draft.image
    lines = [
        f"FROM debian:{image.suite}-slim",
        "RUN apt-get update && apt-get install -y --no-install-recommends \\\n    "
        + " ".join(image.packages)
        + " \\\n && rm -rf /var/lib/apt/lists/*",
    ]
    if image.pip:
        lines.append(f"RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install {' '.join(image.pip)}")
        lines.append("ENV PATH=/opt/venv/bin:$PATH")
    lines += [
        f"COPY repository {draft.workdir}",
        f"WORKDIR {draft.workdir}",
        "RUN git init -q . && git add -A && git -c user.name=task -c user.email=task@localhost commit -qm base",
    ]
    return "\n".join(lines) + "\n"
