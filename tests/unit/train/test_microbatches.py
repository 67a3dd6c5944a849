import dataclasses

import numpy as np
import pytest

from engine.core.records import Row
from engine.train.microbatches import collate, plan, used_length


def row(tokens: int, targets: list[int], *, routed: bool = False) -> Row:
    target = np.zeros(tokens, np.bool_)
    target[targets] = True
    routing = np.arange((tokens - 1) * 2, dtype=np.uint8).reshape(tokens - 1, 2, 1) if routed else None
    return Row(
        trajectory=0,
        token_ids=np.arange(100, 100 + tokens, dtype=np.int32),
        target=target,
        captured_logprobs=np.zeros(tokens, np.float32),
        policy_versions=np.zeros(tokens, np.int32),
        routed_experts=routing,
        advantage=0.0,
    )


def test_a_row_ends_before_its_last_target():
    assert used_length(row(10, [4, 6])) == 6
    assert used_length(row(10, [9])) == 9
    assert used_length(row(10, [])) == 0


@pytest.mark.parametrize(
    ("max_tokens", "max_rows", "expected"),
    [
        (1000, 10, [(2, 0, 3)]),
        (1000, 2, [(2, 0), (3,)]),
        (40, 10, [(2, 0), (3,)]),
        (39, 10, [(2,), (0, 3)]),
        (1, 10, [(2,), (0,), (3,)]),
        (1000, 1, [(2,), (0,), (3,)]),
    ],
)
def test_a_plan_keeps_its_budget_with_padding_counted(max_tokens, max_rows, expected):
    rows = [row(12, [11]), row(50, []), row(40, [20]), row(6, [5])]
    assert plan(rows, range(4), max_tokens=max_tokens, max_rows=max_rows) == expected


def test_a_plan_is_of_the_chosen_rows():
    rows = [row(12, [11]), row(13, [12]), row(14, [13])]
    assert plan(rows, [0, 2], max_tokens=100, max_rows=8) == [(2, 0)]


def test_collate_pads_right_and_points_at_predicting_positions():
    rows = [row(5, [2, 4], routed=True), row(9, [7], routed=True)]
    micro = collate(rows, (1, 0), replay=True)
    assert micro.token_ids.tolist() == [[100, 101, 102, 103, 104, 105, 106], [100, 101, 102, 103, 0, 0, 0]]
    assert micro.counts == (1, 2)
    assert micro.predicting.tolist() == [6, 7 + 1, 7 + 3]
    assert micro.target_ids.tolist() == [107, 102, 104]
    assert micro.experts is not None
    assert micro.present is not None
    assert micro.experts.shape == (14, 2, 1)
    assert micro.present.tolist() == [True] * 7 + [True] * 4 + [False] * 3
    assert micro.experts[7:11].tolist() == rows[0].routed_experts.tolist()
    assert micro.experts[:7].tolist() == rows[1].routed_experts[:7].tolist()


def test_without_replay_captured_experts_are_left_alone():
    routed = row(5, [4], routed=True)
    assert collate([routed], (0,), replay=False).experts is None
    dense = dataclasses.replace(routed, routed_experts=None)
    assert collate([dense], (0,), replay=True).experts is None
