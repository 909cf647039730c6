# cython: language_level=3
"""Reading many batches at once after a restart: a journal may hold half a million of them.

Guarantee: only whole batches are looked at (each is checked here), and reading stops at the first that is
not; whether that is the end or damage is for the caller to find out. Learning only ever adds to what is dead,
so the order in which the rarer records are heeded does not matter.

That does not hold for the copy of a mirrored queue, whose end may be given up again: of each of its batches
the caller gets what it says (`facts`), in order with the notes of the journal.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from mirrormq.kernel.index cimport Entry, list_push
from mirrormq.kernel.ranges cimport RangeSet
from mirrormq.kernel.records cimport (FLAG_PERSISTENT, HEAD, KIND_EPOCH, KIND_HORIZON, KIND_PUBLISH,
                                      KIND_PUBNOTE, KIND_REMOVE, KIND_REQUEUE, KIND_TRUNCATE, RECORD,
                                      SPAN_BYTES, TAIL, Head, entry_of, get32, get64, head_at, whole_at)
from mirrormq.kernel.store cimport QueueStore

cdef uint64_t LETTER_PID = <uint64_t>1 << 63
cdef uint64_t HOME_PID = <uint64_t>1 << 62  # of publishes that another node forwarded


cdef inline bint is_forwarded(uint64_t pid) noexcept:
    """Is this the pid of a publish that a home node forwarded?"""
    return pid & HOME_PID != 0 and pid & LETTER_PID == 0


@cython.final
cdef class Replay:
    """One queue while the journal is read: what is known of it so far."""

    cdef QueueStore core
    cdef RangeSet dead
    cdef RangeSet dying
    cdef dict letters
    cdef public dict counts          # how often messages came back, by seq
    cdef public dict refused         # numbers of forwarded publishes that are not there, by row
    cdef object note_place
    cdef object note_epoch
    cdef readonly RangeSet seen      # seqs of the records that were found
    cdef public uint64_t end
    cdef public uint64_t epoch
    cdef public uint64_t last_wall
    cdef public uint64_t horizon
    cdef public uint64_t after       # restored is only what lies above this seq
    cdef public uint64_t since       # files with a lower serial do not count for this queue
    cdef uint64_t last_seen          # the last record that was found
    cdef public bint is_copy         # its batches are for the caller to heed
    cdef readonly uint64_t last_serial
    cdef readonly uint64_t published # publishes and bytes of the batches found so far
    cdef readonly uint64_t written
    cdef readonly uint64_t published_covered  # those of them that the checkpoint has
    cdef readonly uint64_t written_covered
    cdef public uint64_t index_start
    cdef uint64_t noted_epoch
    cdef object file                 # where the last place is
    cdef uint64_t place

    def __init__(self, QueueStore core, RangeSet dead not None, RangeSet dying not None,
                 dict letters not None, tuple notes not None):
        """`notes`: called with (seq, file, offset, (time, publishes before, bytes before)) of a new place,
        and with (epoch, seq) of a new epoch."""
        self.core = core
        self.dead = dead
        self.dying = dying
        self.letters = letters
        self.note_place, self.note_epoch = notes
        self.seen = RangeSet()
        self.refused = {}

    cdef int refuse(self, uint64_t row, uint64_t first, uint64_t last) except -1:
        """These publishes of a home node are not there."""
        cdef RangeSet numbers = self.refused.get(row)
        if numbers is None:
            numbers = self.refused[row] = RangeSet()
        numbers.put(first, last)
        return 0

    cdef int count(self, const Head* h, uint64_t serial) except -1:
        """One more batch was found."""
        if h.epoch != self.noted_epoch:
            self.note_epoch(h.epoch, h.first_seq)
            self.noted_epoch = h.epoch
        self.last_serial = serial
        self.published += h.publishes
        self.written += HEAD + <uint64_t>h.size + TAIL
        if h.first_seq + h.records - 1 <= self.end:
            self.published_covered = self.published
            self.written_covered = self.written
        return 0

    cdef int heed(self, const uint8_t* p, const Head* h, list rare) except -1:
        """Take what a batch says that the checkpoint does not; `rare` gets the kinds not for here."""
        cdef uint32_t i, size
        cdef uint64_t pid, number, row
        self.end = h.first_seq + h.records - 1
        self.epoch = max(self.epoch, h.epoch)
        self.last_wall = max(self.last_wall, h.time)
        p += HEAD
        for i in range(h.records):
            size = get32(p)
            if p[8] == KIND_PUBLISH:
                pid = get64(p + RECORD + 16)
                if pid & (LETTER_PID | HOME_PID):
                    # Those of one source come in the order of their numbers, dense if it is a home node.
                    number = get64(p + RECORD + 24)
                    if is_forwarded(pid):
                        row = self.letters.get(pid ^ LETTER_PID, 0)
                        if number > row + 1:
                            self.refuse(pid ^ LETTER_PID, row + 1, number - 1)
                    self.letters[pid ^ LETTER_PID] = number
            else:
                self.dead.put(h.first_seq + get32(p + 4), h.first_seq + get32(p + 4))
                if p[8] == KIND_REMOVE and p[9] == 0:
                    self.bury(p + RECORD, size)
                elif p[8] == KIND_HORIZON and size == 8:
                    self.horizon = max(self.horizon, get64(p + RECORD))
                elif p[8] != KIND_EPOCH or p[9]:
                    payload = PyBytes_FromStringAndSize(<char*>p + RECORD, size)
                    rare.append((h.queue_id, p[8], p[9], payload))
            p += RECORD + size
        return 0

    cdef int bury(self, const uint8_t* p, uint32_t size) except -1:
        """The spans of a removal are dead."""
        cdef uint32_t at = 8
        while at + SPAN_BYTES <= size:
            self.dead.put(get64(p + at), get64(p + at + 8))
            at += SPAN_BYTES
        return 0

    cdef int restore(self, const uint8_t* p, const Head* h, bint only_dying, uint64_t* counts) except -1:
        """Make the live publishes of a batch ready again, or dying, or coming back."""
        cdef uint32_t i, size
        cdef uint64_t seq, pid
        cdef Entry e
        p += HEAD
        for i in range(h.records):
            size = get32(p)
            seq = h.first_seq + get32(p + 4)
            if p[8] == KIND_PUBLISH and seq > self.after and not self.dead.has(seq):
                if not p[9] & FLAG_PERSISTENT and not self.is_copy:
                    pid = get64(p + RECORD + 16)
                    if is_forwarded(pid):
                        # Its home node may not have heard that it was taken, and must not hear so now.
                        self.refuse(pid ^ LETTER_PID, get64(p + RECORD + 24), get64(p + RECORD + 24))
                    self.dead.put(seq, seq)
                    counts[1] += 1
                elif self.counts and seq in self.counts:
                    # Counted anew like any other that comes back, which brings it to the number it had.
                    e = entry_of(p, size, seq, <uint64_t>-1)
                    e.deliveries = <uint32_t>(<uint64_t>self.counts[seq] - 1)
                    list_push(&self.core.coming_back, &e)
                    self.core.note_touch()
                    counts[0] += 1
                elif self.dying.has(seq):
                    e = entry_of(p, size, seq, self.horizon)
                    e.flags = 0  # why it died is known to the log
                    list_push(&self.core.dying, &e)
                    self.core.note_touch()
                elif not only_dying:
                    e = entry_of(p, size, seq, self.horizon)
                    self.core.make_ready(&e)
                    counts[0] += 1
            p += RECORD + size
        return 0


def learn(dict queues not None, const uint8_t[::1] data, uint64_t limit, tuple where not None) -> tuple:
    """First pass: heed the batches that begin before `limit`, of the queues by their ids.

    `where`: the file, the offset of `data` in it, the least distance of two places, and the file's serial.
    Returns (bytes dealt with, [(queue id, kind, flags, payload) of rarer records], [(queue id, offset, first,
    last) of missing ones], in order [(queue id, offset, bytes, epoch, first, last, publishes, time, facts) of
    copies and (0, offset, kind, flags, payload) of notes]).
    """
    cdef uint64_t at = 0
    cdef uint64_t n = data.shape[0]
    cdef uint64_t base = where[1]
    cdef uint64_t distance = where[2]
    cdef uint64_t serial = where[3]
    cdef object file = where[0]
    cdef list rare = []
    cdef list missing = []
    cdef list told = []
    cdef Head h
    cdef Replay queue
    while at < limit and at < n and whole_at(&data[at], n - at, &h) and h.records:
        if h.queue_id == 0:
            note_at(&data[at], &h, base + at, told)
            if h.size >= RECORD + 16 and data[at + HEAD + 8] == KIND_TRUNCATE:
                leave_out(queues, get64(&data[at + HEAD + RECORD]))
        else:
            queue = queues.get(h.queue_id)
            if queue is None or serial < queue.since:
                pass
            elif queue.is_copy:
                told.append((h.queue_id, base + at, HEAD + <uint64_t>h.size + TAIL, h.epoch, h.first_seq,
                             h.first_seq + h.records - 1, h.publishes, h.time, gather(&data[at], &h)))
            elif h.first_seq <= queue.last_seen:
                # Its records were given up, although the note that said so cannot be read.
                told.append((0, base + at, <uint8_t>KIND_TRUNCATE, 0, PyBytes_FromStringAndSize(
                    <char*>&data[at + 16], 8) + bytes(8)))
                queue.since = <uint64_t>-1
            else:
                queue.last_seen = h.first_seq + h.records - 1
                if queue.file is not file or base + at - queue.place >= distance:
                    queue.note_place(h.first_seq, file, base + at, (h.time, queue.published, queue.written))
                    queue.file = file
                    queue.place = base + at
                queue.count(&h, serial)
                queue.seen.put(h.first_seq, h.first_seq + h.records - 1)
                if h.first_seq + h.records - 1 > queue.end:  # else the checkpoint has it
                    if h.first_seq > queue.end + 1:
                        missing.append((h.queue_id, base + at, queue.end + 1, h.first_seq - 1))
                    queue.heed(&data[at], &h, rare)
        at += HEAD + <uint64_t>h.size + TAIL
    return at, rare, missing, told


cdef int leave_out(dict queues, uint64_t queue_id) except -1:
    """Something was given up of a queue that is not read as a copy: the caller reads it again as one."""
    cdef Replay queue = queues.get(queue_id)
    if queue is not None and not queue.is_copy:
        queue.since = <uint64_t>-1
    return 0


cdef int note_at(const uint8_t* p, const Head* h, uint64_t at, list told) except -1:
    """Tell what the notes of a batch of no queue say, but for how far the journal is flushed."""
    cdef uint32_t i
    p += HEAD
    for i in range(h.records):
        if p[8] != KIND_EPOCH:
            told.append((0, at, p[8], p[9], PyBytes_FromStringAndSize(<char*>p + RECORD, get32(p))))
        p += RECORD + get32(p)
    return 0


cdef tuple gather(const uint8_t* p, const Head* h):
    cdef list rows = []
    cdef list others = []
    cdef bint wants_flush = False
    cdef uint32_t i, size
    cdef uint64_t pid, number
    cdef uint64_t run_pid = 0
    cdef uint64_t run_first = 0
    cdef uint64_t run_last = 0
    p += HEAD
    for i in range(h.records):
        size = get32(p)
        if p[8] == KIND_PUBLISH:
            wants_flush = wants_flush or p[9] & FLAG_PERSISTENT
            pid = get64(p + RECORD + 16)
            number = get64(p + RECORD + 24)
            if pid & (LETTER_PID | HOME_PID):
                if pid != run_pid or number != run_last + 1:
                    if run_pid:
                        rows.append((run_pid, run_first, run_last))
                    run_pid = pid
                    run_first = number
                run_last = number
        else:
            wants_flush = wants_flush or p[9] or p[8] not in (KIND_REMOVE, KIND_REQUEUE, KIND_PUBNOTE)
            payload = PyBytes_FromStringAndSize(<char*>p + RECORD, size)
            others.append((p[8], p[9], h.first_seq + get32(p + 4), payload))
        p += RECORD + size
    if run_pid:
        rows.append((run_pid, run_first, run_last))
    return rows, others, wants_flush


def facts(const uint8_t[::1] data, uint64_t at) -> tuple:
    """([(publishing channel, first number, last number) of dead letters and forwarded publishes], [(kind,
    flags, seq, payload) of records that are no publishes], does somebody wait for a flush?) of a whole batch.
    """
    cdef Head h
    if not head_at(&data[at], data.shape[0] - at, &h):
        raise ValueError("no batch here")
    return gather(&data[at], &h)


def bury(RangeSet dead not None, const uint8_t[::1] payload) -> None:
    """The spans of a REMOVE record are dead."""
    cdef Py_ssize_t at = 8
    while at + SPAN_BYTES <= payload.shape[0]:
        dead.put(get64(&payload[at]), get64(&payload[at + 8]))
        at += SPAN_BYTES


def restore(dict queues not None, const uint8_t[::1] data, uint64_t limit, tuple memory not None,
            bint only_dying=False) -> tuple:
    """Second pass: make the live publishes of the batches that begin before `limit` ready again, or dying.

    `memory`: a queue with more bytes in memory than the first number keeps only as many entries as the second
    says. Returns (bytes dealt with, restored to ready, transient ones dropped).
    """
    cdef uint64_t at = 0
    cdef uint64_t n = data.shape[0]
    cdef uint64_t most = memory[0]
    cdef uint64_t keep = memory[1]
    cdef uint64_t serial = memory[2]
    cdef uint64_t[2] counts = [0, 0]
    cdef Head h
    cdef Replay queue
    while at < limit and at < n and whole_at(&data[at], n - at, &h) and h.records:
        queue = queues.get(h.queue_id) if h.publishes else None
        if queue is not None and serial >= queue.since:
            queue.restore(&data[at], &h, only_dying, counts)
            if queue.core.resident > most:
                queue.core.spill(keep, most // 2)
        at += HEAD + <uint64_t>h.size + TAIL
    return at, counts[0], counts[1]
