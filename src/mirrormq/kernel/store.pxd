# Entries of one queue, and the list of queues to visit (see store.pyx).
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from mirrormq.kernel.index cimport Chunk, Entry, EntryHeap, EntryList, Graveyard, Pairs
from mirrormq.kernel.message cimport Msg

# Why a record left its queue (written to the log with the removal).
cdef enum:
    ACK = 1
    AUTO = 2
    REJECTED = 3
    EXPIRED = 4
    MAXLEN = 5

cdef struct Range:
    uint64_t first
    uint64_t last
    uint8_t reason

cdef struct Level:
    EntryList ready
    int64_t latest      # latest expiry among the entries since the list was empty; -1 = some never expire
    EntryHeap returned
    uint64_t returned_last    # no seq in the heap is higher

cdef class Worklist:
    cdef list touched
    cdef readonly uint64_t resident      # bytes of all durable queues' ready messages in memory

cdef class QueueStore:
    cdef public object owner
    cdef public bint dead_letter
    cdef public bint durable             # persistent messages are confirmed when the log has flushed them
    cdef public bint remote              # its master is elsewhere: every publish waits for that one's report
    cdef public bint paired              # its seqs are tags; what leaves is named by seq and epoch, too
    cdef public bint counted             # returns go through Python: delivery limit and x-delivery-count
    cdef public int64_t ttl_us
    cdef readonly bint gone
    cdef readonly uint32_t max_priority
    cdef readonly uint64_t ready
    cdef readonly uint64_t ready_bytes
    cdef readonly uint64_t resident      # bytes of ready entries in memory, those that came back left out
    cdef readonly int64_t sweep_at       # earliest expiry behind one that lives longer, in memory; 0 = none
    cdef readonly uint64_t published
    cdef uint64_t unlogged_upto          # entries up to this seq are older than the log
    cdef Worklist work
    cdef Graveyard grave
    cdef bint touched
    cdef EntryList waiting               # published, not yet in the log
    cdef EntryList dying                 # rejected, expired, dropped: to be dead-lettered
    cdef EntryList coming_back           # requeued, to be counted
    cdef list refused
    cdef Level* levels
    cdef uint32_t top                    # no level above it holds anything
    cdef Range* ranges
    cdef uint32_t range_count
    cdef uint32_t range_room
    cdef Pairs pairs                     # of what left a paired queue, in the order of the ranges

    cdef int note_touch(self) except -1
    cdef int append(self, Msg* m, uint64_t pid, uint64_t pseq, uint32_t flags=*) except -1
    cdef int64_t expiry_of(self, Msg* m, int64_t now_wall) noexcept
    cdef int make_ready(self, const Entry* e) except -1
    cdef void hold(self, uint64_t size) noexcept
    cdef void let_go(self, uint64_t size) noexcept
    cdef void note_expiry(self, Level* level, int64_t expiry) noexcept
    cdef int sweep_chunk(self, Level* level, Chunk* prev, Chunk* c, int64_t now_wall) except -1
    cdef int discard_from(self, Level* level, Entry* e) except -1
    cdef uint32_t level_of(self, uint8_t priority) noexcept
    cdef Entry* head(self, Level** at) noexcept
    cdef void pop(self, Level* at, Entry* out) noexcept
    cdef int give_back(self, const Entry* e) except -1
    cdef int discard(self, const Entry* e, uint8_t reason) except -1
    cdef int remove(self, Level* at, Entry* first, uint8_t reason) except -1
    cdef int make_range_room(self) except -1
    cdef void settle_seq(self, uint64_t seq, uint8_t reason) noexcept
    cdef void settle_entry(self, const Entry* e, uint8_t reason) noexcept
    cdef void bury_ready(self) noexcept
    cdef void bury_all(self) noexcept
