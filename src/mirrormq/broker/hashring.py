"""Consistent hashing: which of several weighted destinations gets a value.

Guarantee: each destination gets a share proportional to its weight, the same value always goes to the same
one, and adding a destination moves only those values that go to the new one. Removing one moves its own
values and, as in RabbitMQ, some of those behind it. The choice depends on the order of the bindings, which
is the same on every node because all apply the same commands, and never on Python's hash seed.

Destinations are laid end to end on a line of as many buckets as their weights add up to; a bucket is chosen
by the jump hash of Lamping and Veach, in O(log buckets) and without a table per bucket, so a large weight
costs nothing.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Hashable
from typing import Generic, TypeVar

D = TypeVar("D", bound=Hashable)

_MASK = (1 << 64) - 1


class HashRing(Generic[D]):
    """Weighted destinations in order of arrival."""

    __slots__ = ("_ends", "_names", "_weights")

    def __init__(self) -> None:
        """Start without destinations."""
        self._weights: dict[D, list[int]] = {}
        self._ends: list[int] | None = None
        self._names: list[D] = []

    def __len__(self) -> int:
        """Number of destinations."""
        return len(self._weights)

    def add(self, destination: D, weight: int) -> None:
        """Add a binding; of several bindings of one destination the oldest gives the weight."""
        assert weight > 0, weight
        self._weights.setdefault(destination, []).append(weight)
        self._ends = None

    def remove(self, destination: D, weight: int) -> None:
        """Remove a binding made with this weight; KeyError or ValueError if there is none."""
        weights = self._weights[destination]
        weights.remove(weight)
        if not weights:
            del self._weights[destination]
        self._ends = None

    def pick(self, value: bytes) -> D | None:
        """Return the destination for `value`, None if there are no destinations."""
        ends = self._ends
        if ends is None:
            # Rebuilt on the first pick after a change, so that 10,000 bindings in a row cost 10,000 appends.
            ends = self._rebuild()
        if not ends:
            return None
        return self._names[bisect_right(ends, jump(hash64(value), ends[-1]))]

    def _rebuild(self) -> list[int]:
        self._names = list(self._weights)
        ends = []
        total = 0
        for weights in self._weights.values():
            total += weights[0]
            ends.append(total)
        self._ends = ends
        return ends


def hash64(value: bytes) -> int:
    """A 64-bit hash that is the same on every machine and in every run."""
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "big")


def jump(key: int, buckets: int) -> int:
    """Choose one of `buckets`; a key changes its bucket only to a new one when `buckets` grows."""
    chosen, ahead = -1, 0
    while ahead < buckets:
        chosen = ahead
        key = (key * 2862933555777941757 + 1) & _MASK
        ahead = int((chosen + 1) * ((1 << 31) / ((key >> 33) + 1)))
    return chosen
