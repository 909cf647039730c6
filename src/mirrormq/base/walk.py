"""Going through very many objects a few at a time.

To list twenty thousand scattered objects takes a millisecond, and so does to let go of such a list: each has
to be fetched to be counted. So a `Walk` lets go of them one step after the other, and a `KeyWalk` does not
list what it has listed before.

Guarantees
- Whoever asks for a walk is served by a round that begins after that: every object that was there then is
  given out once in it.
- Asking again while a round is under way never sets it back: a further round follows, however often it was
  asked for.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
ROUNDS_MAX = 30
"""Rounds after which keys are listed anew in any case."""


class Walk(Generic[Item]):
    """Rounds over all objects of one kind."""

    def __init__(self, items: Callable[[], Iterable[Item]]) -> None:
        """`items` are the objects there are now; called when the first of a round are taken."""
        self._items = items
        self._rest: list[Item] | None = None
        """What is left of the round that has begun, the next one last."""
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
            self._rest = list(self._items())
            self._rest.reverse()
        found = self._rest[-most:]
        found.reverse()
        del self._rest[-most:]
        if len(found) < most:
            self.rounds += 1
            self._rest = None
        return found


class KeyWalk(Generic[Key]):
    """Rounds over the keys of a mapping, listed anew only when one came or went.

    That is told by their number and the last of them: a key that is removed and comes again later can hide
    another one that came between, for `ROUNDS_MAX` rounds at most.
    """

    def __init__(self, mapping: dict[Key, Any]) -> None:
        self._mapping = mapping
        self._keys: list[Key] = []
        self._rounds_left = 0
        self._at = 0
        self._is_due = False
        self._has_begun = False
        self.rounds = 0
        """How many have ended."""

    @property
    def is_under_way(self) -> bool:
        """Is there more to take?"""
        return self._has_begun or self._is_due

    def begin(self) -> None:
        """Ask for a round."""
        self._is_due = True

    def take(self, most: int) -> list[Key]:
        """The next keys, as `Walk.take`. What they stood for may be gone."""
        if not self._has_begun:
            if not self._is_due:
                return []
            self._is_due, self._has_begun, self._at = False, True, 0
            self._list()
        found = self._keys[self._at : self._at + most]
        self._at += most
        if len(found) < most:
            self.rounds += 1
            self._has_begun = False
        return found

    def _list(self) -> None:
        keys, mapping = self._keys, self._mapping
        is_same = len(keys) == len(mapping) and (not keys or keys[-1] == next(reversed(mapping)))
        if not is_same or not self._rounds_left:
            self._keys = list(mapping)
            self._rounds_left = ROUNDS_MAX
        self._rounds_left -= 1
