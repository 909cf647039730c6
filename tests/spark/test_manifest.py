"""An archive: what a manifest names counts, once; everything else is invisible."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirrormq.spark.jobs.archive import Files, entries_batch, write_files
from mirrormq.spark.jobs.manifest import Archive, ArchiveRefused, Entry

DAY = datetime(2026, 11, 16, 23, 59, 58, tzinfo=UTC)
SCHEMA = pa.schema(
    {
        "vhost": pa.string(),
        "queue": pa.string(),
        "queue_id": pa.string(),
        "epoch": pa.int32(),
        "seq": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "body": pa.binary(),
    }
)


def _rows(queue: str, seqs: range, epoch: int = 1, step: int = 1) -> Any:
    rows = [
        {
            "vhost": "/",
            "queue": queue,
            "queue_id": f"id-{queue}",
            "epoch": epoch,
            "seq": seq,
            "timestamp": datetime.fromtimestamp(DAY.timestamp() + step * (seq - seqs[0]), UTC),
            "body": b"%d" % seq,
        }
        for seq in seqs
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def _archived(place: Path, batch: int, *rows: Any, last: Any = None, sink: str = "s") -> list[Entry]:
    (made,) = list(write_files(str(place), batch, last or {})(list(rows)))
    entries = [Entry(**row) for row in made.to_pylist()]
    Archive(str(place)).commit(sink, batch, entries)
    return entries


def _seqs(place: Path) -> list[int]:
    archive = Archive(str(place))
    return sorted(
        seq for entry in archive.files() for seq in pq.read_table(archive.path_of(entry))["seq"].to_pylist()
    )


def test_files_are_by_queue_and_day_and_the_manifest_describes_them(tmp_path: Path) -> None:
    entries = _archived(tmp_path, 0, _rows("a/b c", range(1, 5)), _rows("z", range(7, 8)))
    assert sorted(entry.path.rpartition("/")[0] for entry in entries) == [
        "queue=a%2Fb c/date=2026-11-16",
        "queue=a%2Fb c/date=2026-11-17",
        "queue=z/date=2026-11-16",
    ]
    first = min(entries, key=lambda entry: entry.first_seq)
    assert (first.queue, first.queue_id, first.first_seq, first.last_seq, first.rows) == (
        "a/b c",
        "id-a/b c",
        1,
        2,
        2,
    )
    assert first.first_time == int(DAY.timestamp()) * 1_000_000
    path = tmp_path / first.path
    assert (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()) == (first.bytes, first.sha256)


def test_what_no_manifest_names_is_not_there(tmp_path: Path) -> None:
    list(write_files(str(tmp_path), 0, {})([_rows("q", range(1, 4))]))
    assert list(tmp_path.rglob("*.parquet"))
    assert _seqs(tmp_path) == []
    _archived(tmp_path, 0, _rows("q", range(1, 4)))
    assert _seqs(tmp_path) == [1, 2, 3]


def test_a_batch_is_committed_once_whatever_comes_later(tmp_path: Path) -> None:
    _archived(tmp_path, 3, _rows("q", range(1, 4)))
    _archived(tmp_path, 3, _rows("q", range(1, 9)))
    assert _seqs(tmp_path) == [1, 2, 3]
    _archived(tmp_path, 4, _rows("q", range(4, 9)))
    assert _seqs(tmp_path) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_run_that_lost_its_state_leaves_out_what_is_archived(tmp_path: Path) -> None:
    _archived(tmp_path, 0, _rows("q", range(1, 6)), _rows("z", range(1, 3)))
    last = Archive(str(tmp_path)).last()
    assert last == {"id-q": (1, 5), "id-z": (1, 2)}
    _archived(tmp_path, 0, _rows("q", range(4, 8)), _rows("z", range(1, 3)), last=last, sink="another")
    assert _seqs(tmp_path) == sorted([1, 2, 3, 4, 5, 1, 2, 6, 7])


def test_seqs_that_a_later_epoch_gave_again_are_other_records(tmp_path: Path) -> None:
    _archived(tmp_path, 0, _rows("q", range(1, 6)))
    last = Archive(str(tmp_path)).last()
    _archived(tmp_path, 0, _rows("q", range(4, 6), epoch=2), last=last, sink="another")
    assert _seqs(tmp_path) == [1, 2, 3, 4, 4, 5, 5]


def test_a_task_with_many_queues_has_few_files_open_and_loses_nothing(tmp_path: Path) -> None:
    files = Files(Archive(str(tmp_path)), 0)
    for number in range(100):
        files.add(_rows(f"q{number}", range(1, 2), step=0))
    entries = files.finish()
    assert len(entries) == 100
    assert sum(entry.rows for entry in entries) == 100
    assert entries_batch(entries).num_rows == 100


def test_every_folder_of_a_batch_is_flushed_up_to_one_that_was_there_before(tmp_path: Path) -> None:
    flushed: list[Path] = []
    place = tmp_path / "new/archive"
    archive = Archive(str(place), flushed.append)
    archive.begin({"vhost": "/"})
    assert {tmp_path, tmp_path / "new", place, place / "_mirror"} <= set(flushed)
    # Tasks make the folders of files, in processes of their own.
    (made,) = list(write_files(str(place), 0, {})([_rows("q", range(1, 2))]))
    flushed.clear()
    archive.commit("s", 0, [Entry(**row) for row in made.to_pylist()])
    files = [place / "queue=q/date=2026-11-16", place / "queue=q", place]
    assert set(files) <= set(flushed[:3]), "before the manifest is there"
    assert {place / "_mirror/s", place / "_mirror", place} <= set(flushed[3:])


def test_a_queue_may_have_a_name_that_is_too_long_for_a_folder(tmp_path: Path) -> None:
    names = ["ü" * 127, "ü" * 126 + "x", "q" * 255, "q" * 254 + "r"]
    entries = [_archived(tmp_path, number, _rows(name, range(1, 3)))[0] for number, name in enumerate(names)]
    assert [entry.queue for entry in entries] == names
    assert len({entry.path.partition("/")[0] for entry in entries}) == len(names)
    assert _seqs(tmp_path) == sorted([1, 2] * len(names))


def test_spark_finds_the_files_of_an_archive_that_is_no_folder_here(tmp_path: Path) -> None:
    entry = _archived(tmp_path, 0, _rows("q", range(1, 2)))[0]
    assert Archive("mock:///deep/place/").path_of(entry) == f"mock:///deep/place/{entry.path}"
    assert Archive(tmp_path.as_uri()).path_of(entry) == f"{tmp_path}/{entry.path}"


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    archive = Archive(str(tmp_path))
    with pytest.raises(ArchiveRefused, match="is no archive"):
        archive.need()
    archive.begin({"vhost": "/"})
    archive.begin({"vhost": "/"})
    assert archive.need()["vhost"] == "/"
    with pytest.raises(ArchiveRefused, match="vhost"):
        archive.begin({"vhost": "other"})
