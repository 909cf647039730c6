"""The heap of the C library: what is given back to the system, and what is kept warm.

A page that was never written costs a fault when it first is: a microsecond, and ten on a guest whose host has
to find one, too. A table with an entry for each of twenty thousand queues has three hundred pages, so a loop
that grows one would stand still for milliseconds. Therefore some free memory is written to beforehand, by a
thread that has nothing else to do: what the loop takes next is warm.

Guarantees: only blocks are touched that nobody else has, and they are free again afterwards; what is kept
free and warm is bounded by `limits.warm_bytes_max`. Where the C library is not GNU's, or does not know a
function, nothing happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading

from mirrormq.base import limits

LARGE_BLOCK_BYTES = 4 * 1024 * 1024
"""Blocks from here on are mapped and unmapped; smaller ones come often enough to be kept."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Their names in malloc.h."""
_ABSENT = b"\0"
"""What mincore(2) says of a page without memory behind it."""


def tune_memory() -> None:
    """Give large blocks back to the system when they are freed, and small ones when they are many.

    By itself the C library keeps what is as large as any it has seen freed: the work space of the first
    password that is checked would stay with this process, in each thread that has checked one. Told what is
    large, it would give back small ones, too, as soon as 128 KiB of them are free at the end of the heap, and
    each would have to be found again, cold.
    """
    _call("mallopt", _M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
    _call("mallopt", _M_TRIM_THRESHOLD, limits.heap_spare_bytes_max)


def give_back() -> None:
    """Return to the system what is free."""
    _call("malloc_trim", 0)


def _call(function: str, *numbers: int) -> None:
    """Call a function of the GNU C library's allocator; elsewhere there is none to call."""
    with contextlib.suppress(OSError, AttributeError):
        getattr(ctypes.CDLL(None), function)(*numbers)


class Library:
    """The functions it takes to keep a heap warm."""

    def __init__(self) -> None:
        # Short ones keep the interpreter's lock; writing, which may take milliseconds, gives it up.
        short, long = ctypes.PyDLL(None), ctypes.CDLL(None)
        self._malloc, self._free, self._mincore, self._memset = (
            short.malloc,
            short.free,
            short.mincore,
            long.memset,
        )
        self._malloc.restype, self._malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
        self._free.restype, self._free.argtypes = None, (ctypes.c_void_p,)
        self._mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
        self._memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
        self._pages = limits.warm_block_bytes // mmap.PAGESIZE - 1
        """Whole pages in a block, wherever it begins."""
        self._found = ctypes.create_string_buffer(self._pages)

    def take(self) -> int | None:
        """A block, unless there is no memory left."""
        found: int | None = self._malloc(limits.warm_block_bytes)
        return found

    def free(self, block: int) -> None:
        """Nobody has it any more."""
        self._free(block)

    def is_warm(self, block: int) -> bool:
        """Is memory behind every page of a block?"""
        begin = -(-block // mmap.PAGESIZE) * mmap.PAGESIZE
        if self._mincore(begin, self._pages * mmap.PAGESIZE, self._found) != 0:
            return True  # not to be told here: there is nothing to gain
        return _ABSENT not in self._found.raw

    def write(self, block: int) -> None:
        """Have memory behind every page of a block."""
        self._memset(block, 0, limits.warm_block_bytes)


def library() -> Library | None:
    """That of this system, if it has all it takes."""
    try:
        return Library()
    except (OSError, AttributeError):
        return None


class WarmHeap:
    """Keeps so much free memory warm as the tables of a node may want when they grow."""

    def __init__(self, functions: Library | None) -> None:
        self._functions = functions
        self._at = 0
        self._blocks = 0
        self._at_work: threading.Thread | None = None

    def fit(self, queues: int) -> None:
        """There are so many queues."""
        wanted = min(limits.warm_bytes_max, queues * limits.warm_bytes_per_queue)
        self._blocks = -(-wanted // limits.warm_block_bytes)

    def look(self, mono: int) -> None:
        """After some work: is there enough, if it is time to look?"""
        if mono - self._at >= limits.warm_pause_us:
            self._at = mono
            self._keep()

    def _keep(self) -> None:
        """Have what is cold warmed, unless that is being done."""
        functions = self._functions
        if functions is None or (self._at_work is not None and self._at_work.is_alive()):
            return
        # All at once: what is freed before the next is taken would be that next one.
        blocks = [functions.take() for _ in range(self._blocks)]
        cold = []
        for block in filter(None, blocks):
            if functions.is_warm(block):
                functions.free(block)
            else:
                cold.append(block)
        if cold:
            self._at_work = threading.Thread(target=_warm, args=(functions, cold), name="warm", daemon=True)
            self._at_work.start()

    def finish(self) -> None:
        """Wait for the thread, if there is one at work."""
        if self._at_work is not None:
            self._at_work.join()


def _warm(functions: Library, blocks: list[int]) -> None:
    """Write to blocks, and free them: they stay warm for whoever takes that memory next."""
    for block in blocks:
        functions.write(block)
        functions.free(block)
