"""Dictionaries that hold the same many things, and do not all grow at once.

A dictionary that is full moves into a larger table: a quarter of a millisecond with ten thousand entries, and
as much again for pages that were never touched. A node has eight of them with an entry per queue, full with
the same declare, which then holds the loop for as long as ten ordinary ones. Each of these has a place of its
own in a row and grows so many declares before it must.

Guarantee: a `StaggeredDict` is a dictionary, with its order and its entries. When it grows is a matter of
time only: were Python to grow its dictionaries in another way, they would all grow at once again. It counts
the keys that came, so that a walk over very many finds the new ones without a look at the others (base/walk).
"""

from itertools import count, islice
from typing import Any, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

APART = 16
"""Declares between one growth and the next; a pass of the loop has one to ten."""
LARGE = 2048
"""Entries from which on growing is worth a thought."""
SMALLEST = 8

QUEUES, QUEUES_IN, QUEUES_ON, VIEWS, VIEWS_OF, PORTS, LOGS, MASTERS = range(8)
"""The row of those with an entry per queue: what is declared, by vhost, by node; views, by node; what a vhost
publishes to; logs; queues this node is the master of."""
BINDINGS, BINDINGS_IN, BINDINGS_FROM = range(3)
"""The row of those with an entry per binding: all, by vhost, by exchange."""


def usable(size: int) -> int:
    """How many entries Python puts into a table of this size: two thirds."""
    return size * 2 // 3


def table_for(entries: int) -> int:
    """The size of the table a full dictionary moves to: a power of two, three times its entries or more."""
    return max(SMALLEST, 1 << (entries * 3 - 1).bit_length()) if entries else SMALLEST


class StaggeredDict(dict[Key, Value]):
    """Grows before it is full. Entries are to be set by `d[key] = value` only."""

    __slots__ = ("_early", "_room", "added")

    def __init__(self, place: int) -> None:
        """`place`: which one in the row of those that are filled together, from 0 on."""
        super().__init__()
        self.added = 0
        """How many keys came so far: those that came since somebody looked are among as many of the last."""
        self._early = place * APART
        self._room = 0
        """New keys the table takes before it is full; those of entries that went are not given back."""

    def __setitem__(self, key: Key, value: Value) -> None:
        """Add or replace an entry."""
        if key not in self:
            if self._room <= self._early and len(self) >= LARGE:
                self._grow(key)
            self._note()
            self.added += 1
        super().__setitem__(key, value)

    def setdefault(self, *_: Any) -> Any:
        """Refused: what comes would not be counted."""
        raise TypeError("set an entry by d[key] = value")

    update = __ior__ = setdefault

    def clear(self) -> None:
        """Remove everything."""
        super().clear()
        self._room = 0

    def _note(self) -> None:
        """A key is about to be added."""
        if self._room == 0:
            self._room = usable(table_for(len(self))) - len(self)
        self._room -= 1

    def _grow(self, like: Key) -> None:
        """Fill the table with keys that are nobody's, until it has moved, and take them out again."""
        # A text among texts and a number among others: one key of another kind makes texts slower to find.
        unused = (f"\0{n}" if isinstance(like, str) else -n for n in count(1))
        filling = list(islice((key for key in unused if key not in self), self._room + 1))
        for key in filling:
            self._note()
            super().__setitem__(key, None)  # type: ignore[index, assignment]
        for key in filling:
            del self[key]  # type: ignore[arg-type]
