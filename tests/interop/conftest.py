"""Fixtures of the interop tests: a broker with a fresh vhost per test, and clients that are closed after it.

The same tests run against MirrorMQ and, with INTEROP_BROKER=rabbitmq, against RabbitMQ 3.10.8; where the two
differ on purpose, the test asks `broker.is_rabbitmq` and says why.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest

from tests.interop import brokers
from tests.interop.brokers import Broker
from tests.interop.rawclient import RawClient

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[Broker]:
    """The broker all tests of this process share; use `broker` unless a test is about the whole node."""
    with brokers.shared() as found:
        yield found
        found.admin.close()


@contextlib.contextmanager
def fresh_vhost(server: Broker) -> Iterator[Broker]:
    vhost = f"interop-{os.getpid()}-{next(_numbers)}"
    server.admin.add_vhost(vhost)
    server.admin.permit("guest", vhost)
    brokers.mirror_all(server, vhost)
    yield server.within(vhost)
    server.admin.delete_vhost(vhost)


@pytest.fixture
def broker(server: Broker) -> Iterator[Broker]:
    """The shared broker, seen through a vhost that only this test uses."""
    with fresh_vhost(server) as found:
        yield found


@pytest.fixture(scope="module")
def module_broker(server: Broker) -> Iterator[Broker]:
    """The same for all tests of a file, where clients take long to start."""
    with fresh_vhost(server) as found:
        yield found


@pytest.fixture
def user(broker: Broker) -> Iterator[Callable[..., Broker]]:
    """Makes users of the test's vhost: `user("name", configure=...)` gives the broker as they see it."""
    made: list[str] = []

    def make(name: str, tags: str = "", **permissions: str) -> Broker:
        unique = f"{name}-{broker.vhost}"
        broker.admin.add_user(unique, "secret", tags)
        made.append(unique)
        broker.admin.permit(unique, broker.vhost, **permissions)
        return broker.seen_by(unique, "secret")

    yield make
    for name in made:
        broker.admin.delete_user(name)


class Clients:
    """Opens pika connections and closes them at the end of the test, whatever state they are in."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._open: list[Any] = []

    def connect(self, broker: Broker | None = None, **options: Any) -> Any:
        at = broker or self.broker
        parameters = pika.ConnectionParameters(
            host=at.host,
            port=at.port,
            virtual_host=at.vhost,
            credentials=pika.PlainCredentials(at.user, at.password),
            **options,
        )
        connection = pika.BlockingConnection(parameters)
        self._open.append(connection)
        return connection

    def channel(self, broker: Broker | None = None, *, confirm: bool = True, **options: Any) -> Any:
        """A channel on a connection of its own, in confirm mode unless asked otherwise."""
        channel = self.connect(broker, **options).channel()
        if confirm:
            channel.confirm_delivery()
        return channel

    def close(self) -> None:
        for connection in self._open:
            with contextlib.suppress(Exception):
                connection.close()


@pytest.fixture
def clients(broker: Broker) -> Iterator[Clients]:
    made = Clients(broker)
    yield made
    made.close()


@pytest.fixture
def channel(clients: Clients) -> Any:
    """A pika channel in confirm mode: a publish returns when the broker has taken the message."""
    return clients.channel()


@pytest.fixture
def raw(broker: Broker) -> Iterator[Callable[..., RawClient]]:
    """Opens raw clients: `raw()` logs in, `raw(log_in=False)` only connects."""
    made: list[RawClient] = []

    def connect(log_in: bool = True, at: Broker | None = None, **options: Any) -> RawClient:
        target = at or broker
        client = RawClient.connect(target.host, target.port)
        made.append(client)
        return client.open(target, **options) if log_in else client

    yield connect
    for client in made:
        client.close()
