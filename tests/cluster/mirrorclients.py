"""Clients of mirrored queues that come back after every fault, and the ledger of what they were promised.

Every publish, also one that repeats another, has a name of its own: who sent it, in which of his sessions, as
which of his publishes. The ledger checks each delivery as it comes and, when the queues are empty, that
everything confirmed was given to somebody:

| promise | broken if |
|---|---|
| nothing confirmed is lost | the queues are empty and nobody has acknowledged a confirmed publish |
| a committed acknowledgement stays | its message is delivered later |
| a first delivery is the first | a publish is delivered a second time without the mark of redelivery |
| the order of a channel | two publishes of a session reach one consumer, unmarked, in the wrong order |
| no publish is enqueued twice | it is delivered after its acknowledgement was committed, or twice unmarked |
| nothing is changed | a body differs from what its name says |

An acknowledgement is committed when a message that its channel published later, to the same queue, was
confirmed: settlements go before publishes on every link and in every log. Two things a client cannot see. A
node that was frozen or cut off may have lost its deliveries to another consumer before it heard the
acknowledgement: such an acknowledgement changes nothing; if its message comes again it is counted as
overtaken, and not as broken. And a delivery may lie in the client for as long as it waits for a confirm: each
is therefore judged by the time since when it can have arrived, and two of one message that may have come in
either order are only counted, unless both are unmarked.
"""

from __future__ import annotations

import datetime
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pika
import pika.exceptions

from mirrormq.wire import methods
from mirrormq.wire.properties import Properties, encode_properties
from tests.cluster import kit
from tests.cluster.kit import Node
from tests.support.raw import Closed, RawClient, Unexpected, connect

HEARTBEAT_S = 4
PATIENCE_S = 3.0
"""How long a node may take to let a client in; a frozen one does not answer at all."""
AGAIN_S = 0.05
BATCH = 20
WINDOW = 20
GIVEN_BACK = 0.1
"""Part of the messages that a consumer gives back once."""
GONE = (pika.exceptions.AMQPError, OSError)
RAW_GONE = (Closed, Unexpected, OSError)


class Name(NamedTuple):
    """One publish."""

    queue: str
    sender: str
    session: int
    serial: int
    """Counts the publishes of the sender."""
    number: int
    """Which of the sender's messages it is: the same again if the outcome of an earlier one was unknown."""

    @property
    def body(self) -> bytes:
        word = f"{self.queue}:{self.sender}:{self.session}:{self.serial}:{self.number}/".encode()
        return word * (1 + self.serial * 7919 % 20)


def name_of(body: bytes) -> Name:
    queue, sender, session, serial, number = body.split(b"/", 1)[0].decode().split(":")
    return Name(queue, sender, int(session), int(serial), int(number))


def clock(at: float | None = None) -> str:
    """A moment as the nodes' logs show it."""
    moment = time.time() if at is None else time.time() - (time.monotonic() - at)
    return datetime.datetime.fromtimestamp(moment, datetime.UTC).strftime("%H:%M:%S.%f")


STORIES = 50_000
"""Messages whose stories are kept."""


class Delivery(NamedTuple):
    """A message in the hands of a consumer."""

    tag: int
    name: Name
    at: float
    """When it was taken out of the client."""
    redelivered: bool


class Ledger:
    """What was promised and what happened, over the whole run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.broken: list[str] = []
        self.confirmed: set[Name] = set()
        self.acked: set[Name] = set()
        """Acknowledgements that were sent."""
        self._stories: dict[Name, list[str]] = {}
        """What became of the latest messages, for whoever looks for the reason."""
        self._committed: dict[Name, tuple[str, float]] = {}
        """Who committed it, and when; nobody if a fault may have overtaken it."""
        self._delivered: dict[Name, float] = {}
        """When it was taken first."""
        self._unmarked: set[Name] = set()
        """What was delivered without the mark of redelivery."""
        self._numbers: set[tuple[str, int]] = set()

    def tell(self, names: Sequence[Name], what: str) -> None:
        """Something happened to these messages."""
        with self._lock:
            self._tell(names, what)

    def _tell(self, names: Sequence[Name], what: str) -> None:
        text = f"{clock()} {what}"
        for name in names:
            self._stories.setdefault(name, []).append(text)
        while len(self._stories) > STORIES:
            del self._stories[next(iter(self._stories))]

    def confirm(self, names: Sequence[Name]) -> None:
        with self._lock:
            self._tell(names, "confirmed")
            self.confirmed.update(names)
            self.counts["confirmed"] += len(names)

    def repeat(self, names: int) -> None:
        """Publishes whose outcome is unknown, and which will be sent again."""
        with self._lock:
            self.counts["published again after an unknown outcome"] += names

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.counts[what] += number

    def deliver(
        self, name: Name, redelivered: bool, last: dict[tuple[str, int], Name], who: str, since: float
    ) -> None:
        """One delivery, arrived after `since`; `last` is what this consumer got last, unmarked, of each
        session.
        """
        with self._lock:
            self._tell([name], f"{'again ' * redelivered}to {who}, arrived after {clock(since)}")
            self.counts["deliveries"] += 1
            self.counts["marked as redelivered"] += redelivered
            by, at = self._committed.get(name, ("", 0.0))
            if by and at < since:
                self._break("resurfaced", f"{name} came back after its ack by {by}", name)
            elif name in self._committed:
                self.counts["overtaken acknowledgements"] += 1
            if name in self._delivered:
                self._deliver_again(name, redelivered, since)
            elif (name.sender, name.number) in self._numbers:
                self.counts["duplicates published by their sender"] += 1
            if not redelivered:
                self._unmarked.add(name)
                self._check_order(name, last)
            self._note(name)

    def _deliver_again(self, name: Name, redelivered: bool, since: float) -> None:
        self.counts["came again, marked"] += redelivered
        if redelivered:
            return
        if self._delivered[name] < since or name in self._unmarked:
            self._break("unmarked", f"{name} was delivered before, but says it was not", name)
        else:
            self.counts["first deliveries that lay in a client while another came"] += 1

    def _check_order(self, name: Name, last: dict[tuple[str, int], Name]) -> None:
        key = name.sender, name.session
        if key in last and name.serial <= last[key].serial:
            before = "; ".join(self._stories.get(last[key], ["long ago"]))
            self._break("out of order", f"{name} came after {last[key]}, of which: {before}", name)
        last[key] = name

    def _note(self, name: Name) -> None:
        self._delivered.setdefault(name, time.monotonic())
        self._numbers.add((name.sender, name.number))

    def take_late(self, name: Name, who: str) -> None:
        """A delivery by a node that stood still: perhaps it was on its way to the socket before that, and
        the message has gone to somebody else meanwhile. No node can know whether it is being stopped.
        """
        with self._lock:
            self._tell([name], f"late to {who}")
            self.counts["deliveries"] += 1
            self.counts["deliveries of a node that stood still"] += 1
            self._note(name)

    def ack(self, names: Sequence[Name]) -> None:
        with self._lock:
            self.acked.update(names)

    def commit(self, who: str, certain: Sequence[Name], others: Sequence[Name]) -> None:
        with self._lock:
            self.counts["acknowledgements committed"] += len(certain)
            now = time.monotonic()
            self._committed.update(dict.fromkeys(others, ("", now)))
            self._committed.update(dict.fromkeys(certain, (f"{who}, committed at {clock(now)}", now)))

    def changed(self, body: bytes) -> None:
        with self._lock:
            self._break("changed", f"a message changed: {body[:80]!r}")

    def check_nothing_lost(self) -> None:
        """All queues are empty: every confirmed publish must have been acknowledged by somebody."""
        with self._lock:
            lost = self.confirmed - self.acked
            for name in sorted(lost):
                self._break("confirmed lost", f"{name} was confirmed and is gone", name)
            # Each is told once.
            self.confirmed -= lost

    def _break(self, kind: str, text: str, name: Name | None = None) -> None:
        self.counts[kind] += 1
        story = "; ".join(self._stories.get(name, [])) if name is not None else ""
        self.broken.append(f"{text}: {story}" if story else text)


class Client:
    """A thread that works on one queue through one node after the other until it is told to stop."""

    def __init__(self, nodes: Sequence[Node], queue: str, name: str, ledger: Ledger) -> None:
        self.queue = queue
        self.name = name
        self.ledger = ledger
        self.node: Node | None = None
        """Where it is now."""
        self.done = 0
        """Grows with everything it gets done."""
        self.session = 0
        self.failure: BaseException | None = None
        self._nodes = nodes
        self._random = random.Random(name)
        self._is_over = threading.Event()
        self._is_quiet = threading.Event()
        self._serial = 0
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)

    def start(self) -> None:
        self._thread.start()

    def quiet(self, wanted: bool) -> None:
        """Stop publishing, or go on."""
        (self._is_quiet.set if wanted else self._is_quiet.clear)()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), f"{self.name} hangs"
        if self.failure is not None:
            raise self.failure

    @property
    def is_idle(self) -> bool:
        """Is nothing of its own under way?"""
        raise NotImplementedError

    def work(self, node: Node) -> None:
        """One session; ends by an exception of the connection, or when told to stop."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                self.session += 1
                node = self._random.choice(self._nodes)
                try:
                    self.node = node
                    self.work(node)
                except (*GONE, *RAW_GONE):
                    self.ledger.count("sessions that ended")
                    self._is_over.wait(AGAIN_S)
        except BaseException as error:  # noqa: BLE001  (told to whoever waits)
            self.failure = error

    def _next(self, number: int) -> Name:
        self._serial += 1
        name = Name(self.queue, self.name, self.session, self._serial, number)
        self.ledger.tell([name], f"published on {self.node.short if self.node else '?'}")
        return name


def opened(node: Node) -> Any:
    """A pika channel with confirms, on a connection that notices silence."""
    parameters = pika.ConnectionParameters(
        node.host,
        kit.AMQP,
        heartbeat=HEARTBEAT_S,
        socket_timeout=PATIENCE_S,
        stack_timeout=PATIENCE_S,
        connection_attempts=1,
        blocked_connection_timeout=kit.DEADLINE_S,
    )
    channel = pika.BlockingConnection(parameters).channel()
    channel.confirm_delivery()
    return channel


PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Publisher(Client):
    """Publishes with pika, one message at a time, and again what was not confirmed."""

    _number = 0
    _is_open = False

    @property
    def is_idle(self) -> bool:
        return self._is_quiet.is_set() and not self._is_open

    def work(self, node: Node) -> None:
        channel = opened(node)
        try:
            while not self._is_over.is_set():
                if self._is_quiet.is_set() and not self._is_open:
                    channel.connection.process_data_events(AGAIN_S)
                    continue
                self._publish(channel)
        finally:
            if channel.connection.is_open:
                channel.connection.close()

    def _publish(self, channel: Any) -> None:
        if not self._is_open:
            self._number += 1
        else:
            self.ledger.repeat(1)
        self._is_open = True
        name = self._next(self._number)
        try:
            channel.basic_publish("", self.queue, name.body, PERSISTENT, mandatory=True)
        except pika.exceptions.NackError:
            self.ledger.count("nacked")
            self._is_over.wait(AGAIN_S)
            return
        self.ledger.confirm([name])
        self._is_open = False
        self.done += 1


class BurstPublisher(Client):
    """Publishes bursts without waiting, with a client of raw frames, and again what was not confirmed."""

    _number = 0
    _properties = encode_properties(Properties(delivery_mode=2))
    _open: dict[int, Name]
    _again: list[int]

    def __init__(self, nodes: Sequence[Node], queue: str, name: str, ledger: Ledger) -> None:
        super().__init__(nodes, queue, name, ledger)
        self._open = {}
        self._again = []

    @property
    def is_idle(self) -> bool:
        return self._is_quiet.is_set() and not self._open and not self._again

    def work(self, node: Node) -> None:
        with connect(node.host, kit.AMQP, HEARTBEAT_S * 2) as client:
            client.handshake()
            client.open_channel(1)
            client.call(1, methods.ConfirmSelect(), methods.ConfirmSelectOk)
            tags = 0
            try:
                while not self._is_over.is_set():
                    numbers = self._burst()
                    if not numbers:
                        self._is_over.wait(AGAIN_S)
                    for number in numbers:
                        tags += 1
                        name = self._open[tags] = self._next(number)
                        publish = methods.BasicPublish(routing_key=self.queue)
                        client.publish(1, publish, name.body, self._properties)
                    while self._open:
                        self._hear(client)
            finally:
                self._again += [name.number for name in self._open.values()]
                self._open.clear()

    def _burst(self) -> list[int]:
        """What is published next."""
        numbers, self._again = self._again[:WINDOW], self._again[WINDOW:]
        self.ledger.repeat(len(numbers))
        if not self._is_quiet.is_set():
            fresh = WINDOW - len(numbers)
            numbers += range(self._number + 1, self._number + 1 + fresh)
            self._number += fresh
        return numbers

    def _hear(self, client: RawClient) -> None:
        answer = client.next_frame().method
        if isinstance(answer, methods.ConnectionBlocked | methods.ConnectionUnblocked):
            return
        if isinstance(answer, methods.ConnectionClose | methods.ChannelClose):
            raise Closed
        assert isinstance(answer, methods.BasicAck | methods.BasicNack), answer
        last = answer.delivery_tag
        tags = [tag for tag in self._open if tag == last or (answer.multiple and tag < last)]
        names = [self._open.pop(tag) for tag in tags]
        if isinstance(answer, methods.BasicNack):
            self.ledger.count("nacked", len(names))
            self._again += [name.number for name in names]
        else:
            self.ledger.confirm(names)
            self.done += len(names)


class Worker(Client):
    """Consumes with pika, acknowledges, and publishes on the same channel so that a confirm commits it."""

    _number = 0
    is_touched: Callable[[Node, float], bool] = staticmethod(lambda node, since: False)
    """Was a node frozen or cut off at any time since then?"""
    is_late: Callable[[Node], bool] = staticmethod(lambda node: False)
    """Did it stand still so recently that we may hear only now of a delivery it wrote before?"""

    @property
    def is_idle(self) -> bool:
        return self._is_quiet.is_set()

    def work(self, node: Node) -> None:
        channel = opened(node)
        try:
            channel.basic_qos(prefetch_count=2 * BATCH)
            last: dict[tuple[str, int], Name] = {}
            held: list[Delivery] = []
            since = asked = time.monotonic()
            for method, _, body in channel.consume(self.queue, inactivity_timeout=AGAIN_S):
                if method is not None:
                    held.append(self._took(method, body, last, node, since))
                if held and (method is None or len(held) >= BATCH):
                    self._settle(channel, node, held)
                    held = []
                if self._is_over.is_set():
                    return
                if not channel.get_waiting_message_count():
                    # pika looks at the socket next: what it brings is not older than its last look.
                    since, asked = asked, time.monotonic()
        finally:
            if channel.connection.is_open:
                channel.connection.close()

    def _took(
        self, method: Any, body: bytes, last: dict[tuple[str, int], Name], node: Node, since: float
    ) -> Delivery:
        at = time.monotonic()
        name = name_of(body)
        if body != name.body or name.queue != self.queue:
            self.ledger.changed(body)
        who = f"{self.name}/{self.session} on {node.short}"
        if self.is_late(node):
            self.ledger.take_late(name, who)
        else:
            self.ledger.deliver(name, method.redelivered, last, who, since)
        self.done += 1
        return Delivery(method.delivery_tag, name, at, method.redelivered)

    def _settle(self, channel: Any, node: Node, held: list[Delivery]) -> None:
        acked = []
        for delivery in held:
            if not delivery.redelivered and self._random.random() < GIVEN_BACK:
                channel.basic_nack(delivery.tag, requeue=True)
                continue
            self.ledger.ack([delivery.name])
            acked.append(delivery)
            channel.basic_ack(delivery.tag)
        if self._is_quiet.is_set():
            return
        self._number += 1
        name = self._next(self._number)
        try:
            channel.basic_publish("", self.queue, name.body, PERSISTENT, mandatory=True)
        except pika.exceptions.NackError:
            self.ledger.count("nacked")
            return
        self.ledger.confirm([name])
        certain: list[Name] = []
        others: list[Name] = []
        for delivery in acked:
            (others if self.is_touched(node, delivery.at) else certain).append(delivery.name)
        who = f"{self.name} on {node.short}, taken at {clock(acked[0].at)}" if acked else ""
        self.ledger.tell([delivery.name for delivery in acked], f"acked by {self.name}")
        self.ledger.commit(who, certain, others)
