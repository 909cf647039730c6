"""A thread that writes, flushes and reads files; it has the interpreter's lock only to begin and to end.

Orders are carried out in the order given: the thread takes all that wait at once, writes and reads, then
flushes each file that somebody waits for once (group commit by completion), then reports. After the first
failing write or flush all is refused with ECANCELED: a flush is never tried again, as the system may have
thrown the pages away. A failing read is the business of that read only. A write that finds the disk full
gives up the reserve, says so at once, and goes on where it stopped. If that is not enough it waits for
space, and all behind it waits too: a full disk has forgotten nothing. Without a reserve it has failed.

The thread sees raw pointers; the objects behind them are held by the order until `take` lets go of them on
the caller's thread. A descriptor belongs to the caller until `close_file`, which follows all earlier orders.
"""
import os, signal, threading

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pythread cimport (WAIT_LOCK, PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock,
                               PyThread_release_lock, PyThread_type_lock)
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.errno cimport EDQUOT, EINTR, EIO, ENOSPC, errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from posix.uio cimport iovec, writev
from posix.unistd cimport close, fdatasync, fsync, ftruncate, pread, read, usleep, write

cdef void ring(int eventfd) noexcept nogil:
    cdef uint64_t one = 1
    write(eventfd, &one, sizeof(one))

cdef bint give_reserve(Shared* s) noexcept nogil:
    """The disk is full: give back what was kept for this. False if that does not help."""
    if s.reserve_fd < 0 or ftruncate(s.reserve_fd, 0) != 0:
        return False
    fsync(s.reserve_fd)  # some file systems give space back only then
    s.given += 1
    ring(s.wake_fd)
    return True

cdef void write_run(Shared* s, Link first) noexcept nogil:
    """Write this append and those to the same file that come next, which then have nothing left to write."""
    cdef iovec pieces[PIECES_MAX]
    cdef iovec* piece = pieces
    cdef Link order = first
    cdef int count = 0
    cdef ssize_t n
    cdef bint is_again = False
    while order != NULL and count < PIECES_MAX:
        if order.kind == APPEND and order.fd == first.fd:
            pieces[count].iov_base, pieces[count].iov_len = order.data, order.size
            order.data, count = NULL, count + 1
        elif order.kind < FLUSH:
            break
        order = order.next
    while count and s.failed_fd < 0:
        n = writev(first.fd, piece, count)
        if n < 0 and errno in (ENOSPC, EDQUOT) and not s.is_closing and (is_again or give_reserve(s)):
            if is_again:
                usleep(FULL_WAIT_US)
            is_again = True
        elif n == 0 or (n < 0 and errno != EINTR):
            first.error, s.failed_fd = errno if n else EIO, first.fd
        while count and n >= <ssize_t>piece.iov_len:
            n, piece, count = n - piece.iov_len, piece + 1, count - 1
        if n > 0:  # a short write goes on where it ended
            piece.iov_base = <char*>piece.iov_base + n
            piece.iov_len -= n

cdef void read_range(Link order) noexcept nogil:
    """Read until the range or the file ends; `size` becomes what was found."""
    cdef size_t found = 0
    cdef ssize_t n = 1
    while found < order.size and n != 0 and order.error == 0:
        n = pread(order.fd, order.data + found, order.size - found, order.offset + found)
        if n > 0:
            found += n
        elif n < 0 and errno != EINTR:
            order.error = errno
    order.size = found

cdef void flush_file(Shared* s, Link order) noexcept nogil:
    """Flush the file of this order, once for all orders of the batch that wait for it."""
    s.flushes += 1
    if (fsync(order.fd) if order.kind == FLUSH_FOLDER else fdatasync(order.fd)) != 0:
        order.error, s.failed_fd = errno, order.fd
    cdef int kind = order.kind, fd = order.fd
    while order != NULL and s.failed_fd < 0:
        if order.fd == fd and order.kind == kind:
            order.kind = MARK
        order = order.next

cdef void carry_out(Shared* s, Link order) noexcept nogil:
    if order.kind == CLOSE:
        close(order.fd)
    elif s.failed_fd >= 0:
        order.error = ECANCELED
    elif order.kind == APPEND and order.data != NULL and order.size:
        write_run(s, order)
    elif order.kind == READ:
        read_range(order)
    elif order.kind == RESERVE:
        # If that is refused, appends take the space they need; the reserve is asked for in every way.
        if fallocate(order.fd, 0, 0, order.offset) != 0 and order.fd == s.reserve_fd:
            posix_fallocate(order.fd, 0, order.offset)
    elif order.kind in (FLUSH, FLUSH_FOLDER):
        flush_file(s, order)

cdef void work(Shared* s) noexcept nogil:
    cdef Link batch, order
    cdef Slot end
    cdef uint64_t count
    cdef bint goes_on = True, late
    while goes_on:
        read(s.work_fd, &count, 8)
        PyThread_acquire_lock(s.lock, WAIT_LOCK)
        batch, end = s.waiting, s.waiting_end
        s.waiting, s.waiting_end = NULL, &s.waiting
        PyThread_release_lock(s.lock)
        if batch == NULL: continue
        for late in range(2):
            order = batch
            while order != NULL:
                if (order.kind >= FLUSH) == late:
                    carry_out(s, order)
                goes_on = goes_on and order.kind != STOP
                order = order.next
        PyThread_acquire_lock(s.lock, WAIT_LOCK)
        s.done_end[0], s.done_end = batch, end
        PyThread_release_lock(s.lock)
        ring(s.wake_fd)

cdef class Flusher:
    cdef Shared s
    cdef object thread
    def __cinit__(self, int reserve_fd=-1):
        self.s.reserve_fd = reserve_fd
        self.s.waiting_end, self.s.done_end, self.s.failed_fd = &self.s.waiting, &self.s.done, -1
        self.s.lock = PyThread_allocate_lock()
        self.s.work_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self.s.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.thread = threading.Thread(target=self._run, name="flusher", daemon=True)  # keeps `self` alive
        self.thread.start()

    def __dealloc__(self):
        PyThread_free_lock(self.s.lock)
        close(self.s.work_fd), close(self.s.wake_fd)

    def _run(self):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the loop's thread
        with nogil: work(&self.s)

    cdef void add(self, int kind, int fd, int64_t token, int64_t offset=0, bytes data=None) except *:
        cdef Link order = <Link>calloc(1, sizeof(Order))
        if order == NULL: raise MemoryError
        order.kind, order.fd, order.token, order.offset = kind, fd, token, offset
        if data is not None:
            Py_INCREF(data)
            order.owner, order.data, order.size = <void*>data, PyBytes_AS_STRING(data), len(data)
        PyThread_acquire_lock(self.s.lock, WAIT_LOCK)
        cdef bint is_first = self.s.waiting == NULL
        self.s.waiting_end[0], self.s.waiting_end = order, &order.next
        PyThread_release_lock(self.s.lock)
        if is_first: ring(self.s.work_fd)

    def append(self, int fd, bytes data not None): self.add(APPEND, fd, 0, 0, data)
    def flush(self, int fd, int64_t token): self.add(FLUSH, fd, token)
    def flush_folder(self, int fd): self.add(FLUSH_FOLDER, fd, 0)
    def read(self, int fd, int64_t offset, Py_ssize_t length, int64_t token):
        self.add(READ, fd, token, offset, PyBytes_FromStringAndSize(NULL, length))
    def reserve(self, int fd, int64_t size): self.add(RESERVE, fd, 0, size)
    def mark(self, int64_t token): self.add(MARK, -1, token)
    def close_file(self, int fd): self.add(CLOSE, fd, 0)
    def wake(self): ring(self.s.wake_fd)
    def fileno(self): return self.s.wake_fd
    def counters(self): return self.s.flushes, self.s.failed_fd, self.s.given

    def take(self):
        cdef uint64_t count
        cdef Link order, last
        taken, _ = [], read(self.s.wake_fd, &count, 8)
        PyThread_acquire_lock(self.s.lock, WAIT_LOCK)
        order, self.s.done, self.s.done_end = self.s.done, NULL, &self.s.done
        PyThread_release_lock(self.s.lock)
        while order != NULL:
            if order.token or order.error:
                found = (<bytes>order.owner)[:order.size] if order.kind == READ and not order.error else None
                taken.append((order.token, order.error, found))
            Py_XDECREF(<PyObject*>order.owner)
            last, order = order, order.next
            free(last)
        return taken

    def close(self, timeout_s):
        self.s.is_closing = True  # who still waits for space has waited long enough
        self.add(STOP, -1, 0)
        self.thread.join(timeout_s)
        return not self.thread.is_alive()
