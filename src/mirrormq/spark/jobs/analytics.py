"""The job `analytics`: what the cluster tells of itself, as tables and as one page to read.

Guarantees
- Everything shown was told by the cluster (`mirrormq.samples`, `mirrormq.events`); nothing is made up, and
  what is missing shows as missing.
- The tables are the work; the page is drawn from aggregates of bounded size: `POINTS` moments, `TOP` queues,
  `EVENTS_SHOWN` events.
- The page needs nothing but itself: no script, no font and no image is fetched from anywhere.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as f

from mirrormq.spark.jobs import charts, facts
from mirrormq.spark.jobs.frame import Job, JobFailed, Result, Work, main_of, told
from mirrormq.spark.jobs.messages import micros
from mirrormq.spark.urls import in_vhost

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

POINTS = 240
"""Moments in a chart, at most."""
TOP = 10
"""Queues in tables and charts of queues."""
EVENTS_SHOWN = 200
WANTED = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
WIDTHS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
"""Seconds between two moments of a chart."""
TOLD = (
    "queue.master_changed", "queue.master_missing", "node.down", "node.up", "node.deleted",
    "cluster.leader_changed", "alarm.set", "alarm.cleared", "queue.mirror_removed", "queue.mirror_demoted",
    "events.dropped",
)  # fmt: skip
"""Events of the time line."""
DOWN_SECONDS = 600
"""A promotion belongs to the last death of its former master, if that was not longer ago."""


def arguments(made: argparse.ArgumentParser) -> None:
    """What the job can be asked."""
    made.add_argument("--out", type=Path, default=Path("analytics"), help="folder for tables and report.html")
    made.add_argument("--since", help="begin here: ISO 8601, UTC unless it says otherwise")
    made.add_argument("--until", help="end here")
    made.add_argument("--queues", metavar="REGEX", help="only queues whose vhost/name matches")
    made.add_argument("--width", type=int, metavar="SECONDS", help="time between two points of a chart")


@dataclass(frozen=True)
class Span:
    """The time that is looked at."""

    first: Any
    last: Any
    width: int


# --- tables ------------------------------------------------------------------------------------------------


def throughput(queues: DataFrame, width: int) -> DataFrame:
    """What happened per moment and queue: sums, and rates per second."""
    counted = ("publishes", "deliveries", "redeliveries", "acks")
    sums = [f.sum(name).alias(name) for name in counted]
    rates = [f.round(f.col(name) / width, 3).alias(f"{name}_per_s") for name in counted]
    last = [
        f.max_by(name, "at").alias(name) for name in ("ready", "unacked", "bytes", "consumers", "in_sync")
    ]
    lag = f.max(f.col("end") - f.col("durable")).alias("lag_records")
    grouped = queues.groupBy(_moment(width), "vhost", "queue").agg(*sums, *last, lag)
    return grouped.select("*", *rates)


def totals(table: DataFrame) -> DataFrame:
    """The same over all queues."""
    counted = ("publishes_per_s", "deliveries_per_s", "redeliveries_per_s", "acks_per_s")
    return table.groupBy("moment").agg(*(f.round(f.sum(name), 3).alias(name) for name in counted))


def depth(nodes: DataFrame, width: int) -> DataFrame:
    """Messages in all queues per moment. A node that said nothing has what it had; one that is silent for
    longer than it would be if it were idle has nothing.
    """
    last = [f.max_by(name, "at").alias(name) for name in ("ready", "unacked", "memory", "connections")]
    told = nodes.groupBy(_moment(width), "node").agg(*last)
    every = told.select("moment").distinct().crossJoin(told.select("node").distinct())
    reach = max(1, -(-15 // width))
    before = Window.partitionBy("node").orderBy("moment").rowsBetween(-reach, 0)
    filled = every.join(told, ["moment", "node"], "left").select(
        "moment", *(f.last(name, ignorenulls=True).over(before).alias(name) for name in ("ready", "unacked"))
    )
    return filled.groupBy("moment").agg(f.sum("ready").alias("ready"), f.sum("unacked").alias("unacked"))


def latency(queues: DataFrame, by: list[str]) -> DataFrame:
    """Percentiles of the time to a confirm, and until all mirrors have a message (µs)."""
    confirm = facts.percentiles(queues, "confirm", by, {f"confirm_{name}": q for name, q in WANTED.items()})
    wanted = {f"replication_{name}": share for name, share in WANTED.items()}
    mirrored = facts.percentiles(queues, "replication", by, wanted).drop("batches")
    return confirm.join(mirrored, by, "left") if by else confirm.crossJoin(mirrored)


def cursors(queues: DataFrame, width: int) -> DataFrame:
    """How far readers are behind, per moment and cursor: the worst of it."""
    each = queues.select("at", "vhost", "queue", f.explode("cursors").alias("cursor", "lag"))
    return each.groupBy(_moment(width), "vhost", "queue", "cursor").agg(f.max("lag").alias("lag_records"))


def timeline(events: DataFrame, queues: DataFrame) -> DataFrame:
    """What happened in order; a promotion with the time since its former master died and until the first
    publish at the new one (to the second: that is how often samples are taken).
    """
    shown = events.where(f.col("event").isin(*TOLD))
    moved = shown.where(f.col("event") == "queue.master_changed").alias("moved")
    downs = shown.where(f.col("event") == "node.down").select(
        f.col("at").alias("down_at"), f.col("name").alias("node")
    )
    gap = f.col("at").cast("double") - f.col("down_at").cast("double")
    after_down = (
        moved.join(downs, (f.col("moved.from") == downs["node"]) & (gap >= 0) & (gap < DOWN_SECONDS))
        .groupBy("vhost", "name", "epoch")
        .agg(f.round(f.min(gap) * 1000).cast("bigint").alias("since_down_ms"))
    )
    first = queues.where("publishes > 0").select(
        f.col("vhost").alias("its_vhost"),
        "queue",
        f.col("at").alias("sampled"),
        f.col("epoch").alias("in_epoch"),
    )
    wait = f.col("sampled").cast("double") - f.col("at").cast("double")
    resumed = (
        moved.join(
            first,
            (f.col("vhost") == f.col("its_vhost"))
            & (f.col("name") == f.col("queue"))
            & (f.col("in_epoch") >= f.col("epoch"))
            & (wait >= 0),
        )
        .groupBy("vhost", "name", "epoch")
        .agg(f.round(f.min(wait) * 1000).cast("bigint").alias("next_publish_ms"))
    )
    keys = ["vhost", "name", "epoch"]
    return shown.join(after_down, keys, "left").join(resumed, keys, "left")


def _moment(width: int) -> Any:
    return f.window("at", f"{width} seconds")["start"].alias("moment")


def width_for(seconds: float) -> int:
    """Seconds between two moments so that a span has at most `POINTS` of them."""
    return next((width for width in WIDTHS if seconds / width <= POINTS), -(-int(seconds) // POINTS))


# --- the job -----------------------------------------------------------------------------------------------


def run(work: Work) -> Result:
    """Read, aggregate, write the tables, draw the page."""
    given, out = work.arguments, Path(work.arguments.out).absolute()
    asked = micros(given.since), micros(given.until)
    with work.progress.watching(work.spark, "reading samples and events"):
        _read(work, facts.SAMPLES, facts.samples).write.mode("overwrite").partitionBy("kind").parquet(
            str(out / "samples")
        )
        _read(work, facts.EVENTS, facts.events).write.mode("overwrite").parquet(str(out / "events"))
    spark = work.spark
    samples = between(spark.read.parquet(str(out / "samples")), *asked)
    events = between(spark.read.parquet(str(out / "events")), *asked)
    queues, nodes = samples.where(f.col("kind") == facts.QUEUE), samples.where(f.col("kind") == facts.NODE)
    if given.queues:
        queues = queues.where(f.concat_ws("/", "vhost", "queue").rlike(given.queues))
    span = span_of(samples, given.width)
    tables = {
        "throughput": throughput(queues, span.width),
        "depth": depth(nodes, span.width),
        "latency": latency(queues, ["vhost", "queue"]),
        "latency_over_time": latency(
            queues.select(_moment(span.width), "confirm", "replication"), ["moment"]
        ),
        "cursors": cursors(queues, span.width),
        "timeline": timeline(events, queues),
    }
    for name, table in tables.items():
        with work.progress.watching(spark, f"table {name}"):
            table.write.mode("overwrite").parquet(str(out / name))
    made = {name: spark.read.parquet(str(out / name)) for name in tables}
    with work.progress.watching(spark, "drawing the report"):
        shown = _shown(span, made, latency(queues, []))
        (out / "report.html").write_text(page(shown), encoding="utf-8")
    return {
        "report": str((out / "report.html").absolute()),
        "tables": str(out.absolute()),
        "from": span.first,
        "to": span.last,
        **shown["totals"],
    }


def _read(work: Work, queue: str, expand: Any) -> DataFrame:
    messages = work.reader(queue=queue, includeHeaders="false", **_in_root(work.arguments.url)).load()
    expanded: DataFrame = expand(messages)
    return expanded


def _in_root(url: str | None) -> dict[str, str]:
    """The cluster's own queues are in the vhost `/`, whichever the user works with."""
    return {} if url is None else {"url": in_vhost(url, facts.VHOST)}


def between(rows: DataFrame, since: int | None, until: int | None) -> DataFrame:
    """The rows of a time (µs since 1970)."""
    if since is not None:
        rows = rows.where(f.col("at") >= f.timestamp_micros(f.lit(since)))
    if until is not None:
        rows = rows.where(f.col("at") < f.timestamp_micros(f.lit(until)))
    return rows


def span_of(rows: DataFrame, width: int | None) -> Span:
    """The time that samples are of."""
    ((first, last),) = (row.values() for row in told(rows.agg(f.min("at"), f.max("at")).collect()))
    if first is None or last is None:
        raise JobFailed("there are no samples in that time; is the setting 'samples' on?")
    return Span(first, last, width or width_for((last - first).total_seconds()))


def _shown(span: Span, made: dict[str, DataFrame], overall: DataFrame) -> dict[str, Any]:
    """What the page shows; everything taken here is bounded by `POINTS`, `TOP` and `EVENTS_SHOWN`."""
    every = totals(made["throughput"]).orderBy("moment").limit(POINTS + 2)
    busy = ("publishes", "deliveries", "redeliveries", "acks")
    top = (
        made["throughput"]
        .groupBy("vhost", "queue")
        .agg(
            *(f.sum(name).alias(name) for name in busy),
            f.max("ready").alias("most_ready"),
            f.max_by("ready", "moment").alias("ready"),
            f.max("lag_records").alias("lag_records"),
        )
        .join(made["latency"], ["vhost", "queue"], "left")
        .orderBy(f.desc("publishes"), "vhost", "queue")
        .limit(TOP)
    )
    sums = made["throughput"].agg(
        *(f.sum(name).alias(name) for name in busy), f.countDistinct("vhost", "queue").alias("queues")
    )
    events = made["timeline"]
    counts = events.groupBy("event").count().orderBy("event")
    return {
        "span": span,
        "totals": {
            **_one(sums),
            **_one(overall),
            "events": {row["event"]: row["count"] for row in counts.collect()},
        },
        "throughput": told(every.collect()),
        "depth": told(made["depth"].orderBy("moment").limit(POINTS + 2).collect()),
        "latency": told(made["latency_over_time"].orderBy("moment").limit(POINTS + 2).collect()),
        "top": told(top.collect()),
        "cursors": told(_worst_cursors(made["cursors"]).collect()),
        "timeline": told(events.orderBy(f.desc("at")).limit(EVENTS_SHOWN).collect()),
    }


def _worst_cursors(table: DataFrame) -> DataFrame:
    found = table.groupBy("vhost", "queue", "cursor").agg(
        f.max("lag_records").alias("worst"), f.max_by("lag_records", "moment").alias("now")
    )
    return found.orderBy(f.desc("worst"), "vhost", "queue", "cursor").limit(TOP)


def _one(rows: DataFrame) -> dict[str, Any]:
    found: Row | None = rows.first()
    return {} if found is None else found.asDict()


# --- the page ----------------------------------------------------------------------------------------------


def page(shown: dict[str, Any]) -> str:
    """The report."""
    span: Span = shown["span"]
    marks = [
        charts.Mark(row["at"], f"{row['event']} {row['name'] or ''}")
        for row in shown["timeline"]
        if row["event"] in {"queue.master_changed", "node.down", "alarm.set"}
    ]
    rates = {"published": "publishes_per_s", "delivered": "deliveries_per_s", "acknowledged": "acks_per_s"}
    micros = {"p50": "confirm_p50", "p99": "confirm_p99", "mirrors p99": "replication_p99"}
    depths = {"ready": "ready", "unacknowledged": "unacked"}
    parts = [
        charts.tiles(_tiles(shown)),
        charts.section("Throughput", "messages per second", _chart(shown["throughput"], rates, marks)),
        charts.section("Depth", "messages in all queues", _chart(shown["depth"], depths, marks)),
        charts.section(
            "Latency", "milliseconds from publish to confirm", _chart(shown["latency"], micros, marks, 0.001)
        ),
        charts.section(
            "Busiest queues", "", charts.table(_HEADS, [_queue_cells(row) for row in shown["top"]])
        ),
        charts.section(
            "Readers", "cursors and how many records they are behind", _cursor_table(shown["cursors"])
        ),
        charts.section("Time line", "the last events first, UTC", _timeline_table(shown["timeline"])),
    ]
    about = (
        f"{span.first:%Y-%m-%d %H:%M:%S} to {span.last:%Y-%m-%d %H:%M:%S} UTC, a point every {span.width} s"
    )
    return charts.page("MirrorMQ analytics", about, parts)


def _chart(
    rows: list[dict[str, Any]], names: dict[str, str], marks: list[charts.Mark], factor: float = 1.0
) -> str:
    series = {
        shown: [(row["moment"], None if row[name] is None else row[name] * factor) for row in rows]
        for shown, name in names.items()
    }
    return charts.lines(series, marks)


def _tiles(shown: dict[str, Any]) -> dict[str, str]:
    sums = shown["totals"]
    moved = sums["events"].get("queue.master_changed", 0)
    return {
        "queues": charts.number(sums.get("queues")),
        "published": charts.number(sums.get("publishes")),
        "delivered": charts.number(sums.get("deliveries")),
        "confirm p50": charts.micros(sums.get("confirm_p50")),
        "confirm p99": charts.micros(sums.get("confirm_p99")),
        "mirrors p99": charts.micros(sums.get("replication_p99")),
        "new masters": charts.number(moved),
    }


_HEADS = (
    "queue",
    "published",
    "delivered",
    "redelivered",
    "ready",
    "most ready",
    "confirm p50",
    "p99",
    "mirrors p99",
)


def _queue_cells(row: dict[str, Any]) -> list[str]:
    numbers = (row[name] for name in ("publishes", "deliveries", "redeliveries", "ready", "most_ready"))
    times = (row[name] for name in ("confirm_p50", "confirm_p99", "replication_p99"))
    return [f"{row['vhost']} {row['queue']}", *map(charts.number, numbers), *map(charts.micros, times)]


def _cursor_table(rows: list[dict[str, Any]]) -> str:
    cells = [
        [
            f"{row['vhost']} {row['queue']}",
            row["cursor"],
            charts.number(row["now"]),
            charts.number(row["worst"]),
        ]
        for row in rows
    ]
    return charts.table(("queue", "cursor", "behind", "most"), cells, empty="No queue has a cursor.")


def _timeline_table(rows: list[dict[str, Any]]) -> str:
    cells = []
    for row in rows:
        way = f"{row['from']} → {row['to']}, {row['reason']}" if row["to"] else (row["reason"] or "")
        if row["lossy"]:
            way += ", with a loss"
        since, until = row["since_down_ms"], row["next_publish_ms"]
        cells.append(
            [
                f"{row['at']:%Y-%m-%d %H:%M:%S.%f}"[:-3],
                row["event"],
                " ".join(part for part in (row["vhost"], row["name"]) if part),
                way,
                "" if since is None else f"{since} ms",
                "" if until is None else f"≤ {until} ms",
            ]
        )
    heads = ("when", "event", "what", "how", "after the death", "next publish")
    return charts.table(heads, cells, empty="Nothing happened.")


def lines(result: Result) -> list[str]:
    """The result for people."""
    counts = {name: charts.number(result.get(name)) for name in ("publishes", "deliveries", "queues")}
    times = {
        name: charts.micros(result.get(name)) for name in ("confirm_p50", "confirm_p99", "replication_p99")
    }
    shown = [
        f"{counts['publishes']} published, {counts['deliveries']} delivered, {counts['queues']} queues",
        f"confirms: p50 {times['confirm_p50']}, p99 {times['confirm_p99']}",
        f"mirrors have a message: p99 {times['replication_p99']}",
    ]
    shown += [f"{event}: {count}" for event, count in (result.get("events") or {}).items()]
    return [*shown, f"tables: {result.get('tables')}", f"report: {result.get('report')}"]


JOB = Job(
    "analytics",
    "Throughput, depth, latencies and the time line of fail-overs, from what the cluster tells of itself.",
    arguments,
    run,
    identity=("out",),
    lines=lines,
)

if __name__ == "__main__":
    sys.exit(main_of(JOB))
