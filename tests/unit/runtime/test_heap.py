"""Free memory is kept warm: bounded, now and then, by a thread, and nobody else's is touched."""

import ctypes
import mmap

import pytest

from mirrormq.base import limits
from mirrormq.runtime import heap

LATER = limits.warm_pause_us
FEW = 2 * limits.warm_block_bytes // limits.warm_bytes_per_queue
"""Queues for which nearly two blocks are kept."""


class Blocks(heap.Library):
    """A library whose memory is numbers: each block is cold until it was written to."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.warm: set[int] = set()
        self.writes = 0
        self.most = 0

    def take(self) -> int | None:
        block = next(number for number in range(1, 1_000) if number not in self.taken)
        self.taken.append(block)
        self.most = max(self.most, len(self.taken))
        return block

    def free(self, block: int) -> None:
        self.taken.remove(block)

    def is_warm(self, block: int) -> bool:
        assert block in self.taken
        return block in self.warm

    def write(self, block: int) -> None:
        assert block in self.taken, "nobody else's memory is touched"
        self.warm.add(block)
        self.writes += 1


def warmed(functions: Blocks, queues: int) -> heap.WarmHeap:
    """A heap that was looked at once."""
    made = heap.WarmHeap(functions)
    made.fit(queues)
    made.look(LATER)
    made.finish()
    return made


def test_what_is_cold_is_written_to_once_and_all_of_it_is_free_again():
    functions = Blocks()
    made = warmed(functions, FEW)
    blocks = 2
    assert (functions.writes, functions.most, functions.taken) == (blocks, blocks, [])
    made.look(2 * LATER)
    made.finish()
    assert (functions.writes, functions.taken) == (blocks, [])


def test_memory_that_was_given_back_is_warmed_again():
    functions = Blocks()
    made = warmed(functions, FEW)
    before = functions.writes
    functions.warm.discard(2)
    made.look(2 * LATER)
    made.finish()
    assert functions.writes == before + 1


def test_more_queues_have_more_kept_warm_up_to_the_limit():
    functions = Blocks()
    warmed(functions, 0)
    assert functions.most == 0
    warmed(functions, 1)
    assert functions.most == 1
    warmed(functions, FEW)
    assert functions.most == 2
    warmed(functions, 10_000_000)
    assert functions.most == limits.warm_bytes_max // limits.warm_block_bytes


def test_it_is_looked_at_only_now_and_then():
    functions = Blocks()
    made = warmed(functions, FEW)
    functions.warm.clear()
    before = functions.writes
    made.look(2 * LATER - 1)
    made.finish()
    assert functions.writes == before


def test_nothing_happens_before_it_is_known_what_fits_or_without_the_functions():
    functions = Blocks()
    heap.WarmHeap(functions).look(LATER)
    assert functions.most == 0
    without = heap.WarmHeap(None)
    without.fit(1)
    without.look(LATER)
    without.finish()


def test_a_system_that_runs_out_of_memory_is_left_alone():
    class Exhausted(Blocks):
        def take(self) -> int | None:
            return None

    functions = Exhausted()
    warmed(functions, FEW)
    assert functions.writes == 0


@pytest.fixture
def functions():
    found = heap.library()
    if found is None:
        pytest.skip("the C library of this system does not have the functions")
    return found


def test_the_system_tells_memory_that_was_written_to_from_memory_that_was_not(functions):
    with mmap.mmap(-1, limits.warm_block_bytes) as mapped:
        view = (ctypes.c_char * limits.warm_block_bytes).from_buffer(mapped)
        block = ctypes.addressof(view)
        assert not functions.is_warm(block)
        functions.write(block)
        assert functions.is_warm(block)
        del view


def test_blocks_of_the_system_are_taken_and_freed(functions):
    made = heap.WarmHeap(functions)
    made.fit(FEW)
    made.look(LATER)
    made.finish()
