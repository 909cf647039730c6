"""What the tests of the connector do to queues, and how they run queries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pika


class Queues:
    """A queue and a client that publishes to it with confirms."""

    def __init__(self, port: int, name: str, host: str = "127.0.0.1", **arguments: Any) -> None:
        self.port = port
        self.host = host
        self.name = name
        self.connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=0))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.declare(**arguments)

    @property
    def url(self) -> str:
        return f"amqp://guest@{self.host}:{self.port}/"

    def declare(self, name: str = "", *, durable: bool = True, **arguments: Any) -> None:
        self.channel.queue_declare(name or self.name, durable=durable, arguments=arguments or None)

    def publish(self, *bodies: bytes | str, name: str = "", **properties: Any) -> None:
        made = pika.BasicProperties(**{"delivery_mode": 2, **properties})
        for body in bodies:
            octets = body.encode() if isinstance(body, str) else body
            self.channel.basic_publish("", name or self.name, octets, made)

    def fill(self, count: int, start: int = 0, name: str = "") -> None:
        """Publish the numbers from `start` on."""
        self.publish(*(str(number) for number in range(start, start + count)), name=name)

    def take(self, count: int) -> list[bytes]:
        """Get and acknowledge messages."""
        found = []
        for _ in range(count):
            method, _, body = self.channel.basic_get(self.name)
            assert method is not None, "the queue is empty"
            self.channel.basic_ack(method.delivery_tag)
            found.append(body)
        return found

    def count(self, name: str = "") -> int:
        return int(self.channel.queue_declare(name or self.name, passive=True).method.message_count)

    def bodies(self, name: str = "") -> list[bytes]:
        """Everything in the queue, which stays there."""
        found = []
        while True:
            method, _, body = self.channel.basic_get(name or self.name)
            if method is None:
                break
            found.append(body)
            last = method.delivery_tag
        if found:
            self.channel.basic_nack(last, multiple=True, requeue=True)
        return found

    def purge(self) -> None:
        self.channel.queue_purge(self.name)

    def delete(self) -> None:
        self.channel.queue_delete(self.name)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.connection.close()


def reading(spark: Any, queue: Queues, /, **options: Any) -> Any:
    """A batch read of a queue."""
    return with_options(spark.read.format("mirrormq"), queue, options).load()


def streaming(spark: Any, queue: Queues, /, **options: Any) -> Any:
    """A stream over a queue."""
    return with_options(spark.readStream.format("mirrormq"), queue, options).load()


def with_options(builder: Any, queue: Queues, options: dict[str, Any]) -> Any:
    builder = builder.option("url", queue.url)
    if not {"queues", "queuePattern", "queue"} & options.keys():
        builder = builder.option("queue", queue.name)
    for name, value in options.items():
        builder = builder.option(name, str(value).lower() if isinstance(value, bool) else value)
    return builder


def once(frame: Any, folder: Path, **options: str) -> Any:
    """Run a stream over what is there now into Parquet; the finished query."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    for name, value in options.items():
        writer = writer.option(name, value)
    query = writer.trigger(availableNow=True).start(str(folder / "out"))
    query.awaitTermination()
    return query


def written(spark: Any, folder: Path) -> list[Any]:
    """What the stream has written, in order."""
    return list(spark.read.parquet(str(folder / "out")).orderBy("queue", "seq").collect())


def bodies(rows: Sequence[Any]) -> list[str]:
    return [bytes(row["body"]).decode() for row in rows]


def numbers(count: int, start: int = 0) -> list[str]:
    return [str(number) for number in range(start, start + count)]


@contextlib.contextmanager
def running_query(query: Any) -> Iterator[Any]:
    """A query that is stopped in the end."""
    try:
        yield query
    finally:
        query.stop()
