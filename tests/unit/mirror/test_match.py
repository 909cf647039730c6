"""Where two logs part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirrormq.base.types import Now
from mirrormq.mirror.frames import Hello
from mirrormq.mirror.source import match_point
from mirrormq.sim.memorylog import MemoryCopyLog
from mirrormq.sim.mirrorstream import publish

NOW = Now(0, 0)


def log_of(epochs: list[int]) -> MemoryCopyLog:
    """A log whose records have these epochs."""
    log = MemoryCopyLog(1)
    for number, epoch in enumerate(epochs, 1):
        log.write_epoch = epoch
        log.write(publish((1, number), 1))
    return log


def hello_of(log: MemoryCopyLog, last: int = 64) -> Hello:
    return Hello(1, 99, 1, log.end, tuple(log.epochs())[-last:], 0, 0)


def test_equal_logs_part_at_their_end() -> None:
    assert match_point(log_of([1, 1, 2]), 3, hello_of(log_of([1, 1, 2]))) == 3


def test_a_tail_of_an_epoch_the_source_does_not_know_is_not_common() -> None:
    assert match_point(log_of([1, 1, 3, 3]), 4, hello_of(log_of([1, 1, 2, 2, 2]))) == 2


def test_a_shorter_log_of_the_same_epoch_ends_the_common_part() -> None:
    assert match_point(log_of([1, 2, 2, 2]), 4, hello_of(log_of([1, 2]))) == 2
    assert match_point(log_of([1, 2]), 2, hello_of(log_of([1, 2, 2, 2]))) == 2


def test_nothing_above_the_limit_is_common() -> None:
    assert match_point(log_of([1, 1, 1]), 2, hello_of(log_of([1, 1, 1]))) == 2


def test_logs_without_a_common_epoch_have_nothing_in_common() -> None:
    assert match_point(log_of([2, 2]), 2, hello_of(log_of([1]))) == 0
    assert match_point(log_of([2, 2]), 2, hello_of(log_of([]))) == 0


def test_a_hello_that_does_not_reach_back_far_enough_decides_nothing() -> None:
    mine, other = log_of([1, 4]), log_of([1, 2, 3])
    assert match_point(mine, 2, hello_of(other, last=2)) is None
    assert match_point(mine, 2, hello_of(other)) == 1


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12), st.integers(0, 12))
def test_the_match_is_the_longest_common_beginning_of_logs_that_share_one(
    mine: list[int], other: list[int], shared: int
) -> None:
    """Two logs with a common beginning, then epochs that only one of them has."""
    trunk = sorted(mine)[:shared]
    above = max(trunk, default=0)
    one = trunk + sorted(2 * step + above + 2 for step in mine)
    two = trunk + sorted(2 * step + above + 3 for step in other)
    first, second = [epoch + 1 for epoch in one], [epoch + 1 for epoch in two]
    found = match_point(log_of(first), len(first), hello_of(log_of(second)))
    assert found == len(trunk)
