"""What a client of OpenAI Responses hands back as it got it, and what the engine finds in it again.

Reasoning: a client that keeps its own history returns a reasoning item's `encrypted_content` and, as Codex does, not
its text. Nothing is secret here: the "encrypted" content is the text in base64, with a mark that tells it as ours.
Names: a function in a namespace is one tool, `namespace.name`, to the model. No name that a client may give holds a
dot, so each joined name is split again into the same two.
"""

import base64

_MARK = "plain."


def seal(text: str) -> str:
    return _MARK + base64.b64encode(text.encode()).decode()


def unseal(sealed: str) -> str | None:
    """The text; None when it was not sealed here."""
    if not sealed.startswith(_MARK):
        return None
    try:
        return base64.b64decode(sealed.removeprefix(_MARK), validate=True).decode()
    except ValueError:
        return None


def join_name(namespace: str, name: str) -> str:
    return f"{namespace}.{name}" if namespace else name


def split_name(joined: str) -> tuple[str, str]:
    """Namespace (empty: none) and name."""
    namespace, _, name = joined.partition(".")
    return (namespace, name) if namespace and name else ("", joined)


def name_fields(joined: str) -> dict[str, str]:
    """The fields of a call that name its function."""
    namespace, name = split_name(joined)
    return {"name": name, "namespace": namespace} if namespace else {"name": name}
