"""Writing: DataFrames and streams become messages, once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.spark.kit import Queues, bodies, numbers, reading, streaming, with_options


def writing(frame: Any, queue: Queues, /, **options: Any) -> Any:
    return with_options(frame.write.format("mirrormq").mode("append"), queue, options)


def test_a_frame_becomes_messages_with_its_properties(spark: Any, queue: Queues) -> None:
    frame = spark.createDataFrame(
        [("one", "m-1", 5, {"n": "1", "word": "plain"}), ("two", None, None, None)],
        "body STRING, message_id STRING, priority INT, headers MAP<STRING, STRING>",
    )
    writing(frame.coalesce(1), queue).save()
    _, properties, body = queue.channel.basic_get(queue.name)
    assert (body, properties.message_id, properties.priority) == (b"one", "m-1", 5)
    assert (properties.headers, properties.delivery_mode) == ({"n": 1, "word": "plain"}, 2)
    _, properties, body = queue.channel.basic_get(queue.name)
    assert (body, properties.message_id, properties.headers) == (b"two", None, None)


def test_rows_keep_their_order_over_partitions(spark: Any, queue: Queues) -> None:
    frame = spark.range(0, 5000, numPartitions=4).selectExpr("CAST(id AS STRING) AS body")
    writing(frame, queue).save()
    assert bodies(reading(spark, queue).orderBy("seq").collect()) == numbers(5000)


def test_what_is_read_can_be_written_back_as_it_was(spark: Any, queue: Queues) -> None:
    queue.publish(
        b"\xff\x00", headers={"deep": {"a": [1, None, b"\xff"]}}, content_type="x/y", timestamp=17, type="t"
    )
    copy = f"{queue.name}-copy"
    queue.declare(copy)
    writing(reading(spark, queue), queue, queue=copy).save()
    names = ["body", "headers_raw", "content_type", "app_timestamp", "type", "delivery_mode"]
    before = reading(spark, queue).select(*names).collect()
    assert reading(spark, queue, queue=copy).select(*names).collect() == before


def test_a_job_with_a_sink_id_writes_its_rows_once_however_often_it_runs(spark: Any, queue: Queues) -> None:
    frame = spark.range(10).selectExpr("CAST(id AS STRING) AS body")
    for _ in range(3):
        writing(frame, queue, sinkId=f"job-{queue.name}").save()
    assert queue.count() == 10


def test_each_row_goes_where_its_columns_say(spark: Any, queue: Queues) -> None:
    queue.channel.exchange_declare(f"{queue.name}-x", "topic", durable=True)
    queue.channel.queue_bind(queue.name, f"{queue.name}-x", "a.*")
    frame = spark.createDataFrame(
        [("1", f"{queue.name}-x", "a.b")], "body STRING, exchange STRING, routing_key STRING"
    )
    frame.write.format("mirrormq").mode("append").option("url", queue.url).save()
    assert queue.bodies() == [b"1"]


def test_an_exchange_and_a_key_for_all_rows_are_options(spark: Any, queue: Queues) -> None:
    queue.channel.queue_bind(queue.name, "amq.direct", "k")
    writer = spark.range(3).selectExpr("CAST(id AS STRING) AS body").write.format("mirrormq")
    where = {"url": queue.url, "exchange": "amq.direct", "routingKey": "k"}
    writer.options(**where, txTimeout="1h", confirmTimeout="30s").mode("append").save()
    method, _, _ = queue.channel.basic_get(queue.name)
    assert (method.exchange, method.routing_key) == ("amq.direct", "k")
    assert queue.count() == 2


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_row_that_no_queue_takes_fails_and_names_its_route(
    spark: Any, queue: Queues, delivery: str
) -> None:
    frame = spark.createDataFrame([("x",)], "body STRING")
    with pytest.raises(Exception, match="nowhere-at-all") as failed:
        writing(frame, queue, queue="nowhere-at-all", delivery=delivery).save()
    assert "Traceback" in str(failed.value) or "nowhere-at-all" in str(failed.value)


def test_a_failed_job_leaves_nothing_behind(spark: Any, queue: Queues) -> None:
    frame = spark.range(0, 1000, numPartitions=2).selectExpr(
        "CAST(id AS STRING) AS body", f"IF(id = 900, 'nowhere-at-all', '{queue.name}') AS routing_key"
    )
    with pytest.raises(Exception, match="nowhere-at-all"):
        frame.write.format("mirrormq").mode("append").option("url", queue.url).save()
    assert queue.count() == 0


def test_ordinary_confirms_give_every_row_a_message_id(spark: Any, queue: Queues) -> None:
    frame = spark.range(0, 3000, numPartitions=2).selectExpr("CAST(id AS STRING) AS body")
    writing(frame, queue, delivery="at-least-once").save()
    rows = reading(spark, queue).select("body", "message_id").collect()
    assert sorted(int(body) for body in bodies(rows)) == list(range(3000))
    assert len({row["message_id"] for row in rows}) == 3000


@pytest.mark.parametrize(
    ("columns", "mode", "complaint"),
    [
        ("id AS body", "append", "column 'body' is binary or string, not bigint"),
        ("'x' AS bdy", "append", "did you mean 'body'"),
        ("'x' AS body", "overwrite", "cannot be overwritten"),
        ("CAST(NULL AS STRING) AS body", "append", "null cannot be published"),
        ("'x' AS body, repeat('y', 256) AS message_id", "append", "message_id has at most 255 bytes"),
        ("'x' AS body, 256 AS priority", "append", "priority is a number from 0 to 255"),
    ],
)
def test_frames_that_cannot_be_messages_are_refused(
    spark: Any, queue: Queues, columns: str, mode: str, complaint: str
) -> None:
    with pytest.raises(Exception, match=r"queue|body|bytes|number|column|null") as failed:
        writing(
            spark.range(1).selectExpr(*columns.split(", ", 1 if "repeat" in columns else -1)), queue
        ).mode(mode).save()
    assert complaint in str(failed.value)


def copying(spark: Any, queue: Queues, copy: str, checkpoint: Path) -> None:
    frame = streaming(spark, queue, maxRecordsPerTrigger=100).selectExpr("body")
    query = (
        frame.writeStream.format("mirrormq").option("url", queue.url).option("queue", copy)
        .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()


def test_a_stream_into_a_queue_is_exact_when_its_last_batch_is_done_again(
    spark: Any, queue: Queues, tmp_path: Path
) -> None:
    copy = f"{queue.name}-copy"
    queue.declare(copy)
    queue.fill(250)
    copying(spark, queue, copy, tmp_path)
    assert queue.count(copy) == 250
    # As if Spark had died after the sink was told to commit, and before it wrote that down.
    commits = sorted((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    shutil.rmtree(tmp_path / "commits" / f".{commits[-1].name}.crc", ignore_errors=True)
    (tmp_path / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    queue.fill(10, 250)
    copying(spark, queue, copy, tmp_path)
    assert bodies(reading(spark, queue, queue=copy).orderBy("seq").collect()) == numbers(260)
