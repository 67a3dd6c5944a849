"""What the two OpenAI protocols share: how a field is checked and refused, the error object, the list of models.

Each check names the field in the protocol's way (`messages[0].content`). What a client sent is repeated in a refusal
only if it is a short string: a refusal is kept and logged.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.wire.messages import Refusal, fits_a_body

SHOWN = 100
"""Characters of a client's own string that a refusal repeats."""


def wrong_type(param: str, wanted: str) -> Refusal:
    return Refusal(f"Invalid type for '{param}': expected {wanted}.", param=param, code="invalid_type")


def unsupported(param: str, message: str) -> Refusal:
    return Refusal(message, param=param, code="unsupported_value")


def shown(value: Any) -> str:
    """A client's value for a message."""
    if not isinstance(value, str):
        return f"({type(value).__name__})"
    return repr(value if len(value) <= SHOWN else value[:SHOWN] + "…")


def check_parameters(
    data: Mapping[str, Any],
    known: frozenset[str],
    only: Mapping[str, tuple[tuple[Any, ...], str]],
    unknown: Callable[[str], Refusal],
) -> None:
    """Refuse unknown parameters, and the values of `only` (values that can be honoured, and why no other) beside null
    that it does not list."""
    for name, value in data.items():
        if value is None or name in known:
            continue
        if name not in only:
            raise unknown(name[:SHOWN])
        allowed, reason = only[name]
        if not any(type(value) is type(choice) and value == choice for choice in allowed):
            raise unsupported(name, f"Unsupported value for '{name}': {reason}.")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _string(value: Any) -> bool:
    return isinstance(value, str)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


_WISHES: dict[str, tuple[Callable[[Any], bool], str]] = (
    dict.fromkeys(("temperature", "top_p", "top_k", "min_p"), (_number, "a number"))
    | dict.fromkeys(("presence_penalty", "frequency_penalty", "repetition_penalty"), (_number, "a number"))
    | dict.fromkeys(("seed",), (_integer, "an integer"))
    | dict.fromkeys(
        ("reasoning_effort", "effort", "summary", "generate_summary", "context", "mode", "verbosity"),
        (_string, "a string"),
    )
    | dict.fromkeys(("user", "safety_identifier"), (_string, "a string"))
    | dict.fromkeys(("prompt_cache_key", "prompt_cache_retention"), (_string, "a string"))
    | dict.fromkeys(("metadata", "client_metadata", "prompt_cache_options"), (_object, "an object"))
)


def check_wishes(data: Mapping[str, Any], within: str = "") -> None:
    """Refuse what is recorded and not obeyed (sampling, thinking, labels) where it could be no wish of anybody's: what
    the real service would refuse must not pass unseen here."""
    for name, (fits, wanted) in _WISHES.items():
        value = data.get(name)
        if value is not None and not fits(value):
            raise wrong_type(within + name, wanted)


def check_only_known(data: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    """Refuse fields that nothing here reads: the model would never see them."""
    unknown = min((name for name, value in data.items() if name not in known and value is not None), default=None)
    if unknown is not None:
        name = f"{where}.{unknown[:SHOWN]}"
        raise Refusal(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")


def boolean(data: Mapping[str, Any], name: str, within: str = "") -> bool:
    value = data.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong_type(within + name, "a boolean")
    return value


def positive(data: Mapping[str, Any], name: str) -> int | None:
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(name, "an integer")
    if value < 1:
        raise Refusal(f"Invalid '{name}': integer below minimum value, expected at least 1.", param=name)
    return value


def model_name(data: Mapping[str, Any]) -> str:
    model = data.get("model")
    if not isinstance(model, str) or not model:
        raise Refusal("you must provide a model parameter", param="model", code="missing_required_parameter")
    return model


def array(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise wrong_type(where, "an array")
    return value


def mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(where, "an object")
    return value


def named(value: Mapping[str, Any], field: str, where: str) -> str:
    """A string that says something."""
    text = value.get(field)
    if not isinstance(text, str) or not text:
        raise wrong_type(f"{where}.{field}", "a non-empty string")
    return text


def check_function(function: Mapping[str, Any], where: str) -> None:
    """A function that a tool offers: name, description, parameters."""
    named(function, "name", where)
    if not isinstance(function.get("description", ""), str | None):
        raise wrong_type(f"{where}.description", "a string")
    if not isinstance(function.get("parameters", {}), dict | None):
        raise wrong_type(f"{where}.parameters", "an object")
    if boolean(function, "strict", f"{where}."):
        reason = "constrained decoding is not supported, so arguments cannot be made to fit the schema; leave it out"
        raise unsupported(f"{where}.strict", f"Unsupported value for '{where}.strict': {reason}.")


def check_depth(tool: Mapping[str, Any], where: str) -> None:
    if not fits_a_body(tool):
        message = f"Invalid '{where}': the schema is nested too deeply or holds an integer of more than 64 bits."
        raise Refusal(message, param=where)


def text(content: Any, where: str, kinds: Mapping[str, str]) -> str:
    """Text parts joined by newlines, blank parts dropped: a string and its one-part form are the same text.

    `kinds`: a part's type → the field that holds its text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_type(where, "a string or an array of parts")
    parts = [_part(part, f"{where}[{index}]", kinds) for index, part in enumerate(content)]
    return "\n".join(part for part in parts if part)


def _part(part: Any, where: str, kinds: Mapping[str, str]) -> str:
    kind = mapping(part, where).get("type")
    field = kinds.get(kind) if isinstance(kind, str) else None
    if field is None:
        message = f"Unsupported content part {shown(kind)} in '{where}': the model reads text only."
        raise unsupported(f"{where}.type", message)
    if not isinstance(part.get(field), str):
        raise wrong_type(f"{where}.{field}", "a string")
    return str(part[field])


def error(refusal: Refusal) -> dict[str, Any]:
    """The protocols' error object."""
    return {
        "error": {"message": refusal.message, "type": refusal.kind, "param": refusal.param, "code": refusal.code},
    }


def models(names: Sequence[str]) -> dict[str, Any]:
    """The body of `GET /v1/models`."""
    return {"object": "list", "data": [model(name) for name in names]}


def model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "lego-rl"}
