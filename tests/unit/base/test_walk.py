"""Walks give out every object once per round, and end."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest

from mirrormq.base.staggered import StaggeredDict
from mirrormq.base.walk import STEP, KeyWalk, Walk, let_go


def test_a_round_gives_out_every_object_once_however_small_the_steps() -> None:
    walk = Walk(lambda: range(7))
    walk.begin()
    found = []
    while walk.is_under_way:
        found += walk.take(3)
    assert (found, walk.rounds) == ([*range(7)], 1)


def test_asking_again_meanwhile_adds_one_round_and_never_sets_the_first_back() -> None:
    walk = Walk(lambda: range(5))
    walk.begin()
    assert walk.take(2) == [0, 1]
    for _ in range(3):
        walk.begin()
    assert walk.served_by == 2
    rest: list[int] = []
    while walk.is_under_way:
        rest += walk.take(2)
    assert rest == [2, 3, 4, 0, 1, 2, 3, 4]
    assert walk.rounds == 2


def test_a_round_is_about_what_is_there_when_it_begins() -> None:
    items = ["a"]
    walk = Walk(lambda: items)
    walk.begin()
    items.append("b")
    assert walk.take(1) == ["a"]
    items.append("c")
    assert walk.take(5) == ["b"]
    assert not walk.is_under_way


def test_without_a_wish_there_is_nothing_to_take() -> None:
    walk = Walk(lambda: [1])
    assert (walk.take(1), walk.is_under_way, walk.served_by) == ([], False, 0)


def taken(walk: KeyWalk[int], most: int = 2) -> list[int]:
    """The keys of one round."""
    walk.begin()
    rounds, found = walk.rounds, walk.take(most)
    while walk.rounds == rounds:
        found += walk.take(most)
    return found


def of(given: Iterable[int | None]) -> Iterator[int]:
    """The keys among what `each` gave."""
    return (key for key in given if key is not None)


def many(count: int) -> StaggeredDict[int, None]:
    made: StaggeredDict[int, None] = StaggeredDict(0)
    for number in range(count):
        made[number] = None
    return made


def test_a_walk_over_keys_hears_of_every_key_that_came_or_went() -> None:
    mapping = many(5)
    walk = KeyWalk(mapping)
    assert taken(walk) == [0, 1, 2, 3, 4]
    assert taken(walk) == [0, 1, 2, 3, 4]
    del mapping[1]
    assert taken(walk) == [0, 2, 3, 4]
    del mapping[4]
    mapping[5] = None
    assert taken(walk) == [0, 2, 3, 5]
    mapping.clear()
    assert (taken(walk), walk.is_under_way, walk.take(3)) == ([], False, [])


def test_a_round_over_keys_that_was_asked_for_meanwhile_follows_the_one_under_way() -> None:
    walk = KeyWalk(many(3))
    walk.begin()
    assert walk.take(2) == [0, 1]
    walk.begin()
    assert (walk.take(2), walk.is_under_way, walk.rounds) == ([2], True, 1)
    assert walk.take(5) == [0, 1, 2]
    assert (walk.is_under_way, walk.rounds) == (False, 2)


def test_a_key_that_came_again_hides_no_other() -> None:
    mapping = many(3)
    walk = KeyWalk(mapping)
    taken(walk)
    del mapping[1]
    mapping[7] = None
    mapping[2] = mapping.pop(2)
    assert set(taken(walk)) == {0, 7, 2}


@pytest.mark.parametrize("seed", range(5))
def test_whatever_comes_and_goes_every_round_has_all_keys(seed: int) -> None:
    rng = random.Random(seed)
    mapping = many(rng.randrange(50))
    walk = KeyWalk(mapping)
    for _ in range(300):
        for _ in range(rng.choice((0, 1, 5, 60))):
            if rng.random() < 0.5:
                mapping[rng.randrange(200)] = None
            else:
                mapping.pop(rng.randrange(200), None)
        if rng.random() < 0.01:
            mapping.clear()
        found = taken(walk, rng.choice((1, 7, 500))) if rng.random() < 0.7 else [*of(walk.each())]
        assert set(found) == set(mapping)
    for _ in range(3):
        taken(walk)
    assert len(walk._keys) <= len(mapping) * 1.25 + 64


def test_a_key_that_goes_while_others_are_looked_at_is_not_given_out() -> None:
    mapping = many(5)
    keys = KeyWalk(mapping).each()
    assert next(keys) == 0
    del mapping[1], mapping[4]
    assert [*of(keys)] == [2, 3]


def test_steps_whose_keys_all_went_are_told_so_that_nobody_goes_past_all_of_them_at_once() -> None:
    mapping = many(10 * STEP)
    walk = KeyWalk(mapping)
    for number in range(9 * STEP):
        del mapping[number]
    found = [*walk.each()]
    assert found[: 9 + 1] == [None] * 9 + [9 * STEP]
    assert [*of(found)] == [*mapping]


def test_whoever_comes_after_one_that_stopped_midway_gets_all_keys() -> None:
    walk = KeyWalk(many(100))
    assert next(walk.each()) == 0
    assert {*of(walk.each())} == set(range(100))


def test_keys_that_went_are_left_out_after_a_round_and_let_go_of_in_the_next() -> None:
    mapping = many(1000)
    walk = KeyWalk(mapping)
    for number in range(900):
        del mapping[number]
    assert taken(walk, 100) == [*range(900, 1000)]
    assert (len(walk._keys), len(walk._past)) == (100, 1000)
    assert taken(walk, 40) == [*range(900, 1000)]
    assert len(walk._past) == 1000 - 3 * 40


def test_keys_that_come_again_and_again_do_not_pile_up() -> None:
    mapping = many(1000)
    walk = KeyWalk(mapping)
    for _ in range(20):
        for number in range(1000):
            mapping[number] = mapping.pop(number)
        assert set(taken(walk, 100)) == set(range(1000))
        assert len(walk._keys) <= 3 * 1000


def test_what_is_past_is_let_go_of_in_steps() -> None:
    past = dict.fromkeys(range(5))
    assert let_go(past, 2) == [(4, None), (3, None)]
    assert (let_go(past, 9), past) == ([(2, None), (1, None), (0, None)], {})
