"""Queries beside clusters whose nodes die: what was confirmed comes out once, in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from mirrormq.client.bulk import BulkClient, Target
from mirrormq.testing import Cluster, ClusterNode, cluster
from tests.spark.kit import bodies, numbers, once, running_query, written


@pytest.fixture(scope="module")
def mirrored() -> Iterator[Cluster]:
    """Three nodes with every queue on all of them."""
    with cluster(nodes=3) as made:
        policy = {"name": "all", "pattern": ".*", "vhost": "/", "apply_to": "queues"}
        made.ask("set_policy", definition={"ha-mode": "all"}, **policy)
        yield made
        made.start_all()


def url_of(made: Cluster, *, but: ClusterNode | None = None) -> str:
    hosts = ",".join(f"{node.host}:{node.port}" for node in made.nodes if node is not but)
    return f"amqp://{made.user}@{hosts}/"


def facts(made: Cluster, queue: str) -> dict[str, Any]:
    hosts = [(node.host, node.port) for node in made.nodes]
    with BulkClient(Target(hosts, made.user, made.password)) as client:
        return dict(client.call("queues", queue=queue)["queues"][0])


def node_named(made: Cluster, name: str) -> ClusterNode:
    return next(node for node in made.nodes if node.name == name)


def wait_in_sync(made: Cluster, queue: str, count: int) -> None:
    for _ in range(600):
        members = facts(made, queue)["members"]
        if sum(member["in_sync"] and member["is_live"] for member in members) == count:
            return
        threading.Event().wait(0.1)
    raise AssertionError(facts(made, queue))


def publish(made: Cluster, queue: str, first: int, count: int) -> None:
    """Publish numbers with confirms, through the first node that takes them."""
    running = [node for node in made.nodes if node.is_running]
    connection = pika.BlockingConnection(pika.URLParameters(running[0].url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=True)
    for number in range(first, first + count):
        channel.basic_publish("", queue, str(number), pika.BasicProperties(delivery_mode=2))
    connection.close()


def reading(builder: Any, made: Cluster, queue: str, **options: Any) -> Any:
    builder = builder.format("mirrormq").option("url", url_of(made)).option("queue", queue)
    for name, value in {"password": made.password, **options}.items():
        builder = builder.option(name, value)
    return builder.load()


def test_mirrors_serve_reads_and_named_nodes_answer_for_themselves(spark: Any, mirrored: Cluster) -> None:
    publish(mirrored, "served", 0, 300)
    wait_in_sync(mirrored, "served", 3)
    for options in ({}, {"minPartitions": 4}, {"readFrom": "master"}):
        frame = reading(spark.read, mirrored, "served", **options)
        assert bodies(frame.orderBy("seq").collect()) == numbers(300)
    for node in mirrored.nodes:
        frame = reading(spark.read, mirrored, "served", readFrom=f"node={node.name}")
        assert bodies(frame.orderBy("seq").collect()) == numbers(300)


def test_a_running_query_follows_the_fail_over_and_misses_nothing(
    spark: Any, mirrored: Cluster, tmp_path: Path
) -> None:
    publish(mirrored, "followed", 0, 500)
    wait_in_sync(mirrored, "followed", 3)
    frame = reading(spark.readStream, mirrored, "followed", maxRecordsPerTrigger=200)
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="100 milliseconds").start(str(tmp_path / "out"))
    with running_query(query):
        master = node_named(mirrored, facts(mirrored, "followed")["master"])
        master.kill()
        publish(mirrored, "followed", 500, 500)
        seen = 0
        while seen < 1000:
            assert query.exception() is None, query.exception()
            query.awaitTermination(0.3)
            seen = sum(progress["numInputRows"] for progress in query.recentProgress)
    master.start()
    assert bodies(written(spark, tmp_path)) == numbers(1000)
    wait_in_sync(mirrored, "followed", 3)


def test_a_batch_written_while_the_master_dies_arrives_once(spark: Any, mirrored: Cluster) -> None:
    publish(mirrored, "target", 0, 1)
    wait_in_sync(mirrored, "target", 3)
    master = node_named(mirrored, facts(mirrored, "target")["master"])
    rows = spark.range(0, 20_000, numPartitions=4).selectExpr("CAST(id + 1 AS STRING) AS body")
    timer = threading.Timer(0.5, master.kill)
    timer.start()
    # Through the others: a local Spark does not try a task again whose own contact is gone.
    writer = rows.write.format("mirrormq").mode("append").option("url", url_of(mirrored, but=master))
    try:
        writer.option("queue", "target").option("password", mirrored.password).save()
    finally:
        timer.join()
    master.start()
    wait_in_sync(mirrored, "target", 3)
    found = bodies(reading(spark.read, mirrored, "target").orderBy("seq").collect())
    assert found == numbers(20_001)


def test_a_stream_resumes_after_all_nodes_were_killed(spark: Any, mirrored: Cluster, tmp_path: Path) -> None:
    publish(mirrored, "survives", 0, 100)
    wait_in_sync(mirrored, "survives", 3)
    once(reading(spark.readStream, mirrored, "survives"), tmp_path)
    for node in mirrored.nodes:
        node.kill()
    mirrored.start_all()
    wait_in_sync(mirrored, "survives", 3)
    publish(mirrored, "survives", 100, 50)
    once(reading(spark.readStream, mirrored, "survives"), tmp_path)
    assert bodies(written(spark, tmp_path)) == numbers(150)
