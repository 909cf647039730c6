"""Going through very many objects a few at a time.

Guarantees
- Whoever asks for a walk is served by a round that begins after that: every object that was there then is
  given out once in it.
- Asking again while a round is under way never sets it back: a further round follows, however often it was
  asked for.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Walk(Generic[Item]):
    """Rounds over all objects of one kind."""

    def __init__(self, items: Callable[[], Iterable[Item]]) -> None:
        """`items` are the objects there are now; called when the first of a round are taken."""
        self._items = items
        self._rest: Iterator[Item] | None = None
        """What is left of the round that has begun."""
        self._is_due = False
        self.rounds = 0
        """How many have ended."""

    @property
    def is_under_way(self) -> bool:
        """Is there more to take?"""
        return self._rest is not None or self._is_due

    @property
    def served_by(self) -> int:
        """`rounds` will be this number when all that was asked for so far is done."""
        return self.rounds + (self._rest is not None) + self._is_due

    def begin(self) -> None:
        """Ask for a round."""
        self._is_due = True

    def take(self, most: int) -> list[Item]:
        """The next objects. Fewer than `most`, or none: a round has ended, or there was nothing to do."""
        if self._rest is None:
            if not self._is_due:
                return []
            self._is_due = False
            self._rest = iter(list(self._items()))
        found = list(islice(self._rest, most))
        if len(found) < most:
            self.rounds += 1
            self._rest = None
        return found
