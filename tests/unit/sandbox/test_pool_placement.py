"""Which host the next sandbox is put on."""

import random

from engine.sandbox.podman_pool.placement import Seats, choose


def test_the_least_load_by_capacity_wins_and_ties_go_by_order() -> None:
    assert choose([Seats(capacity=4, here=2), Seats(capacity=8, here=3), Seats(capacity=2, elsewhere=1)]) == 1
    assert choose([Seats(capacity=4), Seats(capacity=2)]) == 0
    assert choose([Seats(capacity=4, here=1), Seats(capacity=8, here=1, elsewhere=1)]) == 0


def test_without_a_bound_the_processors_count() -> None:
    big, small = Seats(capacity=None, processors=32, here=8), Seats(capacity=None, processors=2, here=1)
    assert choose([small, big]) == 1
    assert choose([Seats(capacity=None, processors=2, here=900)]) == 0


def test_nothing_goes_where_there_is_no_room_or_no_answer() -> None:
    assert choose([]) is None
    assert choose([Seats(capacity=2, here=1, elsewhere=1), Seats(capacity=1, away="silent")]) is None
    assert choose([Seats(capacity=None, away="silent"), Seats(capacity=1)]) == 1


def test_no_host_is_ever_overfull_and_loads_stay_level() -> None:
    chosen = random.Random(0)
    seats = [Seats(capacity=capacity) for capacity in (2, 4, 8, 16)]
    for _ in range(2000):
        index = choose(seats)
        if index is not None and chosen.random() < 0.6:
            seats[index].here += 1
        elif carrying := [each for each in seats if each.here]:
            chosen.choice(carrying).here -= 1
        assert all(each.capacity is not None and 0 <= each.here <= each.capacity for each in seats)
    for each in seats:
        each.here = 0
    for _ in range(15):
        index = choose(seats)
        assert index is not None
        seats[index].here += 1
    assert [each.here for each in seats] == [1, 2, 4, 8]
