"""The log of a mirrored queue as its queue sees it: the same interface as any other log.

Guarantees (F10, F12)
- `durable` is flushed by every in-sync member, and stands still while there are fewer than `ha-min-in-sync`.
- Nothing is delivered that a member has not received, nor above a horizon that all of them have flushed, nor
  without this node's lease: what another node may hand out later was never handed out as new before.
- `received` confirms what is not persistent, and needs the lease, too: a member that restarts forgets it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from mirrormq.base.types import Now, Seq
from mirrormq.kernel.cores import QueueCore
from mirrormq.log.queuelog import QueueLog
from mirrormq.mirror.copy import Copy


class Watcher(Protocol):
    """Who wants to know when the marks of a queue move."""

    def marks_moved(self) -> None:
        """They have, or this node is no master any more."""
        ...


class OwnLog(QueueLog, Protocol):
    """The log of this node below a mirrored one."""

    horizon: int
    """The highest horizon that was written."""


class MirroredLog:
    """A queue's log on its master."""

    def __init__(self, copy: Copy, own: OwnLog, has_lease: Callable[[], bool]) -> None:
        """`has_lease`: whether this node may act for the outside right now."""
        self.copy = copy
        self.own = own
        self._has_lease = has_lease
        self.on_progress: Callable[[], None] = _nothing
        self._horizon = own.horizon
        """Flushed by all members."""
        self._horizons: deque[tuple[int, int]] = deque()
        """(seq of its record, horizon) of those that are not."""
        # An inherited horizon says what may have been delivered before, not what may be delivered now: that
        # needs a record of this epoch behind it.
        if own.horizon:
            self._horizons.append((own.end + 1, own.horizon))
            self._horizon = 0
        copy.watcher = self

    @property
    def end(self) -> Seq:
        """Seq of the last entry."""
        return self.own.end

    @property
    def last_wall(self) -> int:
        """The queue's time at its last entry."""
        return self.own.last_wall

    @property
    def is_master(self) -> bool:
        """Whether anything may be appended."""
        return self.copy.master is not None and not self.copy.master.is_frozen

    @property
    def may_publish(self) -> bool:
        """Whether publishes are taken now; otherwise they wait."""
        master = self.copy.master
        return master is not None and not master.is_frozen and not master.is_held

    @property
    def durable(self) -> Seq:
        """Flushed by every in-sync member."""
        master = self.copy.master
        return Seq(master.confirmed if master is not None else 0)

    @property
    def received(self) -> Seq:
        """Received by every in-sync member; what is not persistent may be confirmed up to here."""
        master = self.copy.master
        if master is None or master.is_held or not self._has_lease():
            return self.durable
        return Seq(max(master.received, master.confirmed))

    @property
    def deliverable(self) -> int:
        """Received by every in-sync member, and below a horizon that all of them have flushed."""
        master = self.copy.master
        if master is None or master.is_frozen or not self._has_lease():
            return 0
        if not master.may_commit(master.received):
            # Nothing of this epoch is everywhere yet: the records below may still be replaced.
            return 0
        return min(master.received, self._horizon)

    def append(self, core: QueueCore, count: int, now: Now) -> Seq:
        """Write the first `count` waiting entries; return the seq of the first."""
        self.touch(now)
        return self.own.append(core, count, now)

    def settle(self, core: QueueCore, now: Now) -> None:
        """Write what left the queue since the last call."""
        self.touch(now)
        self.own.settle(core, now)

    def purge(self, held: Sequence[int], now: Now) -> None:
        """Write that everything so far left the queue, except the entries consumers hold."""
        self.touch(now)
        self.own.purge(held, now)

    def requeue(self, counts: Sequence[tuple[int, int]], now: Now) -> None:
        """Write how often these messages have come back so far."""
        self.touch(now)
        self.own.requeue(counts, now)

    def reach(self, seq: int, ahead: int, now: Now) -> None:
        """Entries from `seq` on are about to be delivered: keep the horizon ahead of them."""
        self.touch(now)
        before = self.own.horizon
        self.own.reach(seq, ahead, now)
        if self.own.horizon != before:
            self._horizons.append((self.own.end, self.own.horizon))

    def marks_moved(self) -> None:
        """More is everywhere."""
        master = self.copy.master
        durable = master.durable if master is not None else 0
        while self._horizons and self._horizons[0][0] <= durable:
            self._horizon = max(self._horizon, self._horizons.popleft()[1])
        self.on_progress()

    def touch(self, now: Now) -> None:
        """Something is about to be written or delivered in this epoch."""
        master = self.copy.master
        assert master is not None, "only a master appends"
        assert not master.is_frozen, "another node is about to become the master"
        master.touch(now)


def _nothing() -> None:
    """Nobody listens yet."""
