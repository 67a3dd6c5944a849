"""How many things are named in one line for a person: the first of them, and how many more there are."""

from collections.abc import Sequence


def first(names: Sequence[str], most: int, between: str = ", ") -> str:
    """`a, b, c and 7 more`; empty for none."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more
