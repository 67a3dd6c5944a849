"""Request bodies from bytes to JSON, strictly: what is not an object in UTF-8 JSON is refused, never guessed at.

Half a surrogate pair (which Python clients send after cutting a text) is not Unicode: it becomes U+FFFD, as it would
when decoded anywhere else. NaN and Infinity are not JSON. Nesting is bounded by the parser.
"""

from typing import Any

import orjson

from engine.wire.messages import Refusal
from engine.wire.unicode import loads_leniently


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
        return loads_leniently(body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Refusal(f"We could not parse the JSON body of your request: {problem}.") from None


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
