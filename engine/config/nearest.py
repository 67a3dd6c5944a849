"""The nearest right name for a wrong one, and one-line lists of what is allowed."""

from collections.abc import Collection, Iterable
from difflib import SequenceMatcher, get_close_matches

_LISTED = 12


def nearest(wrong: str, allowed: Iterable[str]) -> str | None:
    """The allowed name that looks most like `wrong`; None when nothing is close."""
    names = list(allowed)
    folded = {name.lower().replace("-", "_"): name for name in names}
    found = get_close_matches(wrong.lower().replace("-", "_"), list(folded), n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def nearest_key(wrong: str, allowed: Iterable[str]) -> str | None:
    """As `nearest` for dotted keys: what their last parts say decides, the rest tells equals apart."""
    names = list(allowed)
    last = wrong.rpartition(".")[2]
    same_leaf = [name for name in names if name.rpartition(".")[2] == last]
    if same_leaf:
        return max(same_leaf, key=lambda name: SequenceMatcher(None, wrong, name).ratio())
    guess = nearest(last, {name.rpartition(".")[2] for name in names})
    return nearest_key(guess, names) if guess else None


def listed(names: Iterable[str]) -> str:
    """`a, b, c`, cut short after a dozen names."""
    every = list(names)
    cut = every[:_LISTED]
    rest = len(every) - len(cut)
    return ", ".join(cut) + (f", … ({rest} more)" if rest else "")


def suggestion(guess: str | None, allowed: Collection[str]) -> str:
    """The way out of a wrong name: `did you mean X? allowed: …`."""
    head = f"did you mean {guess}? " if guess else ""
    return f"{head}allowed: {listed(allowed)}" if allowed else f"{head}none is allowed here, leave it out"
