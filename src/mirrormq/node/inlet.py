"""Where deliveries of a remote queue arrive at the home node: one for each channel that consumes or gets.

Guarantees
- What arrives is ready here, in the order of the master's tags, and the ordinary deliver loop hands it to the
  consumers the master chose. So a channel gets the messages of a queue in the order the master gave them out,
  however many consumers it has there. What the client settles is told to the master once per pass, as ranges
  of those tags.
- The master sends no more than a window of bytes ahead of what has left this node's memory, so a client that
  does not read costs a window, however much its queue holds.
- While the link is broken clients keep what they hold and get nothing new. How deliveries end meanwhile, and
  ended before without the master's hearing of it, it is told when the link is back.
- When the queue gets another master, clients keep what they hold: it is registered there by seq and epoch,
  under new tags and a new number, so that what the old master may still send is nobody's any more. How
  deliveries ended of which the old master has not said that they left the queue everywhere is told again.
- Messages of a mirrored queue are handed out only while this node has its lease.
- What a client has not seen goes back to its place at the master, when a consumer is cancelled, and when the
  client has taken nothing for a while although something waits for it here. It is marked as redelivered, for
  later messages may have been delivered meanwhile, but counts as no delivery.
"""

import struct
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError
from mirrormq.broker.consumer import Consumer
from mirrormq.kernel import forward
from mirrormq.kernel.cores import REASON_REJECTED, ChannelCore, QueueCore
from mirrormq.kernel.outbuffer import Dirty, OutBuffer
from mirrormq.node import peerframes
from mirrormq.node.peerframes import Answer, BadFrame, Deliver, Got, Span

if TYPE_CHECKING:
    from mirrormq.node.peerlink import PeerLink
    from mirrormq.node.remotequeue import RemoteQueue

ACK, REQUEUE, REJECT, UNSEEN = 0, 1, 2, 3

_OVERHEAD = forward.MEMORY_BYTES - forward.HEAD_BYTES
"""Bytes an entry takes in memory beyond those it took on the link."""


_PAIR = struct.Struct("=QQ")

Row = tuple[int, int, int, int]
"""Consumer, first and last seq, epoch."""


class Kept(NamedTuple):
    """A frame of settlements of which the master has not said that it has taken it."""

    spans: list[Span]
    pairs: bytes
    """Seq and epoch of each delivery in them, those that no client has seen left out."""


class Item(NamedTuple):
    """A delivery that the master before knows and the next one has to."""

    tag: int
    consumer: int
    seq: int
    """0 if a master has said that the client holds it no more: the tag is used up."""
    epoch: int
    how: int
    """How it ended, or OUTSTANDING."""


OUTSTANDING = -1


class Taker(Protocol):
    """A channel, as far as an inlet needs one."""

    has_far: bool
    uid: int
    core: ChannelCore

    @property
    def closing(self) -> bool:
        """Does it take nothing more?"""
        ...


class Nobody:
    """Stands for channels that are gone, while the master is yet to be told what they have settled."""

    closing = True

    def __init__(self, uid: int) -> None:
        self.has_far = True
        self.uid = uid
        self.core = ChannelCore(0, uid, OutBuffer(Dirty(), self))


class Inlet:
    """The home node's end of what one channel takes from one queue."""

    def __init__(self, queue: "RemoteQueue", link: "PeerLink", channel: Taker) -> None:
        self.queue = queue
        self.channel = channel
        channel.has_far = True
        self.link = link
        self.number = queue.host.next_uid()
        self.core = QueueCore(queue.host.work, queue.host.grave, self, 0)
        self.core.counted = self.core.paired = True  # what comes back is not to be ready here
        self.fetched = QueueCore(queue.host.work, queue.host.grave, self, 0)
        """What basic.get brought, apart from what waits for consumers."""
        self.fetched.counted = self.fetched.paired = True
        self.consumers: dict[int, Consumer] = {}
        self.awaited = 0
        """Registrations and fetches that are not answered yet."""
        self.is_paused = False
        self._is_pausing = False
        """Has the master not said yet that it has stopped?"""
        self.shared = channel.core.prefetch_limit
        """Prefetch of all consumers of the channel together, as the master knows it."""
        self._next = 1
        self._arrived = 0
        self._credited = 0
        self._taken_at_tick = -1
        self._is_resumed = False
        """May tags be missing that were on their way when the link broke?"""
        self._rows: tuple[Row, ...] | None = None
        """What was outstanding when the master changed, until the new one knows."""
        self._refused: set[int] = set()
        """Tags of deliveries that a master did not leave to the client, who may settle them all the same."""
        self._settles: deque[Kept] = deque()
        """Settlements of which the master has not said that it has them."""
        self._settled = 0
        """How many there were before these."""
        self.is_lost = False
        """Was it given up before the master had said that it has all of them?"""
        link.inlets[self.number] = self

    # --- consumers ---

    def add(self, number: int, consumer: Consumer) -> None:
        """The master serves this consumer from now on."""
        self.consumers[number] = consumer
        consumer.source = self.core
        self._choose()

    def remove(self, number: int) -> None:
        """A consumer takes no more; what it holds is still to be settled."""
        if self.consumers.pop(number, None) is not None:
            self._choose()
            self._give_back(number)

    def _choose(self) -> None:
        """One consumer takes all; with several each gets what the master meant for it (`_hand_out`)."""
        one = list(self.consumers.values()) if len(self.consumers) == 1 else []
        self.core.set_consumers([[consumer.core for consumer in one]] if one else [])
        self.core.touch()

    # --- from the master ---

    def take(self, frame: Deliver | Got) -> None:
        """Messages arrive."""
        first, count = (frame.first, frame.records) if isinstance(frame, Deliver) else (frame.tag, 1)
        if first != self._next and not (self._is_resumed and first > self._next):
            raise BadFrame("a delivery is missing")
        self._is_resumed = False
        self._next = first + count
        core = self.core if isinstance(frame, Deliver) else self.fetched
        forward.take_deliveries(core, frame.data, frame.at, first, count, self.queue.epochs)
        self._arrived += len(frame.data) - frame.at

    # --- the pass ---

    def turn(self) -> None:
        """Hand out what is here, tell the master what was settled."""
        core = self.core
        if core.gone:
            return
        if core.ready and self.is_paused:
            self.give_back_unseen()  # it was on its way when the master was told to stop
        elif core.ready:
            self._hand_out()
        self.flush()
        if self.channel.closing and self.is_idle and self.queue.is_open:
            self.queue.subscriptions.drop_inlet(self)

    def catch_up(self) -> None:
        """Hand out what came before a fetched message, which must not overtake it."""
        if self.core.ready and not self.is_paused:
            self._hand_out()

    def _hand_out(self) -> None:
        core = self.core
        if not self.queue.may_hand_out:
            return  # the master may give it to others before the link, or this node's lease, is back
        mono = self.queue.host.now.mono
        while core.ready:
            run = forward.first_run(core)
            assert run is not None
            consumer = self.consumers.get(run[0])
            if consumer is None:
                self._give_back(run[0])  # it was cancelled while this was on its way
                continue
            if len(self.consumers) > 1:
                core.set_consumers([[consumer.core]])
            core.deliver(0, mono, run[1])
            if core.head_seq() and core.head_seq() <= run[1]:
                self.queue.switch.waiting[self] = None
                return

    def flush(self) -> None:
        """Tell the master how deliveries ended, and that there is room again."""
        spans: list[Span] = []
        pairs = b""
        for core in (self.core, self.fetched):
            ended, told = forward.take_settled(core)
            spans += [
                (REJECT if reason == REASON_REJECTED else ACK, first, last) for first, last, reason in ended
            ]
            back, told_back = forward.take_returned(core)
            spans += [(REQUEUE, first, last) for first, last in back]
            pairs += told + told_back
        if spans:
            self._settle(spans, pairs)
        handed = self._handed
        if handed - self._credited >= limits.forward_window_bytes // 2:
            self.link.settle(peerframes.credit(self.number, handed - self._credited))
            self._credited = handed

    def give_back_unseen(self) -> None:
        """What no client has seen is ready at the master again."""
        self._give_back(0)

    def _give_back(self, consumer: int) -> None:
        self.flush()
        spans: list[Span] = [(UNSEEN, first, last) for first, last in forward.take_ready(self.core, consumer)]
        if not consumer:
            spans += [(UNSEEN, first, last) for first, last in forward.take_ready(self.fetched)]
        if spans:
            self._settle(spans)

    def _settle(self, spans: list[Span], pairs: bytes = b"") -> None:
        self._settles.append(Kept(spans, pairs))
        if self.queue.is_open:
            self.link.settle(peerframes.settle(self.number, spans))

    def on_settled(self, count: int) -> None:
        """The master has taken so many frames of settlements."""
        while self._settled < count and self._settles:
            self._settles.popleft()
            self._settled += 1

    @property
    def _handed(self) -> int:
        """Bytes that have left this node's memory."""
        return self._arrived - (self.core.resident - self.core.ready * _OVERHEAD)

    def resume(self) -> None:
        """The link is back, and the master has kept its end; or there is another one, which is told first."""
        if self._rows is not None:
            self._tell_inherited(self._rows)
        self._credited = self._handed
        resume = peerframes.Resume(
            outlet=self.number,
            received=self._next - 1,
            first=self._settled + 1,
            waiting=self._arrived - self._credited,
            prefetch=self.shared,
            is_flowing=not self.is_paused,
        )
        self._is_resumed = True
        self.link.send(peerframes.encode(resume))
        for kept in self._settles:
            self.link.settle(peerframes.settle(self.number, kept.spans))
        self.core.touch()

    def _tell_inherited(self, rows: tuple[Row, ...]) -> None:
        number = self.number
        told = sum(last - first + 1 for _, first, last, _ in rows)

        def answered(answer: Answer | Got | AmqpError) -> None:
            # Nothing can have been delivered before: if the link breaks first, it is told again.
            if isinstance(answer, Answer) and not answer.code and self.number == number:
                self._rows = None
                for first, last in zip(answer.numbers[::2], answer.numbers[1::2], strict=False):
                    self._refused.update(range(first, min(last, told) + 1))

        queue = self.queue
        self.link.request(
            lambda request: peerframes.Inherit(request, queue.record.id, queue.since, number, rows), answered
        )

    # --- another master ---

    def move(self, link: "PeerLink") -> None:
        """Another node is the master, or the same one anew. What clients hold goes with them."""
        self.flush()
        for core in (self.core, self.fetched):
            forward.take_ready(core)  # nobody has seen it, and the new master has it
        items = self.items()
        tags = {item.tag: tag for tag, item in enumerate(items, 1)}
        self._refused = {tags[item.tag] for item in items if not item.seq}
        for core in (self.core, self.fetched):
            forward.renumber(self.channel.core, core, tags)
        self._rows = _rows_of(items)
        self._settles = deque()
        self._settled = 0
        ended = [(tags[item.tag], item) for item in items if item.how != OUTSTANDING]
        if ended:
            pairs = b"".join(_PAIR.pack(item.seq, item.epoch) for _, item in ended)
            self._settles.append(Kept([(item.how, tag, tag) for tag, item in ended], pairs))
        self._next = len(items) + 1
        self._arrived = self._credited = 0
        self.is_paused = self._is_pausing = self._is_resumed = False
        self.link.inlets.pop(self.number, None)
        self.link = link
        self.number = self.queue.host.next_uid()
        link.inlets[self.number] = self

    def items(self) -> list[Item]:
        """What is outstanding, and what left the queue without the master's saying so, in order of the tags.

        Not what was given back: the master may have given it to others since, and the next one has it ready.
        Nor, but for its tag, what a master gave out again because it heard too late who has it: of two
        deliveries of one record only the later one counts, here or at the client that got it.
        """
        items = [
            Item(*held, OUTSTANDING)
            for core in (self.core, self.fetched)
            for held in forward.held(self.channel.core, core)
        ]
        for kept in self._settles:
            pairs = _PAIR.iter_unpack(kept.pairs)
            for how, first, last in kept.spans:
                if how != UNSEEN:
                    for tag in range(first, last + 1):
                        item = Item(tag, 0, *_pair(next(pairs)), how)
                        items += [item] if how != REQUEUE else []
        return _counting(sorted(items), self._refused)

    def adopt(self, core: QueueCore, epochs: list[tuple[int, int]] | None) -> None:
        """This node was the master until now: what the channel holds of it has come from here."""
        self._next = forward.move_out(self.channel.core, core, self.core, self._next, epochs)
        for number, consumer in self.consumers.items():
            forward.name_consumer(self.channel.core, self.core, consumer.core, number)
        self.move(self.link)

    def tell_ends(self, ends: list[tuple[int, int, int]]) -> None:
        """Deliveries (seq, epoch, reason) that ended while this node was the master, and no log has it."""
        spans: list[Span] = []
        for tag, (_, _, reason) in enumerate(ends, self._next):
            spans.append((REJECT if reason == REASON_REJECTED else ACK, tag, tag))
        self._next += len(ends)
        self._settles.append(Kept(spans, b"".join(_PAIR.pack(seq, epoch) for seq, epoch, _ in ends)))
        self.move(self.link)

    @property
    def is_known(self) -> bool:
        """Has the master been told of it, and said that it has heard?"""
        return self._rows is None

    @property
    def is_new(self) -> bool:
        """Has nothing ever arrived, and is nobody registered? Then a master can have forgotten nothing."""
        return self._next == 1 and not self.consumers and not self._settles

    @property
    def has_unanswered(self) -> bool:
        """Has the master not said of everything how it ended?"""
        return bool(self._settles)

    @property
    def is_idle(self) -> bool:
        """Is nothing here, outstanding or awaited?"""
        held = self.core.unacked + self.core.ready + self.fetched.unacked + self.fetched.ready
        return not (self.consumers or self.awaited or held)

    def lose(self) -> None:
        """The master has given everything out again, or may have."""
        self.is_lost = self.has_unanswered
        self.forget()

    def forget(self) -> None:
        """Nothing will arrive or be settled any more."""
        self.link.inlets.pop(self.number, None)
        self.consumers.clear()
        self.core.destroy()
        self.fetched.destroy()

    # --- limits ---

    def tell_limit(self) -> None:
        """Tell the master what the channel's consumers share, if that has changed."""
        shared = self.channel.core.prefetch_limit
        if shared != self.shared:
            self.shared = shared
            self._tell()

    def _tell(self) -> None:
        self._is_pausing = self.is_paused
        self.link.request(
            lambda request: peerframes.Limit(request, self.number, self.shared, not self.is_paused),
            self._told,
        )

    def _told(self, _: object) -> None:
        self._is_pausing = False

    def is_able(self) -> bool:
        """Would the client take a message now?"""
        if self.channel.core.out.blocked:
            return False
        return any(consumer.core.may_take() for consumer in self.consumers.values())

    def retry(self) -> None:
        """Something waits here or at the master: go on if the client takes more by now.

        Not before the master has stopped: what it sent until then must not overtake what was given back.
        """
        if self.queue.is_open and self.is_able() and not self._is_pausing:
            if self.is_paused:
                self.is_paused = False
                self._tell()
            self.core.touch()

    def on_tick(self) -> None:
        """A client that took nothing since the last tick keeps no messages from others."""
        if not self.queue.is_open:
            return
        if self.is_idle:
            self.queue.subscriptions.drop_inlet(self)
            return
        taken = self.core.delivered + self.core.delivered_no_ack
        if not self.core.ready or self.awaited:
            self._taken_at_tick = -1
        elif self._taken_at_tick == taken and not self.is_able():
            self.is_paused = True
            self._give_back(0)
            self._tell()
            self._taken_at_tick = -1
        else:
            self._taken_at_tick = taken


def _pair(pair: tuple[int, ...]) -> tuple[int, int]:
    return pair[0], pair[1]


def _counting(items: list[Item], refused: set[int]) -> list[Item]:
    """The same deliveries, without a seq where that is the client's no more."""
    later: set[tuple[int, int]] = set()
    rows = []
    for item in reversed(items):
        record = (item.seq, item.epoch)
        rows.append(item._replace(seq=0) if item.tag in refused or record in later else item)
        later.add(record)
    rows.reverse()
    return rows


def _rows_of(items: list[Item]) -> tuple[Row, ...]:
    """Deliveries as rows: those of one consumer with dense seqs of one epoch make one."""
    rows: list[Row] = []
    for item in items:
        if rows:
            consumer, first, last, epoch = rows[-1]
            if (consumer, epoch, last + 1) == (item.consumer, item.epoch, item.seq):
                rows[-1] = (consumer, first, item.seq, epoch)
                continue
        rows.append((item.consumer, item.seq, item.seq, item.epoch))
    return tuple(rows)
