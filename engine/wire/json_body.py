"""Request bodies from bytes to JSON, strictly: what is not an object in UTF-8 JSON is refused, never guessed at.

Half a surrogate pair (which Python clients send after cutting a text) is not Unicode: it becomes U+FFFD, as it would
when decoded anywhere else. NaN and Infinity are not JSON. Nesting is bounded by the parser.
"""

import json
from typing import Any

import orjson

from engine.wire.messages import Refusal


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a request body. Raises Refusal (400)."""
    try:
        value = orjson.loads(body)
    except ValueError as problem:
        value = _decode_leniently(body, problem)
    if not isinstance(value, dict):
        raise Refusal(f"The request body must be a JSON object, not {_kind(value)}.")
    return value


def _decode_leniently(body: bytes, problem: ValueError) -> Any:
    """Once more by the standard library, for lone surrogates alone."""
    try:
        return _scrub(json.loads(body.decode("utf-8"), parse_constant=_no_constant))
    except (ValueError, RecursionError):
        raise Refusal(f"We could not parse the JSON body of your request: {problem}.") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _scrub(value: Any) -> Any:
    if isinstance(value, str):
        return scrub_text(value)
    if isinstance(value, list):
        return [_scrub(item) for item in value]
    if isinstance(value, dict):
        return {scrub_text(key): _scrub(item) for key, item in value.items()}
    return value


def scrub_text(text: str) -> str:
    """The same text with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
