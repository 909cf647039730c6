"""The planner of rebalancing: whatever the placement, its moves are allowed, few, and even the nodes out."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrormq.node.balancing import (
    CONNECTIONS,
    MASTERS,
    MESSAGES,
    RANDOM,
    ROUND_ROBIN,
    STRATEGIES,
    Move,
    Placed,
    plan,
    spread,
)
from tests.support.nodekit import SeededRng

NODES = ("a", "b", "c", "d")
COUNTED = (MASTERS, CONNECTIONS, RANDOM, ROUND_ROBIN)
EVEN = dict.fromkeys(("a", "b", "c"), 0)


def queue(number: int, master: str, able: str = "abc", messages: int = 0) -> Placed:
    return Placed("/", f"q{number:05}", number, master, tuple(able), messages)


def after(placed: list[Placed], moves: list[Move]) -> list[Placed]:
    targets = {move.queue.id: move.target for move in moves}
    return [one._replace(master=targets.get(one.id, one.master)) for one in placed]


def weights(placed: list[Placed], sites: dict[str, int], strategy: str) -> list[int]:
    loads = Counter({name: sites[name] if strategy == CONNECTIONS else 0 for name in sites})
    for one in placed:
        if one.master in sites:
            loads[one.master] += one.messages + 1 if strategy == MESSAGES else 1
    return sorted(loads.values())


@st.composite
def placements(draw: st.DrawFn) -> tuple[list[Placed], dict[str, int]]:
    open_ones = draw(st.sets(st.sampled_from(NODES), min_size=1))
    sites = {name: draw(st.integers(0, 12)) for name in sorted(open_ones)}
    row = st.tuples(st.sampled_from(NODES), st.sets(st.sampled_from(NODES)), st.integers(0, 40))
    rows = draw(st.lists(row, max_size=40))
    placed = [
        Placed("/", f"q{number}", number, master, tuple(sorted(able | {master})), messages)
        for number, (master, able, messages) in enumerate(rows)
    ]
    return placed, sites


@pytest.mark.slow
@given(placements(), st.sampled_from(STRATEGIES), st.integers(0, 99))
def test_a_queue_moves_at_most_once_and_only_where_it_may_be(
    found: tuple[list[Placed], dict[str, int]], strategy: str, seed: int
) -> None:
    placed, sites = found
    moves = plan(placed, sites, strategy, SeededRng(seed))
    assert len({move.queue.id for move in moves}) == len(moves)
    for move in moves:
        assert move.target in move.queue.able
        assert move.target in sites
        assert move.target != move.queue.master


@pytest.mark.slow
@given(placements(), st.sampled_from(STRATEGIES), st.integers(0, 99))
def test_the_biggest_queues_move_last(
    found: tuple[list[Placed], dict[str, int]], strategy: str, seed: int
) -> None:
    sizes = [move.queue.messages for move in plan(*found, strategy, SeededRng(seed))]
    assert sizes == sorted(sizes)


@pytest.mark.slow
@given(placements(), st.sampled_from(STRATEGIES), st.integers(0, 99))
def test_no_strategy_makes_the_fullest_open_node_fuller(
    found: tuple[list[Placed], dict[str, int]], strategy: str, seed: int
) -> None:
    placed, sites = found
    placed = [one for one in placed if one.master in sites]
    moves = plan(placed, sites, strategy, SeededRng(seed))
    assert weights(after(placed, moves), sites, strategy)[-1] <= weights(placed, sites, strategy)[-1]


@pytest.mark.slow
@given(placements(), st.sampled_from(COUNTED), st.integers(0, 99))
def test_what_is_even_is_left_alone(
    found: tuple[list[Placed], dict[str, int]], strategy: str, seed: int
) -> None:
    placed, sites = found
    moves = plan(placed, sites, strategy, SeededRng(seed))
    assert plan(after(placed, moves), sites, strategy, SeededRng(seed + 1)) == []


@pytest.mark.slow
@given(placements(), st.sampled_from((MASTERS, CONNECTIONS, MESSAGES, ROUND_ROBIN)))
def test_the_same_placement_gives_the_same_plan_on_every_node(
    found: tuple[list[Placed], dict[str, int]], strategy: str
) -> None:
    assert plan(*found, strategy, SeededRng(1)) == plan(*found, strategy, SeededRng(2))


@pytest.mark.slow
@given(st.lists(st.sampled_from("abc"), max_size=60), st.sampled_from(COUNTED), st.integers(0, 99))
def test_queues_that_may_be_anywhere_differ_by_one_at_most_per_node(
    masters: list[str], strategy: str, seed: int
) -> None:
    placed = [queue(number, master) for number, master in enumerate(masters)]
    counts = weights(after(placed, plan(placed, EVEN, strategy, SeededRng(seed))), EVEN, MASTERS)
    assert counts[-1] - counts[0] <= 1


@pytest.mark.slow
@given(placements())
@settings(max_examples=60)
def test_the_fullest_node_is_as_empty_as_any_placement_could_make_it(
    found: tuple[list[Placed], dict[str, int]],
) -> None:
    """Against the bound of flows: for every set of nodes, the queues that can be nowhere else."""
    placed, sites = found
    placed = [one._replace(able=tuple(set(one.able) & set(sites))) for one in placed]
    placed = [one for one in placed if one.master in sites]
    moves = plan(placed, sites, MASTERS, SeededRng(1))
    names = sorted(sites)
    least = 0
    for chosen in range(1, 1 << len(names)):
        among = {name for bit, name in enumerate(names) if chosen >> bit & 1}
        bound = sum(set(one.able) <= among for one in placed)
        least = max(least, -(-bound // len(among)))
    assert weights(after(placed, moves), sites, MASTERS)[-1] == least


def test_only_the_surplus_moves_and_the_smallest_of_it() -> None:
    placed = [queue(number, "a", messages=number) for number in range(9)]
    moves = plan(placed, EVEN, MASTERS, SeededRng(1))
    assert [move.queue.id for move in moves] == [0, 1, 2, 3, 4, 5]
    assert spread(placed, moves) == {"a": 3, "b": 3, "c": 3}


def test_a_queue_makes_room_on_a_third_node_for_one_that_cannot_go_further() -> None:
    placed = [queue(number, "a", "ab") for number in range(4)]
    placed += [queue(10 + number, "b", "bc") for number in range(2)]
    moves = plan(placed, EVEN, MASTERS, SeededRng(1))
    assert spread(placed, moves) == {"a": 2, "b": 2, "c": 2}


def test_nodes_with_many_clients_get_fewer_masters() -> None:
    placed = [queue(number, "a") for number in range(9)]
    moves = plan(placed, {"a": 100, "b": 0, "c": 3}, CONNECTIONS, SeededRng(1))
    assert spread(placed, moves) == {"b": 6, "c": 3}


def test_messages_are_evened_out_however_many_queues_hold_them() -> None:
    placed = [queue(1, "a", messages=1000), queue(2, "a", messages=600), queue(3, "a", messages=400)]
    moves = plan(placed, {"a": 0, "b": 0}, MESSAGES, SeededRng(1))
    assert weights(after(placed, moves), {"a": 0, "b": 0}, MESSAGES) == [1001, 1002]


def test_differences_of_a_few_messages_are_no_reason_to_move() -> None:
    placed = [queue(1, "a", messages=1000), queue(2, "a", messages=50), queue(3, "b", messages=1000)]
    assert plan(placed, {"a": 0, "b": 0}, MESSAGES, SeededRng(1)) == []


def test_empty_queues_are_spread_by_messages_too() -> None:
    placed = [queue(number, "a") for number in range(6)]
    assert spread(placed, plan(placed, EVEN, MESSAGES, SeededRng(1))) == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_node_in_maintenance_is_left_by_all_that_can_leave(strategy: str) -> None:
    placed = [queue(number, "d", "abcd") for number in range(6)] + [queue(9, "d", "d")]
    moves = plan(placed, EVEN, strategy, SeededRng(1))
    assert spread(placed, moves) == {"a": 2, "b": 2, "c": 2, "d": 1}


def test_surplus_is_dealt_by_turns_or_drawn() -> None:
    placed = [queue(number, "a") for number in range(7)]
    turns = [move.target for move in plan(placed, EVEN, ROUND_ROBIN, SeededRng(1))]
    assert turns == ["b", "c", "b", "c"]
    drawn = {tuple(move.target for move in plan(placed, EVEN, RANDOM, SeededRng(seed))) for seed in range(9)}
    assert len(drawn) > 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ten_thousand_queues_are_planned_in_a_moment(strategy: str) -> None:
    random = Random(5)
    placed = [
        queue(number, random.choice("aab"), random.choice(("ab", "ac", "abc", "bc")), random.randrange(1000))
        for number in range(10_000)
    ]
    placed = [one if one.master in one.able else one._replace(master=one.able[0]) for one in placed]
    moves = plan(placed, EVEN, strategy, SeededRng(1))
    counts = weights(after(placed, moves), EVEN, strategy)
    assert counts[-1] - counts[0] <= (1 if strategy != MESSAGES else counts[-1] // 5)
