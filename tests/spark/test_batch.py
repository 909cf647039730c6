"""Batch reads: what is live, of which queues, in which range, with which columns."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime
from typing import Any

import pytest

from mirrormq.client.amqp import AmqpClient, Confirmed
from tests.integration.process import Process
from tests.spark.kit import Queues, bodies, numbers, reading


def test_a_batch_shows_what_is_live_and_changes_nothing(spark: Any, queue: Queues) -> None:
    queue.fill(100)
    queue.take(10)
    rows = reading(spark, queue).orderBy("seq").collect()
    assert bodies(rows) == numbers(90, 10)
    assert queue.count() == 90
    assert {row["queue"] for row in rows} == {queue.name}


def test_every_property_of_a_message_has_its_column(spark: Any, queue: Queues) -> None:
    queue.publish(
        b"\xff\x00body",
        content_type="text/plain", content_encoding="gzip", message_id="m-1",
        headers={"n": 1, "s": "text", "deep": {"a": [True]}},
        delivery_mode=2, priority=7, correlation_id="c-1", reply_to="back", expiration="600000",
        timestamp=1_700_000_000, type="kind", user_id="guest", app_id="app",
    )  # fmt: skip
    (row,) = reading(spark, queue).collect()
    assert bytes(row["body"]) == b"\xff\x00body"
    assert (row["vhost"], row["exchange"], row["routing_key"]) == ("/", "", queue.name)
    assert (row["content_type"], row["content_encoding"], row["type"]) == ("text/plain", "gzip", "kind")
    assert (row["correlation_id"], row["reply_to"], row["message_id"]) == ("c-1", "back", "m-1")
    assert (row["expiration"], row["user_id"], row["app_id"]) == ("600000", "guest", "app")
    assert (row["delivery_mode"], row["priority"], row["redelivered"]) == (2, 7, False)
    assert row["headers"] == {"n": "1", "s": '"text"', "deep": '{"a":[true]}'}
    assert row["app_timestamp"].astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert abs((row["timestamp"].astimezone(UTC) - datetime.now(UTC)).total_seconds()) < 600


def test_an_empty_queue_gives_no_rows(spark: Any, queue: Queues) -> None:
    assert reading(spark, queue).count() == 0
    assert reading(spark, queue, mode="changes").count() == 0


def test_bodies_of_no_octet_and_of_64_mib_come_through(spark: Any, queue: Queues) -> None:
    large = b"0123456789abcdef" * (4 << 20)
    queue.publish(b"", large, b"last")
    frame = reading(spark, queue).selectExpr("seq", "length(body) AS size", "sha2(body, 256) AS digest")
    rows = frame.orderBy("seq").collect()
    import hashlib

    assert [row["size"] for row in rows] == [0, len(large), 4]
    assert rows[1]["digest"] == hashlib.sha256(large).hexdigest()


def test_headers_that_are_not_utf_8_are_read_as_latin_1_and_kept_raw(spark: Any, queue: Queues) -> None:
    queue.publish(b"x", headers={"name": b"\xff\xfe"})
    (row,) = reading(spark, queue).select("headers", "headers_raw").collect()
    assert b"\xff\xfe" in bytes(row["headers_raw"])
    assert set(row["headers"]) == {"name"}


def test_a_long_string_in_headers_that_is_not_utf_8_is_read_as_latin_1(spark: Any, queue: Queues) -> None:
    table = b"\x04name" + b"S" + struct.pack(">I", 4) + b"a\xff\xfez"
    with AmqpClient(queue.host, queue.port, timeout=30) as client:
        properties = struct.pack(">HI", 1 << 13 | 1 << 12, len(table)) + table + b"\x02"
        client.publish_raw("", queue.name, properties, b"x")
        assert isinstance(client.next_event(), Confirmed)
    (row,) = reading(spark, queue).select("headers", "headers_raw").collect()
    assert bytes(row["headers_raw"]).endswith(table)
    assert {name: json.loads(value) for name, value in row["headers"].items()} == {"name": "aÿþz"}


def test_several_queues_are_read_by_list_and_by_pattern(spark: Any, queue: Queues) -> None:
    others = [f"{queue.name}-{letter}" for letter in "ab"]
    for name in others:
        queue.declare(name)
        queue.fill(3, name=name)
    queue.fill(2)
    listed = reading(spark, queue, queues=",".join([queue.name, *others])).groupBy("queue").count().collect()
    assert {row["queue"]: row["count"] for row in listed} == {queue.name: 2, others[0]: 3, others[1]: 3}
    matched = reading(spark, queue, queuePattern=f"{queue.name}-.*").groupBy("queue").count().collect()
    assert {row["queue"] for row in matched} == set(others)
    assert reading(spark, queue, queuePattern="nobody-has-this-name").count() == 0


def test_a_range_is_given_by_seqs_or_by_time(spark: Any, queue: Queues) -> None:
    queue.fill(50)
    first = reading(spark, queue).agg({"seq": "min"}).first()[0]
    part = reading(
        spark, queue, startingOffsets=json.dumps({queue.name: first + 10}),
        endingOffsets=json.dumps({queue.name: first + 20}),
    )  # fmt: skip
    assert bodies(part.orderBy("seq").collect()) == numbers(10, 10)
    assert reading(spark, queue, startingOffsets="latest").count() == 0
    middle = reading(spark, queue).where("body = '25'").first()["timestamp"]
    at = middle.astimezone(UTC).isoformat()
    assert bodies(reading(spark, queue, startingTimestamp=at).orderBy("seq").collect()) == numbers(25, 25)
    assert bodies(reading(spark, queue, endingTimestamp=at).orderBy("seq").collect()) == numbers(25)


def test_partitions_are_as_many_as_asked_for(spark: Any, queue: Queues) -> None:
    queue.fill(40)
    assert reading(spark, queue).rdd.getNumPartitions() == 1
    assert reading(spark, queue, minPartitions=4).rdd.getNumPartitions() == 4
    frame = reading(spark, queue, maxRecordsPerPartition=10)
    assert frame.rdd.getNumPartitions() >= 4
    assert bodies(frame.orderBy("seq").collect()) == numbers(40)


def test_columns_can_be_chosen_and_contents_left_out(spark: Any, queue: Queues) -> None:
    queue.publish("x", headers={"a": 1})
    chosen = (
        spark.read.format("mirrormq").schema("seq LONG, body BINARY").option("url", queue.url)
        .option("queue", queue.name).load()
    )  # fmt: skip
    assert chosen.columns == ["seq", "body"]
    assert bodies(chosen.collect()) == ["x"]
    (row,) = reading(spark, queue, includeBody=False, includeHeaders=False).collect()
    assert (row["body"], row["headers"], row["headers_raw"]) == (None, None, None)
    assert row["body_crc"] is not None


def test_small_arrow_batches_give_the_same_rows(spark: Any, queue: Queues) -> None:
    queue.fill(30)
    assert bodies(reading(spark, queue, arrowBatchBytes=200).orderBy("seq").collect()) == numbers(30)


def test_push_down_is_opt_in_and_gives_the_same_rows(spark: Any, queue: Queues) -> None:
    queue.fill(50)
    middle = reading(spark, queue).where("body = '25'").first()["timestamp"].astimezone(UTC)
    at = f"TIMESTAMP '{middle:%Y-%m-%d %H:%M:%S.%f}'"
    conditions = ["seq > 10 AND seq <= 20", "seq = 7", "queue = 'other'", f"queue IN ('{queue.name}', 'x')"]
    conditions += [f"timestamp {sign} {at}" for sign in (">=", ">", "=", "<", "<=")]
    plain = [bodies(reading(spark, queue).where(one).orderBy("seq").collect()) for one in conditions]
    with pytest.raises(Exception, match="filterPushdown"):
        reading(spark, queue, pushdown=True).collect()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = [
            bodies(reading(spark, queue, pushdown=True).where(one).orderBy("seq").collect())
            for one in conditions
        ]
        narrow = reading(spark, queue, pushdown=True, maxRecordsPerPartition=5).where(
            "seq > 10 AND seq <= 20"
        )
        assert narrow.rdd.getNumPartitions() == 2
        late = reading(spark, queue, pushdown=True, maxRecordsPerPartition=5).where(f"timestamp >= {at}")
        assert late.rdd.getNumPartitions() == 5
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    assert pushed == plain
    assert [len(found) for found in plain[-5:]] == [25, 24, 1, 25, 26]


def test_changes_tell_publishes_and_removals(spark: Any, queue: Queues) -> None:
    queue.fill(6)
    queue.take(2)
    rows = []
    while len(rows) < 8:  # the broker makes acknowledgements durable within a second
        rows = reading(spark, queue, mode="changes").collect()
    publishes = [row for row in rows if row["op"] == "publish"]
    removals = [row for row in rows if row["op"] == "remove"]
    assert bodies(publishes) == numbers(6)
    assert [row["reason"] for row in removals] == ["ack"] * 2
    assert [row["seq"] for row in removals] == [row["seq"] for row in publishes[:2]]
    assert [row["state"] for row in publishes] == ["ack", "ack", "live", "live", "live", "live"]


def test_sql_reads_a_queue_as_a_table(spark: Any, queue: Queues) -> None:
    queue.publish('{"price": 3}', '{"price": 4}')
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW orders "
        f"USING mirrormq OPTIONS (url '{queue.url}', queue '{queue.name}')"
    )
    total = spark.sql("SELECT sum(get_json_object(CAST(body AS STRING), '$.price')) AS s FROM orders").first()
    assert total["s"] == 7


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"queue": "there-is-none"}, "no queue 'there-is-none'"),
        ({"queu": "x"}, "did you mean 'queue'"),
        ({"mode": "cursor"}, "is for streams"),
        ({"maxRecordsPerTrigger": 5}, "is for streams"),
        ({"password": "wrong-secret"}, "Login was refused"),
        ({"endingOffsets": "earliest"}, "cannot be earliest"),
        ({"startingOffsets": '{"other": 1}'}, "which is not read"),
    ],
)
def test_mistakes_are_told_and_secrets_are_not(
    spark: Any, queue: Queues, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(Exception, match=r"mirrormq|Python|queue") as failed:
        reading(spark, queue, **options).collect()
    assert complaint in str(failed.value)
    assert "wrong-secret" not in str(failed.value)


def test_a_queue_without_a_log_says_why_it_cannot_be_read(spark: Any, queue: Queues) -> None:
    name = f"{queue.name}-transient"
    queue.declare(name, durable=False)
    with pytest.raises(Exception, match="survive a restart"):
        reading(spark, queue, queue=name).collect()


def test_plans_and_errors_never_show_a_password(spark: Any, queue: Queues, capfd: Any) -> None:
    queue.publish("x")
    frame = reading(spark, queue, password="guest").where("seq > 0")
    frame = frame.drop("routing_key")
    frame.explain("extended")
    shown = capfd.readouterr().out
    plan = str(frame._jdf.queryExecution().toString())
    for text in (shown, plan):
        assert "password" not in text.lower() or "redacted" in text
        assert "'guest'" not in text


def test_a_broker_that_is_no_mirrormq_or_is_not_there_is_named(
    spark: Any, queue: Queues, node: Process
) -> None:
    queue.port = 1
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        reading(spark, queue, timeout="2s").collect()
