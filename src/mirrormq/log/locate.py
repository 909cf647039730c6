"""Answers where in a queue's record stream something lies: by time, or by number of publishes.

Guarantee: O(log n) in the index, then at most one scan from an index entry to the next: `place_bytes_min`
bytes of a file and one batch (`index_mark_bytes` for what was in segments before the last restart).
`publishes_between` and `seq_after` look twice, once for each end. Answers are exact from the log's low mark
on; below it, where dead records are gone, they are exact to an index entry. Nothing beyond the durable mark
is counted.
"""

from collections.abc import Callable

from mirrormq.kernel import records
from mirrormq.log.disk import Reader
from mirrormq.log.durable import DurableLog
from mirrormq.log.rangeread import RangeLost, Walk
from mirrormq.log.scan import Head

Answer = Callable[[int | None, str | None], None]
"""Gets the answer, or None and why there is none."""

Visit = Callable[[bytes, int, Head], int | None]
"""Looks at a batch; anything but None ends the scan."""


class Locator:
    """Looks things up in one log."""

    def __init__(self, log: DurableLog, read: Reader) -> None:
        self._log = log
        self._read = read

    def seq_at_time(self, time: int, done: Answer) -> None:
        """Seq of the first record received at `time` (wall µs) or later; the next seq if there is none."""
        log = self._log
        end = log.durable + 1
        if time > log.last_wall:
            done(end, None)
            return

        def visit(_data: bytes, _at: int, head: Head) -> int | None:
            return min(head[3], end) if head[6] >= time or head[3] >= end else None

        self._scan(log.index.before_time(time).seq, visit, end, done)

    def publishes_between(self, first: int, end: int, done: Answer) -> None:
        """How many of the records first <= seq < end are publishes, dead or alive."""

        def count_end(before: int | None, error: str | None) -> None:
            if before is None:
                done(None, error)
            else:
                self._count(end, lambda upto, error: done(None if upto is None else upto - before, error))

        if end <= first:
            done(0, None)
        else:
            self._count(first, count_end)

    def seq_after(self, seq: int, publishes: int, done: Answer) -> None:
        """The smallest end such that seq..end holds so many publishes; the next seq if there are fewer."""

        def counted(before: int | None, error: str | None) -> None:
            if before is None:
                done(None, error)
            else:
                self._find(seq, before, publishes, done)

        if publishes <= 0:
            done(seq, None)
        else:
            self._count(seq, counted)

    def _count(self, seq: int, done: Answer) -> None:
        """Publishes before `seq`."""
        log = self._log
        seq = min(seq, log.durable + 1)
        entry = log.index.at(seq)
        if seq < log.low or entry.seq == seq:
            done(entry.publishes, None)
        elif entry.seq >= log.low:
            self._count_range(
                entry.seq, seq, lambda n, e: done(None if n is None else entry.publishes + n, e)
            )
        else:
            # Records between the entry and the low mark are gone, so count back from the one behind.
            after = log.index.after(seq)
            end, total = (log.end + 1, log.published) if after is None else (after.seq, after.publishes)
            self._count_range(seq, end, lambda n, e: done(None if n is None else total - n, e))

    def _count_range(self, start: int, end: int, done: Answer) -> None:
        """Publishes of start <= seq < end, which lie close together."""
        count = 0

        def visit(data: bytes, at: int, head: Head) -> int | None:
            nonlocal count
            inside = records.cut(data, at, start, end)
            count += inside[2] if inside is not None else 0
            return count if head[3] + head[4] >= end else None

        self._scan(start, visit, -1, lambda found, error: done(count if found == -1 else found, error))

    def _find(self, seq: int, before: int, publishes: int, done: Answer) -> None:
        """Where the publishes from `seq` on, which has so many before it, have reached a number."""
        log = self._log
        end = log.durable + 1
        number = before + publishes
        entry = log.index.before_publish(number)
        start, count = (entry.seq, entry.publishes) if entry.seq > seq else (seq, before)

        def visit(data: bytes, at: int, head: Head) -> int | None:
            nonlocal count
            inside = records.cut(data, at, start, end)
            if inside is None:
                return end if head[3] >= end else None
            if count + inside[2] < number:
                count += inside[2]
                return None
            return _nth_publish(inside[0], number - count) + 1

        if number > log.published:
            done(end, None)
        else:
            self._scan(start, visit, end, done)

    def _scan(self, start: int, visit: Visit, at_end: int, done: Answer) -> None:
        """Show the batches from `start` on until one gives an answer."""
        walk = Walk(self._log, start)

        def on_read(data: bytes | None, error: str | None) -> None:
            try:
                for batch in walk.feed(data, error):
                    found = visit(*batch)
                    if found is not None:
                        done(found, None)
                        return
            except RangeLost as lost:
                done(None, str(lost))
                return
            go_on()

        def go_on() -> None:
            piece = walk.ask()
            if piece is None:
                done(at_end, None)
            else:
                self._read(*piece, on_read)

        go_on()


def _nth_publish(batch: bytes, nth: int) -> int:
    """Seq of the nth publish of a batch."""
    head = records.read_head(batch, 0)
    assert head is not None
    low, high = head[3], records.last_seq(batch, 0)
    if head[4] == head[5] == high - low + 1:
        return low + nth - 1
    while low < high:
        middle = (low + high) // 2
        upto = records.cut(batch, 0, head[3], middle + 1)
        if upto is not None and upto[2] >= nth:
            high = middle
        else:
            low = middle + 1
    return low
