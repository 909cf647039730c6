"""Walks give out every object once per round, and end."""

from __future__ import annotations

from mirrormq.base.walk import ROUNDS_MAX, KeyWalk, Walk


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


def test_a_walk_over_keys_hears_of_every_key_that_came_or_went() -> None:
    mapping = dict.fromkeys(range(5))
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
    walk = KeyWalk(dict.fromkeys(range(3)))
    walk.begin()
    assert walk.take(2) == [0, 1]
    walk.begin()
    assert (walk.take(2), walk.is_under_way, walk.rounds) == ([2], True, 1)
    assert walk.take(5) == [0, 1, 2]
    assert (walk.is_under_way, walk.rounds) == (False, 2)


def test_a_key_hidden_by_one_that_came_again_is_found_after_some_rounds() -> None:
    mapping = dict.fromkeys(range(3))
    walk = KeyWalk(mapping)
    taken(walk)
    del mapping[1]
    mapping[7] = None
    mapping[2] = mapping.pop(2)
    assert 7 in [key for _ in range(ROUNDS_MAX) for key in taken(walk)]
