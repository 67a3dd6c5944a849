"""From the conversation tree to token streams: one segment per root-to-leaf path.

Invariant: every token that a policy turn sampled is a target in exactly one segment, the first that holds it, with the
id, log-probability and policy version that the engine reported. What does not fit in length raises AlignmentError with
both lengths; nothing is padded or cut.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.errors import AlignmentError
from engine.core.records import Generation, Segment
from engine.proxy.conversation import Conversation, Turn
from engine.proxy.spill import Rows, Spill


def segments(conversation: Conversation, spill: Spill) -> tuple[Segment, ...]:
    """All paths to turns that no policy turn continues, in the order in which these turns were sampled."""
    turns = list(conversation.policy_turns())
    continued = {id(turn.parent) for turn in turns}
    owned = {id(turn) for turn in conversation.side_turns()}
    """Turns that are no targets of the next segment: trained in one before it, or never."""
    built = []
    for leaf in turns:
        if id(leaf) in continued:
            continue
        path = leaf.path()
        built.append(_segment(path, owned, spill))
        owned |= {id(turn) for turn in path}
    return tuple(built)


def _segment(path: Sequence[Turn], owned: set[int], spill: Spill) -> Segment:
    length = path[-1].length
    token_ids = np.zeros(length, dtype=np.int32)
    target = np.zeros(length, dtype=np.bool_)
    logprobs = np.zeros(length, dtype=np.float32)
    versions = np.full(length, -1, dtype=np.int32)
    position = 0
    for turn in path:
        generation = sampled_by(turn)
        start = position + len(turn.new_ids)
        end = start + len(generation.token_ids)
        token_ids[position:start] = turn.new_ids
        token_ids[start:end] = generation.token_ids
        if id(turn) not in owned:
            target[start:end] = True
            logprobs[start:end] = generation.logprobs
            versions[start:end] = generation.policy_versions
        position = end
    return Segment(
        exchanges=tuple(turn.id for turn in path),
        token_ids=token_ids,
        target=target,
        logprobs=logprobs,
        policy_versions=versions,
        routed_experts=_routing(path, length, spill),
    )


def sampled_by(turn: Turn) -> Generation:
    """The turn's generation, its lengths checked."""
    generation = turn.generation
    if generation is None:
        raise AlignmentError(f"exchange {turn.id}: a path runs through a call that sampled nothing")
    sampled = len(generation.token_ids)
    for name, values in (("log-probabilities", generation.logprobs), ("policy versions", generation.policy_versions)):
        if len(values) != sampled:
            raise AlignmentError(f"exchange {turn.id}: {len(values)} {name} for {sampled} sampled tokens")
    return generation


def routed_start(parent: Turn | None) -> int:
    """First position whose routing a call must report: the parent's last token had no row yet."""
    return 0 if parent is None else max(parent.length - 1, 0)


def _routing(path: Sequence[Turn], length: int, spill: Spill) -> NDArray[Any] | None:
    blocks = [_routing_block(turn) for turn in path]
    present = [block for block in blocks if block is not None]
    if not present:
        return None
    if len(present) != len(blocks):
        lacking = [turn.id for turn, block in zip(path, blocks, strict=True) if block is None]
        raise AlignmentError(
            f"exchanges {', '.join(lacking)} have no routed experts, {len(present)} others on the path do"
        )
    shapes = {(block.shape[1:], block.dtype) for block in present}
    if len(shapes) != 1:
        raise AlignmentError(f"routed experts of one path differ in layers, top-k or type: {sorted(map(str, shapes))}")
    rows = sum(block.shape[0] for block in present)
    if rows != length - 1:
        raise AlignmentError(f"{rows} rows of routed experts for {length} tokens; {length - 1} are needed")
    return spill.joined(present)


def _routing_block(turn: Turn) -> Rows | None:
    generation = sampled_by(turn)
    rows = turn.routed
    if rows is None:
        return None
    start = routed_start(turn.parent)
    if generation.routed_start != start:
        raise AlignmentError(
            f"exchange {turn.id}: routed experts start at position {generation.routed_start}, asked for {start}"
        )
    needed = turn.length - 1 - start
    if len(rows.shape) != 3 or rows.shape[0] != needed:
        raise AlignmentError(
            f"exchange {turn.id}: routed experts of shape {rows.shape} for a prompt of {turn.prompt_length} and "
            f"{len(generation.token_ids)} sampled tokens from position {start}; {needed} rows are needed"
        )
    return rows
