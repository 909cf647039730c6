"""Answers where in a queue's record stream a time lies.

Guarantee: O(log n) in the index, then at most one scan from an index entry to the next: `place_bytes_min`
bytes of a file and one batch (`index_mark_bytes` for what was in segments before the last restart). Answers
are exact from the log's low mark on; below it, where dead records are gone, they are exact to an index entry.
Nothing beyond the durable mark is found.
"""

from collections.abc import Callable

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
