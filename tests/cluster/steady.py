"""Clients that must notice nothing: publishers that wait for every confirm, consumers that acknowledge all.

No fault is forgiven here. Every message is confirmed, delivered once and in the order in which it was
published, or the test fails: masters move while the nodes of these clients live. (The mark of redelivery may
be set on a message that is new: a new master marks all that may have been delivered before.)
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mirrormq.wire import methods
from mirrormq.wire.properties import Properties, encode_properties
from tests.cluster import kit
from tests.cluster.kit import Node, until
from tests.support.raw import Closed, RawClient, connect

PERSISTENT = encode_properties(Properties(delivery_mode=2))
PREFETCH = 50
PAUSE_S = 0.002
"""Between two messages of a publisher: enough load to notice, not enough to hide the nodes' own work."""


class _Worker:
    """A thread with a connection to one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.is_over = threading.Event()
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def work(self, client: RawClient) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        try:
            with connect(self.node.host, kit.AMQP, kit.DEADLINE_S) as client:
                client.handshake()
                client.open_channel(1)
                self.work(client)
        except (Closed, OSError) as error:
            if not self.is_over.is_set():
                self.failure = error
        except BaseException as error:  # noqa: BLE001  (told to whoever waits)
            self.failure = error

    def stop(self) -> None:
        self.is_over.set()
        self.thread.join(kit.DEADLINE_S)
        assert not self.thread.is_alive(), f"a client of {self.node} hangs"
        if self.failure is not None:
            raise self.failure


class Publisher(_Worker):
    """Publishes to its queues in turn, one message at a time, and notes how long each confirm took."""

    def __init__(self, node: Node, queues: Sequence[str]) -> None:
        super().__init__(node)
        self.queues = queues
        self.confirmed: dict[str, int] = dict.fromkeys(queues, 0)
        self.slowest: dict[str, float] = dict.fromkeys(queues, 0.0)

    def work(self, client: RawClient) -> None:
        client.call(1, methods.ConfirmSelect(), methods.ConfirmSelectOk)
        tag = 0
        while not self.is_over.is_set():
            for queue in self.queues:
                tag += 1
                number = self.confirmed[queue] + 1
                began = time.monotonic()
                client.publish(1, methods.BasicPublish(routing_key=queue), b"%d" % number, PERSISTENT)
                answer = client.expect(1, methods.BasicAck)
                assert answer.delivery_tag == tag, (answer, tag)
                self.slowest[queue] = max(self.slowest[queue], time.monotonic() - began)
                self.confirmed[queue] = number
            self.is_over.wait(PAUSE_S)


class Consumer(_Worker):
    """Consumes its queues and acknowledges each message; nothing may come twice or out of order."""

    def __init__(self, node: Node, queues: Sequence[str]) -> None:
        super().__init__(node)
        self.queues = queues
        self.got: dict[str, int] = defaultdict(int)

    def work(self, client: RawClient) -> None:
        client.call(1, methods.BasicQos(prefetch_count=PREFETCH), methods.BasicQosOk)
        for queue in self.queues:
            client.send_method(1, methods.BasicConsume(queue=queue, consumer_tag=queue, nowait=True))
        while True:
            delivery = client.expect(1, methods.BasicDeliver)
            number = int(client.expect_content(1).body)
            queue = delivery.consumer_tag
            assert number == self.got[queue] + 1, f"{queue}: {number} came after {self.got[queue]}"
            self.got[queue] = number
            client.send_method(1, methods.BasicAck(delivery_tag=delivery.delivery_tag))

    def stop(self) -> None:
        """What is still in a queue comes; then the socket is ended from this side."""
        self.is_over.set()


class Flow:
    """All clients of a test."""

    def __init__(self, publishers: list[Publisher], consumers: list[Consumer]) -> None:
        self.publishers = publishers
        self.consumers = consumers

    def check(self) -> None:
        """Has nobody failed so far?"""
        for worker in (*self.publishers, *self.consumers):
            if worker.failure is not None:
                raise worker.failure

    def progress(self, more: int = 20) -> None:
        """Wait until every queue has had some more messages confirmed, and delivered."""
        goals = {queue: count + more for one in self.publishers for queue, count in one.confirmed.items()}

        def is_there() -> bool:
            self.check()
            got = {queue: count for one in self.consumers for queue, count in one.got.items()}
            return all(got.get(queue, 0) >= goal for queue, goal in goals.items())

        until(is_there, "messages go on")

    @property
    def slowest(self) -> dict[str, float]:
        """The longest wait for a confirm, by queue."""
        return {queue: wait for one in self.publishers for queue, wait in one.slowest.items()}

    def end(self) -> None:
        """Stop publishing; everything confirmed must have come."""
        for publisher in self.publishers:
            publisher.stop()
        sent = {queue: count for one in self.publishers for queue, count in one.confirmed.items()}

        def got() -> dict[str, int]:
            self.check()
            return {queue: count for one in self.consumers for queue, count in one.got.items()}

        until(lambda: got() == sent, lambda: f"{got()} of {sent}")


@contextmanager
def flowing(nodes: Sequence[Node], queues: Sequence[str]) -> Iterator[Flow]:
    """Clients of all these nodes: each queue is published through one and consumed through the next."""
    shares = {place: list(queues[place :: len(nodes)]) for place in range(len(nodes))}
    consumers = [Consumer(nodes[(place + 1) % len(nodes)], share) for place, share in shares.items()]
    publishers = [Publisher(nodes[place], share) for place, share in shares.items()]
    flow = Flow(publishers, consumers)
    for worker in (*consumers, *publishers):
        worker.thread.start()
    try:
        flow.progress(3)
        yield flow
        flow.end()
    finally:
        for worker in (*publishers, *consumers):
            worker.is_over.set()
