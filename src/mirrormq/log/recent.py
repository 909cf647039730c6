"""The latest batches of mirrored queues, kept in memory for whoever has to send them on.

Guarantee: all queues of a node together hold at most `recent_bytes_max`; the oldest batch of all goes first,
so a busy queue cannot keep what nobody asks for at the expense of the others for long. What is not here is
read from disk.
"""

from collections import deque

from mirrormq.base import limits


class Kept:
    """One batch."""

    __slots__ = ("data", "first", "last", "ring")

    def __init__(self, ring: "Recent", first: int, last: int, data: bytes) -> None:
        self.ring = ring
        self.first = first
        self.last = last
        self.data: bytes | None = data
        """None when it was let go."""


class RecentPool:
    """What the queues of a node share."""

    def __init__(self) -> None:
        self._order: deque[Kept] = deque()
        self.size = 0

    def add(self, kept: Kept) -> None:
        """One more batch; as many of the oldest go as are over the bound."""
        assert kept.data is not None
        self._order.append(kept)
        self.size += len(kept.data)
        while self.size > limits.recent_bytes_max and len(self._order) > 1:
            self._order[0].ring.drop_oldest(self._order[0])
            self._order.popleft()

    def let_go(self, kept: Kept) -> None:
        """A batch is wanted no longer."""
        if kept.data is not None:
            self.size -= len(kept.data)
            kept.data = None
        while self._order and self._order[0].data is None:
            self._order.popleft()


class Recent:
    """The latest batches of one queue, without a gap between them."""

    def __init__(self, pool: RecentPool) -> None:
        self._pool = pool
        self._all: deque[Kept] = deque()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, first: int, last: int, data: bytes) -> None:
        """A batch was appended to the log."""
        if self._all and self._all[-1].last + 1 != first:
            self.clear()
        kept = Kept(self, first, last, data)
        self._all.append(kept)
        self._pool.add(kept)

    def cut(self, end: int) -> None:
        """Everything above `end` was given up."""
        while self._all and self._all[-1].last > end:
            self._pool.let_go(self._all.pop())

    def clear(self) -> None:
        """Keep nothing."""
        self.cut(0)

    def drop_oldest(self, kept: Kept) -> None:
        """The pool needs room."""
        if self._all and self._all[0] is kept:
            self._all.popleft()
        if kept.data is not None:
            self._pool.size -= len(kept.data)
            kept.data = None

    def read(self, start: int, upto: int, max_bytes: int) -> list[bytes] | None:
        """Batches from `start` on, at least one if there is one; None if that is not in memory."""
        if not self._all or self._all[0].first > start:
            return None
        at = len(self._all) - 1
        while self._all[at].first > start:
            at -= 1
        found: list[bytes] = []
        size = 0
        while at < len(self._all):
            kept = self._all[at]
            assert kept.data is not None
            if kept.last > upto or (found and size + len(kept.data) > max_bytes):
                break
            found.append(kept.data)
            size += len(kept.data)
            at += 1
        return found
