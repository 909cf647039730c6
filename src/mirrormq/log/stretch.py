"""A stretch of a queue's record stream, read for a client from the files of whichever member it asked.

Guarantees
- A *dense* stretch gives every record start <= seq < upto, of the publishes only those before `end`; a *live*
  one the publishes start <= seq < end that are live here when they are read, below the low mark, too. In
  order, each once, as whole batches; or it fails with a text. Never a stream with a silent gap.
- Of a dense stretch the records that are no publishes can be read alone, for what they say of its messages:
  it ends where nothing behind can concern them any more, so that many short ranges with one far `upto` cost
  about what one long range costs.
- Nothing beyond the durable mark is given: what a reader has seen survives what the queue survives.
- One slice of a file is in memory at a time, however long the stretch is. Files may be emptied, rewritten and
  removed meanwhile.
- A truncation of the log below it ends the stretch (`RangeLost`): it never goes on in another history.
"""

from mirrormq.base import limits
from mirrormq.kernel.gather import Gather
from mirrormq.kernel.ranges import RangeSet
from mirrormq.log.durable import DurableLog
from mirrormq.log.rangeread import Piece, RangeLost, RangeRefused, Walk

Buffer = bytes | memoryview


def dead_of(log: DurableLog) -> RangeSet:
    """What is not a live publish, as this member knows it."""
    copy = log.copy
    return log.dead if copy is None or copy.is_master else copy.committed.dead


class Stretch:
    """One reading. `ask` names the piece to be read next (None: finished), `feed` takes what was read."""

    def __init__(
        self,
        log: DurableLog,
        span: tuple[int, int, int],
        *,
        readable: int,
        live: bool,
        slice_bytes: int = 0,
    ) -> None:
        """`span`: start, end and upto, which counts for dense ones only. Refused if not all of it is kept and
        lies before `readable`: what the caller knows to be durable. `slice_bytes`: if not as much as usual.
        """
        start, end, upto = span if not live else (span[0], span[1], span[1])
        if log.damage is not None:
            raise RangeRefused(f"the queue is damaged: {log.damage}")
        if not 1 <= start <= upto or not 1 <= end <= upto:
            raise RangeRefused(f"{start} to {end} (records that are no messages: to {upto}) is no range")
        if start < log.low and not live and start < upto:
            raise RangeRefused(f"records before {log.low} are no longer kept, {start} was asked for")
        if upto > readable:
            raise RangeRefused(f"records can be read up to {readable - 1}, {upto - 1} was asked for")
        self._log = log
        self._live = live
        self._life = log.life
        self._gather = self._gatherer(start, end, upto)
        self._walk = Walk(log, start, slice_bytes=slice_bytes or limits.bulk_slice_bytes)
        self._is_over = False
        self._is_watched = False

    def tolerate(self) -> None:
        """Give what is there: for whoever looks for what is missing."""
        self._gather.lenient = True

    def only_removals(self, first: int) -> None:
        """Give no messages, only what is said about those from `first` on before `end`."""
        self._is_watched = True
        self._gather.watch(limits.bulk_watched_spans_max, first == self._gather.position)

    def _gatherer(self, start: int, end: int, upto: int) -> Gather:
        dead = dead_of(self._log) if self._live else None
        return Gather(self._log.queue_id, start, end, upto, dead)

    @property
    def position(self) -> int:
        """The next record to be given."""
        return self._gather.upto if self._is_over else self._gather.position

    @property
    def is_done(self) -> bool:
        """Was everything given?"""
        return self._is_over or self._gather.is_done

    def ask(self) -> Piece | None:
        """What to read next; None when all is given."""
        self._check()
        if self._live:
            self._gather.skip_dead()
        if self.is_done:
            return None
        self._walk.position = self._gather.position
        piece = self._walk.ask()
        if piece is None and self._gather.lenient:
            self._is_over = True
        elif piece is None:
            raise RangeLost(f"record {self.position} is in no file")
        return piece

    def feed(self, data: bytes | None, error: str | None) -> Buffer | None:
        """The next batches, in what `ask` asked for."""
        self._check()
        if data is None:
            self._walk.failed(error)
            return None
        epochs = self._log.index.epochs if self._log.cuts else None
        found, resume, need = self._gather.feed(data, epochs)
        if self._gather.missing:
            self._check()
            raise RangeLost(f"record {self._gather.missing} is missing")
        self._walk.passed(len(data), resume, need)
        if self._is_watched and self._has_seen_all():
            self._is_over = True
        return found

    def _has_seen_all(self) -> bool:
        """Can no record before `upto` concern a message of the range any more?

        What this member knows to be dead has to contain every removal before `upto`: a mirror hears later
        than it gets the records that they count. What dies from now on is removed behind `upto`.
        """
        copy = self._log.copy
        is_mirror = copy is not None and not copy.is_master
        if is_mirror and copy is not None and copy.committed.end < self._gather.upto - 1:
            return False
        return self._gather.settle(dead_of(self._log), limits.bulk_watched_steps)

    def _check(self) -> None:
        log = self._log
        if log.life != self._life:
            raise RangeLost("the log was truncated while it was read")
        if not self._live and not self.is_done and self.position < log.low:
            raise RangeLost(f"records before {log.low} were given up, {self.position} is wanted")
        if self._live and (dead := dead_of(log)) is not self._gather.dead:
            # The master has become a mirror or the other way round: the same records, another set.
            self._gather.dead = dead
