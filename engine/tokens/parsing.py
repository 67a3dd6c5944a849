"""From the attempts that `renderers` parsed to the message that a provider would return.

A malformed call keeps its name and its raw arguments, so that the harness can answer it; a block in which no name can
be found, and any call where no tools were offered, stays text. The sampled tokens are not touched by any of it.

Calls come as JSON or, from Qwen3.5 on, as tags (`<function=name>`, `<parameter=key>`). Of tags `renderers` reads what
it can and is silent about the rest, so what it passed over is looked for here: no call is shortened in silence.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.tokens.renderer import ParsedCall, ParsedTurn, Tools

_NAME = re.compile(r'"name"\s*:\s*"((?:[^"\\]|\\.)*)"')
_FUNCTION = re.compile(r"\s*<function=([^<>\s]+)")
_PARAMETER = re.compile(r"<parameter=([^>]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
"""As `renderers` reads it."""
_ARGUMENTS = re.compile(r'"arguments"\s*:\s*')
_BOOLEANS = {"True": True, "False": False}
_SURROGATE = re.compile("[\ud800-\udfff]")


def to_turn(parsed: Any, tools: Tools, clean: Callable[[str], str], span_text: Callable[[int, int], str]) -> ParsedTurn:
    """`parsed` is a `renderers.ParsedResponse`; `clean` drops control tokens from text; `span_text` is the text of a
    range of the sampled tokens."""
    calls: list[ParsedCall] = []
    left_over: list[str] = []
    for attempt in parsed.tool_calls:
        call = _call(attempt, tools) if tools else None
        if call is None:
            left_over.append(span_text(*attempt.token_span) if attempt.token_span else attempt.raw)
        else:
            calls.append(call)
    text = "\n".join(part for part in (parsed.content, *left_over) if part)
    reasoning = clean(parsed.reasoning_content or "").strip()
    return ParsedTurn(content=clean(text).strip(), reasoning=reasoning, calls=tuple(calls))


def _call(attempt: Any, tools: Tools) -> ParsedCall | None:
    name = attempt.name
    tagged = _FUNCTION.match(attempt.raw) is not None
    whole = attempt.status in ("ok", "unknown_tool") or (tagged and attempt.status == "invalid_json")
    if isinstance(name, str) and name and whole and not (tagged and _passed_over(attempt.raw)):
        arguments = attempt.arguments
        if isinstance(arguments, dict):
            arguments = _as_written(arguments, attempt.raw, _properties(name, tools)) if tagged else arguments
            return ParsedCall(name=_unicode(name), arguments=_dump(arguments), well_formed=True)
        if arguments is None:
            return ParsedCall(name=_unicode(name), arguments="{}", well_formed=True)
        return _from_other(_unicode(name), arguments)
    found = name if isinstance(name, str) and name else _find_name(attempt.raw)
    if not found:
        return None
    return ParsedCall(name=_unicode(found), arguments=_unicode(_raw_arguments(attempt.raw)), well_formed=False)


def _passed_over(raw: str) -> bool:
    """Whether a parameter was begun that none of the tags that were read holds."""
    return "<parameter" in _PARAMETER.sub("", raw)


def _as_written(arguments: dict[str, Any], raw: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Texts with the white space that the model wrote: `renderers` strips it, and with it the indentation of code. And
    `True` where the tool wants a boolean: the families' own templates write booleans as Python does."""
    written = {match[1]: match[2] for match in _PARAMETER.finditer(raw)}

    def meant(key: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value in _BOOLEANS and _wants_boolean(properties.get(key)):
            return _BOOLEANS[value]
        return written[key] if written.get(key, "").strip() == value else value

    return {key: meant(key, value) for key, value in arguments.items()}


def _properties(name: str, tools: Tools) -> Mapping[str, Any]:
    """Schemas of a tool's parameters; a client may send what it likes."""
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and function.get("name") == name:
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            return properties if isinstance(properties, Mapping) else {}
    return {}


def _wants_boolean(schema: Any) -> bool:
    wanted = schema.get("type") if isinstance(schema, Mapping) else None
    return "boolean" in (wanted if isinstance(wanted, list) else [wanted])


def _from_other(name: str, arguments: Any) -> ParsedCall:
    """Arguments that the model wrote as a string (perhaps with JSON in it), a list or a number."""
    text = _unicode(arguments) if isinstance(arguments, str) else _dump(arguments)
    try:
        well_formed = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        well_formed = False
    return ParsedCall(name=name, arguments=text, well_formed=well_formed)


def _find_name(raw: str) -> str:
    tag = _FUNCTION.match(raw)
    if tag is not None:
        return tag[1]
    match = _NAME.search(raw)
    if match is None:
        return ""
    try:
        return str(json.loads(f'"{match[1]}"', strict=False))
    except ValueError:
        return match[1]


def _raw_arguments(raw: str) -> str:
    """What stands after `"arguments":`, without the brace that closes the call itself; the whole text without it."""
    match = _ARGUMENTS.search(raw)
    if match is None:
        return raw.strip()
    rest = raw[match.end() :].strip()
    if rest.endswith("}") and rest.count("}") > rest.count("{"):
        rest = rest[:-1].rstrip()
    return rest


def _dump(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return json.dumps(value) if _SURROGATE.search(text) else text


def _unicode(text: str) -> str:
    return _SURROGATE.sub("\ufffd", text)


def without(texts: Sequence[str]) -> Callable[[str], str]:
    """A function that removes these texts."""
    if not texts:
        return _unicode
    pattern = re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)))
    return lambda text: _unicode(pattern.sub("", text))
