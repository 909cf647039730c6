"""Rows of the mirror job: what happened at the source, as the sink of a mirror takes it.

Guarantees
- After a micro-batch the mirror holds what the source held at its end: messages that were published and
  removed within the batch are not sent at all (the state of a message is that at the end of the batch), so
  removals only concern what was copied before, and their order does not matter.
- A snapshot names every live message and, as runs of seqs, everything that is not: the mirror ends equal,
  whatever it held.
- Rows of another queue than the one that the mirror follows end the task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructField, StructType

from mirrormq.spark.jobs.messages import PROPERTIES
from mirrormq.spark.offsets import VERSION, Facts, key_of
from mirrormq.spark.schema import columns_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WRITTEN = ("op", "queue", "seq", "exchange", "routing_key", *PROPERTIES, "body")
ANEW = "was declared anew while it was read"
RUNS_MAX = 16_384
"""Removals in one Arrow batch."""

_KNOWN = columns_of("changes")
READ = StructType([StructField(name, _KNOWN[name]) for name in ("queue_id", "state", *WRITTEN)])
SENT = StructType([StructField(name, _KNOWN[name]) for name in WRITTEN])
LIVE = StructType([StructField(name, _KNOWN[name]) for name in ("queue", "seq")])
_COPIED = StructType([StructField(name, _KNOWN[name]) for name in ("queue_id", *WRITTEN[1:])])

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def changed(sources: Mapping[str, str], *, follows: bool) -> Task:
    """What a task makes of changes; `sources`: the id of the queue that each queue follows.

    Without `follows` every message is copied, and nothing is removed.
    """

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        gone: dict[str, Gone] = {}
        for rows in batches:
            check_queues(rows, sources)
            is_publish = pc.equal(rows["op"], "publish")
            is_copied = pc.and_(is_publish, pc.equal(rows["state"], "live")) if follows else is_publish
            for name in pc.unique(rows["queue"]).to_pylist() if follows else ():
                gone.setdefault(name, Gone()).add(rows.filter(pc.equal(rows["queue"], name)))
            copies = rows.filter(is_copied)
            if copies.num_rows:
                yield copies.select(list(WRITTEN))
        for name, removals in gone.items():
            yield from removals.rows(name)

    return work


def check_queues(rows: pa.RecordBatch, sources: Mapping[str, str]) -> None:
    """Raise unless the rows are of the queues that are followed."""
    pairs = pa.table({"queue": rows["queue"], "id": rows["queue_id"]})
    for pair in pairs.group_by(["queue", "id"]).aggregate([]).to_pylist():
        if sources.get(pair["queue"]) != pair["id"]:
            raise RuntimeError(f"queue '{pair['queue']}' {ANEW}")


class Gone:
    """What left one queue, as far as a task sees it."""

    def __init__(self) -> None:
        self._first: int | None = None
        """The first message that was published in the task's range: removed ones of these were not sent."""
        self._seqs: list[Any] = []
        self._purges: list[tuple[int, bytes]] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Note the removals among these rows."""
        if self._first is None:
            seqs = rows.filter(pc.equal(rows["op"], "publish"))["seq"]
            self._first = seqs[0].as_py() if len(seqs) else None
        removed = rows.filter(pc.equal(rows["op"], "remove"))["seq"].to_numpy(zero_copy_only=False)
        self._seqs.append(removed if self._first is None else removed[removed < self._first])
        for row in rows.filter(pc.equal(rows["op"], "purge")).select(["seq", "body"]).to_pylist():
            self._purges.append((row["seq"], row["body"]))

    def rows(self, queue: str) -> Iterator[pa.RecordBatch]:
        """The removals, those in a row as one."""
        if self._purges:
            yield sent("purge", queue, [seq for seq, _ in self._purges], [kept for _, kept in self._purges])
        seqs = np.unique(np.concatenate(self._seqs)) if self._seqs else np.empty(0, np.int64)
        if not len(seqs):
            return
        cuts = np.flatnonzero(np.diff(seqs) != 1)
        firsts = seqs[np.concatenate(([0], cuts + 1))]
        lasts = seqs[np.concatenate((cuts, [len(seqs) - 1]))]
        yield from runs(queue, firsts, lasts)


def runs(queue: str, firsts: Any, lasts: Any) -> Iterator[pa.RecordBatch]:
    """Removals of runs of seqs."""
    for at in range(0, len(firsts), RUNS_MAX):
        ends = [int(last).to_bytes(8, "little") for last in lasts[at : at + RUNS_MAX]]
        yield sent("remove", queue, firsts[at : at + RUNS_MAX].tolist(), ends)


def sent(op: str, queue: str, seqs: list[int], bodies: list[bytes]) -> pa.RecordBatch:
    """Rows with nothing but these columns."""
    given = {"op": [op] * len(seqs), "queue": [queue] * len(seqs), "seq": seqs, "body": bodies}
    arrays = [pa.array(given.get(name, [None] * len(seqs)), _ARROW[name]) for name in WRITTEN]
    return pa.RecordBatch.from_arrays(arrays, names=list(WRITTEN))


_ARROW: dict[str, pa.DataType] = {
    **dict.fromkeys(WRITTEN, pa.string()),
    "seq": pa.int64(),
    "app_timestamp": pa.timestamp("us", "UTC"),
    "delivery_mode": pa.int16(),
    "priority": pa.int16(),
    "headers_raw": pa.binary(),
    "body": pa.binary(),
}

# --- snapshots ----------------------------------------------------------------------------------------------


def copied(sources: Mapping[str, str]) -> Task:
    """What a task makes of live messages."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            check_queues(rows, sources)
            op = pa.array(["publish"] * rows.num_rows)
            columns = [op if name == "op" else rows[name] for name in WRITTEN]
            yield pa.RecordBatch.from_arrays(columns, names=list(WRITTEN))

    return work


def absent(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What is not there: the gaps between the seqs of each queue, which come sorted."""
    queue, last = None, 0
    for rows in batches:
        names = rows["queue"].to_numpy(zero_copy_only=False)
        seqs = rows["seq"].to_numpy(zero_copy_only=False)
        cuts = [0, *(np.flatnonzero(names[1:] != names[:-1]) + 1).tolist(), len(names)]
        for first, end in pairwise(cuts):
            if first == end:
                continue
            if names[first] != queue:
                queue, last = names[first], 0
            here = seqs[first:end]
            before = np.concatenate(([last], here[:-1]))
            is_gap = here > before + 1
            yield from runs(str(queue), before[is_gap] + 1, here[is_gap] - 1)
            last = int(here[-1])


def ends_of(cluster: str, queues: Iterable[Facts]) -> str:
    """Where a snapshot ends, as the option endingOffsets takes it: for these incarnations of the queues."""
    rows = {
        key_of((facts.vhost, facts.queue)): {
            "id": facts.id,
            "e": facts.epoch_at(facts.next - 1),
            "s": facts.next,
        }
        for facts in queues
    }
    return json.dumps({"v": VERSION, "c": cluster, "q": rows})


def snapshot(
    read: Callable[[StructType], DataFrame], queues: Mapping[str, Facts], *, follows: bool
) -> DataFrame:
    """What is there now. `read` reads the live messages of the queues, up to the ends that are known."""
    sources = {name: facts.id for name, facts in queues.items()}
    copies = read(_COPIED).mapInArrow(copied(sources), SENT)
    if not follows:
        return copies
    live = read(LIVE)
    # The end of each queue stands for itself: behind the last live message, or of a queue without any.
    seqs = pa.array([facts.next for facts in queues.values()], pa.int64())
    ends = live.sparkSession.createDataFrame(pa.table({"queue": list(queues), "seq": seqs}), LIVE)
    gaps = live.unionByName(ends).repartition("queue").sortWithinPartitions("queue", "seq")
    return copies.unionByName(gaps.mapInArrow(absent, SENT))
