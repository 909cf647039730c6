"""Queries beside clusters whose nodes die: what was confirmed comes out once, in order."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from mirrormq.client.bulk import BulkClient, BulkError, Target
from mirrormq.spark.jobs import cli
from mirrormq.testing import Cluster, ClusterNode, cluster
from tests.spark.kit import bodies, numbers, once, running_query, written


@pytest.fixture(scope="module")
def mirrored() -> Iterator[Cluster]:
    """Three nodes with every queue on all of them, but for those that are called alone."""
    with cluster(nodes=3, config=("events = on", "samples = on")) as made:
        policy = {"name": "all", "pattern": "^[^a]", "vhost": "/", "apply_to": "queues"}
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
    channel = declared(connection, queue)
    channel.confirm_delivery()
    for number in range(first, first + count):
        properties = pika.BasicProperties(delivery_mode=2, message_id=f"m{number}")
        channel.basic_publish("", queue, str(number), properties)
    connection.close()


def declared(connection: Any, queue: str) -> Any:
    """A channel on which the queue is declared, as soon as the node knows of a master that lives."""
    for _ in range(300):
        channel = connection.channel()
        try:
            channel.queue_declare(queue, durable=True)
            return channel
        except pika.exceptions.ChannelClosedByBroker as error:
            if "is down or inaccessible" not in str(error):
                raise
            threading.Event().wait(0.1)
    raise AssertionError(f"queue '{queue}' has no master for half a minute")


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


@pytest.mark.parametrize("limit", [{"maxRecordsPerTrigger": 100}, {"maxBytesPerTrigger": 12_000}], ids=str)
def test_a_running_query_follows_every_fail_over_and_misses_nothing(
    spark: Any, mirrored: Cluster, tmp_path: Path, limit: dict[str, int]
) -> None:
    name = f"followed-{next(iter(limit))}"
    publish(mirrored, name, 0, 400)
    wait_in_sync(mirrored, name, 3)
    seen: list[str] = []
    writer = reading(spark.readStream, mirrored, name, **limit).select("body").writeStream
    # One task per batch, and batches come one after the other: the order is that of the query itself.
    writer = writer.foreachBatch(lambda frame, _: seen.extend(bodies(frame.collect())))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    killed: list[str] = []
    with running_query(writer.trigger(processingTime="50 milliseconds").start()) as query:

        def wait_for(count: int) -> None:
            while len(seen) < count:
                assert query.exception() is None, query.exception()
                query.awaitTermination(0.05)

        wait_for(1)
        for first in (400, 600):
            master = node_named(mirrored, facts(mirrored, name)["master"])
            master.kill()
            killed.append(master.name)
            publish(mirrored, name, first, 200)
            wait_for(first + 200)
            master.start()
            wait_in_sync(mirrored, name, 3)
    assert seen == numbers(800)
    assert len(set(killed)) == 2


def test_a_queue_on_one_node_is_read_through_another_one(
    spark: Any, mirrored: Cluster, tmp_path: Path
) -> None:
    publish(mirrored, "alone", 0, 50)
    found = facts(mirrored, "alone")
    assert [member["node"] for member in found["members"]] == [found["master"]]
    url = url_of(mirrored, but=node_named(mirrored, found["master"]))
    assert bodies(reading(spark.read, mirrored, "alone", url=url).orderBy("seq").collect()) == numbers(50)
    once(reading(spark.readStream, mirrored, "alone", url=url, maxBytesPerTrigger=50_000), tmp_path)
    publish(mirrored, "alone", 50, 10)
    once(reading(spark.readStream, mirrored, "alone", url=url, maxBytesPerTrigger=50_000), tmp_path)
    assert bodies(written(spark, tmp_path)) == numbers(60)


def test_passwords_of_files_and_of_the_environment_log_in(
    spark: Any, mirrored: Cluster, tmp_path: Path
) -> None:
    publish(mirrored, "secret", 0, 5)
    read = spark.read.format("mirrormq").option("queue", "secret")
    (tmp_path / "password").write_text(f"{mirrored.password}\n")
    by_file = read.option("url", url_of(mirrored)).option("passwordFile", str(tmp_path / "password"))
    assert bodies(by_file.load().orderBy("seq").collect()) == numbers(5)
    (tmp_path / "password").write_text("another")
    with pytest.raises(Exception, match="Login was refused"):
        by_file.load().collect()
    # The session's Python processes were started with this variable.
    mirrored.ask("add_user", name="other", password=os.environ["MIRRORMQ_PASSWORD"])
    mirrored.ask("set_permissions", user="other", vhost="/", configure="", write="", read=".*")
    hosts = url_of(mirrored).partition("@")[2]
    by_variable = (
        spark.read.format("mirrormq").option("queue", "secret").option("url", f"amqp://other@{hosts}")
    )
    assert bodies(by_variable.load().orderBy("seq").collect()) == numbers(5)


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


# --- jobs --------------------------------------------------------------------------------------------------


def samples(made: Cluster) -> int:
    """How many there are; a cluster that has just formed has no queue for them yet."""
    with contextlib.suppress(BulkError):
        return int(facts(made, "mirrormq.samples")["messages"])
    return 0


def wait_for_samples(made: Cluster, count: int) -> None:
    """Wait until nodes have told so many more times what they saw."""
    wanted = samples(made) + count
    for _ in range(600):
        if samples(made) >= wanted:
            return
        # A cluster in which nothing happens tells so every ten seconds only.
        publish(made, "tick", 0, 1)
        threading.Event().wait(0.1)
    raise AssertionError(samples(made))


def test_jobs_tell_of_a_fail_over_and_of_what_was_sent_again_after_it(
    spark: Any,
    mirrored: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(name: str, *words: str) -> dict[str, Any]:
        shared = ("--state-dir", str(tmp_path / "state"), "--json", "--quiet")
        assert cli.pipeline([name, *shared, *words]) == 0, capsys.readouterr().err
        return dict(json.loads(capsys.readouterr().out))

    publish(mirrored, "resent", 0, 20)
    publish(mirrored, "resent", 4, 1)
    wait_in_sync(mirrored, "resent", 3)
    wait_for_samples(mirrored, 3)
    master = node_named(mirrored, facts(mirrored, "resent")["master"])
    before = facts(mirrored, "resent")["epoch"]
    master.kill()
    # Its publisher does not know of the last two whether they have arrived.
    publish(mirrored, "resent", 18, 12)
    # A node whose queues change tells so once a second: with so many the new master has told of these.
    wait_for_samples(mirrored, 5)

    monkeypatch.setenv("MIRRORMQ_URL", url_of(mirrored, but=master))
    told = run("duplicates", "--queue", "resent", "--out", str(tmp_path / "twice"))
    assert (told["messages"], told["without_id"]) == (33, 0)
    assert (told["extra"], told["across_failovers"]) == (3, 2)
    groups = {row["message_id"]: row for row in spark.read.parquet(told["table"]).collect()}
    assert {name: row["is_across"] for name, row in groups.items()} == {
        "m4": False,
        "m18": True,
        "m19": True,
    }
    assert groups["m18"]["first_epoch"] == before < groups["m18"]["last_epoch"]

    # What tells of the cluster is in the vhost /, whichever the job works with.
    monkeypatch.setenv("MIRRORMQ_URL", url_of(mirrored, but=master) + "elsewhere")
    told = run("analytics", "--out", str(tmp_path / "told"), "--queues", "/resent$")
    assert told["publishes"] >= 12
    assert told["replication_p99"] >= told["replication_p50"] > 0
    assert told["events"]["queue.master_changed"] >= 1
    shown = spark.read.parquet(str(tmp_path / "told/timeline"))
    (row,) = shown.where("event = 'queue.master_changed' and name = 'resent'").collect()
    assert (row["from"], row["reason"], row["lossy"]) == (master.name, "failure", False)
    assert row["to"] != master.name
    assert row["since_down_ms"] >= 0
    assert row["next_publish_ms"] >= 0
    assert shown.where("event = 'node.down'").where(shown["name"] == master.name).count() >= 1
    lags = spark.read.parquet(str(tmp_path / "told/throughput")).where("queue = 'resent'")
    assert all(row["lag_records"] >= 0 for row in lags.select("lag_records").collect())
    master.start()
    wait_in_sync(mirrored, "resent", 3)
