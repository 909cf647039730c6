"""What clients hold of a queue whose master this node has just become.

Guarantees
- Nothing that the queue inherits is delivered, expires or is dropped before every home node has said what its
  clients hold, or is known to be dead (`release`). New messages are taken meanwhile.
- What a client says it holds stays unacked if it is live in the log and its record has the epoch the client
  knows; all else is ignored and counted. No message is ready and held at once.
- A message that is given back stands again at its own place, marked as redelivered: nothing behind it is
  delivered before it has been read. What is rejected is read before it goes to the dead-letter exchange.

Messages lie in the log, so what is held has no message here (`kernel/forward.pyx`: inherit, move_in). An ack
needs none. `DurableLog.withheld` keeps what is held, or is being read, out of what is read back as ready.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError, not_found
from mirrormq.broker.queueport import Later
from mirrormq.kernel import forward, records
from mirrormq.kernel.cores import REASON_REJECTED
from mirrormq.kernel.message import Message
from mirrormq.log.copyread import Scan
from mirrormq.log.durable import DurableLog
from mirrormq.log.queuelog import EVERYTHING
from mirrormq.log.scan import Head

if TYPE_CHECKING:
    from mirrormq.broker.queue import Queue

REQUEUE, REJECT, UNSEEN = 1, 2, 3


_ORDER_BITS = 32
"""Consumers registered under one master stand before those that come under the next one."""

T = TypeVar("T")


def since_of(queue: "Queue") -> int:
    """The epoch in which the mastership of a queue began, 0 if it is not mirrored."""
    view = queue.host.state.views.get(queue.record.identity)
    return 0 if view is None else view.since


def epochs_of(queue: "Queue") -> list[tuple[int, int]] | None:
    """(epoch, seq of its first record) of the log of a mirrored queue."""
    log = queue.log.kept
    return log.index.epochs if log is not None and since_of(queue) else None


def inherit(queue: "Queue") -> "Inherited | None":
    """This node has just become the master: nothing is delivered before all have said what they hold."""
    log = queue.log.kept
    if log is not None:
        queue.inherited = Inherited(queue, log)
        queue.consumers.last_order = since_of(queue) << _ORDER_BITS
    return queue.inherited


def later(queue: "Queue", work: Callable[[], T]) -> Later[T]:
    """What `work` gives, or how it fails, when the home nodes have spoken."""
    answer: Later[T] = Later()

    def do() -> None:
        if queue.core.gone:
            answer.answer(not_found(f"{queue.text} is gone, or has another master now"))
            return
        try:
            answer.answer(work())
        except AmqpError as error:
            answer.answer(error)

    assert queue.inherited is not None
    queue.inherited.then(do)
    return answer


class Inherited:
    """One promotion of one queue."""

    def __init__(self, queue: "Queue", log: DurableLog) -> None:
        self._queue = queue
        self._log = log
        log.withheld.clear()
        self._end = log.end
        self.is_waiting = True
        """Has some home node not said what its clients hold?"""
        self.unknown = 0
        """Deliveries that clients hold and this log does not have, or not any more."""
        self._is_filled = False
        self._when_released: list[Callable[[], None]] = []
        self._strays: dict[int, int] = {}
        """How withheld messages came back that are still to be read, by seq."""
        self._parting: set[int] = set()
        """Given to the queue to be counted or thrown away: withheld until the log says so itself, or a read
        that ends in the same pass would make them ready beside that.
        """
        self._is_reading = False
        self._look_at = 0

    # --- the promotion --------------------------------------------------------------------------

    def fill(self, start: Callable[[], None], *, is_plain: bool) -> None:
        """Fill the queue by `start`: at once if all it inherits lies in one run of the log (`is_plain`).

        A queue with priorities or counted messages is filled when it is known what is held: they have to be
        read, and each stands where its content says.
        """
        if is_plain or not self.is_waiting:
            self._is_filled = True
            start()
        else:
            self.then(lambda: None if self._queue.core.gone else start())

    def then(self, done: Callable[[], None]) -> None:
        """Call `done` when the home nodes have spoken."""
        if self.is_waiting:
            self._when_released.append(done)
        else:
            done()

    def claim(self, first: int, last: int, epoch: int) -> list[int]:
        """A client holds these seqs of that epoch: each one that stays with it, 0 for each that does not."""
        log = self._log
        rows = [seq if self._is_held(seq, epoch) else 0 for seq in range(first, last + 1)]
        kept = [seq for seq in rows if seq]
        log.withheld.update(kept)
        self.unknown += len(rows) - len(kept)
        if self._is_filled and kept:
            forward.withhold(self._queue.core, len(kept))
        return rows

    def _is_held(self, seq: int, epoch: int) -> bool:
        log = self._log
        return (
            self.is_waiting
            and 0 < seq <= self._end
            and log.index.epoch_of(seq) == epoch
            and seq not in log.dead
            and seq not in log.dying
            and seq not in log.withheld
        )

    def settle(self, seq: int, how: int, reason: int) -> None:
        """How a claimed delivery of a client of this node ended before this node was the master."""
        if how == REJECT:
            self._strays[seq] = how
        else:
            self._queue.core.leave(seq, reason)
        self._queue.core.touch()

    def release(self) -> None:
        """Every home node has spoken, or need not be waited for."""
        if self.is_waiting:
            self.is_waiting = False
            if self.unknown:
                text = f"clients hold messages of {self._queue.text} that its new master does not know"
                self._queue.host.note(
                    "warning", text, messages=self.unknown, event="queue.held_messages_unknown"
                )
            waiting, self._when_released = self._when_released, []
            for done in waiting:
                done()
            self._queue.core.touch()
            self._queue.delete_if_left()

    def stop(self) -> None:
        """The queue is gone, or has another master: whoever waits is told so."""
        self.is_waiting = False
        waiting, self._when_released = self._when_released, []
        for done in waiting:
            done()

    # --- what comes back ------------------------------------------------------------------------

    @property
    def upto(self) -> int:
        """What stands behind this seq is not to be delivered yet."""
        if self.is_waiting:
            return 0
        return min(self._strays, default=EVERYTHING) - 1 if self._strays else EVERYTHING

    @property
    def is_losing(self) -> bool:
        """Is something rejected that has to be read before it leaves the queue?"""
        return REJECT in self._strays.values() or self._queue.core.has_strays

    @property
    def coming(self) -> int:
        """Messages that are ready again, but for being read."""
        return sum(how != REJECT for how in self._strays.values())

    @property
    def is_over(self) -> bool:
        """Is nothing left to be remembered?"""
        if self.is_waiting or self._strays:
            return False
        log = self._log
        told = {seq for seq in self._parting if seq in log.dead or seq in log.dying or seq in log.counts}
        self._parting -= told
        log.withheld -= told
        now = self._queue.host.now.mono
        if log.withheld and now >= self._look_at:
            # Now and then: what was acknowledged is dead.
            self._look_at = now + limits.failover_wait_us
            log.withheld -= {seq for seq in log.withheld if seq in log.dead}
        return not log.withheld

    def purge(self) -> int:
        """Everything ready leaves the queue: what was to be read, too. Returns how many that were."""
        coming = [seq for seq, how in self._strays.items() if how != REJECT]
        for seq in coming:
            self._forget(seq)
        return len(coming)

    def turn(self) -> None:
        """Take what came back in this pass."""
        core = self._queue.core
        for seq, how in core.take_strays():
            is_counted = core.counted and how == REQUEUE
            is_simple = how != REJECT and not is_counted and seq not in self._log.counts
            if is_simple and self._is_ready_in_run(seq):
                self._log.withheld.discard(seq)
            else:
                self._strays[seq] = how
        if self._strays and not self._is_reading:
            self._read()

    def _is_ready_in_run(self, seq: int, message: Message | None = None) -> bool:
        return seq not in self._log.dead and forward.give_to_run(self._queue.core, seq, message)

    def _read(self) -> None:
        """Read those that lie close to the first."""
        wanted = sorted(self._strays)
        upto = wanted[0]
        for seq in wanted:
            if seq - upto > limits.window_entries:
                break
            upto = seq
        span = (wanted[0], upto)
        near = {seq for seq in wanted if seq <= upto}
        self._is_reading = True

        def visit(data: bytes, at: int, head: Head) -> bool:
            if head[5]:
                for message, seq, expiry in records.messages(data, at, near):
                    near.discard(seq)
                    self._return(message, seq, expiry)
            return bool(near)

        Scan(self._log, self._queue.host.read, span, visit).start(lambda error: self._on_read(near, error))

    def _on_read(self, missing: set[int], error: str | None) -> None:
        self._is_reading = False
        if self._queue.core.gone:
            return
        missing = {seq for seq in missing if seq in self._strays}  # else it was purged meanwhile
        for seq in [seq for seq in missing if seq in self._log.dead]:
            self._forget(seq)
            missing.discard(seq)
        if error is not None or missing:
            self._queue.fail(error or f"record {min(missing)} is missing")
            return
        self._queue.core.touch()
        if self._strays:
            self._read()

    def _return(self, message: Message, seq: int, expiry: int) -> None:
        how = self._strays.get(seq)
        core = self._queue.core
        if how is None or core.gone:
            return
        count = self._log.counts.get(seq, 0)
        if seq in self._log.dead:
            pass
        elif how == REJECT:
            core.throw_away(message, seq, REASON_REJECTED)
            self._part(seq)
            return
        elif core.counted and (how == REQUEUE or count):
            # Who counts it adds one: to those who did not see it nothing is added.
            forward.come_back(core, message, seq, expiry, count if how == REQUEUE else count - 1)
            self._part(seq)
            return
        elif not self._is_ready_in_run(seq, message):  # a run that was spilled meanwhile may reach to it
            core.put_back(message, seq, expiry, 0)
        self._forget(seq)

    def _part(self, seq: int) -> None:
        del self._strays[seq]
        self._parting.add(seq)

    def _forget(self, seq: int) -> None:
        del self._strays[seq]
        self._log.withheld.discard(seq)
