"""A vhost of a cluster, as the tests of mirroring use it."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pika

from mirrormq.client.bulk import BulkClient, Target
from mirrormq.testing import Cluster


class Place:
    """A vhost of a cluster, and a client in it."""

    def __init__(self, made: Cluster, vhost: str) -> None:
        self.made = made
        self.vhost = vhost
        self.connection: Any = None
        self.channel: Any = None

    @property
    def url(self) -> str:
        hosts = ",".join(f"{node.host}:{node.port}" for node in self.made.nodes)
        return f"amqp://{self.made.user}@{hosts}/{self.vhost}"

    def open(self) -> Any:
        """A channel with confirms."""
        if self.channel is None or self.channel.is_closed:
            login = pika.PlainCredentials(self.made.user, self.made.password)
            node = next(node for node in self.made.nodes if node.is_running)
            where = pika.ConnectionParameters(node.host, node.port, self.vhost, login, heartbeat=0)
            self.connection = pika.BlockingConnection(where)
            self.channel = self.connection.channel()
            self.channel.confirm_delivery()
        return self.channel

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.connection.close()

    def declare(self, *names: str, **arguments: Any) -> None:
        for name in names:
            self.open().queue_declare(name, durable=True, arguments=arguments or None)

    def publish(self, queue: str, *bodies: object, **properties: Any) -> None:
        made = pika.BasicProperties(**{"delivery_mode": 2, **properties})
        for body in bodies:
            self.open().basic_publish("", queue, str(body), made)

    def take(self, queue: str, *positions: int) -> None:
        """Acknowledge the messages at these positions, and put the others back."""
        tags = []
        while (found := self.open().basic_get(queue))[0] is not None:
            tags.append(found[0].delivery_tag)
        for position, tag in enumerate(tags):
            if position in positions:
                self.channel.basic_ack(tag)
        for position, tag in reversed(list(enumerate(tags))):
            if position not in positions:
                self.channel.basic_nack(tag, requeue=True)

    def drain(self, queue: str) -> list[Any]:
        """(method, properties, body) of everything, which is taken out."""
        found = []
        while (one := self.open().basic_get(queue, auto_ack=True))[0] is not None:
            found.append(one)
        return found

    def bulk(self) -> BulkClient:
        hosts = [(node.host, node.port) for node in self.made.nodes]
        return BulkClient(Target(hosts, self.made.user, self.made.password, self.vhost))

    def count(self, queue: str) -> int:
        with self.bulk() as client:
            return int(client.call("queues", queue=queue)["queues"][0]["messages"])

    def held(self, spark: Any, queue: str) -> list[str]:
        """What is in a queue, in order; a mirror can be read like that."""
        reader = spark.read.format("mirrormq").option("url", self.url).option("queue", queue)
        rows = reader.option("password", self.made.password).load().orderBy("seq").select("body").collect()
        return [bytes(row["body"]).decode() for row in rows]

    def promote(self) -> None:
        self.made.ask("promote_mirror", name=self.vhost)


def wait_for(place: Place, queue: str, count: int) -> None:
    for _ in range(600):
        with contextlib.suppress(Exception):
            if place.count(queue) == count:
                return
        threading.Event().wait(0.1)
    raise AssertionError(f"{queue} does not hold {count} messages")
