"""The job `duplicates`: messages that are in a queue more than once, and whether a fail-over lies between.

A publisher that got no confirm sends again; that is what it should do, and after a fail-over some of what it
sends again is there twice. Messages are the same if they have the same message id in the same queue; those
without one are counted and otherwise left out, because nobody can tell.

Guarantee: every group is found, wherever its messages are: the comparison is made by Spark over all of them,
and the table holds all groups; only counts per queue and a few examples reach the driver.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from mirrormq.spark.jobs import charts, cli
from mirrormq.spark.jobs.frame import Job, JobFailed, Result, Work, main_of, told
from mirrormq.spark.jobs.manifest import Archive, ArchiveRefused
from mirrormq.spark.jobs.messages import queue_arguments, queue_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EPOCHS_SHOWN = 16
EXAMPLES = 20
QUEUES_SHOWN = 1_000
COLUMNS = ("vhost", "queue", "queue_id", "epoch", "seq", "timestamp", "message_id", "body_crc")


def arguments(made: argparse.ArgumentParser) -> None:
    """What the job can be asked."""
    queue_arguments(made, is_needed=False)
    made.add_argument("--archive", metavar="DIR", help="look into an archive instead of queues")
    made.add_argument(
        "--kept", action="store_true", help="also messages that left a queue and are kept for readers"
    )
    made.add_argument(
        "--out", type=Path, default=Path("duplicates"), help="folder for the table and report.html"
    )


def groups(messages: DataFrame) -> DataFrame:
    """Every message id that is in a queue more than once.

    `copies` of it, between `first_seq` and `last_seq`, in the `epochs`; `is_across`: a change of the view,
    such as a fail-over, lies between; `is_same_body`: the bodies do not differ.
    """
    found = (
        messages.where("message_id is not null")
        .groupBy("vhost", "queue", "queue_id", "message_id")
        .agg(
            f.count(f.lit(1)).alias("copies"),
            f.min("seq").alias("first_seq"),
            f.max("seq").alias("last_seq"),
            f.min("timestamp").alias("first_at"),
            f.max("timestamp").alias("last_at"),
            f.min("epoch").alias("first_epoch"),
            f.max("epoch").alias("last_epoch"),
            f.slice(f.sort_array(f.collect_set("epoch")), 1, EPOCHS_SHOWN).alias("epochs"),
            (f.countDistinct("body_crc") <= 1).alias("is_same_body"),
        )
        .where("copies > 1")
    )
    return found.withColumn("is_across", f.col("first_epoch") != f.col("last_epoch"))


def summary(messages: DataFrame, found: DataFrame) -> DataFrame:
    """Per queue: messages, those without an id, and how many there are too many of."""
    keys = ["vhost", "queue"]
    all_of = messages.groupBy(*keys).agg(
        f.count(f.lit(1)).alias("messages"), f.count_if(f.col("message_id").isNull()).alias("without_id")
    )
    twice = found.groupBy(*keys).agg(
        f.count(f.lit(1)).alias("ids"),
        f.sum(f.col("copies") - 1).alias("extra"),
        f.sum(f.when(f.col("is_across"), f.col("copies") - 1).otherwise(0)).alias("across_failovers"),
        f.count_if(~f.col("is_same_body")).alias("differing_bodies"),
    )
    counted = ("ids", "extra", "across_failovers", "differing_bodies")
    return all_of.join(twice, keys, "left").fillna(0, list(counted)).orderBy(f.desc("extra"), *keys)


def shown(queues: DataFrame, most: int = QUEUES_SHOWN) -> list[dict[str, object]]:
    """The queues with the most copies too many, not more than can be shown."""
    return told(queues.orderBy(f.desc("extra"), "vhost", "queue").limit(most).collect())


def sums_of(queues: DataFrame) -> dict[str, int]:
    """The sums over all queues, those that are not shown included."""
    names = ("messages", "without_id", "extra", "across_failovers")
    (found,) = told(queues.agg(*(f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in names)).collect())
    return found


# --- the job -----------------------------------------------------------------------------------------------


def run(work: Work) -> Result:
    """Find them, write the table and the page."""
    given, out = work.arguments, Path(work.arguments.out).absolute()
    messages = _messages(work).select(*COLUMNS)
    with work.progress.watching(work.spark, "comparing"):
        groups(messages).write.mode("overwrite").parquet(str(out / "groups"))
    found = work.spark.read.parquet(str(out / "groups"))
    with work.progress.watching(work.spark, "counting"):
        summary(messages, found).write.mode("overwrite").parquet(str(out / "summary"))
        made = work.spark.read.parquet(str(out / "summary"))
        queues = shown(made)
        sums = sums_of(made)
        few = found.orderBy(f.desc("copies"), "vhost", "queue", "first_seq").limit(EXAMPLES)
        examples = told(few.collect())
    (out / "report.html").write_text(page(queues, examples), encoding="utf-8")
    where = {"table": str((out / "groups").absolute()), "report": str((out / "report.html").absolute())}
    return {**sums, "queues": queues, "examples": examples, **where, "kept": given.kept}


def _messages(work: Work) -> DataFrame:
    given = work.arguments
    options = queue_options(given)
    if bool(options) == (given.archive is not None):
        raise JobFailed("give either queues (--queue, --queues, --pattern) or --archive")
    if given.archive is not None:
        archive = Archive(given.archive)
        try:
            archive.need()
        except ArchiveRefused as error:
            raise JobFailed(str(error)) from error
        files = [archive.path_of(entry) for entry in archive.files()]
        if not files:
            raise JobFailed("the archive is empty")
        return work.spark.read.parquet(*files)
    if not given.kept:
        return work.reader(**options, mode="browse", includeHeaders="false").load()
    return work.reader(**options, mode="changes", includeHeaders="false").load().where("op = 'publish'")


def page(queues: list[dict[str, object]], examples: list[dict[str, object]]) -> str:
    """The report."""
    heads = ("queue", "messages", "without id", "ids twice", "too many", "across fail-overs", "other bodies")
    names = ("messages", "without_id", "ids", "extra", "across_failovers", "differing_bodies")
    rows = [[f"{row['vhost']} {row['queue']}", *(str(row[name]) for name in names)] for row in queues]
    some = [
        [
            f"{row['vhost']} {row['queue']}",
            str(row["message_id"]),
            str(row["copies"]),
            f"{row['first_seq']} … {row['last_seq']}",
            ", ".join(map(str, row["epochs"])),  # type: ignore[call-overload]
        ]
        for row in examples
    ]
    parts = [
        charts.section("Queues", "", charts.table(heads, rows, empty="There are no messages.")),
        charts.section(
            "Examples",
            "those with the most copies",
            charts.table(
                ("queue", "message id", "copies", "seqs", "epochs"), some, empty="No message is there twice."
            ),
        ),
    ]
    return charts.page("MirrorMQ duplicates", "messages with the same id in the same queue", parts)


def lines(result: Result) -> list[str]:
    """The result for people."""
    rows = [{name: str(value) for name, value in row.items()} for row in result["queues"]]
    shown = f"{result['extra']} of {result['messages']} messages are there again"
    shown += f", {result['across_failovers']} of them across a fail-over; {result['without_id']} have no id"
    return [*cli.table(rows), shown, f"table: {result['table']}", f"report: {result['report']}"]


JOB = Job(
    "duplicates",
    "Messages that are in a queue more than once, and whether a fail-over lies between.",
    arguments,
    run,
    identity=("queue", "queues", "pattern", "archive", "out"),
    lines=lines,
)

if __name__ == "__main__":
    sys.exit(main_of(JOB))
