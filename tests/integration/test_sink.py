"""A sink over real sockets: the blocking client against a running node."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest

from mirrormq.client.amqp import AmqpClient
from mirrormq.client.bulk import BulkClient, BulkError, Target
from mirrormq.client.sink import Sink, encode_row
from mirrormq.testing import Broker, running
from tests.support.bulkkit import bodies


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with running() as found:
        yield found


def connect(node: Broker) -> BulkClient:
    return BulkClient(Target([(node.host, node.port)], node.user, node.password, node.vhost))


def declare(node: Broker, *queues: str) -> None:
    with AmqpClient(node.host, node.port, timeout=10, user=node.user, password=node.password) as client:
        for queue in queues:
            client.declare(queue)


def consumed(node: Broker, queue: str, count: int) -> list[bytes]:
    with BulkClient(Target([(node.host, node.port)], node.user, node.password, node.vhost)) as client:
        (facts,) = client.call("queues", queue=queue)["queues"]
        ends = {"id": facts["id"], "start": 1, "end": facts["next"]}
        found = bodies(b"".join(client.read(queue=queue, live=True, **ends)))
    assert len(found) == count
    return found


def test_rows_of_several_connections_are_committed_together_and_in_order(node: Broker) -> None:
    declare(node, "sink-many")
    name = str(uuid.uuid4())
    with connect(node) as client:
        assert Sink(client, name).open() is None
    staged: dict[int, str] = {}

    def task(partition: int) -> None:
        rows = [encode_row(b"%d-%06d" % (partition, at), b"sink-many") for at in range(20_000)]
        with connect(node) as client:
            staged[partition] = Sink(client, name).stage(rows, batch=0, partition=partition).tx

    threads = [threading.Thread(target=task, args=(partition,)) for partition in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with connect(node) as client:
        answer = Sink(client, name).commit(0, list(staged.values()), wait_s=20)
        assert answer == (True, 60_000, True)
        assert Sink(client, name).commit(0, list(staged.values())) == (False, 0, False)
        assert Sink(client, name).open() == 0
    expected = [b"%d-%06d" % (partition, at) for partition in range(3) for at in range(20_000)]
    assert consumed(node, "sink-many", 60_000) == expected


def test_a_row_larger_than_a_frame_arrives_whole(node: Broker) -> None:
    declare(node, "sink-large")
    large = b"z" * (40 * 1024 * 1024)
    with connect(node) as client:
        sink = Sink(client, "large")
        sink.open()
        rows = [encode_row(body, b"sink-large") for body in (b"", large, b"last")]
        sink.commit(0, [sink.stage(rows, batch=0).tx], wait_s=20)
    assert consumed(node, "sink-large", 3) == [b"", large, b"last"]


def test_an_error_in_the_middle_of_the_rows_is_raised_and_the_connection_goes_on(node: Broker) -> None:
    declare(node, "sink-error")
    with connect(node) as client:
        sink = Sink(client, "error")
        sink.open()
        rows = [encode_row(bytes(1000), b"sink-error") for _ in range(5_000)]
        rows[100] = encode_row(b"", b"nowhere", b"amq.topic")
        with pytest.raises(BulkError, match=r"'nowhere' of exchange 'amq\.topic'"):
            sink.stage(rows, batch=0)
        assert sink.state()["open"] == []
        assert sink.stage(rows[:100], batch=0).rows == 100
