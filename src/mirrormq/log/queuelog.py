"""The seam between a queue and its durability: every change is appended here before it is applied.

Guarantee of the interface: seqs are dense and only grow; a position that was reported durable stays so. The
queue does not know what kind of log it has. A publish may be confirmed when `durable` has reached its
position, an entry may be delivered when `deliverable` has reached its seq; for `MemoryLog` both are at
once.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from mirrormq.base.types import Now, Seq
from mirrormq.kernel.cores import QueueCore

if TYPE_CHECKING:
    from mirrormq.log.durable import DurableLog

EVERYTHING = (1 << 64) - 1


class QueueLog(Protocol):
    """What a queue needs of its log."""

    on_progress: Callable[[], None]
    """Called when more may be delivered, confirmed or written."""

    @property
    def is_mirrored(self) -> bool:
        """Do other nodes have to have it, too?"""
        ...

    @property
    def is_over(self) -> bool:
        """Is what it has not confirmed never going to be?"""
        ...

    @property
    def is_behind(self) -> bool:
        """Should publishers wait until more of it is safe?"""
        ...

    @property
    def kept(self) -> "DurableLog | None":
        """The log with the records of this queue; None if they are in memory only."""
        ...

    @property
    def is_open(self) -> bool:
        """May anything be written now? Otherwise it will be, or the queue is about to have another log."""
        ...

    @property
    def takes_publishes(self) -> bool:
        """May publishes be written now? Otherwise they wait."""
        ...

    @property
    def end(self) -> Seq:
        """Seq of the last entry; 0 when there is none."""
        ...

    @property
    def last_wall(self) -> int:
        """The queue's time at its last entry; it never goes back, whatever the machine's clock does."""
        ...

    @property
    def durable(self) -> Seq:
        """Every entry up to here survives what this log promises to survive."""
        ...

    @property
    def confirmable(self) -> int:
        """Publishes up to here may be confirmed: at least `durable`; more if nobody asked for a flush."""
        ...

    @property
    def deliverable(self) -> int:
        """Entries up to this seq may be delivered."""
        ...

    def when_moved(self, again: Callable[[], None]) -> bool:
        """Call `again` once, when more may be confirmable; False if nobody would: look from time to time."""
        ...

    def mends(self, reason: str) -> bool:
        """Something of it cannot be read: is another node about to serve the queue, that can?"""
        ...

    def append(self, core: QueueCore, count: int, now: Now) -> Seq:
        """Write the first `count` waiting entries; return the seq of the first."""
        ...

    def settle(self, core: QueueCore, now: Now) -> None:
        """Write what left the queue since the last call."""
        ...

    def purge(self, held: Sequence[int], now: Now) -> None:
        """Write that everything so far left the queue, except the entries consumers hold."""
        ...

    def requeue(self, counts: Sequence[tuple[int, int]], now: Now) -> None:
        """Write how often these messages have come back so far: (seq, times)."""
        ...

    def reach(self, seq: int, ahead: int, now: Now) -> None:
        """Entries from `seq` on are about to be delivered: run `ahead` of them."""
        ...


class MemoryLog:
    """A log that promises nothing beyond the life of the process: it only counts."""

    deliverable = EVERYTHING
    kept = None
    is_open = True
    takes_publishes = True
    is_mirrored = False
    is_over = False
    is_behind = False

    def __init__(self) -> None:
        self.end = Seq(0)
        self.last_wall = 0
        self.on_progress: Callable[[], None] = _nothing

    @property
    def durable(self) -> Seq:
        """What was appended is as durable as it will ever be."""
        return self.end

    @property
    def confirmable(self) -> int:
        """The same."""
        return self.end

    def when_moved(self, again: Callable[[], None]) -> bool:  # noqa: ARG002
        """Nothing is ever waited for."""
        return False

    def mends(self, reason: str) -> bool:  # noqa: ARG002
        """Nobody else has it."""
        return False

    def append(self, core: QueueCore, count: int, now: Now) -> Seq:  # noqa: ARG002
        """Number `count` publishes."""
        first = Seq(self.end + 1)
        self.end = Seq(self.end + count)
        self.last_wall = max(self.last_wall, now.wall)
        return first

    def settle(self, core: QueueCore, now: Now) -> None:  # noqa: ARG002
        """Forget what left the queue."""
        core.forget_settled()

    def purge(self, held: Sequence[int], now: Now) -> None:
        """Nothing is kept that would have to be told."""

    def requeue(self, counts: Sequence[tuple[int, int]], now: Now) -> None:
        """Who knows the counts is gone with the process, and so are the messages."""

    def reach(self, seq: int, ahead: int, now: Now) -> None:
        """Nothing survives the process, so nothing has to be known about deliveries after it."""


def _nothing() -> None:
    """Nobody listens yet."""
