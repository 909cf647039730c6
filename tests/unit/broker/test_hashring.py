"""Consistent hashing spreads values by weight and moves few of them when destinations come and go."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrormq.broker.hashring import HashRing, hash64, jump

VALUES = [b"key-%d" % i for i in range(6000)]


def ring_of(*weights: tuple[str, int]) -> HashRing[str]:
    ring: HashRing[str] = HashRing()
    for name, weight in weights:
        ring.add(name, weight)
    return ring


def picks(ring: HashRing[str]) -> dict[bytes, str | None]:
    return {value: ring.pick(value) for value in VALUES}


def test_an_empty_ring_picks_nothing() -> None:
    assert HashRing[str]().pick(b"k") is None


def test_equal_weights_get_equal_shares() -> None:
    counts = Counter(picks(ring_of(*((f"q{i}", 1) for i in range(6)))).values())
    assert len(counts) == 6
    assert all(850 < n < 1150 for n in counts.values())


def test_shares_follow_the_weights() -> None:
    counts = Counter(picks(ring_of(("a", 1), ("b", 2), ("c", 3))).values())
    assert 850 < counts["a"] < 1150
    assert 1850 < counts["b"] < 2150
    assert 2850 < counts["c"] < 3150


def test_a_new_destination_takes_its_share_and_moves_nothing_else() -> None:
    ring = ring_of(("a", 10), ("b", 10), ("c", 10))
    before = picks(ring)
    ring.add("d", 10)
    after = picks(ring)
    moved = [value for value in VALUES if before[value] != after[value]]
    assert all(after[value] == "d" for value in moved)
    assert 1300 < len(moved) < 1700


def test_removing_the_newest_destination_restores_the_earlier_choice() -> None:
    ring = ring_of(("a", 1), ("b", 5))
    before = picks(ring)
    ring.add("c", 3)
    ring.remove("c", 3)
    assert picks(ring) == before


def test_a_removed_destination_gets_nothing_more() -> None:
    ring = ring_of(("a", 1), ("b", 1), ("c", 1))
    ring.remove("a", 1)
    assert set(picks(ring).values()) == {"b", "c"}


def test_a_destination_bound_twice_has_the_weight_of_its_oldest_binding() -> None:
    ring = ring_of(("a", 1), ("b", 1), ("a", 50))
    assert picks(ring) == picks(ring_of(("a", 1), ("b", 1)))
    ring.remove("a", 1)
    assert picks(ring) == picks(ring_of(("a", 50), ("b", 1)))
    ring.remove("a", 50)
    assert set(picks(ring).values()) == {"b"}
    assert len(ring) == 1


def test_a_large_weight_costs_no_memory_and_no_time() -> None:
    ring = ring_of(("a", 1_000_000), ("b", 1_000_000))
    counts = Counter(picks(ring).values())
    assert 2700 < counts["a"] < 3300


def test_unknown_bindings_cannot_be_removed() -> None:
    ring = ring_of(("a", 1))
    with pytest.raises(KeyError):
        ring.remove("b", 1)
    with pytest.raises(ValueError, match=r"x not in list|not in list"):
        ring.remove("a", 2)


def test_the_hash_is_the_same_on_every_machine() -> None:
    assert hash64(b"") == 0xE4A6A0577479B2B4
    assert ring_of(("a", 1), ("b", 1), ("c", 1)).pick(b"key-1") == "c"


@given(st.integers(0, (1 << 64) - 1), st.integers(1, 5000))
def test_a_growing_number_of_buckets_moves_a_key_only_to_the_new_one(key: int, buckets: int) -> None:
    chosen = jump(key, buckets)
    assert 0 <= chosen < buckets
    assert jump(key, buckets + 1) in (chosen, buckets)
