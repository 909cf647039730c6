"""`mirrormq.samples` and `mirrormq.events` as tables (docs/events.md says what the columns mean).

Guarantees
- A message becomes rows where it is read; nothing goes through the driver.
- Columns go by their names: a newer broker's columns are left out, those an older one lacks are null. A
  message of another format, or that is none at all, becomes one row of the kind `unknown`, never an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

VHOST = "/"
EVENTS, SAMPLES = "mirrormq.events", "mirrormq.samples"
VERSION = 1

QUEUE, NODE, UNKNOWN = "queue", "node", "unknown"
"""Kinds of rows."""

_TIME = pa.timestamp("us", tz="UTC")
_HEAD = {"kind": pa.string(), "node": pa.string(), "start": pa.int64(), "round": pa.int64()}
_HEAD |= {"since": _TIME, "at": _TIME}
_OF_QUEUE: dict[str, pa.DataType] = {
    "vhost": pa.string(),
    "queue": pa.string(),
    "id": pa.string(),
    "epoch": pa.int32(),
    "in_sync": pa.int32(),
    **dict.fromkeys(
        ("end", "received", "durable", "publishes", "deliveries", "redeliveries", "acks"), pa.int64()
    ),
    **dict.fromkeys(("ready", "unacked", "bytes", "consumers"), pa.int64()),
    "confirm": pa.map_(pa.int32(), pa.int64()),
    "replication": pa.map_(pa.int32(), pa.int64()),
    "cursors": pa.map_(pa.string(), pa.int64()),
}
_OF_NODE: dict[str, pa.DataType] = {
    **dict.fromkeys(("connections", "channels", "consumers", "queues", "ready", "unacked"), pa.int64()),
    **dict.fromkeys(("memory", "disk_free", "flushes", "written"), pa.int64()),
    "alarms": pa.list_(pa.string()),
    "is_leader": pa.bool_(),
}
SCHEMA = pa.schema({**_HEAD, **_OF_QUEUE, **_OF_NODE})
SQL_SCHEMA = (
    "kind string, node string, start bigint, round bigint, since timestamp, at timestamp, vhost string, "
    "queue string, id string, epoch int, in_sync int, end bigint, received bigint, durable bigint, "
    "publishes bigint, deliveries bigint, redeliveries bigint, acks bigint, ready bigint, unacked bigint, "
    "bytes bigint, consumers bigint, confirm map<int,bigint>, replication map<int,bigint>, "
    "cursors map<string,bigint>, connections bigint, channels bigint, queues bigint, memory bigint, "
    "disk_free bigint, flushes bigint, written bigint, alarms array<string>, is_leader boolean"
)
"""The same for Spark."""

EVENT_SCHEMA = (
    "v int, event string, at bigint, told_by string, name string, vhost string, epoch int, `from` string, "
    "`to` string, reason string, lossy boolean, requeued bigint, messages bigint, mirror string, "
    "start bigint, waits_for array<string>, bytes bigint, milliseconds bigint, count bigint"
)


# --- samples -----------------------------------------------------------------------------------------------


def samples(messages: DataFrame) -> DataFrame:
    """Rows of queues and nodes, of messages of `mirrormq.samples`."""
    return messages.select("body").mapInArrow(expand, SQL_SCHEMA)


def expand(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The bodies of messages as rows."""
    for batch in batches:
        rows: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
        for body in batch.column(0):
            _add(rows, body.as_py())
        yield pa.RecordBatch.from_arrays(
            [pa.array(rows[name], SCHEMA.field(name).type) for name in SCHEMA.names], schema=SCHEMA
        )


def _add(rows: dict[str, list[Any]], body: bytes | None) -> None:
    try:
        told = msgspec.msgpack.decode(body or b"")
        is_ours = isinstance(told, dict) and told.get("v") == VERSION
    except msgspec.DecodeError:
        is_ours = False
    if not is_ours:
        _extend(rows, 1, {"kind": UNKNOWN})
        return
    head = {name: told.get(name) for name in ("node", "start", "round", "since", "at")}
    columns = told.get("queues") or {}
    count = len(columns.get("queue", ()))
    if count:
        found = {name: columns[name] for name in _OF_QUEUE if name in columns}
        for name in ("confirm", "replication"):
            found[name] = [_pairs(flat) for flat in columns.get(name, [[]] * count)]
        found["cursors"] = [[tuple(one) for one in some] for some in columns.get("cursors", [[]] * count)]
        _extend(rows, count, {"kind": QUEUE, **head}, found)
    node = told.get("of_node")
    if node:
        _extend(rows, 1, {"kind": NODE, **head}, {name: [node[name]] for name in _OF_NODE if name in node})


def _pairs(flat: list[int]) -> list[tuple[int, int]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _extend(
    rows: dict[str, list[Any]], count: int, same: dict[str, Any], found: dict[str, list[Any]] | None = None
) -> None:
    for name, column in rows.items():
        if found is not None and name in found:
            column.extend(found[name])
        else:
            column.extend([same.get(name)] * count)


# --- events ------------------------------------------------------------------------------------------------


def events(messages: DataFrame) -> DataFrame:
    """One row per event, of messages of `mirrormq.events`, with its text as it came."""
    text = f.col("body").cast("string")
    parsed = messages.select(text.alias("json"), f.from_json(text, EVENT_SCHEMA).alias("told"))
    return parsed.select(
        f.timestamp_micros("told.at").alias("at"),
        *(f.col(f"told.`{name}`") for name in _event_names() if name != "at"),
        "json",
    ).where(f.col("event").isNotNull())


def _event_names() -> list[str]:
    return [part.strip().split(" ")[0].strip("`") for part in EVENT_SCHEMA.split(",")]


# --- histograms --------------------------------------------------------------------------------------------


def upper_edge(bucket: Column) -> Column:
    """The smallest duration (µs) that is longer than those of a bucket; the broker's buckets, as SQL has
    them.
    """
    wide = f.expr("shiftleft(cast(5 + bucket % 4 as bigint), cast(bucket div 4 - 1 as int))")
    return f.when(bucket < 4, (bucket + 1).cast("bigint")).otherwise(wide)


def percentiles(rows: DataFrame, histogram: str, by: list[str], wanted: dict[str, float]) -> DataFrame:
    """Percentiles (µs) of the sum of histograms, per group: the upper edge of the bucket each lies in.

    The result has one row per group and as many columns as are `wanted`, and `batches`.
    """
    from pyspark.sql import Window

    summed = (
        rows.select(*by, f.explode(histogram).alias("bucket", "batches"))
        .groupBy(*by, "bucket")
        .agg(f.sum("batches").alias("batches"))
    )
    upto = Window.partitionBy(*by).orderBy("bucket").rowsBetween(Window.unboundedPreceding, 0)
    all_of = Window.partitionBy(*by)
    ranked = summed.select(
        *by,
        upper_edge(f.col("bucket")).alias("edge"),
        "batches",
        f.sum("batches").over(upto).alias("reached"),
        f.sum("batches").over(all_of).alias("total"),
    )
    found = [
        f.min(f.when(f.col("reached") >= f.col("total") * share, f.col("edge"))).alias(name)
        for name, share in wanted.items()
    ]
    return ranked.groupBy(*by).agg(*found, f.sum("batches").alias("batches"))
