# What the flusher's thread and those who give it orders share.
from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int64_t, uint64_t

cdef extern from "<errno.h>" nogil:
    int ECANCELED

cdef extern from "<fcntl.h>" nogil:
    int fallocate(int, int, int64_t, int64_t)
    int posix_fallocate(int, int64_t, int64_t)

cdef enum:
    APPEND, READ, RESERVE, FLUSH, FLUSH_FOLDER, MARK, CLOSE, STOP  # from FLUSH on: after a batch's writes
    PIECES_MAX = 256
    FULL_WAIT_US = 20000  # between two attempts to write to a full disk

ctypedef Order* Link
ctypedef Link* Slot
cdef struct Order:
    Link next
    void* owner
    char* data
    size_t size
    int64_t offset, token
    int kind, fd, error

cdef struct Shared:
    PyThread_type_lock lock
    Link waiting, done
    Slot waiting_end, done_end
    int work_fd, wake_fd, failed_fd, reserve_fd
    uint64_t flushes, given
    bint is_closing
