# cython: language_level=3
"""Takes the records of one range of one queue out of slices of its files, many batches at a time.

Guarantee: what is handed on are whole batches (docs/format/batch.md) with records of the range only, in
order, each once. A record that should be there and is not stops the gathering and is named in `missing`: a
stream never has a gap, but for whoever asks for one (`lenient`). Batches of other queues are stepped over,
their records are not looked at.

Two kinds of ranges. A *dense* one has every record start <= seq < upto, of the publishes those before `end`.
A *live* one has the publishes start <= seq < end that are not in `dead`; what is neither there nor in `dead`
is missing.

Of a dense range the records that are no publishes may be wanted alone (`watch`): then it is over as soon as
every message of start <= seq < end that is dead was seen to go, which is long before `upto` in a queue whose
messages leave in about the order in which they came.

A slice that holds nothing but wanted batches is handed on as it is, without a copy.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy

from mirrormq.kernel.crc32c cimport crc_of
from mirrormq.kernel.ranges cimport RangeSet
from mirrormq.kernel.records cimport (HEAD, KIND_PUBLISH, KIND_REMOVE, MAGIC, RECORD, SPAN_BYTES, TAIL, Head,
                                      get32, get64, head_at, seal, set32, set64, whole_at)

cdef uint64_t ALL = <uint64_t>-1

cdef enum:
    SKIP = 0
    CUT = 1
    WHOLE = 2
    MAGIC_BYTES = 4
    FLAG_PURGE = 1
    ROW_BYTES = 32


cdef struct Taken:
    uint64_t size
    uint64_t first
    uint32_t records
    uint32_t publishes


cdef struct Output:
    # What was found so far: a run of the slice itself, or a copy.
    uint8_t* data
    uint64_t used
    uint64_t run_from
    uint64_t run_to


cdef uint64_t next_magic(const uint8_t* p, uint64_t at, uint64_t n) noexcept:
    """Where the next batch may begin, behind `at`; what may be the beginning of one at the end counts."""
    cdef const uint8_t* found
    at += 1
    while at < n:
        found = <const uint8_t*>memchr(p + at, MAGIC & 0xff, n - at)
        if found == NULL:
            return n
        at = found - p
        if n - at < MAGIC_BYTES or get32(found) == MAGIC:
            return at
        at += 1
    return n


cdef class Gather:
    """One passage through the records of one range."""
    cdef uint64_t queue_id
    cdef readonly uint64_t position
    cdef readonly uint64_t end
    cdef readonly uint64_t upto
    cdef readonly uint64_t missing
    cdef readonly uint64_t records
    cdef public RangeSet dead
    cdef public bint lenient
    cdef object copy
    cdef bint only_others
    cdef uint64_t first
    cdef uint64_t settled
    cdef size_t spans_max
    cdef RangeSet gone

    def __cinit__(self, uint64_t queue_id, uint64_t start, uint64_t end, uint64_t upto, RangeSet dead=None):
        if start == 0:
            raise ValueError("seqs begin with 1")
        self.queue_id = queue_id
        self.position = start
        self.end = end
        self.upto = upto
        self.dead = dead
        self.first = self.settled = start

    def watch(self, size_t spans_max, bint from_start) -> None:
        """Of a dense range give no publishes; note in at most so many spans which of them are gone. Without
        `from_start` some of the range was read elsewhere, so that it cannot be told.
        """
        self.only_others = True
        self.spans_max = spans_max
        self.gone = RangeSet() if from_start else None

    def settle(self, RangeSet dead not None, int steps) -> bool:
        """Has every message of the range that is in `dead` been seen to go? Looks so many steps further than
        before: what is live, or was seen to go, is not looked at again.
        """
        cdef RangeSet gone = self.gone
        cdef uint64_t before
        cdef size_t at
        if gone is None or self.position < self.end:
            return False
        while self.settled < self.end and steps:
            steps -= 1
            at = gone.find(self.settled)
            if at < gone.count and gone.spans[at].first <= self.settled:
                self.settled = gone.spans[at].last + 1
                continue
            before = gone.spans[at].first if at < gone.count else self.end
            at = dead.find(self.settled)
            if at < dead.count and dead.spans[at].first <= self.settled:
                return False
            self.settled = min(before, dead.spans[at].first) if at < dead.count else before
        return self.settled >= self.end

    cdef int note(self, const uint8_t* p, uint32_t size, uint64_t seq) except -1:
        """A record that is no publish: what it removes is gone, and it is no message itself."""
        if seq < self.end:
            self.gone.put(seq, seq)
        if p[8] == KIND_REMOVE and self.first < self.end:
            bury(self.gone, p + RECORD, size, p[9], self.first, self.end - 1)
        if self.gone.count > self.spans_max:
            self.gone = None
        return 0

    @property
    def is_done(self) -> bool:
        return self.position >= self.upto

    def skip_dead(self) -> None:
        """Of a live range: pass over what is dead in front of the next record."""
        if self.dead is not None and self.position < self.upto and self.dead.has(self.position):
            self.position = min(<uint64_t>self.dead.first_missing(self.position), self.upto)

    def feed(self, bytes data not None, list epochs=None) -> tuple:
        """(the batches in a slice or None, where to read on in it, bytes needed there or 0).

        `epochs`, if there was ever a truncation: (epoch, first seq); what says otherwise was given up.
        """
        cdef const uint8_t* base = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef uint64_t n = <uint64_t>PyBytes_GET_SIZE(data)
        cdef uint64_t at = 0, size, need = 0
        cdef Output out = Output(NULL, 0, 0, 0)
        cdef Taken taken
        cdef Head h
        cdef int verdict
        self.copy = None
        while at < n and self.position < self.upto:
            if n - at < HEAD:
                need = HEAD
                break
            if not head_at(base + at, n - at, &h) or h.records == 0 or h.size < RECORD:
                at = next_magic(base, at, n)
                continue
            size = HEAD + <uint64_t>h.size + TAIL
            if size > n - at:
                need = size
                break
            if (h.queue_id == self.queue_id and (epochs is None or epoch_of(epochs, h.first_seq) == h.epoch)
                    and whole_at(base + at, n - at, &h)):
                verdict = self.judge(base + at, &h, &taken)
                if self.missing:
                    break
                if verdict == WHOLE and out.data == NULL and out.run_to in (at, 0):
                    out.run_from = out.run_from if out.run_to else at
                    out.run_to = at + size
                elif verdict != SKIP:
                    self.need_copy(base, n, &out)
                    if verdict == WHOLE:
                        memcpy(out.data + out.used, base + at, size)
                        out.used += size
                    else:
                        self.cut(base + at, &h, &taken, &out)
            at += size
        return self.taken_of(data, &out), at, need

    cdef object taken_of(self, bytes data, Output* out):
        copy, self.copy = self.copy, None
        if out.data != NULL:
            return memoryview(copy)[:out.used]
        if out.run_to == 0:
            return None
        if out.run_from == 0 and out.run_to == <uint64_t>PyBytes_GET_SIZE(data):
            return data
        return memoryview(data)[out.run_from:out.run_to]

    cdef int need_copy(self, const uint8_t* base, uint64_t n, Output* out) except -1:
        """From here on what is found is copied: it never grows beyond the slice it comes from."""
        if out.data != NULL:
            return 0
        made = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>n)
        self.copy = made
        out.data = <uint8_t*>PyBytes_AS_STRING(made)
        out.used = out.run_to - out.run_from
        memcpy(out.data, base + out.run_from, out.used)
        return 0

    cdef int judge(self, const uint8_t* p, const Head* h, Taken* taken) except -1:
        """What of a whole batch is wanted; moves the position behind it, or says what is missing."""
        cdef uint64_t seq = h.first_seq, expected = self.position
        cdef uint32_t i, size
        taken.size = taken.first = 0
        taken.records = taken.publishes = 0
        p += HEAD
        for i in range(h.records):
            size = get32(p)
            seq = h.first_seq + get32(p + 4)
            if expected <= seq < self.upto:
                if seq > expected and not self.lenient and not self.is_dead(expected, seq):
                    self.missing = expected
                    return SKIP
                expected = seq + 1
                if self.gone is not None and p[8] != KIND_PUBLISH:
                    self.note(p, size, seq)
                if self.is_wanted(p, seq):
                    if taken.records == 0:
                        taken.first = seq
                    taken.records += 1
                    taken.publishes += p[8] == KIND_PUBLISH
                    taken.size += RECORD + size
            p += RECORD + size
        if seq < self.position:
            return SKIP  # read before: files overlap
        if seq >= self.upto and expected < self.upto:
            if not self.lenient and not self.is_dead(expected, self.upto):
                self.missing = expected
                return SKIP
            expected = self.upto
        self.position = expected
        self.records += taken.records
        if taken.records == 0:
            return SKIP
        return WHOLE if taken.records == h.records else CUT

    cdef bint is_dead(self, uint64_t first, uint64_t before) except -1:
        """Is it in order that none of these was found?"""
        return self.dead is not None and <uint64_t>self.dead.first_missing(first) >= before

    cdef inline bint is_wanted(self, const uint8_t* p, uint64_t seq) noexcept:
        if p[8] != KIND_PUBLISH:
            return self.dead is None
        if self.only_others:
            return False
        return seq < self.end and (self.dead is None or not self.dead.has(seq))

    cdef int cut(self, const uint8_t* p, const Head* h, const Taken* taken, Output* out) except -1:
        """Copy the wanted records of a batch as a batch of their own. `position` is behind it by now."""
        cdef uint8_t* start = out.data + out.used
        cdef uint8_t* q = start + HEAD
        cdef uint64_t seq, left = taken.records
        cdef uint32_t i, size
        cdef Head made = Head(<uint32_t>taken.size, 0, h.queue_id, h.epoch, taken.first, taken.records,
                              taken.publishes, h.time)
        p += HEAD
        for i in range(h.records):
            size = get32(p)
            seq = h.first_seq + get32(p + 4)
            if left and taken.first <= seq < self.upto and self.is_wanted(p, seq):
                memcpy(q, p, RECORD + size)
                set32(q + 4, <uint32_t>(seq - taken.first))
                q += RECORD + size
                left -= 1
            p += RECORD + size
        seal(start, &made)
        out.used += HEAD + taken.size + TAIL
        return 0


cdef uint64_t epoch_of(list epochs, uint64_t seq) except? 0:
    """The epoch of a record; 0 if it is older than what is known."""
    cdef Py_ssize_t i
    for i in range(len(epochs) - 1, -1, -1):
        epoch, first = epochs[i]
        if first <= seq:
            return epoch
    return 0


# -- digests -----------------------------------------------------------------------------------------


def removals(const uint8_t[::1] data, RangeSet dead not None) -> list:
    """Add to `dead` what the removals in a run of whole batches say. Returns (kind, flags, payload) of all
    other records that are no publishes.
    """
    cdef uint64_t at = 0
    cdef uint64_t n = <uint64_t>data.shape[0]
    cdef Head h
    cdef const uint8_t* p
    cdef uint32_t i, size
    cdef list others = []
    while at < n and head_at(&data[at], n - at, &h):
        p = &data[at] + HEAD
        for i in range(h.records):
            size = get32(p)
            if p[8] == KIND_REMOVE:
                bury(dead, p + RECORD, size, p[9], 1, ALL)
            elif p[8] != KIND_PUBLISH:
                others.append((p[8], p[9], PyBytes_FromStringAndSize(<const char*>p + RECORD, size)))
            p += RECORD + size
        at += HEAD + <uint64_t>h.size + TAIL
    return others


cdef int bury(RangeSet dead, const uint8_t* p, uint32_t size, uint8_t flags, uint64_t first,
              uint64_t last) except -1:
    """What a REMOVE record says of first..last: spans, or a purge with what stays (in order)."""
    cdef uint32_t at = 8
    cdef uint64_t low = 1
    if flags != FLAG_PURGE:
        while at + SPAN_BYTES <= size:
            bury_span(dead, max(get64(p + at), first), min(get64(p + at + 8), last))
            at += SPAN_BYTES
        return 0
    if size < 16:
        return 0
    at = 16
    while at + 8 <= size:
        bury_span(dead, max(low, first), min(get64(p + at) - 1, last))
        low = get64(p + at) + 1
        at += 8
    return bury_span(dead, max(low, first), min(get64(p + 8), last))


cdef inline int bury_span(RangeSet dead, uint64_t first, uint64_t last) except -1:
    return dead.put(first, last) if first <= last else 0


cdef inline uint64_t mixed(uint64_t x) noexcept:
    """Every bit of the result depends on every bit of x."""
    x = (x ^ (x >> 30)) * <uint64_t>0xbf58476d1ce4e5b9
    x = (x ^ (x >> 27)) * <uint64_t>0x94d049bb133111eb
    return x ^ (x >> 31)


cdef class Digest:
    """Sums over publishes, one per step of seqs: equal sums mean the same records at the same places.

    A record counts with its seq, epoch, flags and the CRC of its payload, unless its seq is in `removed`.
    """
    cdef uint64_t start, end, step, first, count, total
    cdef RangeSet removed

    def __cinit__(self, uint64_t start, uint64_t end, uint64_t step, RangeSet removed not None):
        if start == 0 or step == 0:
            raise ValueError("seqs and steps begin with 1")
        self.start, self.end, self.step, self.removed = start, end, step, removed
        self.first = start

    def feed(self, const uint8_t[::1] data) -> bytes:
        """Count a run of whole batches, in order; returns the rows that are complete."""
        cdef uint64_t at = 0
        cdef uint64_t n = <uint64_t>data.shape[0]
        cdef uint64_t seq
        cdef Head h
        cdef const uint8_t* p
        cdef uint32_t i, size
        cdef list rows = []
        while at < n and head_at(&data[at], n - at, &h):
            p = &data[at] + HEAD
            for i in range(h.records):
                size = get32(p)
                seq = h.first_seq + get32(p + 4)
                if p[8] == KIND_PUBLISH and self.start <= seq < self.end and not self.removed.has(seq):
                    if seq >= self.first + self.step:
                        rows.append(self.row())
                        self.first += (seq - self.first) // self.step * self.step
                    self.count += 1
                    self.total += mixed(mixed(seq) + mixed(h.epoch + 0x9e37) * 3
                                        + ((<uint64_t>p[9] << 32) | crc_of(p + RECORD, size)))
                p += RECORD + size
            at += HEAD + <uint64_t>h.size + TAIL
        return b"".join(rows)

    def finish(self) -> bytes:
        """The last row."""
        return self.row()

    cdef bytes row(self):
        """first, last, count, digest; nothing if nothing was counted."""
        cdef bytes out
        cdef uint8_t* p
        if self.count == 0:
            return b""
        out = PyBytes_FromStringAndSize(NULL, ROW_BYTES)
        p = <uint8_t*>PyBytes_AS_STRING(out)
        set64(p, self.first)
        set64(p + 8, min(self.first + self.step, self.end) - 1)
        set64(p + 16, self.count)
        set64(p + 24, self.total)
        self.count = self.total = 0
        return out
