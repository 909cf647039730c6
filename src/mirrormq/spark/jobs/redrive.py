"""The job `redrive`: dead letters go back to where they died, or to the exchange they came through.

Guarantees
- Exactly once: a letter leaves the dead-letter queue by the same commit that publishes it where it came from;
  the batch of a crash is done again, once.
- A letter that is not meant (`--where`), or of which nobody knows where it came from, stays where it is. With
  `--keep` nothing leaves the queue at all.
- While it runs nobody else consumes from the dead-letter queue; who tries is told so (403), and so is this
  job.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as f

from mirrormq.spark.jobs import cli
from mirrormq.spark.jobs.cursors import Cursors, last_offset
from mirrormq.spark.jobs.frame import FORMAT, Job, JobFailed, Result, Work, main_of, told
from mirrormq.spark.jobs.messages import to_publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEATHS = "array<struct<queue:string,reason:string,exchange:string,`routing-keys`:array<string>,count:bigint>>"
GROUPS_MAX = 1_000
"""Reasons and origins a dry run tells apart."""
METRICS = "redrive"


def arguments(made: argparse.ArgumentParser) -> None:
    """What the job can be asked."""
    made.add_argument("--queue", required=True, help="the queue with the dead letters")
    made.add_argument(
        "--to",
        default="queue",
        choices=("queue", "exchange"),
        help="the queue it died in, or how it was published",
    )
    made.add_argument(
        "--where",
        metavar="SQL",
        help="only letters for which this is true, of the columns and: reason, origin_queue, "
        "origin_exchange, origin_key, deaths",
    )
    made.add_argument("--dry-run", action="store_true", help="count per reason and origin, move nothing")
    made.add_argument("--keep", action="store_true", help="copy: the dead-letter queue stays as it is")
    made.add_argument("--max-records", type=int, metavar="N", help="letters in a batch, at most")


def with_origin(letters: DataFrame) -> DataFrame:
    """Letters with why and where each died last, and how it had come there; null if it does not say.

    `deaths` is how often it has died in all.
    """
    parsed = f.from_json(f.element_at("headers", "x-death"), DEATHS)
    last = f.col("x_death")[0]
    return (
        letters.withColumn("x_death", parsed)
        .withColumn("reason", last["reason"])
        .withColumn("origin_queue", last["queue"])
        .withColumn("origin_exchange", last["exchange"])
        .withColumn("origin_key", last["routing-keys"][0])
        .withColumn(
            "deaths", f.expr("aggregate(x_death, 0L, (sum, death) -> sum + coalesce(death.count, 1L))")
        )
        .drop("x_death")
    )


def marked(letters: DataFrame, to: str, where: str | None) -> DataFrame:
    """Letters with `is_meant`, and with the exchange and key they go to if they are."""
    found = with_origin(letters)
    is_known = f.col("origin_queue").isNotNull()
    if to == "queue":
        exchange, key = f.lit(""), f.col("origin_queue")
    else:
        exchange, key = f.coalesce("origin_exchange", f.lit("")), f.col("origin_key")
        is_known = f.col("origin_key").isNotNull()
    is_meant = is_known if where is None else is_known & f.coalesce(f.expr(where), f.lit(False))
    return (
        found.withColumn("is_meant", is_meant).withColumn("to_exchange", exchange).withColumn("to_key", key)
    )


def moved(letters: DataFrame, *, keep: bool) -> DataFrame:
    """What is published: the letters that are meant, to their origins; and where they are taken from."""
    place = () if keep else ("queue_id", "seq")
    return to_publish(letters.where("is_meant"), f.col("to_exchange"), f.col("to_key"), *place)


def counts(letters: DataFrame) -> DataFrame:
    """How many letters per reason and origin, and how many of them are meant."""
    return (
        letters.groupBy("reason", "origin_queue")
        .agg(f.count(f.lit(1)).alias("letters"), f.count_if("is_meant").alias("meant"))
        .orderBy(f.desc("letters"), "reason", "origin_queue")
    )


# --- the job -----------------------------------------------------------------------------------------------


def run(work: Work) -> Result:
    """Count, or move until the end of the queue as it is now."""
    return _dry_run(work) if work.arguments.dry_run else _move(work)


def _dry_run(work: Work) -> Result:
    given = work.arguments
    # A condition may be about bodies; without one nobody looks at them.
    less = {"includeBody": "false"} if given.where is None else {}
    letters = marked(work.reader(queue=given.queue, mode="browse", **less).load(), given.to, given.where)
    with work.progress.watching(work.spark, "counting"):
        groups, sums = counted(letters)
    return {"dry_run": True, "queue": given.queue, "groups": groups, **sums}


def counted(letters: DataFrame, most: int = GROUPS_MAX) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Groups, not more than can be shown, and the sums over all letters, of the same pass."""
    sums = Observation(METRICS)
    seen = letters.observe(sums, f.count(f.lit(1)).alias("letters"), f.count_if("is_meant").alias("meant"))
    groups = told(counts(seen).limit(most).collect())
    return groups, {name: int(sums.get[name]) for name in ("letters", "meant")}


def _move(work: Work) -> Result:
    given, state = work.arguments, work.state
    if state.cursor is not None:
        queue, left = state.cursor
        Cursors(work.contact, queue).drop(left)
        state.update(cursor=None)
    cursor = f"redrive-{state.folder.name}-{state.round}"
    mode = "cursor" if given.keep else "consume"
    options = {"queue": given.queue, "mode": mode, "cursor": cursor, "startingOffsets": "earliest"}
    options |= {"maxRecordsPerTrigger": str(given.max_records)} if given.max_records else {}
    options |= {} if given.keep else {"remove": "false"}
    letters = work.stream(**options)
    if given.keep:
        letters = letters.where(f.col("state") == "live").drop("state")
    found = marked(letters, given.to, given.where).observe(
        METRICS, f.count_if("is_meant").alias("moved"), f.count_if(~f.col("is_meant")).alias("stayed")
    )
    writer = moved(found, keep=given.keep).writeStream.format(FORMAT).options(**work.contact)
    writer = writer if given.keep else writer.option("takeFrom", given.queue)
    query = writer.option("checkpointLocation", state.checkpoint).trigger(availableNow=True).start()
    batches = Told()
    try:
        work.progress.follow(query, "moving", batches.add)
    finally:
        query.stop()
    if not given.keep:
        _let_go(work, cursor, str(query.id))
    sums = {"moved": batches.moved, "stayed": batches.stayed}
    return {"dry_run": False, "queue": given.queue, "kept": given.keep, **sums}


class Told:
    """What Spark says of the batches."""

    def __init__(self) -> None:
        self.moved = self.stayed = 0

    def add(self, progress: dict[str, Any]) -> None:
        """A batch is done."""
        found = progress["observedMetrics"].get(METRICS)
        if found is not None:
            self.moved += found["moved"]
            self.stayed += found["stayed"]


def _let_go(work: Work, cursor: str, sink: str) -> None:
    """Let others consume from the queue again. The next run is a new round and looks for another cursor.

    Not before everything has left that was committed: it leaves only while the cursor is there.
    """
    queue, state = work.arguments.queue, work.state
    cursors, end = Cursors(work.contact, queue), last_offset(state.checkpoint)
    is_left = end is not None and not cursors.has_taken(cursor, end)
    if is_left or cursors.is_under_way(sink):
        raise JobFailed(f"the last letters have not left {queue} yet; run it again")
    state.update(round=state.round + 1, cursor=[queue, cursor])
    cursors.drop(cursor)
    state.update(cursor=None)


def lines(result: Result) -> list[str]:
    """The result for people."""
    if not result["dry_run"]:
        verb = "copied" if result["kept"] else "moved"
        return [f"{result['moved']} letters {verb}, {result['stayed']} stayed in {result['queue']}"]
    rows = [
        {name: "" if value is None else str(value) for name, value in row.items()} for row in result["groups"]
    ]
    return [*cli.table(rows), f"{result['meant']} of {result['letters']} letters would be moved"]


JOB = Job(
    "redrive",
    "Move dead letters back to where they came from, exactly once.",
    arguments,
    run,
    identity=("queue", "to", "where", "keep", "dry_run"),
    lines=lines,
)

if __name__ == "__main__":
    sys.exit(main_of(JOB))
