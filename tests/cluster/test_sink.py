"""A sink on three real nodes: a node that dies in the middle of batches changes nothing for its queues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest

from mirrormq.client.amqp import AmqpClient
from mirrormq.client.bulk import BulkClient, BulkError, Gone, Target
from mirrormq.client.sink import Sink, encode_row
from mirrormq.testing import cluster
from mirrormq.testing.cluster import Cluster
from tests.support.bulkkit import bodies

BATCHES, PARTITIONS, ROWS = 8, 3, 2_000
KILLED_AT = 3

T = TypeVar("T")


def body(batch: int, partition: int, at: int) -> bytes:
    return b"%d-%d-%05d" % (batch, partition, at)


def again(step: Callable[[], T]) -> T:
    """What a task does: begin anew when a node is gone. How often does not matter, only how long."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            return step()
        except Gone:
            continue
        except BulkError as error:
            if error.code not in ("unavailable", "gone"):
                raise
    raise AssertionError("the sink did not come back")


def run_batch(made: Cluster, sink: Sink, batch: int, killed: int | None) -> None:
    def stage(partition: int) -> str:
        rows = [encode_row(body(batch, partition, at), b"x", b"amq.fanout") for at in range(ROWS)]
        return sink.stage(rows, batch=batch, partition=partition).tx

    while True:
        killer = None
        if killed is not None:
            killer = threading.Thread(target=made.nodes[killed].kill)
            killer.start()
            killed = None
        txs = [again(partial(stage, partition)) for partition in range(PARTITIONS)]
        if killer is not None:
            killer.join()
        try:
            sink.commit(batch, txs, wait_s=1)
        except BulkError as error:
            if error.code != "gone":
                raise
            continue  # a transaction went with the node it was staged through
        return


def read_all(client: BulkClient, queue: str) -> list[bytes]:
    (facts,) = client.call("queues", queue=queue)["queues"]
    ends = {"id": facts["id"], "start": 1, "end": facts["next"]}
    return bodies(b"".join(client.read(queue=queue, live=True, relay=True, **ends)))


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_every_row_is_in_every_queue_once_although_a_node_is_killed(killed: int) -> None:
    with cluster(nodes=3) as made:
        policy = {"name": "ha", "pattern": "^q", "definition": {"ha-mode": "all"}, "apply_to": "queues"}
        made.ask("set_policy", vhost="/", **policy)
        with AmqpClient(made.nodes[0].host, made.nodes[0].port, timeout=20) as client:
            for queue in ("q1", "q2"):
                client.declare(queue)
        for queue in ("q1", "q2"):
            made.ask("bind", vhost="/", source="amq.fanout", destination=queue, destination_type="queue")
        hosts = [(node.host, node.port) for node in made.nodes]
        with BulkClient(Target([hosts[1], hosts[2], hosts[0]]), retry_s=30) as client:
            sink = Sink(client, "job")
            assert sink.open() is None
            for batch in range(BATCHES):
                run_batch(made, sink, batch, killed if batch == KILLED_AT else None)
            assert sink.open() == BATCHES - 1
            while sink.state()["waiting"]:
                again(lambda: sink.commit(0, [], wait_s=0))
            expected = [
                body(batch, partition, at)
                for batch in range(BATCHES)
                for partition in range(PARTITIONS)
                for at in range(ROWS)
            ]
            for queue in ("q1", "q2"):
                assert again(partial(read_all, client, queue)) == expected
