# cython: language_level=3
"""A set of seqs kept as sorted, non-touching ranges.

A queue's log keeps its dead seqs in one: every record that is not a live publish. Removals come almost in
order, so the set is a handful of ranges however long the queue is; adding near either end costs O(1).
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove


cdef class RangeSet:
    """Seqs as ranges."""

    def __init__(self, object spans=()):
        for first, last in spans:
            self.put(first, last)

    def __dealloc__(self):
        free(self.spans)

    cdef size_t find(self, uint64_t seq) noexcept:
        """Index of the first range that ends at `seq` or later."""
        cdef size_t low = 0
        cdef size_t high = self.count
        cdef size_t middle
        if high and self.spans[high - 1].last < seq:
            return high
        while low < high:
            middle = (low + high) // 2
            if self.spans[middle].last < seq:
                low = middle + 1
            else:
                high = middle
        return low

    cdef bint has(self, uint64_t seq) noexcept:
        cdef size_t at = self.find(seq)
        return at < self.count and self.spans[at].first <= seq

    cdef int put(self, uint64_t first, uint64_t last) except -1:
        cdef size_t at
        cdef size_t end
        cdef size_t room
        cdef Span* bigger
        if last < first:
            raise ValueError("a range ends before it begins")
        at = self.find(first - 1 if first else 0)
        end = at
        while end < self.count and self.spans[end].first <= last + 1:
            end += 1
        if end > at:  # merge with the ranges it touches
            if self.spans[at].first < first:
                first = self.spans[at].first
            if self.spans[end - 1].last > last:
                last = self.spans[end - 1].last
            self.spans[at] = Span(first, last)
            if end > at + 1:
                memmove(&self.spans[at + 1], &self.spans[end], (self.count - end) * sizeof(Span))
                self.count -= end - at - 1
            return 0
        if self.count == self.room:
            room = self.room * 2 + 4
            bigger = <Span*>realloc(self.spans, room * sizeof(Span))
            if bigger == NULL:
                raise MemoryError()
            self.spans = bigger
            self.room = room
        memmove(&self.spans[at + 1], &self.spans[at], (self.count - at) * sizeof(Span))
        self.spans[at] = Span(first, last)
        self.count += 1
        return 0

    def add(self, uint64_t first, uint64_t last) -> None:
        self.put(first, last)

    def copy(self) -> RangeSet:
        """Another set with the same seqs."""
        cdef RangeSet other = RangeSet()
        if self.count:
            other.spans = <Span*>malloc(self.count * sizeof(Span))
            if other.spans == NULL:
                raise MemoryError()
            memcpy(other.spans, self.spans, self.count * sizeof(Span))
            other.count = other.room = self.count
        return other

    def cut(self, uint64_t first) -> None:
        """Forget every seq from `first` on."""
        cdef size_t at = self.find(first)
        if at < self.count and self.spans[at].first < first:
            self.spans[at].last = first - 1
            at += 1
        self.count = min(self.count, at)

    def __contains__(self, uint64_t seq) -> bool:
        return self.has(seq)

    def __len__(self) -> int:
        return self.count

    def spans_list(self) -> list:
        """[(first, last), …]"""
        cdef size_t i
        return [(self.spans[i].first, self.spans[i].last) for i in range(self.count)]

    def first_missing(self, uint64_t seq) -> int:
        """The smallest seq >= `seq` that is not in the set."""
        cdef size_t at = self.find(seq)
        if at < self.count and self.spans[at].first <= seq:
            return self.spans[at].last + 1
        return seq

    def covers(self, uint64_t first, uint64_t last) -> bool:
        """Is every seq of first..last in the set?"""
        cdef size_t at = self.find(first)
        return at < self.count and self.spans[at].first <= first and self.spans[at].last >= last

    def missing_spans(self, uint64_t first, uint64_t last) -> list:
        """[(first, last), …] of the seqs of first..last that are not in the set."""
        cdef size_t at = self.find(first)
        cdef list out = []
        while first <= last and at < self.count and self.spans[at].first <= last:
            if self.spans[at].first > first:
                out.append((first, self.spans[at].first - 1))
            first = self.spans[at].last + 1
            at += 1
        if first <= last:
            out.append((first, last))
        return out

    def missing_count(self, uint64_t first, uint64_t last) -> int:
        """How many seqs of first..last are not in the set."""
        cdef size_t at = self.find(first)
        cdef uint64_t missing = last - first + 1
        cdef uint64_t low, high
        while at < self.count and self.spans[at].first <= last:
            low = self.spans[at].first if self.spans[at].first > first else first
            high = self.spans[at].last if self.spans[at].last < last else last
            missing -= high - low + 1
            at += 1
        return missing
