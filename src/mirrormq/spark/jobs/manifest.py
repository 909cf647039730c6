"""An archive: Parquet files, and manifests that say which of them count.

Guarantees
- A file counts when a manifest names it, and a manifest appears as a whole: readers see a batch entirely or
  not at all. Files that no manifest names are what an attempt left that did not succeed; nobody reads them.
- A batch of a sink has one manifest, for ever: a second commit of the same batch changes nothing.
- Files, then the manifest, are flushed before the batch counts as done, where the file system can do that,
  and so are the folders they are in, up to one that was there before; only then may the broker forget the
  records.

Layout: `queue=<name>/date=<day>/part-<batch>-<random>.parquet`, `_mirror/<sink>/<batch>.json`,
`_mirror/archive.json`. Folders are for people and for pruning; every file holds all columns, the queue's name
included. The folder of a very long name ends in a digest of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pafs

from mirrormq.spark.jobs import folders

VERSION = 1
FOLDER = "_mirror"
ABOUT = "archive.json"
NAME_MAX = 200
"""Octets of a queue's name in the name of its folder; file systems take 255 in all."""

Json = dict[str, Any]


class ArchiveRefused(Exception):
    """The folder is no archive, or one of something else; the text is for the user."""


class Entry(NamedTuple):
    """A file of an archive."""

    path: str
    vhost: str
    queue: str
    queue_id: str
    first_epoch: int
    last_epoch: int
    first_seq: int
    last_seq: int
    first_time: int
    """µs since 1970."""
    last_time: int
    rows: int
    bytes: int
    sha256: str


ENTRY_SCHEMA = (
    "path string, vhost string, queue string, queue_id string, first_epoch int, last_epoch int, "
    "first_seq bigint, last_seq bigint, first_time bigint, last_time bigint, rows bigint, bytes bigint, "
    "sha256 string"
)


class Archive:
    """The place of an archive: a folder, or a URI that Arrow's file systems know."""

    def __init__(self, place: str, flush: folders.Flush = folders.flush) -> None:
        if "://" in place:
            self._fs, self._root = pafs.FileSystem.from_uri(place)
        else:
            self._fs, self._root = pafs.LocalFileSystem(), str(Path(place).absolute())
        self._is_local = isinstance(self._fs, pafs.LocalFileSystem)
        self._flush = flush
        self._for_spark = self._root if self._is_local else _for_spark(place)

    # --- what it is of ---

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Make the archive, or refuse one that is of something else."""
        known = self._read(f"{FOLDER}/{ABOUT}")
        if known is None:
            self._put(f"{FOLDER}/{ABOUT}", {"v": VERSION, **facts})
        elif known.get("v") != VERSION:
            raise ArchiveRefused(f"{self._root} was made by another version")
        else:
            other = [name for name, value in facts.items() if known.get(name) != value]
            if other:
                raise ArchiveRefused(
                    f"{self._root} is an archive with {other[0]} = {known.get(other[0])!r}, "
                    f"not {facts[other[0]]!r}; give another folder"
                )

    def need(self) -> Json:
        """What it is of; refused if it is no archive."""
        known = self._read(f"{FOLDER}/{ABOUT}")
        if known is None or known.get("v") != VERSION:
            raise ArchiveRefused(f"{self._root} is no archive")
        return known

    # --- batches ---

    def manifest(self, sink: str, batch: int) -> Json | None:
        """The manifest of a batch; None if it has not been committed."""
        return self._read(_manifest_name(sink, batch))

    def batches(self, sink: str) -> set[int]:
        """The batches of a sink that count."""
        found = pafs.FileSelector(f"{self._root}/{FOLDER}/{sink}", allow_not_found=True)
        names = [str(info.base_name) for info in self._fs.get_file_info(found)]
        return {int(name.removesuffix(".json")) for name in names if name.endswith(".json")}

    def commit(self, sink: str, batch: int, files: list[Entry]) -> Json:
        """Make these files count; what was committed before stays as it is."""
        known = self.manifest(sink, batch)
        if known is not None:
            return known
        if self._is_local:
            # Tasks have made these folders; whether one that died has flushed them, nobody knows.
            for folder in sorted({above for entry in files for above in Path(entry.path).parents}):
                self._flush(Path(self._root, folder))
        told = {"v": VERSION, "sink": sink, "batch": batch, "rows": sum(entry.rows for entry in files)}
        manifest = {**told, "files": [entry._asdict() for entry in files]}
        self._put(_manifest_name(sink, batch), manifest)
        return manifest

    def manifests(self) -> Iterator[Json]:
        """All of them."""
        found = pafs.FileSelector(f"{self._root}/{FOLDER}", recursive=True, allow_not_found=True)
        for info in sorted(self._fs.get_file_info(found), key=lambda info: str(info.path)):
            if info.type == pafs.FileType.File and info.extension == "json" and info.base_name != ABOUT:
                with self._fs.open_input_stream(info.path) as file:
                    yield json.loads(file.read())

    def files(self) -> Iterator[Entry]:
        """Every file that counts."""
        for manifest in self.manifests():
            for entry in manifest["files"]:
                yield Entry(**entry)

    def last(self) -> dict[str, tuple[int, int]]:
        """(epoch, seq) of the last record of every queue, by its id."""
        found: dict[str, tuple[int, int]] = {}
        for entry in self.files():
            before = found.get(entry.queue_id, (0, 0))
            found[entry.queue_id] = max(before, (entry.last_epoch, entry.last_seq))
        return found

    def path_of(self, entry: Entry) -> str:
        """Where a file is, for Spark."""
        return f"{self._for_spark}/{entry.path}"

    # --- files ---

    def create(self, queue: str, day: str, batch: int) -> NewFile:
        """A file whose name nobody else has."""
        folder = f"{_folder_of(queue)}/date={day}"
        name = f"{folder}/part-{batch:08d}-{uuid.uuid4().hex}.parquet"
        path = f"{self._root}/{name}"
        self._fs.create_dir(f"{self._root}/{folder}", recursive=True)
        if self._is_local:
            return NewFile(name, open(path, "wb"))
        return NewFile(name, self._fs.open_output_stream(path))

    def _read(self, name: str) -> Json | None:
        try:
            with self._fs.open_input_stream(f"{self._root}/{name}") as file:
                found: Json = json.loads(file.read())
                return found
        except FileNotFoundError:
            return None

    def _put(self, name: str, value: Json) -> None:
        data = (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()
        path = f"{self._root}/{name}"
        if not self._is_local:
            self._fs.create_dir(path.rpartition("/")[0], recursive=True)
            with self._fs.open_output_stream(path) as file:  # these put whole objects
                file.write(data)
            return
        folder = Path(path).parent
        folders.make(folder, self._flush)
        aside = f"{path}.{uuid.uuid4().hex}.new"
        with open(aside, "wb") as local:
            local.write(data)
            local.flush()
            os.fsync(local.fileno())
        Path(aside).replace(path)
        folders.flush_between(folder, Path(self._root), self._flush)


class NewFile:
    """A file being written; knows its size and its digest."""

    def __init__(self, name: str, stream: Any) -> None:
        self.name = name
        self.size = 0
        self._stream = stream
        self._digest = hashlib.sha256()
        self.sink = pa.PythonFile(self, mode="w")

    # What Arrow asks of a file.
    closed = False

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """Take some octets."""
        taken = memoryview(data)
        self._digest.update(taken)
        self._stream.write(taken)
        self.size += taken.nbytes
        return taken.nbytes

    def tell(self) -> int:
        """Where it is."""
        return self.size

    def flush(self) -> None:
        """Hand it to the system."""
        self._stream.flush()

    def close(self) -> None:
        """Arrow is done; `finish` is ours."""

    def finish(self) -> str:
        """Flush and close; returns the digest."""
        self._stream.flush()
        if hasattr(self._stream, "fileno") and not isinstance(self._stream, pa.NativeFile):
            os.fsync(self._stream.fileno())
        self._stream.close()
        return self._digest.hexdigest()


def _manifest_name(sink: str, batch: int) -> str:
    return f"{FOLDER}/{sink}/{batch:012d}.json"


def _folder_of(queue: str) -> str:
    quoted = quote(queue, safe=" ")
    if len(quoted) > NAME_MAX:
        # Not in the middle of an escaped octet.
        kept = (
            quoted[:NAME_MAX].rpartition("%")[0]
            if "%" in quoted[NAME_MAX - 2 : NAME_MAX]
            else quoted[:NAME_MAX]
        )
        quoted = f"{kept}~{hashlib.sha256(queue.encode()).hexdigest()[:16]}"
    return f"queue={quoted}"


def _for_spark(place: str) -> str:
    """An address of Arrow's as Spark's file systems know it: S3 has another name there, and no query."""
    address = place.partition("?")[0].rstrip("/")
    return f"s3a{address[2:]}" if address.startswith("s3://") else address
