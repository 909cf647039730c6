"""Serving a right neighbour or a learner from this node's log.

Guarantee: a stream begins at the last record both logs have in common and goes on without a gap or a change
of a byte; it never holds anything that is not matched here (F5). What it has not sent yet is held in the log
(F14). A full copy is a sparse catch-up in seq order: the state as of K0, the live records up to K0, then the
log behind K0.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from mirrormq.base import limits
from mirrormq.mirror.frames import Again, Base, Hello, Part, Push
from mirrormq.mirror.links import Link, Pending
from mirrormq.mirror.ports import CopyLog, Data, EpochStart, Event, Snapshot

if TYPE_CHECKING:
    from mirrormq.mirror.copy import Copy

ASKED, LIVE, READING, COPYING, COPIED = range(5)


def match_point(log: CopyLog, limit: int, hello: Hello) -> int | None:
    """The last seq up to `limit` at which both logs have a record of the same epoch; before it they are the
    same, since an epoch has one master and every log is a part of its stream. 0 if there is none, and None
    if that cannot be told from the epochs in the hello.
    """
    common = last_common(log.epochs(), limit, hello.epochs, hello.end)
    if common:
        return common
    return 0 if not hello.end or (hello.epochs and hello.epochs[0][1] <= 1) else None


def last_common(mine: Sequence[EpochStart], end: int, others: Sequence[EpochStart], others_end: int) -> int:
    """The last seq at which two logs have a record of the same epoch, as far as these epochs tell; else 0."""
    spans = dict(_spans(mine, end))
    for epoch, (first, last) in reversed(_spans(others, others_end)):
        found = spans.get(epoch)
        if found is not None:
            common = min(last, found[1])
            if common >= max(first, found[0]):
                return common
    return 0


def _spans(starts: Sequence[EpochStart], end: int) -> list[tuple[int, tuple[int, int]]]:
    spans = []
    for at, (epoch, first) in enumerate(starts):
        last = min(end, starts[at + 1][1] - 1 if at + 1 < len(starts) else end)
        if first <= last:
            spans.append((epoch, (first, last)))
    return spans


class Stream:
    """What one peer asked for about one queue, until its link, its epoch or its wish ends."""

    __slots__ = (
        "base",
        "begun",
        "connection",
        "copy",
        "hello",
        "is_ended",
        "is_queued",
        "is_start_due",
        "link",
        "not_before",
        "pending",
        "position",
        "sent",
        "snapshot",
        "state",
    )

    def __init__(self, copy: "Copy", link: Link, hello: Hello) -> None:
        self.copy = copy
        self.link = link
        self.connection = link.connection
        self.hello = hello
        self.state = ASKED
        self.position = 0
        """Everything up to here is sent, or in `pending`."""
        self.base = 0
        """Not 0: the peer lacks old records, as of this K0."""
        self.snapshot: Snapshot | None = None
        self.pending: Pending | None = None
        self.is_start_due = False
        self.is_queued = False
        self.is_ended = False
        self.not_before = 0
        self.begun = 0
        """Where it began to catch up."""
        self.sent = 0
        """Bytes of records that were handed to the link."""

    @property
    def phase(self) -> str:
        """What it does, in a word for operators."""
        if self.state is COPYING and self._is_stopped:
            return "stopped"
        if self.state in {COPYING, COPIED}:
            return "copying"
        if self.state is ASKED or self.base:
            return "waiting"
        return "catching-up" if self.state is READING else "complete"

    @property
    def _is_stopped(self) -> bool:
        """Has an operator stopped full copies?"""
        return self.copy.master is not None and self.copy.master.is_copying_stopped

    @property
    def percent(self) -> int:
        """How much of what it owed when it began has been sent, by positions."""
        if self.state is COPYING:
            return min(99, 100 * self.position // max(1, self.base))
        if self.state is ASKED or self.base:
            return 99 if self.state is COPIED else 0
        owed = self.copy.log.end - self.begun
        return 100 * (self.position - self.begun) // owed if owed > 0 else 100

    @property
    def held_from(self) -> int:
        """The log is needed from here on."""
        if self.state is ASKED:
            return self.copy.log.end + 1
        return (self.base if self.state in {COPYING, COPIED} else self.position) + 1

    @property
    def is_current(self) -> bool:
        """Whether the connection it was asked for on is still there."""
        return self.connection == self.link.connection and not self.is_ended

    def end(self) -> None:
        """Nobody wants it any more."""
        self.is_ended = True
        self._release()

    def answer(self) -> None:
        """Begin, if this node can say where."""
        if self.state is not ASKED or not self.is_current:
            return
        limit = self.limit()
        if limit is None:
            return
        log, hello = self.copy.log, self.hello
        if hello.base:
            if self.copy.master is not None:
                self._go_on_copying()
            return
        common = match_point(log, limit, hello)
        if common is None:
            # Not an answer of 0: the peer would give up what both have.
            self.link.agains[hello.queue] = Again(hello.queue, hello.epoch, hello.nonce)
            return
        if common == limit < hello.end and self.must_wait():
            return
        if common >= log.low - 1 and not self._is_new(common):
            self._begin(common)
        elif self.copy.master is not None and self.copy.master.may_copy_to(self.link.peer):
            self._copy_from(0)

    def _is_new(self, common: int) -> bool:
        """Whether a mirror that nobody asked to synchronise begins with nothing while there is something to
        be had: it follows what comes, and gets no old records.
        """
        copy = self.copy
        return (
            common == 0
            and copy.options.is_manual
            and copy.is_learner(self.link.peer)
            and copy.log.has_live_upto(copy.log.folded)
        )

    def limit(self) -> int | None:
        """What may be served: what is matched here in this epoch (F5)."""
        return self.copy.matched_end()

    def must_wait(self) -> bool:
        """The peer may be ahead of this source: an answer now would have it give up records that this source
        is about to get (F6).
        """
        return self.copy.master is None

    def offer(self, batch: Data, last: int) -> None:
        """A batch was just appended here."""
        if self.state is LIVE and self.is_current:
            if self.link.is_blocked:
                self._behind()
                return
            self.link.push(self, [batch], is_start=self._take_start())
            self.position = last
            self.sent += len(batch)

    def read(self) -> None:
        """It is this stream's turn to read what it owes."""
        self.is_queued = False
        if not self.is_current or self.state not in {READING, COPYING}:
            return
        if self.state is COPYING and self._is_stopped:
            return  # the state as of K0 is held, or made anew when it goes on
        mirrors = self.copy.mirrors
        if self.not_before > mirrors.mono:
            mirrors.throttled.append(self)
            return
        size = limits.mirror_read_bytes
        rate = self.copy.options.sync_bytes_per_second if self.copy.is_learner(self.link.peer) else 0
        if rate:
            size = max(min(size, rate // 10), 1)
        done = self.link.begin_read()
        if self.state is COPYING:
            assert self.snapshot is not None
            snapshot = self.snapshot

            def copied(batches: list[bytes], reach: int) -> None:
                done()
                if self.snapshot is snapshot and self.is_current:
                    self._copied(snapshot, batches, reach, rate)

            snapshot.read(self.position, (size, self.copy.options.sync_batch_size), copied)
        else:
            start = self.position + 1

            def read(batches: list[Data]) -> None:
                done()
                if self.is_current and self.state is READING and self.position + 1 == start:
                    self._read(batches, rate)

            self.copy.log.read(start, size, read)

    def give_back(self, pending: Pending) -> None:
        """The link did not take this flow; flows that follow are given back after it."""
        if self.pending is pending:
            self.pending = None
        if not self.is_current or self.state is ASKED:
            return
        flow = pending.flow
        if flow is None:
            if self.state in {LIVE, READING}:
                # Of several the first counts, with its start: those behind it would leave a gap.
                self.position = min(self.position, pending.after)
                self.is_start_due = self.is_start_due or pending.is_start
                self.state = READING
                self._behind()
        elif isinstance(flow, Part) and flow.position <= pending.after:
            self.base = flow.position
        else:
            # The peer has taken the copy as far as `after`; go on from there with a new K0.
            if not isinstance(flow, Push) and (isinstance(flow, Part) or flow.position):
                self.hello = msgspec.structs.replace(
                    self.hello, copied=pending.after, base=max(self.base, flow.position)
                )
            self._ask_again()

    def complete_by_itself(self) -> None:
        """Without a copy of old records the peer is complete when none of them is live any more."""
        if (
            self.base
            and self.state is LIVE
            and self.is_current
            and not self.copy.log.has_live_upto(self.base)
        ):
            hello = self.hello
            self.link.flow(self, Part(hello.queue, hello.epoch, hello.nonce, self.base, 0), [])
            self.base = 0

    def copy_now(self) -> None:
        """Send the old records although nobody does so by itself, or go on with it."""
        if self.base and self.state in {LIVE, READING} and self.is_current:
            self._copy_from(0)
        self.take_turn()

    # --- the log ---

    def _begin(self, after: int) -> None:
        self.position = self.begun = after
        self.is_start_due = True
        self.state = READING
        if after == self.copy.log.end:
            # Nothing to send: the peer still has to learn that it is matched.
            self.link.push(self, [], is_start=self._take_start())
            self.state = LIVE
        else:
            self._behind()

    def take_turn(self) -> None:
        """Have a stream that owes something read when its link has room."""
        if self.state in {READING, COPYING} and self.is_current:
            self._behind()

    def _behind(self) -> None:
        if self.state is LIVE:
            self.state = READING
        if not self.is_queued:
            self.is_queued = True
            self.link.readers.append(self)

    def _ask_again(self) -> None:
        self._release()
        self.state = ASKED
        self.copy.mirrors.asked.append(self)

    def _read(self, batches: list[Data], rate: int) -> None:
        if not batches and self.position + 1 >= self.copy.log.low:
            # The disk may come to its senses, or somebody repair it.
            self._wait_unread()
            self._behind()
            return
        if not batches:
            # The log was given up below this stream: see whether it can go on in another way.
            self.hello = msgspec.structs.replace(self.hello, end=self.position)
            self._ask_again()
            return
        self.link.push(self, batches, is_start=self._take_start())
        self.position = self.copy.last_seq(batches[-1])
        self._pay(sum(map(len, batches)), rate)
        if self.position >= self.copy.log.end:
            self.state = LIVE
            self.complete_by_itself()
        else:
            self._behind()

    def _wait_unread(self) -> None:
        """What was to be read could not be: not again at once."""
        mirrors = self.copy.mirrors
        mirrors.events.append(Event("unreadable", self.copy.id, mirrors.me))
        self.not_before = max(self.not_before, mirrors.mono + limits.mirror_answer_us)

    def _take_start(self) -> bool:
        is_start, self.is_start_due = self.is_start_due, False
        return is_start

    def _pay(self, size: int, rate: int) -> None:
        self.sent += size
        if rate:
            mono = self.copy.mirrors.mono
            self.not_before = max(self.not_before, mono) + size * 1_000_000 // rate

    # --- a full copy ---

    def _go_on_copying(self) -> None:
        hello, log = self.hello, self.copy.log
        if self.copy.options.is_manual and not hello.copied:
            common = match_point(log, log.end, hello)
            if common is not None and common >= max(hello.base, log.low - 1):
                self.base = hello.base
                self._begin(common)
                return
        self._copy_from(hello.copied)

    def _copy_from(self, position: int) -> None:
        master = self.copy.master
        assert master is not None
        self._release()
        self.state = ASKED
        if not master.may_snapshot():
            # K0 must not lie before a K0 the peer has already heard of: only what this epoch has committed
            # is sure to hold everything that any earlier one did.
            return
        snapshot = self.copy.log.snapshot()
        hello = self.hello
        base = snapshot.base
        self.base = snapshot.position
        self.state = COPYING
        self.position = position = min(position, self.base)
        flow = Base(hello.queue, hello.epoch, hello.nonce, position, len(base), len(base))
        self.link.flow(self, flow, [base])
        if self.copy.options.is_manual and not master.is_sync_wanted:
            snapshot.close()
            self._begin(self.base)
            return
        self.snapshot = snapshot
        if position == self.base:
            self._copied_all()
        else:
            self._behind()

    def _copied(self, snapshot: Snapshot, batches: list[bytes], reach: int, rate: int) -> None:
        if snapshot.is_lost or (reach >= snapshot.position and snapshot.is_aged):
            # Before the last records: the peer is done when it has those.
            if reach <= self.position:
                self._wait_unread()
            self._copy_from(self.position)
            if self.snapshot is None or reach <= self.position:
                return
            # What was read is good all the same: whatever is live in the new state was live in the old one.
            snapshot = self.snapshot
        hello = self.hello
        size = sum(map(len, batches))
        raw: list[Data] = list(batches)
        self.link.flow(self, Part(hello.queue, hello.epoch, hello.nonce, reach, size), raw)
        self.position = reach
        self._pay(size, rate)
        if reach >= snapshot.position:
            self._copied_all()
        else:
            self._behind()

    def _copied_all(self) -> None:
        """The peer says hello again when it has flushed the copy; until then the log behind it is held."""
        self._release()
        self.state = COPIED

    def _release(self) -> None:
        if self.snapshot is not None:
            self.snapshot.close()
            self.snapshot = None
