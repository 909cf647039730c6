"""The log of a copy on disk, as the replication protocol sees it.

Guarantees
- What `ports.CopyLog` asks for, kept by `log.copylog` and, for full copies, `log.copybase`.
- While a full copy is under way `end` is its K0 and nothing is durable. It is complete when a checkpoint says
  so, whether its old records came or are not needed any more.
- A batch that follows the base of a copy whose records have not come makes the copy hollow: it goes on behind
  K0, and what it lacks has to leave the queue.
- EPOCH is the first record of a mastership. It waits until the queue is filled, since it names what a
  restarted master has lost.
"""

import struct
from collections.abc import Callable, Sequence

from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.kernel import records
from mirrormq.kernel.cores import QueueCore
from mirrormq.log import copybase
from mirrormq.log.copybase import Checkpoints, Copying, Piece
from mirrormq.log.copylog import CopyLog, NotFollowing
from mirrormq.log.disk import Reader
from mirrormq.mirror.ports import Data, EpochStart

_BEFORE = struct.Struct("<QQ")
"""Before each batch of a full copy: publishes and bytes that were written before it."""


class DiskSnapshot:
    """The committed state of a log, and its records until it is closed or has held too much (F14)."""

    def __init__(self, copy: CopyLog, read: Reader) -> None:
        self._source = copybase.Source(copy)
        self._read = read
        self._is_unreadable = False

    @property
    def position(self) -> int:
        """K0."""
        return self._source.k0

    @property
    def base(self) -> bytes:
        """Everything of the state but the records."""
        return self._source.base

    @property
    def is_lost(self) -> bool:
        """It held back too much, or its records cannot be read."""
        return self._is_unreadable or self._source.pin.is_lost

    @property
    def is_aged(self) -> bool:
        """It holds half of what it may."""
        return 2 * self._source.pin.held_bytes > limits.copy_hold_bytes_max

    def read(self, after: int, most: tuple[int, int], done: Callable[[list[bytes], int], None]) -> None:
        """Call `done` with what the copy holds behind `after`, and how far that reaches."""

        def taken(pieces: list[Piece] | None, reach: int, error: str | None) -> None:
            if pieces is None:
                self._is_unreadable = error is not None
                done([], after)
            else:
                done([_BEFORE.pack(piece.publishes, piece.written) + piece.batch for piece in pieces], reach)

        self._source.read(after, most, taken, read=self._read)

    def close(self) -> None:
        """Hold nothing any more."""
        self._source.release()


class DiskCopy:
    """The copy of one queue's record stream on this node."""

    def __init__(self, copy: CopyLog, read: Reader, checkpoints: Checkpoints, now: Callable[[], Now]) -> None:
        self.copy = copy
        self.on_batch: Callable[[Data, int, int], None] = _nobody
        self.on_flushed: Callable[[], None] = _nothing
        self._read = read
        self._checkpoints = checkpoints
        self._now = now
        self._is_settling = False
        """Nothing that a hollow copy lacks is live; that waits for a checkpoint."""
        self._is_filling = False
        self._epoch: tuple[int, str] | None = None
        """An epoch to be begun when the queue is filled."""
        copy.log.on_flushed = self._flushed
        copy.on_batch = self._appended

    @property
    def stream_id(self) -> int:
        """What the heads of its batches say."""
        return self.copy.log.queue_id

    @property
    def held_from(self) -> Callable[[], int]:
        """From where on others need this log."""
        return self.copy.held_from

    @held_from.setter
    def held_from(self, told: Callable[[], int]) -> None:
        self.copy.held_from = told

    # --- where it stands ---

    @property
    def end(self) -> int:
        """The last record; K0 while a full copy is under way."""
        return self.copy.end if self.copy.copying is None else self.copy.copying.k0

    @property
    def durable(self) -> int:
        """Flushed here, and part of a log that a restart finds."""
        return self.copy.durable if self.copy.copying is None and self.copy.is_saved else 0

    @property
    def low(self) -> int:
        """Every record from here on can be read."""
        return self.copy.low

    @property
    def folded(self) -> int:
        """The last record that is known to be committed."""
        return self.copy.folded

    @property
    def copied(self) -> int:
        """Of an unfinished full copy: how far it has come."""
        return self.copy.copying.position if self.copy.copying is not None else 0

    @property
    def base(self) -> int:
        """K0 of a copy that is not complete; 0 if it is."""
        return self.copy.copying.k0 if self.copy.copying is not None else self.copy.hollow

    @property
    def is_complete(self) -> bool:
        """Every live record is here, as a restart would find it."""
        return self.copy.is_complete and not self._is_settling

    @property
    def damage(self) -> str | None:
        """Why this copy cannot be used."""
        return self.copy.damage

    @property
    def backlog(self) -> tuple[int, int, int]:
        """What is not known to be everywhere: records, bytes, and the time of the oldest."""
        log, committed, tail = self.copy.log, self.copy.committed, self.copy.tail
        return log.end - committed.end, log.written - committed.written, tail[0].time if tail else 0

    def hurt(self, reason: str) -> None:
        """Records of it cannot be read."""
        self.copy.log.damage = self.copy.log.damage or reason

    def epoch_at(self, seq: int) -> int:
        """The epoch of a record."""
        return self.copy.epoch_at(seq)

    def epochs(self) -> Sequence[EpochStart]:
        """The epochs of the stream, in order."""
        return self.copy.epochs

    def has_live_upto(self, seq: int) -> bool:
        """Whether anything up to here is live in what is committed, or held by a cursor."""
        state = self.copy.committed
        return state.dead.first_missing(1) <= min(seq, state.end) or state.cursors.low <= seq

    # --- records ---

    def adopt(self, batch: Data, now: Now) -> None:
        """Append a batch of the master's."""
        copying = self.copy.copying
        if copying is not None and copying.is_finishing:
            copying.salvage(now)  # nothing is missing, and no checkpoint has said so yet
        elif copying is not None:
            copying.follow(now)
        self.copy.adopt(bytes(batch), now)

    def truncate(self, seq: int, now: Now) -> None:
        """Give up every batch that ends above `seq`."""
        if self.copy.copying is None:
            self.copy.truncate(seq, now)
        elif seq < self.end:
            raise NotFollowing("a full copy is under way")

    def fold(self, seq: int) -> None:
        """Everything up to here is committed."""
        copy = self.copy
        if copy.copying is not None:
            return
        copy.fold(seq, self._now())
        if copy.hollow and copybase.is_settled(copy):
            self._is_settling = True
            copybase.settle(copy, self._checkpoints, self._settled)

    def _settled(self) -> None:
        self._is_settling = False
        self.on_flushed()

    def read(self, start: int, max_bytes: int, done: Callable[[list[Data]], None]) -> None:
        """Call `done` with batches from `start` on; with none if they cannot be read, or not any more."""

        def found(batches: list[bytes] | None, error: str | None) -> None:  # noqa: ARG001
            done([*batches] if batches is not None else [])

        self.copy.read(start, max_bytes, found, read=self._read)

    def _appended(self, batch: bytes, first: int, count: int) -> None:
        self.on_batch(batch, first, count)

    def _flushed(self) -> None:
        self.on_flushed()

    # --- masterships ---

    def begin_epoch(self, epoch: int, node: str, now: Now, *, drops_transient: bool) -> None:  # noqa: ARG002
        """Append EPOCH, at once or with the last message that is filled in. What it drops is what `fill`
        has found to be lost.
        """
        if not self.copy.is_master or self._is_filling:
            self._epoch = (epoch, node)
        else:
            self.copy.begin_epoch(epoch, node, now)

    def fill(self, core: QueueCore, done: Callable[[str | None], None], *, is_restarted: bool) -> None:
        """This node is the master now: fill the queue's core, which is empty; `done` gets an error or None.
        Nothing may be appended before, and nothing is called if the mastership ends meanwhile.

        `is_restarted`: the view says that what was only received is lost. What an unfinished full copy lacks
        is lost, too.
        """
        if self.copy.damage is not None:
            done(self.copy.damage)
            return
        self._is_filling = True

        def filled(error: str | None) -> None:
            self._is_filling = False
            if error is None and self._epoch is not None:
                self.copy.begin_epoch(*self._epoch, self._now())
                self._epoch = None
            done(error)

        if not self.copy.is_master:
            self.take_over()
        self.copy.fill_queue(core, self._read, filled, is_restarted=is_restarted)

    def take_over(self) -> None:
        """This node is the master now: the log is the queue's. What an unfinished full copy lacks is lost."""
        if self.copy.copying is not None:
            self.copy.copying.salvage(self._now())
        # From here on: the queue may be filled much later, and only then it is known what EPOCH drops.
        self._is_filling = True
        self.copy.become_master()

    def resign(self) -> None:
        """Another node is the master now, or none."""
        self._epoch = None
        self._is_filling = False
        if self.copy.is_master:
            self.copy.from_queue()

    def detach(self) -> None:
        """The queue has no mirrors any more, and this node serves it on."""
        self.copy.detach()

    # --- full copies ---

    def snapshot(self) -> DiskSnapshot:
        """Pin what is committed."""
        return DiskSnapshot(self.copy, self._read)

    def load_base(self, base: Data, position: int, now: Now) -> None:
        """Begin a full copy, or go on with one at its position with a newer state."""
        copying = self.copy.copying
        if position and (copying is None or copying.position != position):
            raise NotFollowing(f"no copy here stands at {position}")
        if copying is not None and position and copying.is_finishing:
            return  # what is still missing comes behind it
        if copying is None or not position:
            self._is_settling = False
            copying = Copying(self.copy, self._checkpoints, now)
        copying.load_base(bytes(base))
        if copying.position == copying.k0:
            self._finish(copying)

    def adopt_live(self, batches: Data, position: int, now: Now) -> None:  # noqa: ARG002
        """Take records of the copy that reach to this position."""
        copying = self.copy.copying
        if copying is None or copying.is_finishing:
            return  # hollow: what is missing has left the queue, as its own records will say
        copying.take(_pieces(memoryview(batches)), position)
        if position == copying.k0:
            self._finish(copying)

    def _finish(self, copying: Copying) -> None:
        def finished(error: str | None) -> None:
            if error is not None:
                self.reset(self._now())
            self.on_flushed()

        copying.finish(finished)

    def reset(self, now: Now) -> None:
        """Give up everything: an empty log that is not damaged."""
        self._is_settling = False
        Copying(self.copy, self._checkpoints, now)
        self.copy.copying = None


def _pieces(data: memoryview) -> list[Piece]:
    """What `DiskSnapshot.read` gave, checked."""
    pieces: list[Piece] = []
    at = 0
    while at < len(data):
        start = at + _BEFORE.size
        head = records.read_head(data, start) if start < len(data) else None
        if head is None or not records.is_whole(data, start):
            raise NotFollowing("a damaged record of a full copy")
        publishes, written = _BEFORE.unpack_from(data, at)
        at = start + head[0]
        pieces.append(Piece(bytes(data[start:at]), publishes, written))
    return pieces


def _nothing() -> None:
    """Nobody listens yet."""


def _nobody(batch: Data, first: int, count: int) -> None:
    """Nobody is told of appended batches yet."""
