"""How a harness behaves as a client of the model's API: what the proxy must know of it, as configuration."""

from collections.abc import Sequence

from engine.core.contracts import HoldBack


class Client:
    """Values alone; what they mean is the proxy's matter."""

    def __init__(self, *, volatile: Sequence[str], side_calls: Sequence[str], hold_back: HoldBack) -> None:
        self.volatile, self.side_calls = volatile, side_calls
        self.hold_back: HoldBack = hold_back
