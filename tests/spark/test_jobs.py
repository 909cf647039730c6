"""The jobs' own work on rows with the connector's columns, in a real Spark, without a broker."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructField, StructType

from mirrormq.log import latency as buckets
from mirrormq.spark.jobs import analytics, archive, duplicates, facts, redrive, replay
from mirrormq.spark.jobs.manifest import Archive
from mirrormq.spark.jobs.messages import micros
from mirrormq.spark.schema import columns_of

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def _micros(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000)


def _messages(spark: Any, *rows: dict[str, Any], mode: Any = "browse") -> Any:
    # What a test leaves out is null, also where a queue would have a value.
    schema = StructType([StructField(name, kind) for name, kind in columns_of(mode).items()])
    plain = {
        "vhost": "/",
        "queue": "q",
        "queue_id": "id-q",
        "epoch": 1,
        "timestamp": NOON,
        "body": b"",
        "body_crc": 7,
    }
    made = [tuple({**plain, **row}.get(name) for name in schema.fieldNames()) for row in rows]
    return spark.createDataFrame(made, schema)


# --- samples and events ------------------------------------------------------------------------------------


def _sample(
    at: datetime, node: str = "a", queues: list[dict[str, Any]] | None = None, **of_node: Any
) -> bytes:
    rows = [
        {
            "vhost": "/",
            "queue": "q",
            "id": "1",
            "epoch": 1,
            "in_sync": 3,
            "end": 10,
            "received": 10,
            "durable": 9,
            "publishes": 0,
            "deliveries": 0,
            "redeliveries": 0,
            "acks": 0,
            "ready": 0,
            "unacked": 0,
            "bytes": 0,
            "consumers": 0,
            "confirm": [],
            "replication": [],
            "cursors": [],
            **row,
        }
        for row in queues or []
    ]
    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else {})}
    node_row = {
        "connections": 1,
        "channels": 1,
        "consumers": 0,
        "queues": len(rows),
        "ready": 0,
        "unacked": 0,
    }
    node_row |= {
        "memory": 1,
        "disk_free": 1,
        "alarms": [],
        "is_leader": True,
        "flushes": 1,
        "written": 1,
        **of_node,
    }
    head = {"v": 1, "node": node, "start": 1, "round": 1, "part": 1, "since": _micros(at) - 1_000_000}
    return msgspec.msgpack.encode({**head, "at": _micros(at), "of_node": node_row, "queues": columns})


def _samples(spark: Any, *bodies: bytes) -> Any:
    return facts.samples(_messages(spark, *({"seq": n, "body": body} for n, body in enumerate(bodies, 1))))


def test_a_sample_becomes_a_row_per_queue_and_one_of_its_node(spark: Any) -> None:
    queues = [
        {"queue": "one", "publishes": 5, "confirm": [3, 2, 9, 1], "cursors": [["c", 4]]},
        {"queue": "two"},
    ]
    rows = _samples(spark, _sample(NOON, queues=queues, ready=12)).collect()
    assert [(row["kind"], row["queue"]) for row in rows] == [
        ("queue", "one"),
        ("queue", "two"),
        ("node", None),
    ]
    assert (rows[0]["publishes"], rows[0]["confirm"], rows[0]["cursors"]) == (5, {3: 2, 9: 1}, {"c": 4})
    assert (rows[2]["ready"], rows[2]["alarms"], rows[2]["is_leader"]) == (12, [], True)
    assert {row["at"].astimezone(UTC) for row in rows} == {NOON}


def test_samples_of_other_versions_are_counted_not_guessed(spark: Any) -> None:
    newer = msgspec.msgpack.encode({"v": 2, "node": "a"})
    rows = _samples(spark, newer, b"\xc1 no sample", _sample(NOON, unheard_of=1)).collect()
    assert sorted(row["kind"] for row in rows) == ["node", "unknown", "unknown"]


def test_percentiles_are_those_of_the_sum_of_all_histograms(spark: Any) -> None:
    durations = [1, 3, 50, 900, 1_000, 4_000, 5_000, 60_000, 700_000, 9_000_000]
    halves = ({}, {})  # type: ignore[var-annotated]
    for number, duration in enumerate(durations):
        into = halves[number % 2]
        bucket = buckets.bucket_of(duration)
        into[bucket] = into.get(bucket, 0) + 1
    flat = [[number for pair in half.items() for number in pair] for half in halves]
    rows = _samples(spark, *(_sample(NOON, queues=[{"confirm": half}]) for half in flat)).where(
        "kind = 'queue'"
    )
    wanted = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "max": 1.0}
    (found,) = facts.percentiles(rows, "confirm", ["queue"], wanted).collect()
    for name, share in wanted.items():
        exact = durations[max(0, int(len(durations) * share) - 1)]
        assert found[name] == buckets.upper_edge(buckets.bucket_of(exact))
        assert exact < found[name] <= max(exact + 1, exact * 1.25)
    assert found["batches"] == len(durations)


def test_edges_of_buckets_are_the_brokers(spark: Any) -> None:
    from pyspark.sql import functions as f

    rows = spark.range(buckets.BUCKETS).selectExpr("cast(id as int) as bucket")
    found = rows.select("bucket", facts.upper_edge(f.col("bucket")).alias("edge")).collect()
    assert {row["bucket"]: row["edge"] for row in found} == {
        bucket: buckets.upper_edge(bucket) for bucket in range(buckets.BUCKETS)
    }


def test_throughput_and_depth_add_up(spark: Any) -> None:
    bodies = [
        _sample(
            NOON + timedelta(seconds=second),
            node,
            [{"queue": node, "publishes": 10, "ready": second}],
            ready=second,
        )
        for second in range(10)
        for node in ("a", "b")
    ]
    told = _samples(spark, *bodies)
    table = analytics.throughput(told.where("kind = 'queue'"), 5)
    assert {(row["queue"], row["publishes"], row["publishes_per_s"]) for row in table.collect()} == {
        ("a", 50, 10.0),
        ("b", 50, 10.0),
    }
    assert [row["publishes_per_s"] for row in analytics.totals(table).collect()] == [20.0, 20.0]
    deep = analytics.depth(told.where("kind = 'node'"), 5).orderBy("moment").collect()
    assert [row["ready"] for row in deep] == [8, 18]


def test_a_node_that_is_idle_keeps_its_depth_and_one_that_is_silent_does_not(spark: Any) -> None:
    bodies = [_sample(NOON, "idle", ready=5), _sample(NOON, "busy", ready=1)]
    bodies += [_sample(NOON + timedelta(seconds=second), "busy", ready=1) for second in range(5, 45, 5)]
    deep = analytics.depth(_samples(spark, *bodies).where("kind = 'node'"), 5).orderBy("moment").collect()
    assert [row["ready"] for row in deep] == [6, 6, 6, 6, 1, 1, 1, 1, 1]


def _event(at: datetime, event: str, **told: Any) -> dict[str, Any]:
    body = json.dumps({"v": 1, "event": event, "at": _micros(at), "told_by": "a", **told})
    return {"seq": _micros(at), "body": body.encode()}


def test_a_fail_over_is_shown_with_the_time_since_the_death_and_until_the_next_publish(spark: Any) -> None:
    rows = [
        _event(NOON - timedelta(hours=1), "node.down", name="b", start=1),
        _event(NOON, "node.down", name="b", start=2),
        _event(
            NOON + timedelta(milliseconds=150),
            "queue.master_changed",
            **{
                "name": "q",
                "vhost": "/",
                "epoch": 4,
                "from": "b",
                "to": "c",
                "reason": "failure",
                "lossy": False,
            },
        ),
        _event(NOON, "queue.created", name="q", vhost="/"),
        {"seq": 1, "body": b"no event"},
    ]
    samples = [
        _sample(NOON + timedelta(seconds=second), "c", [{"publishes": publishes, "epoch": 4}])
        for second, publishes in ((1, 0), (2, 7), (3, 7))
    ]
    queues = _samples(spark, *samples).where("kind = 'queue'")
    shown = analytics.timeline(facts.events(_messages(spark, *rows)), queues).orderBy("at").collect()
    assert [row["event"] for row in shown] == ["node.down", "node.down", "queue.master_changed"]
    assert (shown[2]["from"], shown[2]["to"], shown[2]["reason"]) == ("b", "c", "failure")
    assert (shown[2]["since_down_ms"], shown[2]["next_publish_ms"]) == (150, 1850)


def test_the_time_that_is_looked_at_is_in_utc_and_chosen_to_the_microsecond(spark: Any) -> None:
    since = "2026-11-16T14:00:00.000001+02:00"
    moments = [NOON + timedelta(microseconds=number) for number in range(4)]
    rows = _samples(spark, *map(_sample, moments))
    found = analytics.between(rows, micros(since), micros("2026-11-16T12:00:00.000003"))
    span = analytics.span_of(found, None)
    assert [span.first, span.last] == moments[1:3]
    assert [f"{at:%H:%M:%S.%f}" for at in (span.first, span.last)] == ["12:00:00.000001", "12:00:00.000002"]


def test_a_time_of_the_command_line_is_the_same_number_of_microseconds() -> None:
    for fraction in range(0, 1_000_000, 997):
        assert micros(f"2026-11-16T12:00:00.{fraction:06}") == int(NOON.timestamp()) * 1_000_000 + fraction


@pytest.mark.parametrize(
    ("seconds", "width"), [(1, 1), (240, 1), (241, 2), (3600, 15), (86_400, 600), (86_400 * 400, 144_000)]
)
def test_a_chart_has_at_most_so_many_points(seconds: int, width: int) -> None:
    assert analytics.width_for(seconds) == width
    assert seconds / width <= analytics.POINTS


# --- duplicates --------------------------------------------------------------------------------------------


def test_duplicates_are_found_per_queue_and_told_apart_by_epochs(spark: Any) -> None:
    rows = [
        {"seq": 1, "message_id": "once"},
        {"seq": 2, "message_id": "resent", "epoch": 1},
        {"seq": 9, "message_id": "resent", "epoch": 3},
        {"seq": 3, "message_id": "twice"},
        {"seq": 4, "message_id": "twice", "body_crc": 8},
        {"seq": 5, "message_id": "twice"},
        {"seq": 6, "message_id": None},
        {"seq": 7, "message_id": None},
        {"seq": 1, "message_id": "once", "queue": "other", "queue_id": "id-other"},
    ]
    messages = _messages(spark, *rows)
    found = duplicates.groups(messages)
    told = {row["message_id"]: row for row in found.collect()}
    assert set(told) == {"resent", "twice"}
    resent, twice = told["resent"], told["twice"]
    assert (resent["copies"], resent["first_seq"], resent["last_seq"], resent["epochs"]) == (2, 2, 9, [1, 3])
    assert (resent["is_across"], resent["is_same_body"]) == (True, True)
    assert (twice["copies"], twice["is_across"], twice["is_same_body"]) == (3, False, False)
    sums = {row["queue"]: row.asDict() for row in duplicates.summary(messages, found).collect()}
    wanted = {
        "messages": 8,
        "without_id": 2,
        "ids": 2,
        "extra": 3,
        "across_failovers": 1,
        "differing_bodies": 1,
    }
    assert {name: sums["q"][name] for name in wanted} == wanted
    assert (sums["other"]["messages"], sums["other"]["extra"]) == (1, 0)
    # Few queues are shown; all of them count.
    queues = duplicates.summary(messages, found)
    assert [row["queue"] for row in duplicates.shown(queues, most=1)] == ["q"]
    assert duplicates.sums_of(queues) == {"messages": 9, "without_id": 2, "extra": 3, "across_failovers": 1}
    assert duplicates.sums_of(queues.where("false"))["messages"] == 0


# --- redrive -----------------------------------------------------------------------------------------------


def _death(
    queue: str, reason: str = "rejected", exchange: str = "x", key: str = "k", count: int = 1
) -> dict[str, Any]:
    return {
        "queue": queue,
        "reason": reason,
        "exchange": exchange,
        "routing-keys": [key],
        "count": count,
        "time": 1,
    }


def _letter(seq: int, *deaths: dict[str, Any], **more: Any) -> dict[str, Any]:
    headers = {"x-death": json.dumps(deaths), "other": '"text"'} if deaths else {}
    return {
        "seq": seq,
        "headers": headers,
        "headers_raw": b"raw",
        "body": b"%d" % seq,
        "queue": "dlq",
        **more,
    }


@pytest.fixture
def letters(spark: Any) -> Any:
    return _messages(
        spark,
        _letter(1, _death("orders")),
        _letter(2, _death("orders", "expired", count=4), _death("earlier", count=2)),
        _letter(3, _death("mails", "maxlen", key="m")),
        _letter(4),
        _letter(5, headers=None),
    )


def test_a_letter_goes_to_the_queue_it_died_in_last(letters: Any) -> None:
    found = redrive.moved(redrive.marked(letters, "queue", None), keep=False)
    gone = [(row["exchange"], row["routing_key"], bytes(row["body"])) for row in found.collect()]
    assert gone == [("", "orders", b"1"), ("", "orders", b"2"), ("", "mails", b"3")]
    assert {bytes(row["headers_raw"]) for row in found.collect()} == {b"raw"}


def test_a_letter_can_go_the_way_it_was_published(letters: Any) -> None:
    found = redrive.moved(redrive.marked(letters, "exchange", None), keep=True).collect()
    assert [(row["exchange"], row["routing_key"]) for row in found] == [("x", "k"), ("x", "k"), ("x", "m")]


def test_where_chooses_and_the_others_stay(letters: Any) -> None:
    where = "reason = 'expired' and deaths > 5 and origin_queue like 'ord%'"
    found = redrive.moved(redrive.marked(letters, "queue", where), keep=False).collect()
    assert [(row["routing_key"], row["seq"], row["queue_id"]) for row in found] == [("orders", 2, "id-q")]


def test_a_condition_that_is_null_moves_nothing(letters: Any) -> None:
    found = redrive.marked(letters, "queue", "correlation_id = 'x'").where("is_meant")
    assert found.count() == 0


def test_a_dry_run_counts_per_reason_and_origin(letters: Any) -> None:
    rows = redrive.counts(redrive.marked(letters, "queue", "reason != 'maxlen'")).collect()
    assert {(row["reason"], row["origin_queue"]): (row["letters"], row["meant"]) for row in rows} == {
        (None, None): (2, 0),
        ("rejected", "orders"): (1, 1),
        ("expired", "orders"): (1, 1),
        ("maxlen", "mails"): (1, 0),
    }


def test_a_dry_run_shows_few_groups_and_counts_the_letters_of_all(letters: Any) -> None:
    groups, sums = redrive.counted(redrive.marked(letters, "queue", "cast(body as string) < '3'"), most=1)
    assert [(row["reason"], row["letters"]) for row in groups] == [(None, 2)]
    assert sums == {"letters": 5, "meant": 2}


# --- archive and replay ------------------------------------------------------------------------------------


def _archived(spark: Any, place: Path, *rows: dict[str, Any], batch: int = 0) -> None:
    Archive(str(place)).begin({"vhost": "/"})
    batches = archive.Batches(str(place), "sink", {})
    batches.write(_messages(spark, *rows, mode="cursor").repartition(3, "seq"), batch)


def _chosen(**given: Any) -> argparse.Namespace:
    plain = dict.fromkeys((*replay.CHOSEN, "to", "exchange", "routing_key"))
    return argparse.Namespace(**{**plain, "as_published": False, **given})


def _rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "seq": seq,
            "message_id": f"m{seq}",
            "timestamp": NOON + timedelta(hours=seq),
            "body": b"%d" % seq,
            "exchange": "x",
            "routing_key": f"k{seq}",
            "headers_raw": b"h",
            "headers": {"a": "1"},
            "priority": 3,
            "queue": "q" if seq % 2 else "z",
            "queue_id": "id-q" if seq % 2 else "id-z",
            "state": "live",
        }
        for seq in range(1, count + 1)
    ]


def _replayed(spark: Any, place: Path, **given: Any) -> list[Any]:
    kept = Archive(str(place))
    files = replay.wanted_files(list(kept.files()), _chosen(**given))
    if not files:
        return []
    rows = replay.chosen(spark.read.parquet(*map(kept.path_of, files)), _chosen(**given))
    return list(replay.targeted(rows, _chosen(**given)).collect())


def test_a_batch_is_archived_once_however_often_it_is_done(spark: Any, tmp_path: Path) -> None:
    _archived(spark, tmp_path, *_rows(20))
    kept = Archive(str(tmp_path)).manifest("sink", 0)
    _archived(spark, tmp_path, *_rows(20))
    assert Archive(str(tmp_path)).batches("sink") == {0}
    assert Archive(str(tmp_path)).manifest("sink", 0) == kept
    found = spark.read.parquet(
        *(Archive(str(tmp_path)).path_of(entry) for entry in Archive(str(tmp_path)).files())
    )
    assert found.count() == 20
    assert {
        row["queue"]: row["n"]
        for row in found.groupBy("queue").agg({"seq": "count"}).toDF("queue", "n").collect()
    } == {
        "q": 10,
        "z": 10,
    }


def test_an_archive_gives_back_the_messages_with_their_properties_in_order(
    spark: Any, tmp_path: Path
) -> None:
    _archived(spark, tmp_path, *_rows(20))
    found = _replayed(spark, tmp_path, queue="q")
    assert [bytes(row["body"]) for row in found] == [b"%d" % seq for seq in range(1, 21, 2)]
    assert {(row["exchange"], row["routing_key"]) for row in found} == {("", "q")}
    first = found[0]
    assert (first["message_id"], first["priority"], bytes(first["headers_raw"])) == ("m1", 3, b"h")


def test_a_replay_is_chosen_by_position_time_id_and_sql(spark: Any, tmp_path: Path) -> None:
    _archived(spark, tmp_path, *_rows(40))

    def bodies(**given: Any) -> set[int]:
        return {int(row["body"]) for row in _replayed(spark, tmp_path, **given)}

    assert bodies(from_seq=10, to_seq=13) == {10, 11, 12}
    assert bodies(since="2026-11-17T12:00:00", until="2026-11-17T14:00:00+00:00") == {24, 25}
    assert bodies(message_id=["m3", "m4", "none"]) == {3, 4}
    (tmp_path / "ids").write_text("m5\nm6 \n")
    assert bodies(message_ids=tmp_path / "ids") == {5, 6}
    assert bodies(where="cast(body as string) like '1%' and queue = 'z'") == {10, 12, 14, 16, 18}
    assert bodies(queue="nobody") == set()


def test_files_that_cannot_hold_what_was_asked_for_are_not_opened(spark: Any, tmp_path: Path) -> None:
    _archived(spark, tmp_path, *_rows(40))
    files = list(Archive(str(tmp_path)).files())
    few = replay.wanted_files(files, _chosen(queue="q", since="2026-11-18T00:00:00"))
    assert few
    assert len(few) < len(files)
    assert all(entry.queue == "q" and "date=2026-11-18" in entry.path for entry in few)


def test_a_replay_goes_where_it_is_told(spark: Any, tmp_path: Path) -> None:
    _archived(spark, tmp_path, *_rows(2))

    def ways(**given: Any) -> set[tuple[str, str]]:
        return {(row["exchange"], row["routing_key"]) for row in _replayed(spark, tmp_path, **given)}

    assert ways() == {("", "q"), ("", "z")}
    assert ways(to="t") == {("", "t")}
    assert ways(as_published=True) == {("x", "k1"), ("x", "k2")}
    assert ways(exchange="e") == {("e", "k1"), ("e", "k2")}
    assert ways(exchange="e", routing_key="r") == {("e", "r")}
