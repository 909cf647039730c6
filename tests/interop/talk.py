"""Short words for what the pika tests do all the time: publish, take everything, collect deliveries."""

from __future__ import annotations

from typing import Any

import pika

from tests.interop.waiting import DEADLINE_S, pump, until


def publish(channel: Any, key: str, body: bytes | str = b"", exchange: str = "", **properties: Any) -> None:
    data = body.encode() if isinstance(body, str) else body
    channel.basic_publish(exchange, key, data, pika.BasicProperties(**properties))


def publish_all(channel: Any, key: str, *bodies: str, exchange: str = "", **properties: Any) -> None:
    for body in bodies:
        publish(channel, key, body, exchange, **properties)


def queue(channel: Any, name: str = "", **options: Any) -> str:
    """Declare a queue and return its name; keywords that start with x_ are arguments (`x_message_ttl=5`)."""
    arguments = {key.replace("_", "-"): value for key, value in options.items() if key.startswith("x_")}
    flags = {key: value for key, value in options.items() if not key.startswith("x_")}
    return str(channel.queue_declare(name, arguments=arguments or None, **flags).method.queue)


def depth(channel: Any, name: str) -> int:
    """Number of ready messages."""
    return int(channel.queue_declare(name, passive=True).method.message_count)


def wait_depth(channel: Any, name: str, count: int, seconds: float = DEADLINE_S) -> None:
    until(lambda: depth(channel, name) == count, f"{name} holds {count} messages", seconds)


def take(channel: Any, name: str) -> str | None:
    """One body, acknowledged, or None."""
    _, _, body = channel.basic_get(name, auto_ack=True)
    return None if body is None else body.decode()


def take_all(channel: Any, name: str) -> list[str]:
    """Every ready body in order, acknowledged."""
    taken = []
    while (body := take(channel, name)) is not None:
        taken.append(body)
    return taken


class Inbox:
    """A consumer that keeps what it got: items are (method, properties, body as str)."""

    def __init__(self, channel: Any, name: str, *, auto_ack: bool = False, **options: Any) -> None:
        self.channel = channel
        self.items: list[tuple[Any, Any, str]] = []
        self.tag = channel.basic_consume(name, self._on_message, auto_ack=auto_ack, **options)

    def _on_message(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.items.append((method, properties, body.decode()))

    @property
    def bodies(self) -> list[str]:
        return [body for _, _, body in self.items]

    def wait(self, count: int, seconds: float = DEADLINE_S) -> list[str]:
        """At least `count` messages; what has come so far."""
        connection = self.channel.connection
        pump(connection, lambda: len(self.items) >= count, f"{count} deliveries, have {self.bodies}", seconds)
        return self.bodies

    def ack(self, index: int = -1, multiple: bool = False) -> None:
        self.channel.basic_ack(self.items[index][0].delivery_tag, multiple)

    def cancel(self) -> None:
        self.channel.basic_cancel(self.tag)
