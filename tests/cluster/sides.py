"""Clients on the sides of a cut: every message is a number, and each remembers what it was told about it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from mirrormq.wire import methods
from mirrormq.wire.properties import Properties
from tests.cluster import kit
from tests.cluster.kit import Cluster, Node, until
from tests.support.raw import Closed, RawClient

PERSISTENT = Properties(delivery_mode=2)
CUT_S = 40.0
SHORT_S = 0.3
"""How long a look at what has come takes if nothing has."""


class Voice:
    """A client in confirm mode on one node; it may consume, too."""

    def __init__(self, node: Node, queue: str) -> None:
        self.node = node
        self.queue = queue
        self.client: RawClient = node.raw()
        self.client.call(1, methods.ConfirmSelect(), methods.ConfirmSelectOk)
        self._sent: list[int] = []
        self.confirmed: set[int] = set()
        self.nacked: set[int] = set()
        self.got: list[tuple[int, bool]] = []
        """(number, redelivered) of everything delivered, in order."""
        self.told: list[str] = []
        """connection.blocked and unblocked, and why the connection was closed."""

    def publish(self, numbers: Iterable[int]) -> None:
        """Send persistent messages without waiting."""
        for number in numbers:
            self._sent.append(number)
            method = methods.BasicPublish(routing_key=self.queue)
            self.client.publish(1, method, b"%d" % number, PERSISTENT)

    def consume(self, prefetch: int = 0) -> None:
        """Take messages from now on; they are acknowledged when they come."""
        self.client.send_method(1, methods.BasicQos(0, prefetch, False))
        self.client.send_method(1, methods.BasicConsume(queue=self.queue, consumer_tag="c"))

    def listen(self) -> None:
        """Take what has come, and what comes within a moment."""
        self.client.sock.settimeout(SHORT_S)
        with contextlib.suppress(TimeoutError, Closed):
            while True:
                self._hear()

    def _hear(self) -> None:
        method = self.client.next_frame().method
        if isinstance(method, methods.BasicAck | methods.BasicNack):
            done = self.confirmed if isinstance(method, methods.BasicAck) else self.nacked
            first = 1 if method.multiple else method.delivery_tag
            told = {self._sent[at - 1] for at in range(first, method.delivery_tag + 1)}
            done |= told - self.confirmed - self.nacked
        elif isinstance(method, methods.BasicDeliver):
            self.got.append((int(self.client.expect_content(1).body), method.redelivered))
            self.client.send_method(1, methods.BasicAck(method.delivery_tag))
        elif isinstance(method, methods.ConnectionBlocked):
            self.told.append("blocked")
        elif isinstance(method, methods.ConnectionUnblocked):
            self.told.append("unblocked")
        elif isinstance(method, methods.ConnectionClose):
            self.told.append(method.reply_text)

    def wait_confirmed(self, numbers: Iterable[int]) -> None:
        """Wait until all of these are confirmed."""
        wanted = set(numbers)

        def all_there() -> bool:
            self.listen()
            return wanted <= self.confirmed

        until(all_there, lambda: f"{self.node} confirms {sorted(wanted - self.confirmed)}", CUT_S)

    def wait_answered(self, numbers: Iterable[int]) -> None:
        """Wait until all of these are confirmed or refused."""
        wanted = set(numbers)

        def left() -> set[int]:
            self.listen()
            return wanted - self.confirmed - self.nacked

        until(lambda: not left(), lambda: f"{self.node} answers {sorted(left())}", CUT_S)

    def wait_got(self, numbers: Iterable[int]) -> None:
        """Wait until all of these were delivered."""
        wanted = set(numbers)

        def all_there() -> bool:
            self.listen()
            return wanted <= {number for number, _ in self.got}

        until(all_there, lambda: f"{self.node} delivers {sorted(wanted - dict(self.got).keys())}", CUT_S)


def mirror_all(cluster: Cluster, **more: object) -> None:
    """Mirror every queue on all nodes, unless told otherwise."""
    definition = {"ha-mode": "all", **{key.replace("_", "-"): value for key, value in more.items()}}
    cluster[0].ctl("set_policy", name="ha", pattern=".*", definition=definition, vhost="/", apply_to="queues")


def mirror(cluster: Cluster, queue: str, *, nodes: list[Node]) -> None:
    """Mirror one queue on these nodes."""
    definition = {"ha-mode": "nodes", "ha-params": [node.name for node in nodes]}
    given = {"name": queue, "pattern": f"^{queue}$", "definition": definition, "priority": 1}
    cluster[0].ctl("set_policy", vhost="/", apply_to="queues", **given)


def wait_waived(node: Node, queue: str) -> None:
    """Wait until the master of a queue may go on without a lease, and has been granted that."""

    def is_waived() -> bool:
        view = node.ctl("queue_view", vhost="/", name=queue)
        return bool(view["waiver"] == node.name)

    until(is_waived, f"{queue} has a waiver")


def declare(node: Node, queue: str) -> None:
    """A durable queue whose master is this node."""
    channel = node.channel()
    kit.declare(channel, queue)
    channel.connection.close()


def wait_side(node: Node, side: str, reaction: str) -> dict[str, object]:
    """Wait until a node says that it is on this side, and does this there; what it says."""

    def found() -> dict[str, object] | None:
        told = node.status().get("partition", {})
        return told if (told.get("side"), told.get("reaction")) == (side, reaction) else None

    return until(found, lambda: f"{node} is {side}, {reaction}: {node.status().get('partition')}", CUT_S)


def drain(node: Node, queue: str) -> list[int]:
    """Everything in a queue, in order, taken by a new client."""
    channel = node.channel()
    found: list[int] = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(int(got[2]))
    channel.connection.close()
    return found
