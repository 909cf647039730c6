"""Dictionaries that are filled together grow one after the other."""

import random
import sys
from collections.abc import Callable, Hashable
from itertools import pairwise

import pytest

from mirrormq.base.staggered import APART, LARGE, StaggeredDict

KEYS: dict[str, Callable[[int], Hashable]] = {
    "numbers": lambda n: n + 1,
    "texts": lambda n: f"queue-{n}",
    "pairs": lambda n: ("/", f"queue-{n}"),
}


def growths(tables: list[StaggeredDict[Hashable, int]], keys: list[Hashable]) -> list[list[int]]:
    """With which key each of them has grown, while all get the same."""
    sizes = [sys.getsizeof(table) for table in tables]
    found: list[list[int]] = [[] for _ in tables]
    for number, key in enumerate(keys):
        for place, table in enumerate(tables):
            table[key] = number
            if sys.getsizeof(table) != sizes[place]:
                sizes[place] = sys.getsizeof(table)
                if number >= LARGE:
                    found[place].append(number)
    return found


@pytest.mark.parametrize("kind", KEYS)
def test_no_two_of_a_row_grow_with_the_same_entry(kind: str) -> None:
    tables: list[StaggeredDict[Hashable, int]] = [StaggeredDict(place) for place in range(8)]
    found = growths(tables, [KEYS[kind](number) for number in range(25_000)])
    assert [len(grown) for grown in found] == [len(found[0])] * len(tables)
    assert len(found[0]) >= 3
    for together in zip(*found, strict=True):
        apart = [before - after for before, after in pairwise(together)]
        assert min(apart) >= APART


def test_they_stay_apart_where_entries_come_and_go() -> None:
    tables: list[StaggeredDict[Hashable, int]] = [StaggeredDict(place) for place in range(4)]
    plain: dict[Hashable, int] = {}
    for number in range(4000):
        plain[number] = number
        for table in tables:
            table[number] = number
    # As many go as come: a table is full of holes, and Python makes a new one of the same size.
    for number in range(4000, 40_000):
        plain[number] = plain.pop(number - 4000)
        renewed = 0
        for table in tables:
            room = table._room
            table[number] = table.pop(number - 4000)
            renewed += table._room > room
        assert renewed <= 1
    assert all(table == plain and list(table) == list(plain) for table in tables)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_a_dictionary_like_any_other(seed: int) -> None:
    rng = random.Random(seed)
    table: StaggeredDict[str, int] = StaggeredDict(rng.randrange(8))
    plain: dict[str, int] = {}
    for number in range(12_000):
        key = f"\0{rng.randrange(9000)}"  # names that those could have which fill it up
        if rng.random() < 0.8:
            table[key] = plain[key] = number
        else:
            assert table.pop(key, None) == plain.pop(key, None)
        if rng.random() < 0.0001:
            table.clear()
            plain.clear()
    assert table == plain
    assert list(table.items()) == list(plain.items())


def test_entries_that_would_not_be_counted_are_refused() -> None:
    table: StaggeredDict[int, int] = StaggeredDict(0)
    with pytest.raises(TypeError):
        table.setdefault(1, 1)
    with pytest.raises(TypeError):
        table.update({1: 1})
    with pytest.raises(TypeError):
        table |= {1: 1}
    assert (table, table.added) == ({}, 0)
