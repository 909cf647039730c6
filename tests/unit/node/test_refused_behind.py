"""A node that was behind hears by a snapshot that its proposal was refused, and not what stood in the way."""

from __future__ import annotations

from collections.abc import Callable

from mirrormq.broker.host import BrokerSettings
from mirrormq.meta.commands import Command, DeclareExchange
from mirrormq.meta.state import Outcome
from mirrormq.node.node import Node
from mirrormq.wire import methods
from tests.support.nodekit import NodeKit, SeededRng


class OvertakenNode(Node):
    """Another node declares each exchange a moment before this one's proposal arrives."""

    def propose(self, command: Command, done: Callable[[Outcome], None], wait: bool) -> None:
        def overtaken(outcome: Outcome) -> None:
            done(Outcome(False, "exists", None, []) if isinstance(command, DeclareExchange) else outcome)

        super().propose(command, overtaken, wait)


class OvertakenKit(NodeKit):
    def make_node(self, settings: BrokerSettings, rng: SeededRng) -> Node:
        return OvertakenNode(self.now, name="mirrormq@test", settings=settings, rng=rng)


def test_an_exchange_that_somebody_else_declared_meanwhile_is_compared_with_the_one_that_is_there():
    client = OvertakenKit().client()
    client.ask(methods.ExchangeDeclare(exchange="x", type="fanout"), methods.ExchangeDeclareOk)
    client.send(methods.ExchangeDeclare(exchange="x", type="topic"))
    assert client.expect(methods.ChannelClose).reply_code == 406
