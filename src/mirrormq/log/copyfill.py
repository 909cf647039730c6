"""Filling a queue from its log when its node becomes the master.

Guarantee: the queue is what recovery would make of the same records: live publishes ready in seq order, the
dying to be sent again, counted ones to come back with their counts, everything up to the horizon redelivered.

Messages stay on disk until they are about to be delivered. Two things cannot wait: a queue with priorities
must know each message's, and what is dying or counted is needed at once. Then the files are read first,
slice by slice.
"""

from collections.abc import Callable

from mirrormq.base import limits
from mirrormq.kernel import records, replay
from mirrormq.kernel.cores import QueueCore
from mirrormq.kernel.ranges import RangeSet
from mirrormq.kernel.replay import Replay
from mirrormq.log.copyread import Scan
from mirrormq.log.disk import Disk, ReadDone, Reader
from mirrormq.log.durable import DurableLog
from mirrormq.log.fold import NOTHING, Dropped, is_forwarded
from mirrormq.log.scan import Head

RECORD_OVERHEAD = 80
"""Bytes of a record that are not its body, about: good enough to know how long a queue is."""

EVERY_SERIAL = (1 << 63) - 1

Filled = Callable[[Dropped, str | None], None]
"""Gets what was dropped, and why the queue could not be filled or None."""


def fill(log: DurableLog, core: QueueCore, read: Reader, done: Filled, *, is_restarted: bool) -> None:
    """Make the live messages of `log` ready in `core`, which is empty.

    `is_restarted`: transient messages are dropped first.
    """

    def found(dropped: Dropped, error: str | None) -> None:
        if error is not None:
            done(dropped, error)
            return
        log.note_dropped(dropped)
        # A client may hold one of them: nobody waits for it to come back.
        log.withheld -= {seq for seq in log.withheld if seq in log.dead}
        _fill_live(log, core, read, lambda error: done(dropped, error))

    if is_restarted:
        find_transients(log, read, found)
    else:
        found(NOTHING, None)


def fill_now(log: DurableLog, core: QueueCore, disk: Disk) -> tuple[int, str | None]:
    """Fill the queue of a log after a restart: (how many transient messages were dropped, what is wrong)."""
    result: list[tuple[int, str | None]] = []

    def read(file: str, offset: int, length: int, done: ReadDone) -> None:
        waiting.append((file, offset, length, done))

    def filled(dropped: Dropped, error: str | None) -> None:
        result.append((sum(last - first + 1 for first, last in dropped.seqs), error))

    waiting: list[tuple[str, int, int, ReadDone]] = []
    fill(log, core, read, filled, is_restarted=True)
    while not result:
        file, offset, length, done = waiting.pop()
        is_there = bool(disk.list(file))
        done(*((disk.read_part(file, offset, length), None) if is_there else (None, "it is not there")))
    return result[0]


def find_transients(log: DurableLog, read: Reader, done: Filled) -> None:
    """Which of the live messages are transient?"""
    seqs, numbers = RangeSet(), dict[int, RangeSet]()

    def visit(data: bytes, at: int, head: Head) -> bool:
        if head[5]:
            for seq, pid, number in records.transients(data, at):
                if seq not in log.dead:
                    seqs.add(seq, seq)
                    if is_forwarded(pid):
                        row = pid ^ records.PID_OF_LETTERS
                        numbers.setdefault(row, RangeSet()).add(number, number)
        return True

    def finished(error: str | None) -> None:
        rows = [(row, spans.spans_list()) for row, spans in numbers.items()]
        done(Dropped(seqs.spans_list(), rows), error)

    # Segments know whether they hold any.
    holding = [segment.first for segment in log.segments.all if segment.transients]
    start = max(min([*holding, log.segments.end + 1]), log.dead.first_missing(1))
    Scan(log, read, (start, log.end), visit).start(finished)


def _fill_live(log: DurableLog, core: QueueCore, read: Reader, done: Callable[[str | None], None]) -> None:
    """Ready are all that are neither dead nor set aside, nor held by consumers."""
    # What died since is tidied out of a copy's deaths and counts only now and then: it is in no run anyway.
    kept = (seq for seq in (*log.dying, *log.counts) if seq not in log.withheld and seq not in log.dead)
    log.set_aside = RangeSet((seq, seq) for seq in kept)
    live = log.dead.missing_count(1, log.end) if log.end else 0
    first = log.dead.first_missing(1)
    aside = log.set_aside.spans_list()
    if core.max_priority:
        _restore(log, core, read, (first, log.end), done)
        return
    apart = sum(last - first + 1 for first, last in aside) + len(log.withheld)
    if live > apart:
        total = max(log.written - log.published * RECORD_OVERHEAD, 0)
        body_bytes = total * (live - apart) // max(log.published, 1)
        core.restore_run(first, log.end, live - apart, body_bytes)
        core.touch()
    if aside:
        _restore(log, core, read, (aside[0][0], aside[-1][1]), done)
    else:
        done(None)


def _restore(
    log: DurableLog,
    core: QueueCore,
    read: Reader,
    span: tuple[int, int],
    done: Callable[[str | None], None],
) -> None:
    """Read the live messages of a span; without priorities only those that are set aside."""
    dead = log.dead
    if log.withheld:
        dead = dead.copy()
        for seq in log.withheld:
            dead.add(seq, seq)
    queue = Replay(core, dead, log.set_aside, {}, (_ignore, _ignore))
    queue.counts, queue.horizon, queue.is_copy = log.counts, log.redelivered_upto, True
    memory = (limits.share_memory_bytes_min, limits.window_entries, EVERY_SERIAL)
    only_aside = not core.max_priority

    def visit(data: bytes, at: int, head: Head) -> bool:
        if head[5]:
            batch = memoryview(data)[at : at + head[0]]
            replay.restore({log.queue_id: queue}, batch, len(batch), memory, only_aside)
            # The journal is being emptied meanwhile. A batch whose last records are dead ends earlier in the
            # segment than in the file it came from: read on there, the walk meets its first records again.
            queue.after = max(queue.after, records.last_seq(data, at))
        return True

    Scan(log, read, span, visit).start(done)


def _ignore(*_: object) -> None:
    """Nothing is learnt here."""
