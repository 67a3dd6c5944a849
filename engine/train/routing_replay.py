"""Whether the experts that sampled a token are used again when it is trained.

Invariant: replay covers all three log-probabilities of a step (old, new, reference), so that they differ by weights and
never by routing. The mechanism is in `engine.train.router`.
"""


class RoutingReplay:
    """Configuration of routing replay for mixture-of-experts models.

    Args:
        enabled: True: use the captured experts, refusing a batch that lacks them; False: the router chooses anew.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
