"""Reading the record stream of a mirrored queue from its files, for mirrors and for promotions.

Guarantees: batches are shown in order, each once, and only those that are part of the log: what was given up
and still lies in the journal is passed over. If the log is truncated meanwhile the reading fails, and so it
does if something cannot be found: nobody gets a stream with a gap.
"""

from collections.abc import Callable

from mirrormq.base import limits
from mirrormq.kernel import records
from mirrormq.log.disk import Reader
from mirrormq.log.durable import DurableLog
from mirrormq.log.rangeread import RangeLost, Walk
from mirrormq.log.scan import Head

Visit = Callable[[bytes, int, Head], bool]
"""Looks at a batch; False if it was the last one wanted."""

Done = Callable[[str | None], None]
"""Gets why reading failed, or None."""


class Scan:
    """One reading of the batches that hold records of start..upto."""

    def __init__(self, log: DurableLog, read: Reader, span: tuple[int, int], visit: Visit) -> None:
        self._log = log
        self._read = read
        self._upto = span[1]
        self._visit = visit
        self._walk = Walk(log, span[0])
        self._life = log.life
        self._done: Done = _ignore

    def start(self, done: Done) -> None:
        """Read on until the visitor has enough or the end is reached."""
        self._done = done
        self._go_on()

    def _go_on(self) -> None:
        # Not only checked when bytes arrive: what the walk knows of files is as old as the log it began with.
        if self._log.life != self._life:
            self._done("the log was truncated while it was read")
            return
        piece = self._walk.ask() if self._walk.position <= self._upto else None
        if piece is None:
            self._done(None)
        else:
            self._read(*piece, self._on_read)

    def _on_read(self, data: bytes | None, error: str | None) -> None:
        if self._log.life != self._life:
            self._done("the log was truncated while it was read")
            return
        try:
            for source, at, head in self._walk.feed(data, error):
                if head[3] > self._upto or not self._visit(source, at, head):
                    self._done(None)
                    return
        except RangeLost as lost:
            self._done(str(lost))
            return
        self._go_on()


def read_dense(
    log: DurableLog,
    read: Reader,
    wanted: tuple[int, int, int],
    done: Callable[[list[bytes] | None, str | None], None],
) -> None:
    """Whole batches of the records (start, upto, bytes): one at least, and about so many bytes."""
    start, upto, max_bytes = wanted
    found: list[bytes] = []
    position = start
    size = 0
    fault: str | None = None

    def visit(data: bytes, at: int, head: Head) -> bool:
        nonlocal position, size, fault
        last = head[3] + head[4] - 1
        if head[3] != position or records.last_seq(data, at) != last:
            fault = f"record {position} cannot be read with its whole batch"
            return False
        if last > upto or (found and size + head[0] > max_bytes):
            return False
        found.append(data[at : at + head[0]])
        position = last + 1
        size += head[0]
        return size < max_bytes

    def finished(error: str | None) -> None:
        if error is None and fault is None and not found:
            error = f"record {start} is in no file"
        if error is not None or (fault is not None and not found):
            done(None, error or fault)
        else:
            done(found, None)

    if start < log.low:
        done(None, f"records before {log.low} are no longer kept, {start} was asked for")
    else:
        Scan(log, read, (start, upto), visit).start(finished)


def slice_bytes(max_bytes: int) -> int:
    """How many bytes one reading gives at most."""
    return min(max_bytes, limits.copy_read_bytes)


def _ignore(error: str | None) -> None:
    """Nobody waits yet."""
