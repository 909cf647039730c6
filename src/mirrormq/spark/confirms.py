"""Publishing with confirms, to any broker of AMQP 0-9-1.

Guarantee: `publish_rows` returns when the broker has confirmed every row, and raises otherwise; what was sent
before that may be there. A row that no queue takes is an error (mandatory), never dropped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise

from mirrormq.client.amqp import AmqpClient, Confirmed, Gone, Refused, Returned
from mirrormq.spark.broker import context_of
from mirrormq.spark.options import WriteOptions

WINDOW = 1_000
"""Publishes that wait for their confirms."""

_HEAD = struct.Struct("<IBHHI")


class PublishFailed(RuntimeError):
    """What a user is told."""


def publish_rows(chunks: Iterator[bytes], options: WriteOptions) -> int:
    """Publish rows as a sink has them; how many there were."""
    publisher: Publisher | None = None
    count = 0
    try:
        for chunk in chunks:
            publisher = publisher or Publisher(options)
            for exchange, key, properties, body in split_rows(chunk):
                publisher.publish(exchange, key, properties, body)
                count += 1
        if publisher is not None:
            publisher.finish()
    except (Gone, TimeoutError, OSError) as error:
        raise PublishFailed(f"not everything was confirmed: {str(error) or type(error).__name__}") from None
    finally:
        if publisher is not None:
            publisher.close()
    return count


def split_rows(chunk: bytes) -> Iterator[tuple[str, str, bytes, bytes]]:
    """(exchange, routing key, raw properties, body) of each row."""
    at = 0
    while at < len(chunk):
        size, _, exchange, key, properties = _HEAD.unpack_from(chunk, at)
        start = at + _HEAD.size
        at += 4 + size
        edges = (start, start + exchange, start + exchange + key, start + exchange + key + properties, at)
        parts = [chunk[a:b] for a, b in pairwise(edges)]
        yield parts[0].decode(), parts[1].decode(), parts[2], parts[3]


class Publisher:
    """One connection, with a window of unconfirmed publishes."""

    def __init__(self, options: WriteOptions) -> None:
        contact = options.contact
        problems = []
        for host, port in contact.hosts:
            try:
                self._client = AmqpClient(
                    host,
                    port,
                    user=contact.user,
                    password=contact.password,
                    vhost=contact.vhost,
                    tls=context_of(contact),
                    timeout=options.confirm_timeout,
                )
            except (OSError, Gone) as error:
                problems.append(f"{host}:{port}: {error}")
            else:
                break
        else:
            raise PublishFailed("no broker takes the log-in: " + "; ".join(problems))
        self._sent = 0
        self._open: set[int] = set()

    def publish(self, exchange: str, key: str, properties: bytes, body: bytes) -> None:
        """Send a row; waits while too many are unconfirmed."""
        self._open.add(self._client.publish_raw(exchange, key, properties, body))
        while len(self._open) >= WINDOW:
            self._hear()

    def finish(self) -> None:
        """Wait for all confirms."""
        while self._open:
            self._hear()

    def close(self) -> None:
        """End the connection."""
        self._client.drop()

    def _hear(self) -> None:
        event = self._client.next_event()
        if isinstance(event, Returned):
            raise PublishFailed(
                f"no queue takes a row with exchange '{event.exchange}' and key '{event.routing_key}' "
                f"({event.text})"
            )
        if isinstance(event, Refused):
            raise PublishFailed("the broker has refused a row (basic.nack)")
        if isinstance(event, Confirmed):
            if event.multiple:
                self._open = {tag for tag in self._open if tag > event.tag}
            else:
                self._open.discard(event.tag)
