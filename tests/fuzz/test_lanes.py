"""Both lanes give the same result: the compiled one for plain routes, and Python's for everything else.

Twice: on the kernel alone, where a route is plain or not by decree, with hundreds of streams; and through a
real broker, where an alternate exchange that leads nowhere forces Python's lane without any other effect.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, header

from mirrormq.kernel.frames import EV_PUBLISH, Route, RouteMemo
from tests.interop.brokers import Broker
from tests.interop.rawclient import RawClient
from tests.support.kernelkit import Kit, publish, read_deliveries, settle_method

KEYS = ("one", "two", "both", "nowhere")
ROUTES: dict[str, tuple[str, ...]] = {"one": ("one",), "two": ("two",), "both": ("one", "two"), "nowhere": ()}
PROPERTIES = {
    "none": b"\x00\x00",
    "persistent": b"\x10\x00\x02",
    "priority": b"\x08\x00\x05",
    "expiring": b"\x01\x00\x0560000",
    "all three": b"\x19\x00\x02\x07\x0560000",
}

kernel_step = st.one_of(
    st.tuples(
        st.just("publish"),
        st.sampled_from(KEYS[:3]),
        st.sampled_from(list(PROPERTIES)),
        st.binary(max_size=40),
    ),
    st.tuples(st.just("settle"), st.sampled_from((80, 90, 120)), st.integers(0, 12), st.integers(0, 3)),
    st.tuples(st.just("pass")),
)


class Lane:
    """The kernel's half of a broker: a pass admits, delivers to one consumer per queue and takes barriers."""

    def __init__(self, plain: bool) -> None:
        self.kit = Kit(max_priority=4)
        self.kit.channel.confirm = True
        self.kit.reader.memo = RouteMemo(
            lambda exchange, key: Route(
                exchange, key, [self.kit.queue(n.encode()) for n in ROUTES[key.decode()]], plain
            )
        )
        self.log: list[Any] = []
        for name in (b"one", b"two"):
            self.kit.queue(name).set_consumers([[self.kit.consumer(tag=name, prefetch=3)]])

    def feed(self, data: bytes) -> None:
        for event in self.kit.feed(data):
            if event[0] == EV_PUBLISH:
                message = event[2]
                targets = [self.kit.queue(name.encode()) for name in ROUTES[message.routing_key.decode()]]
                self.kit.channel.enqueue(message, targets)
            else:
                self.log.append(event)

    def end_pass(self) -> None:
        number, targets = self.kit.channel.take_barrier()
        self.log.append((number, sorted({queue.owner for queue in targets})))
        for name in (b"one", b"two"):
            queue = self.kit.queue(name)
            self.kit.admit(queue)
            queue.deliver(0, 0)
            self.log.append((queue.ready, queue.unacked, queue.take_settled()))
        self.log.append(read_deliveries(bytes(self.kit.out.take())))

    def close(self) -> None:
        self.kit.channel.release()


@settings(max_examples=300, deadline=None)
@given(st.lists(kernel_step, max_size=40), st.integers(1, 200))
def test_the_kernel_treats_both_lanes_alike(steps: list[Any], cut: int) -> None:
    lanes = [Lane(plain=True), Lane(plain=False)]
    for step in [*steps, ("pass",)]:
        for lane in lanes:
            if step[0] == "publish":
                lane.feed(publish(step[1].encode(), step[3], PROPERTIES[step[2]], part=cut))
            elif step[0] == "settle":
                lane.feed(settle_method(*step[1:]))
            else:
                lane.end_pass()
    assert lanes[0].log == lanes[1].log
    for lane in lanes:
        lane.close()


# Through a broker

_numbers = itertools.count(1)

broker_step = st.one_of(
    st.tuples(
        st.just("publish"),
        st.sampled_from(KEYS),
        st.booleans(),
        st.sampled_from((None, 0, 1, 7)),
        st.sampled_from((None, "60000")),
        st.integers(0, 300),
    ),
    st.tuples(st.just("take"), st.sampled_from(("one", "two"))),
    st.tuples(st.just("back"), st.sampled_from((True, False))),
)


class Conversation:
    """One connection that plays the steps through its own exchange and queues and notes what came of it."""

    def __init__(self, broker: Broker, plain: bool) -> None:
        self.name = f"lane-{os.getpid()}-{next(_numbers)}"
        self.client = RawClient.connect(broker.host, broker.port).open(broker)
        self.client.channel(1, confirm=True)
        self.client.channel(2)
        arguments = {} if plain else {"alternate-exchange": "no-such-exchange"}
        self.call(commands.Exchange.Declare(exchange=self.name, exchange_type="direct", auto_delete=True,
                                            arguments=arguments), commands.Exchange.DeclareOk)  # fmt: skip
        for queue in ("one", "two"):
            limits = (
                {"x-max-length": 6, "x-overflow": "reject-publish"}
                if queue == "two"
                else {"x-max-priority": 3}
            )
            self.call(commands.Queue.Declare(queue=self.full(queue), exclusive=True, arguments=limits),
                      commands.Queue.DeclareOk)  # fmt: skip
        for key, queues in ROUTES.items():
            for queue in queues:
                self.call(commands.Queue.Bind(queue=self.full(queue), exchange=self.name, routing_key=key),
                          commands.Queue.BindOk)  # fmt: skip
        self.published = 0
        self.held: list[int] = []
        self.log: list[Any] = []
        self.confirms: dict[int, str] = {}

    def full(self, queue: str) -> str:
        return f"{self.name}-{queue}"

    def call(self, request: Any, answer: Any, channel: int = 1) -> Any:
        return self.client.call(channel, request, answer)

    def play(self, step: tuple[Any, ...]) -> None:
        if step[0] == "publish":
            self.publish(*step[1:])
        elif step[0] == "take":
            self.take(step[1])
        elif self.held:
            self.client.send(2, commands.Basic.Nack(delivery_tag=self.held.pop(), requeue=step[1]))

    def publish(
        self, key: str, mandatory: bool, priority: int | None, expiration: str | None, size: int
    ) -> None:
        self.published += 1
        body = b"%d " % self.published + b"x" * size
        properties = commands.Basic.Properties(priority=priority, expiration=expiration)
        self.client.publish(
            1, key, body, exchange=self.name, mandatory=mandatory, properties=properties, chunk=100
        )

    def settle(self) -> None:
        """Read returns and confirms until every publish is answered."""
        while len(self.confirms) < self.published:
            _, value = self.client.receive()
            if isinstance(value, commands.Basic.Return):
                assert isinstance(self.client.receive()[1], header.ContentHeader)
                returned = b""
                while b" " not in returned:
                    returned += self.client.receive()[1].value
                self.drain_body(returned)
                continue
            kind = "ack" if isinstance(value, commands.Basic.Ack) else "nack"
            first = min(set(range(1, self.published + 1)) - set(self.confirms), default=value.delivery_tag)
            for number in range(first if value.multiple else value.delivery_tag, value.delivery_tag + 1):
                self.confirms.setdefault(number, kind)

    def drain_body(self, start: bytes) -> None:
        self.log.append(("returned", int(start.split(b" ")[0])))

    def take(self, queue: str) -> None:
        """One message by get, as a barrier behind all publishes of this conversation."""
        self.settle()
        self.client.send(2, commands.Basic.Get(queue=self.full(queue)))
        _, answer = self.client.receive()
        if isinstance(answer, commands.Basic.GetEmpty):
            self.log.append(("empty", queue))
            return
        head = self.client.receive()[1]
        body = b""
        while len(body) < head.body_size:
            body += self.client.receive()[1].value
        self.held.append(answer.delivery_tag)
        self.log.append((queue, answer.redelivered, answer.message_count, head.properties.priority, body))

    def finish(self) -> tuple[Any, ...]:
        """Everything that is left in the queues, and all confirms by number."""
        for queue in ("one", "two"):
            while not self.log or self.log[-1] != ("empty", queue):
                self.take(queue)
        self.settle()
        self.client.close()
        return self.log, self.confirms


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(broker_step, max_size=30))
def test_a_broker_treats_both_lanes_alike(victim: Broker, steps: list[Any]) -> None:
    results = []
    for plain in (True, False):
        conversation = Conversation(victim, plain)
        for step in steps:
            conversation.play(step)
        results.append(conversation.finish())
    assert results[0] == results[1]
