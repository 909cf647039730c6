"""A queue with channels and consumers as plain Python lists, run beside the kernel's and compared with it.

The model says which message must be the next one; which consumer gets it is the kernel's choice, but it must
be one that may take it, and nobody who may take one is left waiting while a message is ready.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from mirrormq.kernel.cores import ChannelCore, ConsumerCore, QueueCore, Worklist
from mirrormq.kernel.index import Graveyard
from mirrormq.kernel.message import Message
from mirrormq.kernel.outbuffer import Dirty, OutBuffer

NEVER = 1 << 60
ACK, AUTO, REJECTED, EXPIRED, MAXLEN = 1, 2, 3, 4, 5


@dataclass
class Item:
    """One message in the model."""

    body: bytes
    level: int
    ttl: int
    seq: int = 0
    expiry: int = 0
    redelivered: bool = False
    message: Message | None = None


@dataclass
class Link:
    """A channel with its output and what it holds unacknowledged, by tag."""

    core: ChannelCore
    out: OutBuffer
    unacked: dict[int, tuple[Item, ConsumerCore | None]] = field(default_factory=dict)
    consumers: list[ConsumerCore] = field(default_factory=list)
    next_tag: int = 1


class Bench:
    """The kernel's queue and the model side by side."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.levels = rng.choice((0, 0, 1, 4))
        self.work, self.grave = Worklist(), Graveyard()
        self.core = QueueCore(self.work, self.grave, self, self.levels)
        self.core.dead_letter = rng.random() < 0.5
        self.links = [self.link(number) for number in (1, 2)]
        self.waiting: list[Item] = []
        self.ready: list[Item] = []
        self.settled: dict[int, int] = {}
        self.told: dict[int, int] = {}
        self.has_spilled = False
        self.dying: list[tuple[bytes, int, int]] = []
        self.now = 1_000
        self.seq = 1
        self.count = 0

    @staticmethod
    def link(number: int) -> Link:
        out = OutBuffer(Dirty(), number)
        return Link(ChannelCore(number, number, out), out)

    # Steps

    def push(self) -> None:
        for _ in range(self.rng.choice((1, 1, 3, 20, 300))):
            self.count += 1
            priority, ttl = self.rng.choice((0, 1, 4, 9)), self.rng.choice((-1, -1, 0, 5, 50))
            raw = _properties(priority, ttl)
            body = b"%d" % self.count + b"." * self.rng.choice((0, 10))
            message = Message(b"", b"q", raw, body)
            self.core.push(message, 1, self.count)
            self.waiting.append(Item(body, min(priority, self.levels), ttl, message=message))

    def admit(self) -> None:
        count = self.rng.randrange(len(self.waiting) + 1)
        self.core.admit(count, self.seq, self.now)
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        for item in taken:
            ttl = item.ttl * 1000 if item.ttl >= 0 else -1
            if self.core.ttl_us >= 0 and (ttl < 0 or self.core.ttl_us < ttl):
                ttl = self.core.ttl_us
            item.seq, item.expiry = self.seq, self.now + ttl if ttl >= 0 else 0
            self.seq += 1
            self.put(item)

    def refuse(self) -> None:
        count = self.rng.randrange(len(self.waiting) + 1)
        to_dead_letter = self.rng.random() < 0.5
        self.core.refuse(count, to_dead_letter)
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        assert len(self.core.take_refused()) == count
        if to_dead_letter and self.core.dead_letter:
            self.dying += [(item.body, 0, MAXLEN) for item in taken]

    def consume(self) -> None:
        link = self.rng.choice(self.links)
        if link.consumers and self.rng.random() < 0.4:
            link.consumers.pop(self.rng.randrange(len(link.consumers)))
        else:
            tag = b"%d-%d" % (link.core.number, self.rng.randrange(1000))
            no_ack = self.rng.random() < 0.3
            link.consumers.append(ConsumerCore(link.core, tag, no_ack, self.rng.choice((0, 1, 3, 100))))
        link.core.prefetch_limit = self.rng.choice((0, 0, 2))
        everyone = [consumer for each in self.links for consumer in each.consumers]
        self.rng.shuffle(everyone)
        at = self.rng.randrange(len(everyone) + 1)
        self.core.set_consumers([everyone[:at], everyone[at:]])

    def deliver(self) -> None:
        self.with_paging(lambda: self.core.deliver(self.now, self.now))
        arrived = [(link, row) for link in self.links for row in _deliveries(bytes(link.out.take()))]
        by_body = {row[3]: (link, row) for link, row in arrived}
        assert len(by_body) == len(arrived)
        while by_body:
            item = self.head(skip_expired=True)
            assert item is not None
            assert item.body in by_body, f"{item.body!r} should have come before {list(by_body)[:3]}"
            link, (tag_text, tag, again, _) = by_body.pop(item.body)
            assert again == item.redelivered
            self.ready.remove(item)
            consumer = next(each for each in link.consumers if each.tag == tag_text)
            self.hand_out(link, item, tag, consumer)
        self.head(skip_expired=bool(self.able()))
        assert not (self.ready and self.able()), "somebody could have taken one more"

    def able(self) -> list[ConsumerCore]:
        return [consumer for link in self.links for consumer in link.consumers if consumer.may_take()]

    def hand_out(self, link: Link, item: Item, tag: int, consumer: ConsumerCore | None) -> None:
        link.next_tag = max(link.next_tag, tag + 1)
        if consumer is not None and consumer.no_ack:
            self.settled[item.seq] = AUTO
        else:
            link.unacked[tag] = (item, consumer)

    def get(self) -> None:
        link = self.rng.choice(self.links)
        self.expire()
        self.page_in()
        found = self.core.get(link.core, False, self.now, self.now)
        item = self.head()
        assert found == (item is not None)
        rows = _deliveries(bytes(link.out.take()))
        if item is not None:
            ((_, tag, again, body),) = rows
            assert (body, again) == (item.body, item.redelivered)
            self.ready.remove(item)
            self.hand_out(link, item, tag, None)

    def settle(self) -> None:
        link = self.rng.choice(self.links)
        tags = sorted(link.unacked)
        tag = self.rng.choice([*tags, 0, 1, 2**64 - 1]) if tags else self.rng.choice((0, 1, 2**64 - 1))
        multiple, how = self.rng.random() < 0.4, self.rng.randrange(3)
        # A multiple settle needs its own tag outstanding; zero means everything.
        known = multiple if tag == 0 else tag in link.unacked
        assert link.core.settle(tag, multiple, how) == known
        if known:
            chosen = [each for each in tags if each == tag or (multiple and (tag == 0 or each < tag))]
            self.finish(link, chosen, how)

    def finish(self, link: Link, tags: list[int], how: int) -> None:
        for tag in tags:
            item, _ = link.unacked.pop(tag)
            if how == 0:
                self.settled[item.seq] = ACK
            elif how == 1:
                item.redelivered = True
                self.put(item)
            else:
                self.discard(item, REJECTED)

    def release(self) -> None:
        link = self.rng.choice(self.links)
        link.core.release()
        self.finish(link, sorted(link.unacked), 1)

    def expire(self) -> None:
        self.now += self.rng.choice((0, 1_000, 10_000))
        self.with_paging(lambda: self.core.expire(self.now))
        self.head(skip_expired=True, inclusive=True)

    def drop_head(self) -> None:
        most, most_bytes = self.rng.choice(((0, NEVER), (5, NEVER), (NEVER, 100), (NEVER, NEVER)))
        self.with_paging(lambda: self.core.drop_head(most, most_bytes))
        while len(self.ready) > most or sum(len(item.body) for item in self.ready) > most_bytes:
            item = self.head()
            assert item is not None
            self.ready.remove(item)
            self.discard(item, MAXLEN)

    def purge(self) -> None:
        assert self.core.purge() == len(self.ready)
        self.ready.clear()
        self.grave.free(self.rng.choice((1, 1000)))

    def dead_letters(self) -> None:
        found = [(message.body, seq, reason) for message, seq, reason in self.core.take_dying()]
        assert found == self.dying
        self.settled |= {seq: reason for _, seq, reason in self.dying if seq}
        self.dying.clear()

    def spill(self) -> None:
        """Entries far from the head leave memory; the model plays the log they can be read back from."""
        self.has_spilled = True
        self.core.spill(self.rng.choice((0, 1, 8, 100)), self.rng.choice((0, 500, 5_000, NEVER)))

    def sweep(self) -> None:
        """What expired behind a living head leaves, unless it lies only in the log or came back."""
        self.dead_letters()
        self.tell()
        due = {item.seq for item in self.ready if item.expiry and item.expiry <= self.now}
        may = {item.seq for item in self.ready if item.seq in due and not item.redelivered}
        position = 0
        while position := self.core.sweep(self.now, position, self.rng.choice((1, 50, 1000))):
            pass
        gone = {seq for _, seq, reason in self.core.take_dying() if reason == EXPIRED}
        gone |= self.tell()
        assert gone <= may
        if self.core.wanted() is None and not self.has_spilled:
            assert gone == may
        self.settled |= dict.fromkeys(gone, EXPIRED)
        self.ready = [item for item in self.ready if item.seq not in gone]

    def tell(self) -> set[int]:
        """What left the queue since the last call."""
        told = {seq: why for first, last, why in self.core.take_settled() for seq in range(first, last + 1)}
        self.told |= told
        return set(told)

    def with_paging(self, act: Callable[[], object]) -> None:
        act()
        while self.page_in():
            act()

    def page_in(self) -> bool:
        """Read back some of the run that stands in the way, if there is one."""
        wanted = self.core.wanted()
        if wanted is None:
            return False
        level, first, last, count = wanted
        rows = [item for item in self.ready if item.level == level and first <= item.seq <= last]
        rows = [item for item in rows if not item.redelivered]  # those came back and never left memory
        assert len(rows) == count
        taken = rows[: self.rng.randrange(1, count + 1)]
        upto = last if len(taken) == count else taken[-1].seq
        self.core.refill(level, [(item.message, item.seq, item.expiry, False, 0) for item in taken], upto)
        return True

    def change_ttl(self) -> None:
        self.core.ttl_us = self.rng.choice((-1, -1, 0, 20_000))

    # The model

    def put(self, item: Item) -> None:
        self.ready.append(item)
        self.ready.sort(key=lambda each: (-each.level, each.seq))

    def discard(self, item: Item, reason: int) -> None:
        if self.core.dead_letter:
            self.dying.append((item.body, item.seq, reason))
        else:
            self.settled[item.seq] = reason

    def head(self, skip_expired: bool = False, inclusive: bool = False) -> Item | None:
        """The next message; with `skip_expired` those at the head whose time is up are discarded first."""
        while self.ready:
            item = self.ready[0]
            late = item.expiry and (item.expiry <= self.now if inclusive else item.expiry < self.now)
            if not (skip_expired and late):
                return item
            self.ready.pop(0)
            self.discard(item, EXPIRED)
        return None

    def compare(self) -> None:
        assert self.core.pending == len(self.waiting)
        assert self.core.ready == len(self.ready)
        assert self.work.resident == 0, "only durable queues count for the node"
        assert self.core.ready_bytes == sum(len(item.body) for item in self.ready)
        assert self.core.unacked == sum(len(link.unacked) for link in self.links)
        for link in self.links:
            assert link.core.unacked == len(link.unacked)

    def finish_all(self) -> None:
        """The log has been told of everything that left, and nothing is left behind."""
        self.dead_letters()
        self.tell()
        assert self.told == self.settled
        for link in self.links:
            link.core.release()
        self.core.destroy()
        self.work.take()
        while self.grave.free(1000):
            pass


def _properties(priority: int, ttl: int) -> bytes:
    flags, rest = 0x0800, bytes([priority])
    if ttl >= 0:
        flags |= 0x0100
        text = b"%d" % ttl
        rest += bytes([len(text)]) + text
    return struct.pack(">H", flags) + rest


def _deliveries(data: bytes) -> list[tuple[bytes, int, bool, bytes]]:
    """(consumer tag, delivery tag, redelivered, body) of each deliver and get-ok."""
    found, at = [], 0
    name, tag, again, body, left = b"", 0, 0, b"", 0
    while at < len(data):
        kind, _, size = struct.unpack_from(">BHI", data, at)
        payload = data[at + 7 : at + 7 + size]
        at += size + 8
        if kind == 1:
            start = 4
            if payload[2:4] == b"\x00\x3c":
                name, start = payload[5 : 5 + payload[4]], 5 + payload[4]
            tag, again = struct.unpack_from(">QB", payload, start)
            continue
        if kind == 2:
            (left,), body = struct.unpack_from(">Q", payload, 4), b""
        else:
            body, left = body + payload, left - len(payload)
        if left == 0:
            found.append((name, tag, bool(again), body))
    return found


STEPS = (
    *(2 * [Bench.push]),
    *(3 * [Bench.admit]),
    *(2 * [Bench.deliver]),
    *(3 * [Bench.settle]),
    Bench.consume,
    Bench.get,
    Bench.release,
    Bench.expire,
    Bench.drop_head,
    Bench.purge,
    Bench.dead_letters,
    Bench.change_ttl,
    Bench.refuse,
    Bench.spill,
    Bench.sweep,
)


def queue_case(rng: random.Random) -> None:
    bench = Bench(rng)
    for _ in range(rng.randrange(5, 60)):
        rng.choice(STEPS)(bench)
        bench.compare()
    bench.finish_all()
