"""kombu over py-amqp against a real broker: what Celery builds on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kombu
import pytest
from kombu.pools import connections, producers
from kombu.simple import SimpleQueue

from tests.interop.brokers import Broker


@pytest.fixture
def connection(broker: Broker) -> Iterator[Any]:
    with kombu.Connection(broker.url, connect_timeout=10) as opened:
        yield opened


def drain(connection: Any, done: Any) -> None:
    """Handle events until `done`; a silence of ten seconds is a failure."""
    while not done():
        try:
            connection.drain_events(timeout=10)
        except TimeoutError as late:
            raise AssertionError("nothing came for ten seconds") from late


def test_the_broker_is_taken_for_rabbitmq_and_qos_is_per_consumer(connection: Any) -> None:
    connection.ensure_connection(max_retries=1)
    properties = connection.connection.server_properties
    assert properties["product"] == "RabbitMQ"
    assert connection.qos_semantics_matches_spec is False


@pytest.mark.parametrize("serializer", ["json", "pickle", "raw"])
def test_payloads_of_each_serializer_come_back(connection: Any, serializer: str) -> None:
    payload: Any = b"bytes" if serializer == "raw" else {"a": [1, 2], "b": "ü"}
    queue = kombu.Queue("q", kombu.Exchange("ex", "direct"), "key")
    got: list[Any] = []

    def keep(body: Any, message: Any) -> None:
        got.append(body)
        message.ack()

    with connection.Producer(serializer=None if serializer == "raw" else serializer) as producer:
        producer.publish(payload, exchange=queue.exchange, routing_key="key", declare=[queue])
    with connection.Consumer(queue, callbacks=[keep], accept=["json", "pickle", "application/data"]):
        drain(connection, lambda: got)
    assert got[0] == payload or bytes(got[0]) == payload


@pytest.mark.parametrize("compression", ["zlib", "bzip2"])
def test_compressed_payloads_keep_their_headers(connection: Any, compression: str) -> None:
    with SimpleQueue(connection, "q") as simple:
        simple.put({"text": "a" * 10_000}, compression=compression, headers={"mine": "yes"})
        message = simple.get(timeout=10)
        assert message.payload == {"text": "a" * 10_000}
        assert message.headers["mine"] == "yes"
        message.ack()


def test_prefetch_can_be_raised_while_consuming(connection: Any) -> None:
    queue = kombu.Queue("q")
    held: list[Any] = []
    with connection.Producer() as producer:
        queue(connection.default_channel).declare()
        for number in range(5):
            producer.publish(number, routing_key="q")
    consumer = connection.Consumer(queue, callbacks=[lambda _body, message: held.append(message)])
    consumer.qos(prefetch_count=2, apply_global=True)
    with consumer:
        drain(connection, lambda: len(held) == 2)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)
        consumer.qos(prefetch_count=4, apply_global=True)
        drain(connection, lambda: len(held) == 4)
        for message in held:
            message.ack()
        drain(connection, lambda: len(held) == 5)
        held[-1].ack()


def test_requeue_and_reject(connection: Any) -> None:
    with SimpleQueue(connection, "q") as simple:
        simple.put("m")
        first = simple.get(timeout=10)
        assert first.delivery_info["redelivered"] is False
        first.requeue()
        second = simple.get(timeout=10)
        assert second.delivery_info["redelivered"] is True
        second.reject()
        with pytest.raises(simple.Empty):
            simple.get(block=False)


def test_confirming_publishers_return_after_the_broker_has_the_message(broker: Broker) -> None:
    options = {"confirm_publish": True}
    with kombu.Connection(broker.url, transport_options=options) as connection:
        queue = kombu.Queue("q")
        with connection.Producer() as producer:
            producer.publish("m", routing_key="q", declare=[queue])
        declared = queue(connection.default_channel).queue_declare(passive=True)
        assert declared.message_count == 1


def test_heartbeats_keep_a_connection_alive(broker: Broker) -> None:
    with kombu.Connection(broker.url, heartbeat=1) as connection:
        connection.ensure_connection(max_retries=1)
        for _ in range(15):
            connection.heartbeat_check(rate=2)
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.2)
        connection.default_channel.queue_declare("alive", exclusive=True)


def test_pools_reuse_connections_and_auto_retry_declares(broker: Broker) -> None:
    base = kombu.Connection(broker.url, transport_options={"confirm_publish": True})
    queue = kombu.Queue("q", kombu.Exchange("pooled", "topic"), "a.#")
    try:
        for number in range(3):
            with producers[base].acquire(block=True, timeout=5) as producer:
                producer.publish(
                    {"n": number},
                    exchange=queue.exchange,
                    routing_key="a.b",
                    declare=[queue],
                    retry=True,
                    retry_policy={"max_retries": 1},
                )
        with connections[base].acquire(block=True, timeout=5) as connection:
            declared = queue(connection.default_channel).queue_declare(passive=True)
            assert declared.message_count == 3
    finally:
        kombu.pools.reset()


def test_fanout_reaches_each_exclusive_queue(connection: Any, broker: Broker) -> None:
    exchange = kombu.Exchange("news", "fanout", durable=False, auto_delete=True)
    got: list[str] = []
    with kombu.Connection(broker.url) as other:
        consumers = []
        for link in (connection, other):
            queue = kombu.Queue("", exchange, exclusive=True, auto_delete=True)
            consumer = link.Consumer(
                queue, callbacks=[lambda body, message: (got.append(body), message.ack())]
            )
            consumer.consume()
            consumers.append(consumer)
        with connection.Producer() as producer:
            producer.publish("all", exchange=exchange)
        drain(connection, lambda: len(got) == 1)
        drain(other, lambda: len(got) == 2)
        for consumer in consumers:
            consumer.cancel()
    assert got == ["all", "all"]
