"""Cursors under crashes: a range read through one gives what was written; planted bugs are found."""

from __future__ import annotations

import os
from typing import Any

import pytest

from mirrormq.kernel.ranges import RangeSet
from mirrormq.log.queuelog import EVERYTHING, QueueLog
from mirrormq.log.rangeread import RangeLost
from mirrormq.log.recycler import Recycler
from mirrormq.log.segments import Segment, Segments
from mirrormq.meta import records
from mirrormq.node.node import Node
from mirrormq.sim.cursorworld import CursorWorld
from mirrormq.sim.model import Violation

SEEDS = int(os.environ.get("CURSOR_SEEDS", "25"))
PLANTED_SEEDS = 60


def test_cursors_and_ranges_keep_every_promise_under_crashes() -> None:
    rewritten = ranges = 0
    for seed in range(1, SEEDS + 1):
        world = CursorWorld(seed)
        world.run()
        rewritten += world.rewritten > 0
        ranges += world.ranges
    assert rewritten >= SEEDS // 10
    assert ranges >= SEEDS * 20


class _BlindRecycler(Recycler):
    """Copies live publishes only, as if there were no cursors."""

    def _copy_batch(self, log: Any, *rest: Any) -> None:
        low, log.cursors.low = log.cursors.low, EVERYTHING
        kept = log.low
        super()._copy_batch(log, *rest)
        log.cursors.low, log.low = low, min(max(log.low, kept), low)


class _BlindSegments(Segments):
    """Lets go of dead segments that a cursor holds."""

    def take_dead(self, dead: RangeSet, keep: int) -> list[Segment]:
        return super().take_dead(dead, EVERYTHING)


class CopiesWithoutCursors(Node):
    """See `_BlindRecycler`."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.recycler.__class__ = _BlindRecycler


class DropsHeldSegments(Node):
    """See `_BlindSegments`."""

    def open_log(self, record: records.Queue) -> QueueLog:
        log: Any = super().open_log(record)
        if hasattr(log, "segments"):
            log.segments.__class__ = _BlindSegments
        return log


@pytest.mark.parametrize("planted", [CopiesWithoutCursors, DropsHeldSegments])
def test_a_planted_bug_of_retention_is_caught(planted: type[Node]) -> None:
    for seed in range(1, PLANTED_SEEDS + 1):
        world = CursorWorld(seed, make_node=planted)
        try:
            world.run()
        except (Violation, RangeLost):
            return
    pytest.fail(f"{planted.__name__} was not caught in {PLANTED_SEEDS} seeds")


def test_the_same_seed_gives_the_same_stream() -> None:
    digests = set()
    for _ in range(2):
        world = CursorWorld(3)
        world.run()
        digests.add(world.digest)
    assert len(digests) == 1


def test_bytes_behind_what_a_checkpoint_knows_of_a_segment_are_no_damage() -> None:
    # Seed 7: a segment was being appended to when the power went, and lost a page in the middle of that.
    CursorWorld(7).run()
