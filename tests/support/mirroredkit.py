"""Three nodes that vote, with mirrored queues, and somebody who asks, listens and reads the log."""

from __future__ import annotations

from typing import Any

from mirrormq.meta import commands as c
from mirrormq.meta.records import Policy, View
from mirrormq.meta.topology import EVENT_EXCHANGE
from mirrormq.node import requests
from mirrormq.node.steps import Answer
from mirrormq.wire import methods
from mirrormq.wire.properties import decode_properties
from tests.support.groupkit import Group, Member
from tests.support.kernelkit import PERSISTENT, publish
from tests.support.nodekit import Client


class MirroredKit(Group):
    """A formed cluster of nodes a, b, c, or those named."""

    def __init__(self, *names: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.names = names or ("a", "b", "c")
        for name in self.names:
            self.start(name, *self.names)
        self.settle()
        self.advance(1)

    def policy(self, at: str = "a", **keys: Any) -> None:
        """Mirror all queues but those whose names begin with `plain` or `events`."""
        definition = {"ha-mode": "all"} | {key.replace("_", "-"): value for key, value in keys.items()}
        policy = Policy("/", "ha", "^(?!plain|events)", definition, "queues")
        self.apply(c.SetPolicy(policy), at)

    def apply(self, command: c.Command, at: str = "a") -> None:
        outcomes: list[Any] = []
        self[at].node.propose(command, outcomes.append, True)
        self.advance(0.3)
        assert outcomes[0].ok, outcomes

    def declare(self, name: str = "q", at: str = "a", **more: Any) -> Client:
        client = self[at].client()
        client.declare(name, durable=True, **more)
        self.advance(0.3)
        return client

    def confirm(self, client: Client, count: int, queue: str = "q") -> None:
        """Publish persistent messages and wait for their confirms."""
        client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
        client.feed(b"".join(publish(queue.encode(), b"%d" % at, PERSISTENT) for at in range(count)))
        self.advance(0.3)
        assert any(isinstance(item, methods.BasicAck) for item in client.take())

    def view(self, name: str = "q") -> View:
        member = next(iter(self.members.values()))
        return member.node.meta.views["/", name]

    def master(self, name: str = "q") -> Member:
        return self[self.view(name).master]

    def begin(self, request: requests.Request, at: str = "a") -> list[Answer]:
        answers: list[Answer] = []
        self[at].node.admin(self.now, request, answers.append)
        self.advance(0.2)
        return answers

    def ask(self, request: requests.Request, at: str = "a") -> Any:
        (answer,) = self.begin(request, at)
        assert answer.problem is None, answer.problem
        return answer.value

    def refusal(self, request: requests.Request, at: str = "a") -> tuple[str, str]:
        (answer,) = self.begin(request, at)
        assert answer.problem is not None, answer.value
        return answer.problem

    def lines(self, at: str, containing: str = "") -> list[str]:
        """What a node told its operator."""
        return [note.text for note in self[at].notes if containing in note.text]

    def listen(self, key: str, at: str = "a", queue: str = "events") -> Client:
        """Have events put into a queue, and consume them."""
        client = self[at].client()
        client.declare(queue)
        bind = methods.QueueBind(queue=queue, exchange=EVENT_EXCHANGE, routing_key=key)
        client.ask(bind, methods.QueueBindOk)
        client.consume(queue, no_ack=True)
        self.advance(0.2)
        return client


def events(client: Client) -> list[tuple[str, dict[str, Any]]]:
    """(routing key, headers) of the events that came since the last call."""
    found = []
    key = ""
    for item in client.take():
        if isinstance(item, methods.BasicDeliver):
            assert item.exchange == EVENT_EXCHANGE
            key = item.routing_key
        elif isinstance(item, tuple):
            properties = decode_properties(item[0])
            assert (item[1], properties.delivery_mode) == (b"", 2)
            assert properties.timestamp is not None
            found.append((key, dict(properties.headers or {})))
    return found
