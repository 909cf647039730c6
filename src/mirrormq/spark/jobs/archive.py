"""The job `archive`: queues become Parquet files, each record once.

Guarantees
- Exactly once: a batch is committed by its manifest (`manifest.py`), and a batch that is done again, after
  whatever crash, finds it and changes nothing. Should the state of the job be lost, records that are in the
  archive already are left out by their positions.
- The broker keeps every record until its batch is committed: the job reads by a cursor, which moves behind
  it.
- Nothing is removed from the queues; ordinary consumers are not disturbed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirrormq.spark.jobs.frame import Job, JobFailed, Result, Work, main_of
from mirrormq.spark.jobs.manifest import ENTRY_SCHEMA, Archive, ArchiveRefused, Entry
from mirrormq.spark.jobs.messages import queue_arguments, queue_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OPEN_MAX = 32
"""Files a task writes at a time; more queues and days than that make more, smaller files."""

Last = dict[str, tuple[int, int]]


def arguments(made: argparse.ArgumentParser) -> None:
    """What the job can be asked."""
    queue_arguments(made, is_needed=True)
    made.add_argument(
        "--to", required=True, metavar="DIR", help="the archive: a folder all workers see, or a URI"
    )
    made.add_argument(
        "--from", dest="begin", default="earliest", choices=("earliest", "latest"), help="first run"
    )
    made.add_argument("--every", metavar="10s", help="go on for ever, with a batch at this interval")
    made.add_argument("--max-records", type=int, metavar="N", help="records in a batch, at most")
    made.add_argument("--allow-loss", action="store_true", help="go on behind records that are gone")


# --- what a task does --------------------------------------------------------------------------------------


def write_files(
    place: str, batch: int, last: Last
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What writes the rows of a task, and gives the files it made."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = Files(Archive(place), batch)
        for rows in batches:
            files.add(_new(rows, last))
        yield entries_batch(files.finish())

    return write


def _new(rows: pa.RecordBatch, last: Last) -> pa.RecordBatch:
    """Without the records that are in the archive already."""
    for queue_id, (epoch, seq) in last.items():
        same = pc.equal(rows["queue_id"], queue_id)
        old = pc.and_(pc.less_equal(rows["seq"], seq), pc.less_equal(rows["epoch"], epoch))
        rows = rows.filter(pc.invert(pc.and_(same, old)))
    return rows


class Files:
    """The files of one task, by queue and day."""

    def __init__(self, archive: Archive, batch: int) -> None:
        self._archive = archive
        self._batch = batch
        self._open: dict[tuple[str, str, str], Writing] = {}
        self._done: list[Entry] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows to the files they belong to."""
        if not rows.num_rows:
            return
        days = pc.strftime(rows["timestamp"], format="%Y-%m-%d")
        keys = pa.table({"queue_id": rows["queue_id"], "queue": rows["queue"], "day": days})
        for group in keys.group_by(["queue_id", "queue", "day"]).aggregate([]).to_pylist():
            key = (group["queue_id"], group["queue"], group["day"])
            mask = pc.and_(
                pc.equal(rows["queue_id"], key[0]),
                pc.and_(pc.equal(rows["queue"], key[1]), pc.equal(days, key[2])),
            )
            self._file(key, rows.schema).add(rows.filter(mask))

    def _file(self, key: tuple[str, str, str], schema: pa.Schema) -> Writing:
        if key not in self._open:
            if len(self._open) >= OPEN_MAX:
                self._done.append(self._open.pop(next(iter(self._open))).finish())
            self._open[key] = Writing(self._archive, key, self._batch, schema)
        return self._open[key]

    def finish(self) -> list[Entry]:
        """Close all; returns what was written."""
        self._done += [writing.finish() for writing in self._open.values()]
        self._open.clear()
        return self._done


class Writing:
    """One file being written, and what is known of its rows."""

    def __init__(self, archive: Archive, key: tuple[str, str, str], batch: int, schema: pa.Schema) -> None:
        _, queue, day = key
        self._file = archive.create(queue, day, batch)
        self._writer = pq.ParquetWriter(self._file.sink, schema, compression="zstd", version="2.6")
        self._same: dict[str, str] = {}
        self._edges: dict[str, list[int]] = {"epoch": [], "seq": [], "timestamp": []}
        self._rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows."""
        if not self._same:
            self._same = {name: rows[name][0].as_py() for name in ("vhost", "queue", "queue_id")}
        for name, edges in self._edges.items():
            column = pc.cast(rows[name], pa.int64()) if name == "timestamp" else rows[name]
            found = pc.min_max(column).as_py()
            edges += [found["min"], found["max"]]
            edges[:] = [min(edges), max(edges)]
        self._rows += rows.num_rows
        self._writer.write_batch(rows)

    def finish(self) -> Entry:
        """Close it."""
        self._writer.close()
        digest = self._file.finish()
        facts: dict[str, Any] = dict(self._same)
        for name, (least, most) in self._edges.items():
            shown = "time" if name == "timestamp" else name
            facts |= {f"first_{shown}": least, f"last_{shown}": most}
        facts |= {"path": self._file.name, "rows": self._rows, "bytes": self._file.size, "sha256": digest}
        return Entry(**facts)


def entries_batch(found: list[Entry]) -> pa.RecordBatch:
    """Files as rows."""
    kinds = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64()}
    fields = [tuple(part.split()) for part in ENTRY_SCHEMA.split(", ")]
    schema = pa.schema([(name, kinds[kind]) for name, kind in fields])
    return pa.RecordBatch.from_pylist([entry._asdict() for entry in found], schema=schema)


# --- the job -----------------------------------------------------------------------------------------------


class Batches:
    """What is done with each batch of the stream. Spark Connect does it with a copy, on its server."""

    def __init__(self, place: str, sink: str, last: Last) -> None:
        self._place = place
        self._archive = Archive(place)
        self._sink = sink
        self._last = last
        """Where the archive ended when this run began: needed if the positions of the stream were lost."""

    def write(self, rows: DataFrame, batch: int) -> None:
        """Archive a batch, unless that has been done."""
        if self._archive.manifest(self._sink, batch) is not None:
            return
        made = rows.mapInArrow(write_files(self._place, batch, self._last), ENTRY_SCHEMA)
        # Files, not messages: their number is that of tasks times queues and days.
        entries = [Entry(**row.asDict()) for row in made.collect()]
        self._archive.commit(self._sink, batch, entries)


def run(work: Work) -> Result:
    """Read by a cursor until the end, or for ever."""
    given = work.arguments
    try:
        archive = Archive(given.to)
        archive.begin({"vhost": work.vhost})
    except (ArchiveRefused, OSError, ValueError) as error:
        raise JobFailed(str(error)) from error
    # A checkpoint knows by itself what was done; without one the archive does.
    is_new = archive.manifest(work.state.id, 0) is None
    known = archive.batches(work.state.id)
    # Workers and servers are in folders of their own.
    place = given.to if "://" in given.to else str(Path(given.to).absolute())
    batches = Batches(place, work.state.id, archive.last() if is_new else {})
    options = {
        "mode": "cursor",
        "cursor": f"archive-{work.state.folder.name}",
        "startingOffsets": given.begin,
    }
    options |= {"failOnDataLoss": "false"} if given.allow_loss else {}
    options |= {"maxRecordsPerTrigger": str(given.max_records)} if given.max_records else {}
    writer = work.stream(**queue_options(given), **options).writeStream.foreachBatch(batches.write)
    writer = writer.option("checkpointLocation", work.state.checkpoint)
    trigger: dict[str, Any] = {"processingTime": given.every} if given.every else {"availableNow": True}
    query = writer.trigger(**trigger).start()
    try:
        work.progress.follow(query, "archiving")
    finally:
        query.stop()
    made = [archive.manifest(work.state.id, batch) or {} for batch in archive.batches(work.state.id) - known]
    rows, files = sum(one["rows"] for one in made), sum(len(one["files"]) for one in made)
    return {"archive": given.to, "rows": rows, "files": files, "batches": len(made)}


def lines(result: Result) -> list[str]:
    """The result for people."""
    return [f"{result['rows']} messages in {result['files']} files: {result['archive']}"]


JOB = Job(
    "archive",
    "Copy queues into Parquet files with a manifest, exactly once; run it again to go on.",
    arguments,
    run,
    identity=("queue", "queues", "pattern", "to"),
    lines=lines,
)

if __name__ == "__main__":
    sys.exit(main_of(JOB))
