"""What a stream makes of queues and cursors that are not as it left them: without Spark, beside a real node.

A reader here is what Spark's driver has: asked where to begin and how far to go, and its tasks are read.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from mirrormq.client.bulk import BulkClient, Target
from mirrormq.spark import reading
from mirrormq.spark.broker import QueueGone, SourceFailed
from mirrormq.spark.options import read_options
from mirrormq.spark.schema import schema_of
from mirrormq.spark.source import BatchReader
from mirrormq.spark.stream import StreamReader
from mirrormq.wire import bulk
from mirrormq.wire.bulk import BulkError, Fields
from tests.spark.batches import batch, publish
from tests.spark.kit import Queues, numbers
from tests.spark.scripted import Answer, Stream, queue_row, scripted

ALL = ReadAllAvailable()


class Query:
    """A query over a queue, as Spark drives it; `again` is a restart from its checkpoint."""

    def __init__(self, url: str, **options: Any) -> None:
        self.options = read_options(
            {"url": url, "timeout": "5s", **{name: str(value) for name, value in options.items()}}
        )
        self.schema = schema_of(self.options.mode)
        self.reader = StreamReader(self.options, self.schema)
        self.at: dict[str, Any] = {}

    def begin(self) -> Query:
        self.at = self.reader.initialOffset()
        return self

    def again(self) -> None:
        self.reader.stop()
        self.reader = StreamReader(self.options, self.schema)

    def plan(self, limit: ReadLimit = ALL) -> list[Any]:
        """The tasks of the next batch."""
        start, self.at = self.at, self.reader.latestOffset(self.at, limit)
        return list(self.reader.partitions(start, self.at)) if self.at != start else []

    def run(self, tasks: list[Any]) -> list[str]:
        return [
            row.decode()
            for task in tasks
            for batch in self.reader.read(task)
            for row in batch.column("body").to_pylist()
        ]

    def next(self, limit: ReadLimit = ALL) -> list[str]:
        """The rows of the next batch."""
        return self.run(self.plan(limit))

    @property
    def cursor(self) -> str:
        (row,) = self.at["q"].values()
        return str(row["cur"])


def cursors(queue: Queues, name: str = "") -> list[dict[str, Any]]:
    with BulkClient(Target([(queue.host, queue.port)])) as client:
        return list(client.call("cursor_list", queue=name or queue.name)["cursors"])


def drop_cursor(queue: Queues, name: str) -> None:
    with BulkClient(Target([(queue.host, queue.port)])) as client:
        client.call("cursor_drop", queue=queue.name, name=name)


def named(queue: Queues, option: str) -> dict[str, str]:
    """The queue by one option, or it and another one by the other."""
    if option == "queue":
        return {"queue": queue.name}
    queue.declare(f"{queue.name}-2")
    return {"queues": f"{queue.name},{queue.name}-2"}


# --- queues that are not there any more ---------------------------------------------------------------------


@pytest.mark.parametrize("option", ["queue", "queues"])
@pytest.mark.parametrize("is_running", [True, False], ids=["running", "stopped"])
def test_a_deleted_queue_ends_a_query_only_if_loss_is_not_accepted(
    queue: Queues, option: str, is_running: bool
) -> None:
    options = named(queue, option)
    strict = Query(queue.url, **options).begin()
    query = Query(queue.url, **options, failOnDataLoss=False).begin()
    queue.fill(5)
    assert strict.next() == query.next() == numbers(5)
    queue.delete()
    if not is_running:
        strict.again()
        query.again()
    with pytest.raises(SourceFailed, match="it was deleted"):
        strict.next()
    for _ in range(3):
        assert query.next() == []
    if option == "queues":
        queue.fill(2, 50, name=f"{queue.name}-2")
        assert query.next() == numbers(2, 50)
    queue.declare()
    queue.fill(3, 100)
    assert query.next() == numbers(3, 100)
    strict.reader.stop()
    query.reader.stop()


@pytest.mark.parametrize("accepts", [True, False])
def test_a_queue_that_never_was_is_refused_at_the_beginning(queue: Queues, accepts: bool) -> None:
    query = Query(queue.url, queue="never-was", failOnDataLoss=not accepts)
    query.reader.prepareForTriggerAvailableNow()
    with pytest.raises(QueueGone, match="no queue 'never-was'"):
        query.begin()
    query.reader.stop()


def test_a_queue_that_is_added_and_is_not_there_is_told_once(
    queue: Queues, caplog: pytest.LogCaptureFixture
) -> None:
    queue.fill(2)
    first = Query(queue.url, queue=queue.name).begin()
    for accepts in (False, True):
        query = Query(queue.url, queues=f"{queue.name},typo", failOnDataLoss=not accepts)
        query.at = first.at
        if not accepts:
            with pytest.raises(QueueGone, match="no queue 'typo'"):
                query.next()
            query.reader.stop()
    first.reader.stop()
    with caplog.at_level(logging.WARNING, "mirrormq.spark"):
        assert query.next() == numbers(2)
        assert query.next() == []
    assert len([record for record in caplog.records if "typo" in record.getMessage()]) == 1
    query.reader.stop()


def test_a_queue_deleted_between_planning_and_reading_is_data_loss(queue: Queues) -> None:
    strict = Query(queue.url, queue=queue.name).begin()
    query = Query(queue.url, queue=queue.name, failOnDataLoss=False).begin()
    plain = BatchReader(strict.options, schema_of(None))
    lenient = BatchReader(query.options, schema_of(None))
    queue.fill(5)
    readers = ((plain.read, plain.partitions()), (strict.reader.read, strict.plan()))
    accepting = ((lenient.read, lenient.partitions()), (query.reader.read, query.plan()))
    queue.delete()
    for read, tasks in readers:
        with pytest.raises(SourceFailed, match=f"data loss: queue '{queue.name}'"):
            list(read(tasks[0]))
    for read, tasks in accepting:
        assert list(read(tasks[0])) == []
    with pytest.raises(QueueGone, match="no queue"):
        lenient.partitions()
    strict.reader.stop()
    query.reader.stop()


# --- cursors that are not there any more --------------------------------------------------------------------


@pytest.mark.parametrize("given", ["", "held"], ids=["unnamed", "named"])
@pytest.mark.parametrize("fails", [True, False], ids=["strict", "accepting"])
def test_a_cursor_dropped_under_a_running_query_is_made_anew_if_nothing_is_missing(
    queue: Queues, given: str, fails: bool
) -> None:
    more = {"cursor": given} if given else {}
    query = Query(queue.url, queue=queue.name, failOnDataLoss=fails, **more).begin()
    queue.fill(5)
    assert query.next() == numbers(5)
    assert query.next() == []
    drop_cursor(queue, query.cursor)
    queue.fill(5, 5)
    queue.take(10)
    assert query.next() == numbers(5, 5)
    assert query.next() == []
    (cursor,) = cursors(queue)
    assert cursor["name"] == query.cursor
    query.again()
    queue.fill(1, 10)
    assert query.next() == numbers(1, 10)
    query.reader.stop()


def test_a_query_that_consumes_does_not_take_back_a_queue_that_was_given_to_others(queue: Queues) -> None:
    queue.fill(5)
    query = Query(queue.url, queue=queue.name, mode="consume").begin()
    assert query.next() == numbers(5)
    drop_cursor(queue, query.cursor)
    with pytest.raises(SourceFailed, match="data loss"):
        query.next()
    assert cursors(queue) == []
    query.reader.stop()


class History:
    """A node whose queue has one cursor; tests change what it answers."""

    def __init__(self) -> None:
        self.row = queue_row("q")
        self.cursor: dict[str, Any] | None = None
        self.lost = ""
        self.advance: Answer = {"seq": 1}

    def __call__(self, op: str, fields: Fields) -> Answer:
        if op == "queues":
            return {"queues": [self.row] if fields["queues"] else []}
        if op == "read":
            return Stream(batch([publish(fields["start"], b"x")]), {"position": fields["start"] + 1})
        if op == "cursor_open":
            if self.lost:
                return BulkError(bulk.GONE, f"cursor '{fields['name']}' was lost: {self.lost}")
            self.cursor = self.cursor or {"name": fields["name"], "seq": fields["at"]}
            return {**self.cursor, "epoch": 1}
        if op == "cursor_drop":
            self.lost = ""
            self.cursor = None
            return {}
        assert op == "cursor_advance", op
        if self.lost:
            return BulkError(bulk.GONE, f"cursor '{fields['name']}' was lost: {self.lost}")
        return self.advance


def test_records_behind_a_lost_cursor_are_lost_only_if_they_were_given_up() -> None:
    history = History()
    with scripted(history) as node:
        strict, query = (Query(node.url, queue="q", failOnDataLoss=fails).begin() for fails in (True, False))
        for one in (strict, query):
            one.at["q"]["%2F/q"]["s"] = 5
        history.lost = "it held 9 bytes, 4 are allowed"
        strict.reader.latestOffset(strict.at, ReadMaxRows(1))
        assert (history.cursor or {})["seq"] == 5
        history.lost = "it held 9 bytes, 4 are allowed"
        history.row = queue_row("q", low=7, first=7)
        with pytest.raises(SourceFailed, match="5 to 6 are gone"):
            strict.reader.latestOffset(strict.at, ReadMaxRows(1))
        assert history.lost
        end = query.reader.latestOffset(query.at, ReadMaxRows(1))["q"]["%2F/q"]
        assert (end["f"], end["s"]) == (7, 8)
        assert (history.cursor or {})["seq"] == 7
        strict.reader.stop()
        query.reader.stop()


def test_after_a_lossy_promotion_the_same_cursor_goes_on_where_the_histories_part() -> None:
    history = History()
    with scripted(history) as node:
        query = Query(node.url, queue="q", failOnDataLoss=False).begin()
        query.at["q"]["%2F/q"] |= {"s": 9, "e": 1}
        made = dict(history.cursor or {})
        history.row = queue_row("q", next=12, epochs=[(1, 1), (2, 6)])
        history.advance = BulkError(bulk.DATA_LOSS, "record 8 is not in the log any more", low=1, next=12)
        end = query.reader.latestOffset(query.at, ReadMaxRows(100))["q"]["%2F/q"]
        assert (end["f"], end["s"], end["cur"]) == (6, 12, made["name"])
        assert "cursor_drop" not in node.asked
        query.reader.stop()


# --- limits -------------------------------------------------------------------------------------------------


def test_queues_take_turns_if_there_are_more_than_records_in_a_batch(queue: Queues) -> None:
    names = [queue.name, *(f"{queue.name}-{letter}" for letter in "bc")]
    for name in names[1:]:
        queue.declare(name)
    query = Query(queue.url, queues=",".join(names)).begin()
    seen: list[str] = []
    for _ in range(6):
        for name in names:
            queue.publish(name, name=name)
        queue.publish(queue.name, queue.name)
        seen += query.next(ReadMaxRows(2))
    assert {name: seen.count(name) >= 2 for name in names} == dict.fromkeys(names, True)
    query.reader.stop()


def test_large_messages_are_not_read_to_see_whether_there_are_any(queue: Queues) -> None:
    asked: list[Fields] = []
    history = History()

    def say(op: str, fields: Fields) -> Answer:
        asked.extend([fields] if op == "read" else [])
        return history(op, fields)

    with scripted(say) as node:
        query = Query(node.url, queue="q").begin()
        (task,) = query.plan()
        assert (task.start, task.end) == (1, 10)
        assert [fields["max_bytes"] for fields in asked] == [reading.LOOK_BYTES]
        query.reader.stop()
    # Nor is a whole batch of them taken for nothing.
    real = Query(queue.url, queue=queue.name).begin()
    queue.publish(*(b"x" * (1 << 20) for _ in range(5)))
    assert [len(body) for body in real.next()] == [1 << 20] * 5
    assert real.next() == []
    real.reader.stop()


def test_a_limit_in_bytes_holds_for_each_of_many_queues(queue: Queues) -> None:
    queue.publish(*("x" * 1000 for _ in range(10)))
    query = Query(queue.url, queue=queue.name).begin()
    assert 1 <= len(query.next(ReadMaxBytes(3000))) <= 5
    query.reader.stop()


def test_a_batch_waits_for_as_many_records_as_were_asked_for(queue: Queues) -> None:
    queue.fill(1)
    options = {"minRecordsPerTrigger": 4, "maxTriggerDelay": "15m"}
    query = Query(queue.url, queue=queue.name, startingOffsets="latest", **options).begin()
    queue.fill(2)
    for _ in range(3):
        assert query.plan() == []
    queue.fill(4, 2)
    assert query.next() == numbers(6)
    query.reader.stop()
