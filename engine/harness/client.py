"""How a harness behaves as a client of the model's API: what the proxy must know of it, as configuration."""

from collections.abc import Sequence


class Client:
    """Values alone; what they mean is the proxy's matter."""

    def __init__(self, *, volatile: Sequence[str]) -> None:
        self.volatile = volatile
