"""The log of a mirrored queue as its queue sees it: the same interface as any other log.

Guarantees (F10, F12)
- `durable` is flushed by every in-sync member, and stands still while there are fewer than `ha-min-in-sync`.
- Nothing is delivered that a member has not received, nor above a horizon that all of them have flushed, nor
  without this node's lease: what another node may hand out later was never handed out as new before.
- `received` confirms what is not persistent, and needs the lease, too: a member that restarts forgets it.
- One of these belongs to one mastership. When that is over it writes nothing and its marks stand still, for
  whatever the log says later is the word of another master: what was not confirmed by then never is.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from mirrormq.base import limits
from mirrormq.base.types import Now, Seq
from mirrormq.kernel.cores import QueueCore
from mirrormq.log.durable import DurableLog
from mirrormq.mirror.copy import Copy


class Watcher(Protocol):
    """Who wants to know when the marks of a queue move."""

    def marks_moved(self) -> None:
        """They have, or this node is no master any more."""
        ...


class OwnLog(Protocol):
    """The log of this node below a mirrored one."""

    horizon: int
    """The highest horizon that was written."""

    @property
    def end(self) -> Seq:
        """Seq of the last entry."""
        ...

    @property
    def last_wall(self) -> int:
        """The queue's time at its last entry."""
        ...

    def append(self, core: QueueCore, count: int, now: Now) -> Seq:
        """Write publishes."""
        ...

    def settle(self, core: QueueCore, now: Now) -> None:
        """Write what left the queue."""
        ...

    def purge(self, held: Sequence[int], now: Now) -> None:
        """Write a purge."""
        ...

    def requeue(self, counts: Sequence[tuple[int, int]], now: Now) -> None:
        """Write how often messages came back."""
        ...

    def reach(self, seq: int, ahead: int, now: Now) -> None:
        """Keep the horizon ahead."""
        ...


class MirroredLog:
    """A queue's log on its master."""

    is_mirrored = True

    def __init__(
        self, copy: Copy, own: OwnLog, has_lease: Callable[[], bool], kept: DurableLog | None = None
    ) -> None:
        """`has_lease`: whether this node may act for the outside right now. `kept` is `own`, where the queue
        needs to know more of it.
        """
        self.copy = copy
        self.own = own
        self.kept = kept
        self._has_lease = has_lease
        self.on_progress: Callable[[], None] = _nothing
        self._waiting: dict[Callable[[], None], None] = {}
        """Who looks again when marks have moved."""
        self._final: int | None = None
        """Where `durable` stood when this mastership ended."""
        self._received = 0
        """The received mark as it was last seen under the lease."""
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
        if kept is not None:
            kept.opening = self.touch

    @property
    def end(self) -> Seq:
        """Seq of the last entry."""
        return self.own.end

    @property
    def last_wall(self) -> int:
        """The queue's time at its last entry."""
        return self.own.last_wall

    @property
    def is_over(self) -> bool:
        """Whether this mastership has ended."""
        return self._final is not None

    @property
    def is_open(self) -> bool:
        """Whether anything may be written."""
        if self._final is not None:
            return False
        return self.copy.master is not None and not self.copy.master.is_frozen

    @property
    def takes_publishes(self) -> bool:
        """Whether publishes are taken now; otherwise they wait."""
        master = self.copy.master
        if not self.is_open or master is None or master.is_held:
            return False
        return not self.copy.mirrors.is_aside(self.copy)

    @property
    def is_behind(self) -> bool:
        """Whether so much is not durable everywhere that publishers should wait."""
        if self.kept is None or self.kept.copy is None:
            return False
        return self.kept.written - self.kept.copy.committed.written > limits.mirror_backlog_bytes

    @property
    def durable(self) -> Seq:
        """Flushed by every in-sync member."""
        if self._final is not None:
            return Seq(self._final)
        master = self.copy.master
        return Seq(master.confirmed if master is not None else 0)

    @property
    def received(self) -> Seq:
        """Received by every in-sync member; what is not persistent may be confirmed up to here, and not by
        the durable mark: a restarted member that becomes the master drops it although it is flushed, and so
        it may have while this node had no lease.
        """
        master = self.copy.master
        if self._final is None and master is not None and self._has_lease():
            seen = master.confirmed if master.is_held else max(master.received, master.confirmed)
            self._received = max(self._received, seen)
        return Seq(self._received)

    @property
    def confirmable(self) -> int:
        """Publishes up to here may be confirmed: the persistent ones are durable, the others received."""
        if self._confirms_alone:
            return self._flushed_here
        durable, received = int(self.durable), int(self.received)
        if self.kept is None or self.kept.last_transient > received:
            durable = min(durable, received)
        if self.kept is not None and self.kept.last_persistent <= durable:
            return max(durable, received)
        return durable

    @property
    def removed(self) -> int:
        """Nothing comes back that left the queue up to here, as long as a publish would not be lost."""
        if self.kept is not None and self.kept.is_volatile:
            return int(self.received)
        if self._confirms_alone:
            assert self.kept is not None
            return max(int(self.kept.flushed), int(self.durable))
        return int(self.durable)

    @property
    def _confirms_alone(self) -> bool:
        """Is a publish safe enough when this node has it? Not without the lease: others may be the master by
        then, and what is lost with this node would be more than it tells.
        """
        master = self.copy.master
        if self._final is not None or master is None or self.kept is None or not master.copy.options.is_async:
            return False
        return bool(master.own_first) and not master.is_held and self._has_lease()

    @property
    def _flushed_here(self) -> int:
        """What this node has flushed; what nobody asked to flush needs nothing more."""
        assert self.kept is not None
        flushed = max(int(self.kept.flushed), int(self.durable))
        return int(self.kept.end) if self.kept.last_persistent <= flushed else flushed

    @property
    def deliverable(self) -> int:
        """Received by every in-sync member, and below a horizon that all of them have flushed."""
        master = self.copy.master
        if not self.is_open or master is None or not self._has_lease():
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
        if core.has_settled:
            self.touch(now)
            self.own.settle(core, now)

    def purge(self, held: Sequence[int], now: Now) -> None:
        """Write that everything so far left the queue, except the entries consumers hold."""
        self.touch(now)
        self.own.purge(held, now)

    def requeue(self, counts: Sequence[tuple[int, int]], now: Now) -> None:
        """Write how often these messages have come back so far."""
        if counts:
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
        """More is everywhere, or another node is the master now."""
        master = self.copy.master
        if master is None:
            self.close()
            return
        # A queue that does not outlive a restart loses its horizon with it, and its messages, too.
        is_volatile = self.kept is not None and self.kept.is_volatile
        everywhere = master.received if is_volatile else master.durable
        while self._horizons and self._horizons[0][0] <= everywhere:
            self._horizon = max(self._horizon, self._horizons.popleft()[1])
        if self.kept is not None:
            mono = self.copy.mirrors.mono
            self.kept.latencies.mirrored(master.received, mono)
            self.kept.latencies.confirmed(self.confirmable, mono)
            self.kept.raise_durable(self.durable)
        self._tell_moved()

    def when_moved(self, again: Callable[[], None]) -> bool:
        """Call `again` once, when marks have moved, the lease is back or this mastership is over."""
        if self._final is None:
            self._waiting[again] = None
        return True

    def _tell_moved(self) -> None:
        self.on_progress()
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for again in waiting:
                again()

    def close(self) -> None:
        """This node is the master no longer."""
        if self._final is None:
            # The master is gone already: what it had raised is in the log below.
            self._final = self.kept.durable if self.kept is not None else 0
            if self.kept is not None:
                # Confirms of what came before the first mirror wait for the log itself, which another master
                # may cut back, and fill with something else.
                self.kept.is_over = True
                self.kept.opening = None
                self.kept.latencies.forget()
            if self.copy.watcher is self:
                self.copy.watcher = None
            self._tell_moved()

    def mends(self, reason: str) -> bool:
        """Something of the log cannot be read: is another member about to take over, who can?"""
        master = self.copy.master
        return self._final is None and master is not None and master.mend(reason, self.copy.mirrors.now)

    def touch(self, now: Now) -> None:
        """Something is about to be written or delivered in this epoch."""
        master = self.copy.master
        assert self._final is None, "this mastership is over"
        assert master is not None, "only a master appends"
        assert not master.is_frozen, "another node is about to become the master"
        master.touch(now)


def _nothing() -> None:
    """Nobody listens yet."""
