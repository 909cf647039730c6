"""Random conversations with a broker whose transcript does not depend on timing.

A conversation is a list of steps drawn from a seed; `Player` plays it on one connection and writes down
every answer: errors with code and text, returns, confirms, messages with properties and redelivered flags.
Left out is what RabbitMQ itself decides by chance: dead letters, which travel between its processes, and the
counts in declare-ok and delete-ok, which overtake publishes there.
"""

from __future__ import annotations

import random
from typing import Any

from pamqp import commands

from tests.interop.brokers import Broker
from tests.interop.rawclient import RawClient

QUEUES = ("q0", "q1", "q2")
EXCHANGES = ("e0", "e1")
SOURCES = (*EXCHANGES, "amq.direct", "amq.topic", "amq.fanout", "amq.headers")
TYPES = ("direct", "fanout", "topic", "headers")
KEYS = ("", "a", "a.b", "b.c", "q0", "q1", "#", "*.b", "a.#")
QUEUE_ARGUMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"x-max-length": 2},
    {"x-max-length": 2, "x-overflow": "reject-publish"},
    {"x-max-length-bytes": 10},
    {"x-max-priority": 3},
    {"x-max-priority": 2, "x-max-length": 2},
    {"x-message-ttl": 0},
    {"x-message-ttl": 100_000},
    {"x-single-active-consumer": True},
    {"x-own-word": 1},
    {"x-message-ttl": "soon"},
)
EXCHANGE_ARGUMENTS: tuple[dict[str, Any], ...] = ({}, {}, {"alternate-exchange": "e1"})
BIND_ARGUMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"x-match": "all", "h": 1},
    {"x-match": "any", "h": 1, "g": "x"},
    {"x-match": "any-with-x", "x-h": 2},
    {"h": None},
)
HEADERS: tuple[dict[str, Any] | None, ...] = (
    None,
    None,
    {"h": 1},
    {"h": 2, "g": "x"},
    {"x-h": 2},
    {"CC": ["q1"]},
    {"BCC": ["q2"], "CC": ["a.b"]},
)

Step = tuple[Any, ...]


def draw(seed: int) -> list[Step]:
    """The steps of one conversation; at the end all queues are emptied."""
    rng = random.Random(seed)
    steps: list[Step] = [("declare", name, rng.choice(QUEUE_ARGUMENTS[:-1]), False) for name in QUEUES]
    steps += [("exchange", name, rng.choice(TYPES), rng.choice(EXCHANGE_ARGUMENTS), 0) for name in EXCHANGES]
    weights = {name: weight for name, (weight, _) in DRAWN.items()}
    for name in rng.choices(list(weights), list(weights.values()), k=rng.randrange(15, 50)):
        steps.append((name, *DRAWN[name][1](rng)))
    return steps + [("get", name, True) for name in QUEUES for _ in range(8)]


def _publish(rng: random.Random) -> Step:
    exchange = rng.choice((*SOURCES, "", ""))
    key = rng.choice(QUEUES) if exchange == "" else rng.choice(KEYS)
    properties = {
        "headers": rng.choice(HEADERS),
        "priority": rng.choice((None, None, 0, 1, 9)),
        "expiration": rng.choice((None, None, None, "100000", "x")),
        "delivery_mode": rng.choice((None, 1, 2)),
    }
    return exchange, key, rng.randbytes(3).hex() + "." * rng.choice((0, 0, 8)), rng.random() < 0.3, properties


def _binding(rng: random.Random) -> Step:
    return rng.choice(QUEUES), rng.choice(SOURCES), rng.choice(KEYS), rng.choice(BIND_ARGUMENTS)


def _exchange_binding(rng: random.Random) -> Step:
    return rng.choice(EXCHANGES), rng.choice(SOURCES), rng.choice(KEYS), rng.choice(BIND_ARGUMENTS)


# step -> (how often, its arguments)
DRAWN: dict[str, tuple[int, Any]] = {
    "publish": (30, _publish),
    "get": (20, lambda rng: (rng.choice(QUEUES), rng.random() < 0.3)),
    "settle": (14, lambda rng: (rng.choice(("ack", "nack", "reject")), rng.randrange(5), rng.random() < 0.3)),
    "bind": (12, _binding),
    "unbind": (3, _binding),
    "bind_exchange": (5, _exchange_binding),
    "unbind_exchange": (2, _exchange_binding),
    "declare": (4, lambda rng: (rng.choice(QUEUES), rng.choice(QUEUE_ARGUMENTS), rng.random() < 0.3)),
    "exchange": (
        3,
        lambda rng: (
            rng.choice(EXCHANGES),
            rng.choice(TYPES),
            rng.choice(EXCHANGE_ARGUMENTS),
            rng.randrange(8),
        ),
    ),
    "delete_exchange": (1, lambda rng: (rng.choice(EXCHANGES), rng.random() < 0.5)),
    "delete": (2, lambda rng: (rng.choice(QUEUES), rng.random() < 0.5)),
    "purge": (2, lambda rng: (rng.choice(QUEUES),)),
    "recover": (2, lambda rng: ()),
}


class Player:
    """Plays steps on a channel in confirm mode; a closed channel is written down and replaced."""

    def __init__(self, broker: Broker) -> None:
        self.client = RawClient.connect(broker.host, broker.port).open(broker)
        self.channel = 0
        self._open_channel()

    def _open_channel(self) -> None:
        self.channel += 1
        self.held: list[int] = []
        self.client.channel(self.channel, confirm=True)

    def play(self, step: Step) -> Any:
        return getattr(self, f"_{step[0]}")(*step[1:])

    def close(self) -> None:
        self.client.close()

    def _ask(self, request: Any, *answers: type) -> list[Any]:
        """Everything until an answer or the end of the channel; the answer itself comes last."""
        self.client.send(self.channel, request)
        return self._read(*answers)

    def _read(self, *answers: type) -> list[Any]:
        seen: list[Any] = []
        while True:
            _, value = self.client.receive()
            if isinstance(value, commands.Channel.Close):
                self.client.send(self.channel, commands.Channel.CloseOk())
                self._open_channel()
                return [*seen, ("closed", value.reply_code, _without_types(value.reply_text))]
            if isinstance(value, commands.Basic.Return):
                seen.append(
                    ("returned", value.reply_code, value.exchange, value.routing_key, self._content())
                )
            elif isinstance(value, answers):
                return [*seen, value]
            else:
                raise AssertionError(f"unexpected {value.name}")

    def _content(self) -> tuple[Any, ...]:
        head = self.client.receive()[1]
        body = b""
        while len(body) < head.body_size:
            body += self.client.receive()[1].value
        kept = head.properties
        return body, kept.headers, kept.priority, kept.expiration, kept.delivery_mode

    def _names(self, request: Any, answer: type) -> list[Any]:
        return [row if isinstance(row, tuple) else row.name for row in self._ask(request, answer)]

    # Steps

    def _declare(self, name: str, arguments: dict[str, Any], durable: bool) -> list[Any]:
        return self._names(
            commands.Queue.Declare(queue=name, arguments=arguments, durable=durable), commands.Queue.DeclareOk
        )

    def _exchange(self, name: str, kind: str, arguments: dict[str, Any], flags: int) -> list[Any]:
        request = commands.Exchange.Declare(
            exchange=name,
            exchange_type=kind,
            durable=bool(flags & 1),
            auto_delete=bool(flags & 2),
            internal=flags == 7,
            arguments=arguments,
        )
        return self._names(request, commands.Exchange.DeclareOk)

    def _bind(self, queue: str, exchange: str, key: str, arguments: dict[str, Any]) -> list[Any]:
        request = commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=key, arguments=arguments)
        return self._names(request, commands.Queue.BindOk)

    def _unbind(self, queue: str, exchange: str, key: str, arguments: dict[str, Any]) -> list[Any]:
        request = commands.Queue.Unbind(queue=queue, exchange=exchange, routing_key=key, arguments=arguments)
        return self._names(request, commands.Queue.UnbindOk)

    def _bind_exchange(self, name: str, source: str, key: str, arguments: dict[str, Any]) -> list[Any]:
        request = commands.Exchange.Bind(
            destination=name, source=source, routing_key=key, arguments=arguments
        )
        return self._names(request, commands.Exchange.BindOk)

    def _unbind_exchange(self, name: str, source: str, key: str, arguments: dict[str, Any]) -> list[Any]:
        request = commands.Exchange.Unbind(
            destination=name, source=source, routing_key=key, arguments=arguments
        )
        return self._names(request, commands.Exchange.UnbindOk)

    def _delete_exchange(self, name: str, if_unused: bool) -> list[Any]:
        request = commands.Exchange.Delete(exchange=name, if_unused=if_unused)
        return self._names(request, commands.Exchange.DeleteOk)

    def _delete(self, name: str, if_empty: bool) -> list[Any]:
        return self._names(commands.Queue.Delete(queue=name, if_empty=if_empty), commands.Queue.DeleteOk)

    def _purge(self, name: str) -> list[Any]:
        answer = self._ask(commands.Queue.Purge(queue=name), commands.Queue.PurgeOk)
        return [row if isinstance(row, tuple) else row.message_count for row in answer]

    def _publish(
        self, exchange: str, key: str, text: str, mandatory: bool, properties: dict[str, Any]
    ) -> list[Any]:
        self.client.publish(
            self.channel,
            key,
            text.encode(),
            exchange=exchange,
            mandatory=mandatory,
            properties=commands.Basic.Properties(**properties),
        )
        answers = self._read(commands.Basic.Ack, commands.Basic.Nack)
        return [row if isinstance(row, tuple) else row.name for row in answers]

    def _get(self, name: str, no_ack: bool) -> list[Any]:
        answers = self._ask(
            commands.Basic.Get(queue=name, no_ack=no_ack), commands.Basic.GetOk, commands.Basic.GetEmpty
        )
        got = answers[-1]
        if not isinstance(got, commands.Basic.GetOk):
            return [row if isinstance(row, tuple) else row.name for row in answers]
        if not no_ack:
            self.held.append(got.delivery_tag)
        return [
            got.delivery_tag,
            got.redelivered,
            got.exchange,
            got.routing_key,
            got.message_count,
            self._content(),
        ]

    def _settle(self, how: str, which: int, multiple: bool) -> list[Any]:
        """One of what is held; odd numbers are returned to their queue."""
        if not self.held:
            return []
        tag, requeue = self.held[which % len(self.held)], bool(which % 2)
        requests = {
            "ack": commands.Basic.Ack(delivery_tag=tag, multiple=multiple),
            "nack": commands.Basic.Nack(delivery_tag=tag, multiple=multiple, requeue=requeue),
            "reject": commands.Basic.Reject(delivery_tag=tag, requeue=requeue),
        }
        self.client.send(self.channel, requests[how])
        upto = tag if multiple and how != "reject" else 0
        self.held = [other for other in self.held if other != tag and other > upto]
        return self._names(commands.Basic.Qos(), commands.Basic.QosOk)

    def _recover(self) -> list[Any]:
        self.held = []
        return self._names(commands.Basic.Recover(requeue=True), commands.Basic.RecoverOk)


def _without_types(text: str) -> str:
    """RabbitMQ remembers whether a number came as byte or as signedint; MirrorMQ keeps only the number."""
    for word in ("byte", "short", "signedint", "long"):
        text = text.replace(f"of type '{word}'", "of type 'number'")
    return text
