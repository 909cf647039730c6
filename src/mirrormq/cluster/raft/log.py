"""The end of the replicated log in memory: entries behind `base_index`, without gaps, terms ascending.

Entries up to `base_index` are in a snapshot; of those only the term of the last one is known.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from mirrormq.cluster.raft.entries import Entry

ENTRY_HEAD_BYTES = 16
"""What an entry takes in a message beside its data, at most."""


class RaftLog:
    """Appends, lookups and cuts; knows nothing of commits and disks."""

    def __init__(self, base_index: int = 0, base_term: int = 0) -> None:
        """An empty log behind a snapshot."""
        self.base_index = base_index
        self.base_term = base_term
        self._entries: list[Entry] = []
        """The first ones may be forgotten already, and are freed in steps: that takes milliseconds for very
        many."""
        self._forgotten = 0
        """How many are."""
        self._ends = array("Q")
        """Bytes of data up to the end of each of them, since this log was made."""
        self._freed_bytes = 0
        """The same of the last one that was freed."""

    @property
    def has_dropped(self) -> bool:
        """Is there something to free?"""
        return self._forgotten > 0

    def free(self, count: int) -> None:
        """Free some of what was forgotten."""
        count = min(count, self._forgotten)
        if count:
            self._freed_bytes = self._ends[count - 1]
            self._forgotten -= count
            del self._entries[:count], self._ends[:count]

    @property
    def last_index(self) -> int:
        """Index of the last entry."""
        return self.base_index + len(self._entries) - self._forgotten

    @property
    def last_term(self) -> int:
        """Term of the last entry."""
        return self._entries[-1].term if len(self._entries) > self._forgotten else self.base_term

    def term_at(self, index: int) -> int | None:
        """Term of an entry; None if it is not known any more, or not yet."""
        if index == self.base_index:
            return self.base_term
        if self.base_index < index <= self.last_index:
            return self._entries[self._place(index)].term
        return None

    def entry(self, index: int) -> Entry:
        """One entry."""
        assert self.base_index < index <= self.last_index, (self.base_index, index, self.last_index)
        return self._entries[self._place(index)]

    def _place(self, index: int) -> int:
        return self._forgotten + index - self.base_index - 1

    def batch(self, first: int, bytes_max: int) -> list[Entry]:
        """Entries from `first` on: as many as fit, as a message carries them, but at least one."""
        found: list[Entry] = []
        size = 0
        for index in range(first, self.last_index + 1):
            entry = self.entry(index)
            size += len(entry.data) + ENTRY_HEAD_BYTES
            if found and size > bytes_max:
                break
            found.append(entry)
        return found

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries at the end."""
        for entry in entries:
            assert entry.index == self.last_index + 1, (entry.index, self.last_index)
            assert entry.term >= self.last_term, (entry.term, self.last_term)
            self._entries.append(entry)
            before = self._ends[-1] if self._ends else self._freed_bytes
            self._ends.append(before + len(entry.data))

    def truncate(self, first: int) -> None:
        """Forget the entries from `first` on."""
        assert first > self.base_index, (first, self.base_index)
        place = self._place(first)
        del self._entries[place:], self._ends[place:]

    def first_of_term(self, index: int) -> int:
        """The first entry in memory that has the term of the one at `index`."""
        term = self.term_at(index)
        while index - 1 > self.base_index and self.term_at(index - 1) == term:
            index -= 1
        return index

    def compact(self, index: int, trailing_bytes: int = 0) -> None:
        """Forget entries up to `index`, but for the last ones of those that are no longer than that."""
        last = self._place(index)
        if last < self._forgotten:
            return
        # The entry whose end is the first from which no more than that follows: it is the last to go.
        wanted = self._ends[last] - trailing_bytes
        begin = self._ends[self._forgotten - 1] if self._forgotten else self._freed_bytes
        if wanted <= begin:
            return
        place = bisect_left(self._ends, wanted, self._forgotten, last + 1)
        self.base_term = self._entries[place].term
        self.base_index += place + 1 - self._forgotten
        self._forgotten = place + 1

    def reset(self, index: int, term: int) -> None:
        """Forget everything and begin behind a snapshot."""
        self._entries.clear()
        self._ends = array("Q")
        self._forgotten = self._freed_bytes = 0
        self.base_index, self.base_term = index, term

    def differs_at(self, first: int, terms: Sequence[int]) -> int | None:
        """The first index from `first` on whose term is not the given one, or which is missing."""
        for offset, term in enumerate(terms):
            if self.term_at(first + offset) != term:
                return first + offset
        return None
