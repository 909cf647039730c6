"""The folder in which a run of a job remembers what it is, how far it is and how it ended.

Guarantees
- One process at a time works in a folder; the lock goes with the process, however that ends.
- What is read is whole: the record is written beside the old one and renamed into its place, and is on the
  disk when anything is written under its `id`. A record that cannot be read is refused: without it the run
  would be another one, and write again what it has written.
- A folder belongs to one job with one set of identifying arguments; another one is refused, not mixed in. Its
  `id` stays the same for all runs in it, so that whoever writes under that id writes once.
- No secret is ever written here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mirrormq.spark.jobs import folders

VERSION = 1
RECORD = "run.json"
LOCK = "lock"
CHECKPOINT = "checkpoint"
ROOT_VARIABLE = "MIRRORMQ_PIPELINE_DIR"
DEFAULT_ROOT = "data/pipeline"

RUNNING, DONE, FAILED, STOPPED, LOST = "running", "done", "failed", "stopped", "interrupted"
"""`interrupted`: its process ended without a word; run it again to go on."""

Record = dict[str, Any]


class StateRefused(Exception):
    """The folder cannot be used; the text says why and what to do."""


def default_root() -> Path:
    """Where the folders of runs are."""
    return Path(os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT)


class RunState:
    """An open folder."""

    def __init__(self, folder: Path, record: Record) -> None:
        self.folder = folder
        self._record = record

    @property
    def id(self) -> str:
        """Names what this folder writes, for ever."""
        return str(self._record["id"])

    @property
    def checkpoint(self) -> str:
        """Where Spark remembers the positions of a stream, in this round."""
        name = f"{CHECKPOINT}-{self.round}" if self.round else CHECKPOINT
        return str((self.folder / name).absolute())

    @property
    def round(self) -> int:
        """How often a stream of this folder has come to its end and begins anew."""
        return int(self._record.get("round", 0))

    @property
    def cursor(self) -> tuple[str, str] | None:
        """(queue, name) of a cursor that is still to be dropped, of a round that is over."""
        found = self._record.get("cursor")
        return None if found is None else (str(found[0]), str(found[1]))

    @property
    def former(self) -> Record:
        """How the run before this one ended; empty if there was none."""
        return dict(self._record.get("former") or {})

    def update(self, **facts: Any) -> None:
        """Remember something of this run."""
        self._record.update(facts, updated=time.time())
        write_json(self.folder / RECORD, self._record)


@contextlib.contextmanager
def opened(folder: Path, job: str, identity: Mapping[str, Any]) -> Iterator[RunState]:
    """The folder of a run, made if it is new; nobody else can open it meanwhile."""
    folders.make(folder)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StateRefused(
                f"another process works in {folder}; wait for it or give this run another --name"
            ) from None
        record = read_record(folder)
        if record is None:
            if (folder / RECORD).exists():
                raise StateRefused(f"{folder / RECORD} cannot be read; give this run another --name")
            record = {"v": VERSION, "id": uuid.uuid4().hex, "job": job, "name": folder.name}
        _check(folder, record, job, identity)
        record["former"] = {key: record[key] for key in ("state", "result", "error") if key in record}
        record.update(
            identity=dict(identity), state=RUNNING, pid=os.getpid(), started=time.time(), progress={}
        )
        record.pop("result", None)
        record.pop("error", None)
        state = RunState(folder, record)
        state.update()
        yield state


def _check(folder: Path, record: Record, job: str, identity: Mapping[str, Any]) -> None:
    if record.get("v") != VERSION:
        raise StateRefused(f"{folder} was written by another version of the pipeline")
    if record["job"] != job:
        raise StateRefused(f"{folder} belongs to the job {record['job']}; give this run another --name")
    known = record.get("identity")
    if known is not None and known != json.loads(json.dumps(dict(identity))):
        other = [key for key in {*known, *identity} if known.get(key) != identity.get(key)]
        raise StateRefused(
            f"{folder} belongs to a run with other values of {', '.join(sorted(other))}; "
            "give this run another --name"
        )


def read_record(folder: Path) -> Record | None:
    """What a folder remembers; None if it is none of ours."""
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "job" in found and "id" in found else None


def runs(root: Path) -> list[Record]:
    """Every run below a folder, the last one first. A run whose process is gone is shown as interrupted."""
    found = [record for folder in _folders(root) if (record := read_record(folder)) is not None]
    for record in found:
        if record.get("state") == RUNNING and not _is_held(root / str(record["name"])):
            record["state"] = LOST
    return sorted(found, key=lambda record: -float(record.get("updated", 0)))


def _folders(root: Path) -> list[Path]:
    return [entry for entry in root.iterdir() if entry.is_dir()] if root.is_dir() else []


def _is_held(folder: Path) -> bool:
    try:
        with (folder / LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def write_json(path: Path, value: Any) -> None:
    """Write a file as a whole or not at all; it is on the disk then."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.new")
    with aside.open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=1, default=str)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    folders.flush(path.parent)
