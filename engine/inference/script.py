"""What a scripted engine plays: for each session (by glob on its name) a list of assistant turns.

Invariant: a script that loads is whole: every turn has known keys of the right types. It refuses anything else with the
pattern and the number of the turn.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

_KEYS = {"text": str, "calls": list, "stop": bool}


@dataclass(frozen=True, kw_only=True)
class Call:
    """One tool call."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One assistant message."""

    text: str = ""
    """What stands before the calls; raw, so it may hold markup of its own."""
    calls: tuple[Call, ...] = ()
    stop: bool = True
    """False: the turn ends without its stop token, as if the token limit had cut it."""

    def written(self) -> str:
        """The turn in Qwen3's text form, without the stop token."""
        calls = [
            "<tool_call>\n"
            + json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
            + "\n</tool_call>"
            for call in self.calls
        ]
        return "\n".join(part for part in (self.text, *calls) if part)


Script = Mapping[str, Sequence[Turn]]
"""Glob on the session's name → its turns; the first glob that fits counts."""


def read_script(source: str | Mapping[str, Any]) -> Script:
    """From a YAML or JSON file, or from the same structure in place. Raises ValueError with one line."""
    if isinstance(source, str):
        import yaml

        try:
            raw = yaml.safe_load(Path(source).read_text("utf-8"))
        except OSError as error:
            raise ValueError(f"the script cannot be read: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"the script is no YAML: {' '.join(str(error).split())}") from error
    else:
        raw = source
    if not isinstance(raw, Mapping):
        raise ValueError("a script maps patterns of session names to lists of turns")
    return {str(pattern): _turns(str(pattern), turns) for pattern, turns in raw.items()}


def turns_of(script: Script, session: str) -> Sequence[Turn]:
    """The turns of the first pattern that fits; none when no pattern does."""
    return next((turns for pattern, turns in script.items() if fnmatchcase(session, pattern)), ())


def _turns(pattern: str, raw: Any) -> tuple[Turn, ...]:
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        raise ValueError(f"script {pattern!r}: not a list of turns")
    return tuple(
        turn if isinstance(turn, Turn) else _turn(f"script {pattern!r}, turn {n}", turn) for n, turn in enumerate(raw)
    )


def _turn(place: str, raw: Any) -> Turn:
    if not isinstance(raw, Mapping):
        raise ValueError(f"{place}: not a mapping with text, calls or stop")
    for key, value in raw.items():
        if key not in _KEYS:
            raise ValueError(f"{place}: unknown key {key!r}, known are {', '.join(_KEYS)}")
        if not isinstance(value, _KEYS[key]):
            raise ValueError(f"{place}: {key} is no {_KEYS[key].__name__}")
    calls = raw.get("calls", [])
    for call in calls:
        whole = isinstance(call, Mapping) and set(call) == {"name", "arguments"}
        if not whole or not isinstance(call["name"], str) or not isinstance(call["arguments"], Mapping):
            raise ValueError(f"{place}: a call has a name and a mapping of arguments, nothing else")
    built = tuple(Call(name=call["name"], arguments=call["arguments"]) for call in calls)
    return Turn(text=raw.get("text", ""), calls=built, stop=raw.get("stop", True))
