"""Overrides that Hydra's grammar does not take: why, and how the same is written so that it does.

Hydra tells where its lexer stopped. What people mean is nearly always one of four things: a map with quoted keys, as in
JSON; a text with braces in a map or list; a key that is no name; a text that must be quoted. Each is written anew and
advised only if Hydra then reads what was meant. Refuses nothing: that is its callers' business.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from engine.config.validate import as_yaml
from engine.core.credentials import without_rest

_IN_A_MAP = "keys of a map stand without quotes, texts with braces in quotes"
_ANY_MAP = "'{name: value, other: \"a text\"}', or a file of your own"
_KEY = re.compile(r"(?P<sign>[+~]*)(?P<parent>[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)\.(?P<leaf>.+)")
_BRACED = re.compile(r"[^\s,:'\"\[\]{}]*(?:\{[\w-]+\}[^\s,'\"\[\]{}]*)+")
"""A text with `{name}` in it, as it stands in a map or a list."""


@dataclass(frozen=True, kw_only=True)
class Unread:
    """An override that cannot be parsed."""

    key: str
    value: str
    """Up to the first credential's name."""
    why: str
    """As a continuation of `cannot be parsed`."""
    mended: str | None
    """The override as it should be, not yet quoted for the shell."""

    @property
    def problem(self) -> str:
        return "cannot be parsed" + (f": {self.why}" if self.why else "")

    @property
    def way_out(self) -> str:
        if self.mended:
            return f"{'write' if self.why else 'quote it for Hydra and the shell:'} {quoted(self.mended)}"
        return f"write {_ANY_MAP}" if self.why else "write key=value"


def unread(text: str) -> Unread:
    """What is wrong with an override that Hydra does not take. One with a credential is not repeated."""
    shown = without_rest(text)
    key, _, value = shown.partition("=")
    hopeless = (_IN_A_MAP if _is_collection(text.partition("=")[2]) else "", None)
    why, mended = hopeless if shown != text else next(_mended(text), hopeless)
    return Unread(key=key, value=value, why=why, mended=mended)


def parsed(text: str) -> Override | None:
    """One override; None where Hydra does not take it."""
    try:
        (line,) = OverridesParser.create().parse_overrides([text])
    except HydraException:
        return None
    return line


def quoted(override: str) -> str:
    """For the shell."""
    return shlex.quote(override)


def spelt(value: Any) -> str | None:
    """A plain value in Hydra's grammar; None where it has no word for it."""
    if isinstance(value, dict):
        items = [(str(key), spelt(child)) for key, child in value.items()]
        return _if_read("{" + ", ".join(f"{key}: {text}" for key, text in items) + "}", value)
    if isinstance(value, list):
        return _if_read("[" + ", ".join(str(spelt(item)) for item in value) + "]", value)
    if not isinstance(value, str):
        return as_yaml(value)
    escaped = value.replace('"', '\\"')
    return _if_read(value, value) or _if_read(f'"{escaped}"', value)


def _if_read(text: str, value: Any) -> str | None:
    line = parsed(f"x={text}")
    return text if line is not None and not line.is_sweep_override() and _same(line.value(), value) else None


def _same(read: Any, meant: Any) -> bool:
    """Equal, and of one kind; a map's keys count as texts."""
    if isinstance(meant, dict):
        texts = {str(key): child for key, child in read.items()} if isinstance(read, dict) else {}
        given = {str(key): child for key, child in meant.items()}
        return texts.keys() == given.keys() and all(_same(texts[key], child) for key, child in given.items())
    if isinstance(meant, list):
        return isinstance(read, list) and len(read) == len(meant) and all(map(_same, read, meant))
    return type(read) is type(meant) and bool(read == meant)


def _mended(text: str) -> Iterator[tuple[str, str]]:
    """Why, and what to write instead; the likeliest first."""
    key, equals, value = text.partition("=")
    found = _KEY.fullmatch(key)
    if not equals:
        return
    if parsed(f"{key}=1") is None:
        leaf = found["leaf"].strip("'\"") if found else "."
        if (
            found
            and not leaf.endswith(".")
            and parsed(instead := f"{found['sign']}{found['parent']}={{{leaf}: {value}}}")
        ):
            yield f"{leaf} is no name", instead
        return
    bare = value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
    for collection in _collections(bare):
        yield _IN_A_MAP, f"{key}={collection}"
    as_text = spelt(bare)
    if as_text and not _is_collection(bare):
        yield "", f"{key}={as_text}"


def _is_collection(text: str) -> bool:
    return (text[:1], text[-1:]) in (("{", "}"), ("[", "]"))


def _collections(text: str) -> Iterator[str]:
    """A map or list as Hydra takes it."""
    if not _is_collection(text):
        return
    braced = _BRACED.sub(r'"\g<0>"', text)
    if parsed(f"x={braced}") is not None:
        yield braced
    for version in (braced, text):
        try:
            plain = yaml.safe_load(version)
        except yaml.YAMLError:
            continue
        if isinstance(plain, dict | list) and (whole := spelt(plain)):
            yield whole
