"""Walks give out every object once per round, and end."""

from __future__ import annotations

from mirrormq.base.walk import Walk


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
