"""Messages to token ids and sampled ids back to messages, per model family.

`load_renderer(model)` gives a `Renderer`: pure, synchronous, safe to call from any thread. Heavy libraries are
imported by that call alone.
"""

from engine.tokens.load import load_renderer
from engine.tokens.renderer import CannotRender, Follower, ParsedCall, ParsedTurn, Piece, Renderer, Shape

__all__ = ["CannotRender", "Follower", "ParsedCall", "ParsedTurn", "Piece", "Renderer", "Shape", "load_renderer"]
