"""Publishes of this node to one queue on another: numbered, kept until reported, sent again if a link breaks.

Guarantees
- Numbers are dense, one stream per queue and process of this node; blocks leave in their order.
- A block is kept until the master reports it. When the link is back everything kept is sent again, from the
  first on; the master, which knows the highest number it took, takes each publish exactly once.
- What was given up (the master was away for too long) is refused to its publishers and never sent again: the
  stream is opened behind it.
- A publish that the master refused, or lost in a crash although it took it, is never confirmed: it says so
  whenever the stream is opened.
"""

from collections import deque
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.kernel import forward
from mirrormq.node import peerframes

if TYPE_CHECKING:
    from mirrormq.node.remotequeue import RemoteQueue
    from mirrormq.node.spool import Place


class RemoteLog:
    """How far this node's publishes to the queue reach, and how far the master has reported them."""

    __slots__ = ("durable", "end", "queue")

    is_over = False

    def __init__(self, end: int, queue: "RemoteQueue") -> None:
        self.end = end
        self.durable = end
        self.queue = queue
        """What stands for the queue."""

    @property
    def confirmable(self) -> int:
        """What the master has reported, refused ones included."""
        return self.durable


_OWED_BYTES = 256
"""What keeping a block takes beyond its content."""


class Owed:
    """A block of publishes that the master has not reported."""

    __slots__ = ("at", "block", "first", "is_read", "last", "owners", "place", "sent_to", "size",
                 "was_mirrored")  # fmt: skip

    def __init__(self, first: int, last: int, block: bytes, owners: bytes | None, at: int) -> None:
        self.first = first
        self.last = last
        self.block = block
        self.owners = owners
        """Channel and publish number of each, if somebody waits for confirms."""
        self.size = len(block) + len(owners or b"") + _OWED_BYTES
        self.at = at
        self.sent_to = 0
        """The master's process it was sent to first."""
        self.was_mirrored = False
        """Was the queue mirrored then?"""
        self.place: Place | None = None
        """Where the block lies on disk, if it is not in memory."""
        self.is_read = False
        """Is it being read from there?"""

    def unload(self) -> None:
        """The block is on disk."""
        self.size -= len(self.block)
        self.block = b""

    def load(self, block: bytes) -> None:
        """The block is here again."""
        self.block = block
        self.size += len(block)

    def owner(self, number: int) -> tuple[int, int]:
        """Channel and publish number behind a number of the stream; (0, 0) if nobody waits."""
        if self.owners is None:
            return 0, 0
        pair = memoryview(self.owners).cast("Q")
        at = 2 * (number - self.first)
        return pair[at], pair[at + 1]


class Outgoing:
    """The stream of publishes from this node to one queue."""

    def __init__(self, queue: "RemoteQueue") -> None:
        self._queue = queue
        self._host = queue.host
        # Numbers go on where an earlier object for this queue ended: masters remember the highest they took.
        self.log = RemoteLog(queue.switch.sent.get(queue.record.id, 0), queue)
        self._owed: deque[Owed] = deque()
        self._unsent: deque[Owed] = deque()
        self._session = 0
        """Of the link when the stream was opened there last."""

    @property
    def is_empty(self) -> bool:
        """Is nothing owed?"""
        return not self._owed

    @property
    def has_unsent(self) -> bool:
        """Is something not on its way?"""
        return bool(self._unsent)

    @property
    def can_send(self) -> bool:
        """Is the next block here?"""
        return bool(self._unsent) and self._unsent[0].place is None

    @property
    def size(self) -> int:
        """Bytes owed, as far as they are in memory."""
        return sum(owed.size for owed in self._owed)

    # --- sending ---

    def take(self, most: int = limits.forward_block_bytes) -> None:
        """Number what waits in the queue's core, in blocks of about `most` bytes, and send it if the link
        takes it.
        """
        core = self._queue.core
        while core.pending:
            block, count, owners = forward.take_waiting(core, most)
            first = self.log.end + 1
            self._owe(Owed(first, first + count - 1, block, owners, self._host.now.mono))
        self._send()

    def _owe(self, owed: Owed) -> None:
        self.log.end = self._queue.switch.sent[self._queue.record.id] = owed.last
        self._owed.append(owed)
        self._unsent.append(owed)
        link = self._queue.link
        is_waiting = self._host.partition.spools and not self._queue.is_open
        if is_waiting and link.owed_bytes > limits.spool_memory_bytes:
            self._queue.switch.spool.keep(owed)
        link.owed_bytes += owed.size
        self._queue.link.active[self._queue] = None

    def _send(self) -> None:
        link = self._queue.link
        while self._unsent and link.may_publish and self._queue.is_open:
            if self._session != link.session:
                self._session = link.session
                base = self._owed[0].first - 1
                link.publish(peerframes.encode(peerframes.Open(self._queue.record.id, base)))
            if self._unsent[0].place is not None:
                self._fetch(self._unsent[0])
                return
            owed = self._unsent.popleft()
            is_resent = owed.sent_to not in (0, link.pid) and self._queue.may_be_known(owed.was_mirrored)
            if not owed.sent_to:
                owed.sent_to, owed.was_mirrored = link.pid, self._queue.is_mirrored
            link.publish(self._frame(owed, is_resent=is_resent))

    def _fetch(self, owed: Owed) -> None:
        """The next block is on disk: read it, unless so much is under way that it would only wait here. If
        nothing of this queue is, what waits behind it in memory may be all there is: then nobody else would.
        """

        def here() -> None:
            self._queue.link.owed_bytes += len(owed.block)
            self._queue.core.touch()

        if self._owed[0] is owed or not self._queue.link.is_over:
            self._queue.switch.spool.fetch(owed, here)

    def look(self) -> None:
        """So much may have been under way for other queues that a block on disk was not read: try again."""
        if self._unsent and self._unsent[0].place is not None:
            self._queue.core.touch()

    def _frame(self, owed: Owed, *, is_resent: bool) -> bytes:
        return peerframes.publish(
            self._queue.record.id,
            owed.first,
            owed.block,
            count=owed.last - owed.first + 1,
            base=self.log.durable,
            is_resent=is_resent,
        )

    def pass_to(self, queue: "RemoteQueue") -> None:
        """Another object stands for the queue: what is owed is its own."""
        self._queue = self.log.queue = queue
        self.start_again()

    def start_again(self) -> None:
        """The link is back, or there is another master: send everything that is owed."""
        self._session = 0
        self._unsent = deque(self._owed)

    # --- reports ---

    def report(self, done: int, refused: list[int]) -> None:
        """The master has taken publishes up to `done` for good, except those it refused."""
        for number in refused:
            self._refuse(number)
        done = min(done, self.log.end)
        while self._owed and self._owed[0].last <= done:
            self._drop_first()
        self.log.durable = max(self.log.durable, done)
        self.look()

    def _drop_first(self) -> Owed:
        owed = self._owed.popleft()
        if self._unsent and self._unsent[0] is owed:
            self._unsent.popleft()
        self._queue.link.owed_bytes -= owed.size
        self._queue.switch.spool.drop(owed)
        return owed

    def _refuse(self, number: int) -> None:
        for owed in self._owed:
            if owed.first <= number <= owed.last:
                self._tell_refused(*owed.owner(number))
                return

    def _tell_refused(self, uid: int, publish_no: int) -> None:
        channel = self._host.channels.get(uid)
        if channel is not None and publish_no:
            channel.confirm.nack(publish_no)

    def give_up(self) -> None:
        """The master was away for too long: refuse what waited longest. It may have taken some of it."""
        before = self._host.now.mono - limits.publish_timeout_us
        if self._host.partition.patient_since > before:
            return
        given_up = 0
        while self._owed and self._owed[0].at <= before:
            owed = self._drop_first()
            for number in range(owed.first, owed.last + 1) if owed.owners is not None else ():
                self._tell_refused(*owed.owner(number))
            self.log.durable = owed.last
            given_up += owed.last - owed.first + 1
        if given_up:
            peer = self._queue.link.peer
            self._host.note(
                "warning",
                f"publishes to {self._queue.text} were given up: its node '{peer}' is out of reach",
                messages=given_up,
                event="queue.publishes_given_up",
            )

    def end(self) -> None:
        """The queue is deleted: nobody waits for it any more."""
        while self._owed:
            self._drop_first()
        self.log.durable = self.log.end
