"""Which wire protocol is spoken on which path.

Below a trial's own path each protocol has its own; the list of models has one for all, and there the client's
`anthropic-version` header tells. Where nothing tells, the errors are OpenAI's.
"""

from collections.abc import Mapping

from engine.wire.anthropic import ANTHROPIC_MESSAGES
from engine.wire.openai_chat import OPENAI_CHAT
from engine.wire.openai_responses import OPENAI_RESPONSES
from engine.wire.protocol import CountingProtocol, WireProtocol

ANSWERED: Mapping[str, WireProtocol] = {
    "/v1/chat/completions": OPENAI_CHAT,
    "/v1/responses": OPENAI_RESPONSES,
    "/v1/messages": ANTHROPIC_MESSAGES,
}
"""Path → the protocol of the answers that it gives."""
COUNTED: Mapping[str, CountingProtocol] = {"/v1/messages/count_tokens": ANTHROPIC_MESSAGES}
"""Path → the protocol in which it counts a prompt's tokens."""
MODELS = "/v1/models"
HELLO = "/api/hello"
"""What Claude Code asks to see whether there is a server at all; it sends no key."""


def protocol_of(path: str, headers: Mapping[str, str]) -> WireProtocol:
    """The protocol in which a client that asks for `path`, known or not, expects its answer."""
    for known in (ANSWERED, COUNTED):
        for suffix, protocol in known.items():
            if path.endswith(suffix):
                return protocol
    return ANTHROPIC_MESSAGES if "anthropic-version" in headers else OPENAI_CHAT
