"""The job `replay`: what an archive holds is published again, all of it or what is chosen.

Guarantees
- Exactly once: a run publishes under the id of its state, as one set that appears in all target queues or in
  none; a run that is repeated after a crash publishes what is missing, and one that is done says so and does
  nothing.
- Messages come in the order of their queue, with all their properties and headers, octet by octet.
- Only files that a manifest names are read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as f

from mirrormq.spark.jobs.frame import FORMAT, Job, JobFailed, Result, Work, main_of
from mirrormq.spark.jobs.manifest import Archive, ArchiveRefused, Entry
from mirrormq.spark.jobs.messages import micros, to_publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHOSEN = ("queue", "from_seq", "to_seq", "since", "until", "message_id", "message_ids", "where")


def arguments(made: argparse.ArgumentParser) -> None:
    """What the job can be asked."""
    made.add_argument("--from", dest="archive", required=True, metavar="DIR", help="the archive")
    chosen = made.add_argument_group("what to replay (default: all)")
    chosen.add_argument("--queue", help="what was in this queue")
    chosen.add_argument("--from-seq", type=int, metavar="N", help="from this position of the queue on")
    chosen.add_argument("--to-seq", type=int, metavar="N", help="before this position")
    chosen.add_argument("--since", metavar="TIME", help="received at or after this: ISO 8601, UTC by default")
    chosen.add_argument("--until", metavar="TIME", help="received before this")
    chosen.add_argument("--message-id", action="append", metavar="ID", help="with this id; may be repeated")
    chosen.add_argument(
        "--message-ids", type=Path, metavar="FILE", help="with one of the ids in a file, a line each"
    )
    chosen.add_argument("--where", metavar="SQL", help="for which this is true, of the archive's columns")
    target = made.add_argument_group("where to (default: the queue it was in)")
    target.add_argument("--to", metavar="QUEUE", help="to this queue")
    target.add_argument("--exchange", help="to this exchange, with the routing key it had or --routing-key")
    target.add_argument("--routing-key")
    target.add_argument(
        "--as-published", action="store_true", help="to the exchange and key it was published with"
    )
    made.add_argument("--dry-run", action="store_true", help="count, publish nothing")


# --- choosing ----------------------------------------------------------------------------------------------


def wanted_files(found: list[Entry], given: argparse.Namespace) -> list[Entry]:
    """The files that can hold what was asked for, by what the manifests say of them."""
    since, until = micros(given.since), micros(given.until)

    def is_wanted(entry: Entry) -> bool:
        return (
            given.queue in (None, entry.queue)
            and (given.from_seq is None or entry.last_seq >= given.from_seq)
            and (given.to_seq is None or entry.first_seq < given.to_seq)
            and (since is None or entry.last_time >= since)
            and (until is None or entry.first_time < until)
        )

    return [entry for entry in found if is_wanted(entry)]


def chosen(rows: DataFrame, given: argparse.Namespace) -> DataFrame:
    """The rows that were asked for."""
    since, until = micros(given.since), micros(given.until)
    if given.queue is not None:
        rows = rows.where(f.col("queue") == given.queue)
    if given.from_seq is not None:
        rows = rows.where(f.col("seq") >= given.from_seq)
    if given.to_seq is not None:
        rows = rows.where(f.col("seq") < given.to_seq)
    if since is not None:
        rows = rows.where(f.col("timestamp") >= f.timestamp_micros(f.lit(since)))
    if until is not None:
        rows = rows.where(f.col("timestamp") < f.timestamp_micros(f.lit(until)))
    if given.message_id:
        rows = rows.where(f.col("message_id").isin(given.message_id))
    if given.message_ids is not None:
        ids = rows.sparkSession.read.text(str(given.message_ids.absolute())).select(
            f.trim("value").alias("message_id")
        )
        rows = rows.join(ids.distinct(), "message_id", "left_semi")
    return rows.where(f.expr(given.where)) if given.where else rows


def targeted(rows: DataFrame, given: argparse.Namespace) -> DataFrame:
    """Rows as they are published, in order."""
    exchange, key = f.lit(""), f.col("queue")
    if given.to is not None:
        key = f.lit(given.to)
    elif given.as_published:
        exchange, key = f.col("exchange"), f.col("routing_key")
    elif given.exchange is not None:
        exchange = f.lit(given.exchange)
        key = f.col("routing_key") if given.routing_key is None else f.lit(given.routing_key)
    return to_publish(rows.orderBy("queue", "epoch", "seq"), exchange, key)


# --- the job -----------------------------------------------------------------------------------------------


def run(work: Work) -> Result:
    """Choose, and publish in one set."""
    given = work.arguments
    if sum((given.to is not None, given.exchange is not None, given.as_published)) > 1:
        raise JobFailed("--to, --exchange and --as-published exclude each other")
    archive = Archive(given.archive)
    try:
        archive.need()
    except ArchiveRefused as error:
        raise JobFailed(str(error)) from error
    files = wanted_files(list(archive.files()), given)
    if not files:
        return {"messages": 0, "files": 0, "dry_run": given.dry_run}
    rows = chosen(work.spark.read.parquet(*(archive.path_of(entry) for entry in files)), given)
    if given.dry_run:
        with work.progress.watching(work.spark, "counting"):
            return {"messages": rows.count(), "files": len(files), "dry_run": True}
    counted = Observation("replay")
    published = targeted(rows, given).observe(counted, f.count(f.lit(1)).alias("messages"))
    with work.progress.watching(work.spark, "publishing"):
        writer = published.write.format(FORMAT).options(**{**work.contact, "sinkId": work.state.id})
        writer.mode("append").save()
    return {"messages": counted.get["messages"], "files": len(files), "dry_run": False}


def lines(result: Result) -> list[str]:
    """The result for people."""
    verb = "would be published" if result.get("dry_run") else "published"
    return [f"{result['messages']} messages {verb}, of {result['files']} files"]


JOB = Job(
    "replay",
    "Publish what an archive holds, by seq, time, message id or SQL; exactly once.",
    arguments,
    run,
    identity=("archive", *CHOSEN, "to", "exchange", "routing_key", "as_published", "dry_run"),
    once=True,
    lines=lines,
)

if __name__ == "__main__":
    sys.exit(main_of(JOB))
