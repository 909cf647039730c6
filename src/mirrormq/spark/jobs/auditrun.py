"""Comparing the copies of a group of queues with Spark: digests first, records where those differ.

Guarantees
- What is reported differs between copies that were in sync, below the durable mark, at one point of the
  queue's history. Clients, fail-overs and changes of the view meanwhile are no difference: whatever they make
  doubtful is compared anew, and in the end called not judged.
- To the driver come a row per queue and kind of finding, and `EXAMPLES` findings per queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from mirrormq.spark.jobs import auditverdict as verdict
from mirrormq.spark.jobs.auditplan import FAILED, GONE, Cluster, Prepared, Refused
from mirrormq.spark.jobs.audittasks import (
    DIGESTS_SQL,
    GIVEN_UP,
    VERSIONS_SQL,
    Extent,
    digest_rows,
    still_there,
    version_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mirrormq.spark.jobs.frame import Work
    from mirrormq.spark.options import Contact

AGREE, DIFFER, ONE_COPY, UNREADABLE, AGAIN = "agree", "differ", "one copy", "unreadable", "again"
"""What can be said of a queue; with `again` nothing yet."""

ATTEMPTS = 3
EXAMPLES = 10
TASK_RECORDS = 1_000_000
"""Records of small queues that one task digests; a large extent is a task of its own."""

BUCKET = 4_000_000
"""Seqs in which one task reads the ranges that differ of one member."""

DELETED = frozenset(("not-found", "gone"))
JUDGED_SQL = "number INT, members ARRAY<STRING>"


@dataclass
class Outcome:
    """What became of one queue."""

    vhost: str
    queue: str
    status: str
    why: str = ""
    last_word: str = FAILED
    """The status if it could not be compared again."""
    id: str = ""
    first: int = 0
    """From here to `last` every record was compared, before it what is live."""
    last: int = 0
    judged: list[str] = field(default_factory=list)
    not_judged: list[dict[str, str]] = field(default_factory=list)
    messages: int = 0
    ranges: int = 0
    ranges_read: int = 0
    """Ranges whose digests differed, so that their records were read."""
    findings: dict[str, int] = field(default_factory=dict)
    by_member: dict[str, int] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)


class Comparison:
    """One group of queues, compared until each of them has an outcome."""

    def __init__(self, work: Work, contact: Contact, cluster: Cluster, table: Path) -> None:
        self._work = work
        self._contact = contact
        self._cluster = cluster
        self._table = table

    def run(self, queues: Sequence[str]) -> list[Outcome]:
        """The outcomes of some queues; their findings are in the table."""
        found: dict[str, Outcome] = {}
        waiting = list(queues)
        for attempt in range(ATTEMPTS):
            if waiting:
                found |= self._attempt(waiting, attempt)
                waiting = [queue for queue in waiting if found[queue].status == AGAIN]
        for queue in waiting:
            found[queue].status = found[queue].last_word
        return [found[queue] for queue in queues]

    def _attempt(self, queues: Sequence[str], attempt: int) -> dict[str, Outcome]:
        found: dict[str, Outcome] = {}
        ready: dict[int, Prepared] = {}
        try:
            for number, queue in enumerate(queues):
                self._work.progress.show(f"holding {number} of {len(queues)} queues")
                try:
                    ready[number] = self._cluster.prepare(number, queue)
                except Refused as refused:
                    found[queue] = Outcome(self._contact.vhost, queue, refused.status, refused.why)
            if ready:
                one = _Round(self._work, self._contact, self._cluster, ready)
                found |= one.run(self._table / f"attempt={attempt}")
        finally:
            left = self._cluster.release_all([one.queue for one in ready.values()])
            if left:
                self._work.progress.say(
                    f"cursors of {', '.join(left[:5])} may be left; run it again, or use drop_cursor"
                )
        return found


class _Round:
    """One comparison of queues that are held."""

    def __init__(self, work: Work, contact: Contact, cluster: Cluster, ready: Mapping[int, Prepared]) -> None:
        self._work = work
        self._contact = contact
        self._cluster = cluster
        self._ready = ready
        self._outcomes = {number: _begun(one) for number, one in ready.items()}
        self._suspects: dict[int, tuple[bool, bool]] = {}
        """Queues with ranges that differ: where every record is kept, and where only live ones are?"""
        self._kept: list[DataFrame] = []

    def run(self, table: Path) -> dict[str, Outcome]:
        """Compare; what was found is in `table`."""
        try:
            digests = self._digests()
            with self._work.progress.watching(self._work.spark, f"digests of {len(self._ready)} queues"):
                self._heed(digests)
                ranges = self._ranges(digests)
            if self._suspects:
                self._look(ranges, table)
        finally:
            for frame in self._kept:
                frame.unpersist()
        return {outcome.queue: outcome for outcome in self._outcomes.values()}

    def _once(self, rows: DataFrame) -> DataFrame:
        """Rows that are made once, and lie with the workers until the round is over."""
        self._kept.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
        return self._kept[-1]

    # --- digests ---

    def _digests(self) -> DataFrame:
        """The digests of all copies."""
        work = _packed(extent for one in self._ready.values() for extent in one.extents())
        tasks = self._work.spark.range(0, len(work), 1, max(1, len(work)))
        made = partial(digest_rows, work=work, contact=self._contact)
        return self._once(tasks.mapInArrow(made, DIGESTS_SQL))

    def _heed(self, digests: DataFrame) -> None:
        """How much every copy has, who gave no digests, and what that means for its queue."""
        each = digests.groupBy("number", "member").agg(
            f.sum("messages").alias("messages"),
            f.count(f.lit(1)).alias("ranges"),
            f.max(f.struct("code", "error")).alias("failed"),
        )
        for row in each.collect():
            outcome, failed = self._outcomes[row["number"]], row["failed"]
            if failed["code"] is None:
                outcome.messages = max(outcome.messages, row["messages"])
                outcome.ranges = max(outcome.ranges, row["ranges"])
            else:
                self._heed_failure(row["number"], row["member"], failed["code"], failed["error"])
        for number, outcome in self._outcomes.items():
            is_open = outcome.status in {AGREE, ONE_COPY}
            if is_open and len(outcome.judged) < min(2, len(self._ready[number].copies)):
                self._again(number, "too few copies could be read")

    def _heed_failure(self, number: int, member: str, code: str, error: str) -> None:
        outcome = self._outcomes[number]
        if code in DELETED:
            outcome.status, outcome.why = GONE, error
        elif code in {"data-loss", GIVEN_UP}:
            self._again(number, error)
            is_damaged = code == "data-loss" and len(self._ready[number].copies) == 1
            outcome.last_word = UNREADABLE if is_damaged else FAILED
        else:
            outcome.judged.remove(member)
            outcome.not_judged.append({"node": member, "why": error})

    def _ranges(self, digests: DataFrame) -> DataFrame:
        """Ranges that differ."""
        found = verdict.differing(digests, self._judged())
        each = found.groupBy("number").agg(
            f.count(f.lit(1)).alias("ranges"),
            f.bool_or(~f.col("is_live")).alias("dense"),
            f.bool_or("is_live").alias("live"),
        )
        for row in each.collect():
            self._outcomes[row["number"]].ranges_read = row["ranges"]
            self._suspects[row["number"]] = (row["dense"], row["live"])
        return found

    def _judged(self) -> DataFrame:
        """The queues that are compared, and the members of each: a row per queue of the group."""
        rows = [
            (number, outcome.judged)
            for number, outcome in self._outcomes.items()
            if outcome.status == AGREE and len(outcome.judged) > 1
        ]
        return self._work.spark.createDataFrame(rows, JUDGED_SQL)

    # --- records ---

    def _look(self, ranges: DataFrame, table: Path) -> None:
        """Compare the records of ranges that differ."""
        spark = self._work.spark
        versions = self._versions(ranges)
        with self._work.progress.watching(spark, "reading what differs"):
            for row in versions.where("code IS NOT NULL").groupBy("number").agg(f.first("error")).collect():
                self._again(row[0], row[1])
        with self._work.progress.watching(spark, "comparing records"):
            found = self._findings(versions)
            self._conclude(found, table)

    def _versions(self, ranges: DataFrame) -> DataFrame:
        """What each judged member has in the ranges that differ."""
        members = self._judged().select("number", f.explode("members").alias("member"))
        bucket = (f.col("first") / BUCKET).cast("long")
        spans = (
            ranges.join(f.broadcast(members), "number")
            .groupBy("number", "member", "is_live", bucket.alias("bucket"))
            .agg(f.collect_list(f.struct("first", "last")).alias("spans"))
        )
        extents = {
            (number, copy.node): self._ready[number].extent(
                copy, self._ready[number].start, self._ready[number].end
            )
            for number in self._suspects
            for copy in self._ready[number].copies
        }
        read = partial(version_rows, extents=extents, contact=self._contact)
        return self._once(spans.mapInArrow(read, VERSIONS_SQL))

    def _findings(self, versions: DataFrame) -> DataFrame:
        """Records that differ, without those that have left their queue meanwhile."""
        found = verdict.unlike(versions, self._judged()).mapInArrow(verdict.judge, verdict.FINDINGS_SQL)
        removals = self._removals()
        if removals:
            check = partial(still_there, extents=removals, contact=self._contact)
            ordered = found.repartition("number").sortWithinPartitions("number", "seq")
            found = ordered.mapInArrow(check, verdict.FINDINGS_SQL)
        return self._once(found)

    def _removals(self) -> dict[int, Extent]:
        """Of queues that differ where only live records are kept: what has left them by now."""
        found: dict[int, Extent] = {}
        for number, (_, is_live) in self._suspects.items():
            one, outcome = self._ready[number], self._outcomes[number]
            if not is_live or outcome.status != AGREE:
                continue
            try:
                mark, epoch = self._cluster.settled(one)
            except Refused as refused:
                outcome.status, outcome.why = refused.status, refused.why
                continue
            if epoch != one.epoch:
                # A removal that the old master knew of need not have survived it.
                self._again(number, "it got another master while it was compared")
            found[number] = one.removals(mark)
        return found

    def _again(self, number: int, why: str) -> None:
        self._outcomes[number].status, self._outcomes[number].why = AGAIN, why

    # --- the result ---

    def _conclude(self, found: DataFrame, table: Path) -> None:
        """Write the findings of queues that were judged; take counts and examples."""
        for row in found.groupBy("number").agg(f.max("code").alias("code")).collect():
            self._suspects.pop(row["number"])
            if row["code"] is not None:
                self._again(row["number"], f"what left it could not be read ({row['code']})")
        for number, (is_dense, _) in self._suspects.items():
            if is_dense and self._outcomes[number].status == AGREE:
                self._again(number, "digests differ, and no record does")
        named = self._named()
        rows = self._once(verdict.with_order(found).join(f.broadcast(named), "number").drop("number"))
        rows.write.mode("overwrite").parquet(str(table))
        by_queue = {outcome.queue: outcome for outcome in self._outcomes.values()}
        for row in rows.groupBy("queue", "member", "kind").count().collect():
            outcome = by_queue[row["queue"]]
            outcome.status = DIFFER
            outcome.findings[row["kind"]] = outcome.findings.get(row["kind"], 0) + row["count"]
            if row["member"] is not None:
                outcome.by_member[row["member"]] = outcome.by_member.get(row["member"], 0) + row["count"]
        first = Window.partitionBy("queue").orderBy("seq", "member")
        few = rows.withColumn("place", f.row_number().over(first)).where(f.col("place") <= EXAMPLES)
        for row in few.drop("place", "vhost", "queue_id").orderBy("queue", "seq", "member").collect():
            told = row.asDict()
            by_queue[told.pop("queue")].examples.append(told)

    def _named(self) -> DataFrame:
        rows = [
            (number, outcome.vhost, outcome.queue, outcome.id)
            for number, outcome in self._outcomes.items()
            if outcome.status == AGREE
        ]
        return self._work.spark.createDataFrame(
            rows, "number INT, vhost STRING, queue STRING, queue_id STRING"
        )


def _begun(one: Prepared) -> Outcome:
    return Outcome(
        vhost=one.vhost,
        queue=one.queue,
        status=AGREE if len(one.copies) > 1 else ONE_COPY,
        id=one.id,
        first=one.start,
        last=one.end - 1,
        judged=[copy.node for copy in one.copies],
        not_judged=[{"node": node, "why": why} for node, why in one.others],
    )


def _packed(extents: Iterable[Extent]) -> list[list[Extent]]:
    """Extents of small queues together, so that there are not more tasks than it takes."""
    bins: list[list[Extent]] = []
    filled = TASK_RECORDS
    for extent in sorted(extents, key=lambda one: (one.member, one.number, one.start)):
        # Of what is old little is live, as a rule.
        size = min(extent.end - extent.start, TASK_RECORDS // 10 if extent.is_live else TASK_RECORDS)
        if filled + size > TASK_RECORDS or bins[-1][0].member != extent.member:
            bins.append([])
            filled = 0
        bins[-1].append(extent)
        filled += size
    return bins
