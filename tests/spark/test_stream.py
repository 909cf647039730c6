"""Streams: every record once, resumed where they stood, whatever happens in between."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mirrormq.client.bulk import BulkClient, Target
from tests.spark.kit import Queues, bodies, numbers, once, reading, running_query, streaming, written


def cursors(queue: Queues) -> list[dict[str, Any]]:
    with BulkClient(Target([(queue.host, queue.port)])) as client:
        return list(client.call("cursor_list", queue=queue.name)["cursors"])


def drop_cursor(queue: Queues, name: str) -> None:
    with BulkClient(Target([(queue.host, queue.port)])) as client:
        client.call("cursor_drop", queue=queue.name, name=name)


def facts(queue: Queues) -> dict[str, Any]:
    with BulkClient(Target([(queue.host, queue.port)])) as client:
        return dict(client.call("queues", queue=queue.name)["queues"][0])


def end_offset(query: Any) -> dict[str, Any]:
    offset = query.lastProgress["sources"][0]["endOffset"]
    return dict(json.loads(offset) if isinstance(offset, str) else offset)


def test_a_stream_reads_each_record_once_and_resumes_where_it_stood(
    spark: Any, queue: Queues, tmp_path: Path
) -> None:
    queue.fill(20)
    once(streaming(spark, queue), tmp_path)
    assert bodies(written(spark, tmp_path)) == numbers(20)
    assert queue.count() == 20
    queue.fill(5, 20)
    queue.take(22)
    once(streaming(spark, queue), tmp_path)
    assert bodies(written(spark, tmp_path)) == numbers(25)
    once(streaming(spark, queue), tmp_path)
    assert bodies(written(spark, tmp_path)) == numbers(25)


def test_available_now_ends_with_the_cursor_behind_the_last_message(
    spark: Any, queue: Queues, tmp_path: Path
) -> None:
    queue.fill(30)
    query = once(streaming(spark, queue, maxRecordsPerTrigger=8), tmp_path)
    assert bodies(written(spark, tmp_path)) == numbers(30)
    assert len([p for p in query.recentProgress if p["numInputRows"]]) >= 4
    assert all(progress["numInputRows"] <= 8 for progress in query.recentProgress)
    (cursor,) = cursors(queue)
    (position,) = end_offset(query)["q"].values()
    assert cursor["seq"] == position["s"]
    assert cursor["name"] == position["cur"]
    # Behind it lie only the records of its own moves.
    assert facts(queue)["next"] - cursor["seq"] <= len(query.recentProgress) + 2


def test_a_limit_in_bytes_cuts_batches(spark: Any, queue: Queues, tmp_path: Path) -> None:
    queue.publish(*(b"%06d" % number + b"x" * 1000 for number in range(40)))
    query = once(streaming(spark, queue, maxBytesPerTrigger=11_000), tmp_path)
    sizes = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert sum(sizes) == 40
    assert max(sizes) <= 20


def test_a_batch_that_is_done_again_has_the_same_rows_while_consumers_acknowledge_them(
    spark: Any, queue: Queues, tmp_path: Path
) -> None:
    queue.fill(30)
    once(streaming(spark, queue, mode="cursor"), tmp_path)
    before = written(spark, tmp_path)
    queue.take(30)
    # As if Spark had died before the batch was finished: no commit, no output.
    shutil.rmtree(tmp_path / "out")
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    assert facts(queue)["messages"] == 0
    once(streaming(spark, queue, mode="cursor"), tmp_path)
    after = written(spark, tmp_path)
    assert after == before
    assert {row["state"] for row in after} == {"live"}


def test_a_named_cursor_has_one_reader_and_survives_a_lost_checkpoint(
    spark: Any, queue: Queues, tmp_path: Path
) -> None:
    queue.fill(10)
    once(streaming(spark, queue, cursor="mine"), tmp_path / "a")
    queue.fill(5, 10)
    frame = streaming(spark, queue, cursor="mine")
    once(frame, tmp_path / "b")
    assert bodies(written(spark, tmp_path / "b")) == numbers(5, 10)
    first = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    with running_query(first):
        first.processAllAvailable()
        second = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "d")).start()
        with pytest.raises(Exception, match="another live reader"):
            second.awaitTermination()


def test_consuming_takes_what_was_processed_out_of_the_queue(
    spark: Any, queue: Queues, tmp_path: Path
) -> None:
    queue.fill(20)
    once(streaming(spark, queue, mode="consume"), tmp_path)
    assert bodies(written(spark, tmp_path)) == numbers(20)
    assert queue.count() == 0
    with pytest.raises(Exception, match=r"ACCESS_REFUSED|403"):
        queue.channel.basic_get(queue.name)


def test_what_a_sink_takes_leaves_the_queue_and_the_rest_stays_in_order(
    spark: Any, queue: Queues, tmp_path: Path
) -> None:
    queue.fill(20)
    target = f"{queue.name}-even"
    queue.declare(target)
    frame = streaming(spark, queue, mode="consume", remove=False, maxRecordsPerTrigger=8)
    even = frame.where("CAST(CAST(body AS STRING) AS INT) % 2 = 0").select("seq", "queue_id", "body")
    writer = even.writeStream.format("mirrormq").option("url", queue.url).option("queue", target)
    writer = writer.option("takeFrom", queue.name).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    (cursor,) = cursors(queue)
    drop_cursor(queue, cursor["name"])
    assert [int(body) for body in queue.bodies(target)] == list(range(0, 20, 2))
    assert [int(body) for body in queue.bodies()] == list(range(1, 20, 2))


def test_with_asynchronous_progress_the_cursor_moves_only_when_spark_commits(
    spark: Any, queue: Queues, tmp_path: Path
) -> None:
    queue.fill(20)
    query = once(streaming(spark, queue, asyncProgress=True, maxRecordsPerTrigger=8), tmp_path)
    assert bodies(written(spark, tmp_path)) == numbers(20)
    (position,) = end_offset(query)["q"].values()
    # The last batch is never committed to the source: the cursor is one behind.
    (cursor,) = cursors(queue)
    assert cursor["seq"] < position["s"]


def test_changes_follow_a_queue_as_it_goes(spark: Any, queue: Queues, tmp_path: Path) -> None:
    queue.fill(4)
    once(streaming(spark, queue, mode="changes"), tmp_path)
    queue.take(1)
    queue.purge()
    once(streaming(spark, queue, mode="changes"), tmp_path)
    rows = written(spark, tmp_path)
    told = sorted((row["op"], row["reason"] or "") for row in rows)
    assert told == [("publish", "")] * 4 + [("purge", "purge"), ("remove", "ack")]
    (purge,) = [row for row in rows if row["op"] == "purge"]
    assert json.loads(bytes(purge["body"])) == []


def test_starting_positions_are_obeyed_once(spark: Any, queue: Queues, tmp_path: Path) -> None:
    queue.fill(10)
    latest = streaming(spark, queue, startingOffsets="latest")
    once(latest, tmp_path / "latest")
    queue.fill(3, 10)
    once(latest, tmp_path / "latest")
    assert bodies(written(spark, tmp_path / "latest")) == numbers(3, 10)
    tenth = reading(spark, queue).where("body = '10'").first()
    given = streaming(spark, queue, startingOffsets=json.dumps({queue.name: tenth["seq"]}))
    once(given, tmp_path / "given")
    assert bodies(written(spark, tmp_path / "given")) == numbers(3, 10)
    timed = streaming(spark, queue, startingTimestamp=tenth["timestamp"].astimezone(UTC).isoformat())
    once(timed, tmp_path / "timed")
    assert bodies(written(spark, tmp_path / "timed")) == numbers(3, 10)


def test_a_pattern_takes_up_queues_that_come_later_from_their_beginning(
    spark: Any, queue: Queues, tmp_path: Path
) -> None:
    queue.fill(3)
    frame = streaming(spark, queue, queuePattern=f"{queue.name}(-.*)?")
    once(frame, tmp_path)
    queue.declare(f"{queue.name}-late")
    queue.fill(4, 100, name=f"{queue.name}-late")
    queue.fill(1, 3)
    once(frame, tmp_path)
    assert bodies(written(spark, tmp_path)) == numbers(4) + numbers(4, 100)
    once(frame, tmp_path)
    assert len(written(spark, tmp_path)) == 8


def test_a_redeclared_queue_is_data_loss_unless_that_is_accepted(
    spark: Any, queue: Queues, tmp_path: Path
) -> None:
    queue.fill(5)
    once(streaming(spark, queue), tmp_path)
    queue.delete()
    queue.declare()
    queue.fill(3, 100)
    with pytest.raises(Exception, match="deleted and declared again"):
        once(streaming(spark, queue), tmp_path)
    once(streaming(spark, queue, failOnDataLoss=False), tmp_path)
    assert sorted(bodies(written(spark, tmp_path))) == sorted(numbers(5) + numbers(3, 100))


def test_a_deleted_queue_is_data_loss_unless_that_is_accepted(
    spark: Any, queue: Queues, tmp_path: Path
) -> None:
    queue.declare(f"{queue.name}-2")
    queue.fill(5)
    options = {"queuePattern": f"{queue.name}(-2)?"}
    once(streaming(spark, queue, **options), tmp_path)
    queue.delete()
    queue.fill(2, 50, name=f"{queue.name}-2")
    with pytest.raises(Exception, match="it was deleted"):
        once(streaming(spark, queue, **options), tmp_path)
    once(streaming(spark, queue, failOnDataLoss=False, **options), tmp_path)
    assert sorted(bodies(written(spark, tmp_path))) == sorted(numbers(5) + numbers(2, 50))


def test_a_dropped_cursor_is_data_loss_only_if_records_are_gone(
    spark: Any, queue: Queues, tmp_path: Path
) -> None:
    queue.fill(5)
    once(streaming(spark, queue, cursor="held"), tmp_path)
    drop_cursor(queue, "held")
    queue.fill(2, 5)
    once(streaming(spark, queue, cursor="held"), tmp_path)
    assert bodies(written(spark, tmp_path)) == numbers(7)


def test_a_running_query_outlives_its_cursor_and_if_that_is_accepted_its_queue(
    spark: Any, queue: Queues, tmp_path: Path
) -> None:
    queue.fill(5)
    frame = streaming(spark, queue, failOnDataLoss=False)
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with running_query(writer.start(str(tmp_path / "out"))) as query:
        query.processAllAvailable()
        (cursor,) = cursors(queue)
        drop_cursor(queue, cursor["name"])
        queue.fill(2, 5)
        query.processAllAvailable()
        assert bodies(written(spark, tmp_path)) == numbers(7)
        queue.delete()
        query.processAllAvailable()
        queue.declare()
        queue.fill(3, 100)
        query.processAllAvailable()
    assert sorted(bodies(written(spark, tmp_path))) == sorted(numbers(7) + numbers(3, 100))


def test_a_stream_waits_for_enough_records_but_not_for_ever(
    spark: Any, queue: Queues, tmp_path: Path
) -> None:
    queue.fill(3)
    frame = streaming(spark, queue, minRecordsPerTrigger=1000, maxTriggerDelay="3s")
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    began = datetime.now(UTC)
    query = writer.trigger(processingTime="200 milliseconds").start(str(tmp_path / "out"))
    with running_query(query):
        while not (filled := [one for one in query.recentProgress if one["numInputRows"]]):
            assert query.exception() is None
            query.awaitTermination(0.2)
    assert bodies(written(spark, tmp_path)) == numbers(3)
    assert datetime.fromisoformat(filled[0]["timestamp"]) - began >= timedelta(seconds=3)


def test_a_quiet_stream_makes_no_batches(spark: Any, queue: Queues, tmp_path: Path) -> None:
    queue.fill(3)
    writers = [
        streaming(spark, queue).writeStream.format("noop").option("checkpointLocation", str(tmp_path / name))
        for name in ("a", "b")
    ]
    first, second = (writer.start() for writer in writers)
    with running_query(first), running_query(second):
        first.processAllAvailable()
        second.processAllAvailable()
        batches = first.lastProgress["batchId"], second.lastProgress["batchId"]
        first.awaitTermination(6)
        assert first.lastProgress["batchId"] <= batches[0] + 2
        assert second.lastProgress["batchId"] <= batches[1] + 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"mode": "browse"}, "mode browse is for batches"),
        ({"endingOffsets": "latest"}, "are for batches"),
        ({"pushdown": True}, "is for batches"),
        ({"readFrom": "node=x"}, "is for batches"),
        ({"queue": "there-is-none"}, "no queue 'there-is-none'"),
    ],
)
def test_what_makes_no_sense_in_a_stream_is_refused(
    spark: Any, queue: Queues, tmp_path: Path, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(Exception, match=r"queue|mode|batches") as failed:
        once(streaming(spark, queue, **options), tmp_path)
    assert complaint in str(failed.value)


def test_lag_shows_in_the_progress_of_a_query(spark: Any, queue: Queues, tmp_path: Path) -> None:
    queue.fill(20)
    query = once(streaming(spark, queue, maxRecordsPerTrigger=5), tmp_path)
    first = next(progress for progress in query.recentProgress if progress["numInputRows"])
    source = first["sources"][0]
    latest = source["latestOffset"]
    ends = [
        json.loads(offset) if isinstance(offset, str) else offset for offset in (source["endOffset"], latest)
    ]
    (done,), (there,) = (offset["q"].values() for offset in ends)
    assert there["s"] - done["s"] >= 10
