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

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

from mirrormq.base.staggered import StaggeredDict

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
STALE_SHARE, STALE_KEYS = 4, 64
"""Keys are gone through for those that went when these are a fourth of them, and so many more."""
STEP = 32
"""Keys that are looked up at once where nobody says how many."""


def let_go(past: dict[Key, Item], most: int) -> list[tuple[Key, Item]]:
    """Take some out of a dictionary that nobody needs any more, the last first."""
    return [past.popitem() for _ in range(min(most, len(past)))]


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
    """Rounds over the keys of a dictionary, which are listed once: then those that came are added.

    A key that went and came again may be given out twice in a round, one that came while it is under way
    waits for the next.
    """

    def __init__(self, mapping: StaggeredDict[Key, Any]) -> None:
        self._mapping = mapping
        self._keys: list[Key] = list(mapping)
        """Those that went are among them for a while."""
        self._added = mapping.added
        self._at = 0
        self._kept: list[Key] | None = None
        """While too many of them went: those that are there, as the round goes on."""
        self._past: list[Key] = []
        """Keys of which a few are let go of in each step."""
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
        """The next keys, `most` at most, as `Walk.take`."""
        if not self._has_begun:
            if not self._is_due:
                return []
            self._is_due, self._has_begun, self._at = False, True, 0
            self._list()
        del self._past[-most:]
        keys, mapping = self._keys, self._mapping
        found = [key for key in keys[self._at : self._at + most] if key in mapping]
        self._at += most
        if self._kept is not None:
            self._kept += found
        if self._at > len(keys):
            self.rounds += 1
            self._has_begun = False
            if self._kept is not None:
                self._past, self._keys, self._kept = keys, self._kept, None
        return found

    def each(self) -> Iterator[Key | None]:
        """The keys of a round, as long as somebody wants them; each is there when it is given out.

        Whoever goes through them lets the loop pass in between: what was taken together with the key before
        may have gone since. If a round that nobody ended is under way, its rest comes first. None stands for
        a step whose keys all went: after very many were deleted together, whoever counts what it was given
        still stops in time.
        """
        self.begin()
        last = self.rounds + self._has_begun + 1
        mapping = self._mapping
        while self.rounds < last:
            is_empty = True
            for key in self.take(STEP):
                if key in mapping:
                    is_empty = False
                    yield key
            if is_empty:
                yield None

    def _list(self) -> None:
        keys, mapping = self._keys, self._mapping
        new = mapping.added - self._added
        if new:
            self._added = mapping.added
            keys += list(islice(reversed(mapping), new))[::-1]
        if len(keys) <= len(mapping) + len(mapping) // STALE_SHARE + STALE_KEYS:
            return
        if self._past:
            # The round before left out those that went: these are keys that came again, and again.
            self._keys = list(mapping)
        else:
            self._kept = []
