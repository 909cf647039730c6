"""The journal: the one place where queue data becomes durable.

Guarantee: when `flushed` has reported a flush, every batch added before that flush began survives a crash,
for all queues at once. One flush is under way at a time and the next begins when it ends (group commit by
completion), so a queue that gets one message at a time waits for at most two flushes, however busy its
neighbours are.

A journal file begins with a head (docs/format/journal.md) and goes on with batches of any queue, in the
order they were added. Files are numbered by serial; a file that is full is followed by the next serial,
whose head says where the file before it ends. Nothing is written into the middle of a file, so a crash can
tear only what no flush had covered; how far that was is written down too (`flushed_note`), so that recovery
can tell a torn end from damage.

Batches that ask for no flush (removals, transient messages) are flushed with the next one that does, or after
`removal_flush_us`.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, Protocol

from mirrormq.base import limits
from mirrormq.base.durations import FLUSH_BOUNDS_US, Durations
from mirrormq.base.types import Now
from mirrormq.kernel import records
from mirrormq.kernel.crc32c import crc32c
from mirrormq.log.disk import DiskOutbox

Fsync = Literal["always", "interval", "never"]
"""What makes a batch durable enough to confirm: a flush; or the operating system, with flushes at
intervals, or none but those a checkpoint needs.
"""

PREFIX = "journal/"
MAGIC = b"MQJ1"
VERSION = 2
"""1 had no notes about mirrored queues."""
_HEAD = struct.Struct("<4sIQQQ")
_NOTE = struct.Struct("<QQ")
HEAD_BYTES = _HEAD.size + 4


class Writer(Protocol):
    """A queue's log, as the journal tells it of flushes."""

    def mark(self) -> object:
        """What would be durable if a flush began now."""
        ...

    def on_durable(self, mark: object) -> None:
        """A flush that began at this mark is done."""
        ...


class _Flush(NamedTuple):
    tokens: set[int]
    upto: tuple[int, int]
    callbacks: list[Callable[[], None]]
    marks: list[tuple[Writer, object]]
    since: int


class Journal:
    """Batches of all queues on their way to the disk."""

    def __init__(
        self,
        outbox: DiskOutbox,
        next_token: Callable[[], int],
        *,
        fsync: Fsync = "always",
        interval_us: int = limits.removal_flush_us,
    ) -> None:
        """`interval_us`: with `interval`, the longest time a batch waits for a flush nobody waits for."""
        self._outbox = outbox
        self._next_token = next_token
        self._fsync = fsync
        self._delay_us = interval_us if fsync == "interval" else limits.removal_flush_us
        self.serials: list[int] = []
        """The files there are, oldest first; the last one is being written."""
        self.current = ""
        """The name of the file being written; empty before `start`."""
        self.size = 0
        """Bytes of the current file, those waiting for the end of the pass included."""
        self.added_bytes = 0
        self.flush_count = 0
        self.flush_times = Durations(FLUSH_BOUNDS_US)
        self.mono = 0
        """The time of the last input that could make something durable."""
        self._waiting: list[bytes] = []
        self._written_files: list[str] = []
        self._touched: dict[Writer, None] = {}
        self._wants_flush = False
        self._oldest_unflushed = 0
        self._flush: _Flush | None = None
        self._after_flush: list[Callable[[], None]] = []
        self._flushed = (0, 0)
        """Serial and offset up to which everything is known to be flushed."""
        self._noted = (0, 0)
        self.ends: dict[str, int] = {}
        """Where the batches of each earlier file end. Behind it may lie what a crash left and recovery
        dropped.
        """

    @property
    def serial(self) -> int:
        """The file being written."""
        return self.serials[-1]

    def start(self, serial: int, earlier: list[int], previous_end: int, logs: Iterable[Writer] = ()) -> None:
        """Begin with a serial no file ever had; of the `earlier` ones the last ends at `previous_end`.

        `logs` were filled from them.
        """
        self.serials = list(earlier)
        self._begin_file(serial, previous_end)
        # What was read from the files before it may be in the page cache only, left there by a process that
        # was killed: no flush of ours counts without them, and until it is done nothing that was read counts
        # as durable. A horizon that a power failure takes back would let a delivered message come as new.
        self._written_files += [file_name(before) for before in earlier]
        self._touched.update(dict.fromkeys(logs))
        self._wants_flush = bool(earlier or self._touched)

    def add(self, log: Writer, batch: bytes, *, flush: bool, now: Now) -> tuple[str, int]:
        """Take a batch; it is handed to the disk at the end of the pass. Returns its file and offset."""
        if self.size + len(batch) > limits.journal_file_bytes and self.size > HEAD_BYTES:
            self._hand_over()
            self.ends[self.current] = self.size
            self._begin_file(self.serial + 1, self.size)
        place = (self.current, self.size)
        self._waiting.append(batch)
        self.size += len(batch)
        self.added_bytes += len(batch)
        self._touched[log] = None
        self._wants_flush = self._wants_flush or flush
        if not self._oldest_unflushed:
            self._oldest_unflushed = now.mono
        return place

    def commit(self, now: Now) -> None:
        """End of the pass: hand over what waits, begin a flush if one is wanted and none is under way."""
        self.mono = now.mono
        if self._waiting:
            self._hand_over()
        if self._fsync != "always":
            self._trust_the_system()
        is_due = self._wants_flush or (
            self._oldest_unflushed and now.mono - self._oldest_unflushed >= self._delay_us
        )
        if is_due and self._flush is None:
            if self._written_files:
                self._begin_flush(now)
            elif self._after_flush:
                callbacks, self._after_flush = self._after_flush, []
                self._wants_flush = False
                for done in callbacks:
                    done()

    def before_read(self, file: str) -> None:
        """Somebody is about to read from this file: what waits for the end of the pass belongs to it."""
        if self._waiting and file == self.current:
            self._hand_over()

    def next_flush_at(self) -> int | None:
        """When `commit` should be called again although nothing happens (mono µs)."""
        if not self._oldest_unflushed or self._flush is not None:
            return None
        return self._oldest_unflushed + self._delay_us

    def flushed(self, token: int, now: Now) -> bool:
        """The disk has done what `token` stands for. False if it is not one of ours."""
        flush = self._flush
        if flush is None or token not in flush.tokens:
            return False
        flush.tokens.discard(token)
        self.mono = now.mono
        if not flush.tokens:
            self._flush = None
            self._flushed = flush.upto
            self.flush_times.add(now.mono - flush.since)
            for log, mark in flush.marks:
                log.on_durable(mark)
            for done in flush.callbacks:
                done()
            self.commit(now)
        return True

    def want_flush(self) -> None:
        """Somebody waits for what was added so far."""
        self._wants_flush = self._wants_flush or bool(self._touched)

    def after_flush(self, done: Callable[[], None]) -> None:
        """Call `done` when everything added so far is flushed, or, with `never`, at once."""
        if self._fsync == "never":
            done()
        else:
            self.on_disk(done)

    def on_disk(self, done: Callable[[], None]) -> None:
        """Call `done` when everything added so far is flushed, whatever counts as durable: for a checkpoint,
        which is flushed itself and names records. After a power failure they would else be neither where it
        says nor anywhere, and what waits for the end of the pass would be missing after a mere kill.
        """
        if self._flush is None and not self._written_files and not self._waiting:
            done()
        else:
            self._after_flush.append(done)
            self._wants_flush = True

    def _trust_the_system(self) -> None:
        """What the operating system has taken counts as durable; a flush is for those who asked for it by
        name. Until they do, which files it has to be of is remembered: all that were written since the last.
        """
        touched, self._touched = self._touched, {}
        self._wants_flush = bool(self._after_flush)
        if self._fsync == "never":
            self._oldest_unflushed = 0
        for log in touched:
            log.on_durable(log.mark())

    def _begin_file(self, serial: int, previous_end: int) -> None:
        previous = self.serials[-1] if self.serials else 0
        self.serials.append(serial)
        self.current = file_name(serial)
        head = _HEAD.pack(MAGIC, VERSION, serial, previous, previous_end)
        self._waiting.append(head + struct.pack("<I", crc32c(head)))
        self.size = HEAD_BYTES

    def _hand_over(self) -> None:
        name = self.current
        if self._flushed != self._noted:
            self._noted = self._flushed
            note = flushed_note(*self._flushed)
            self._waiting.append(note)
            self.size += len(note)
        self._outbox.append(name, b"".join(self._waiting))
        self._waiting.clear()
        if not self._written_files or self._written_files[-1] != name:
            self._written_files.append(name)

    def stalled_us(self, mono: int) -> int:
        """For how long a flush has been under way."""
        return mono - self._flush.since if self._flush is not None else 0

    def _begin_flush(self, now: Now) -> None:
        files, self._written_files = self._written_files, []
        touched, self._touched = self._touched, {}
        self._wants_flush = False
        self._oldest_unflushed = 0
        self.flush_count += 1
        tokens = set()
        for name in files:
            token = self._next_token()
            tokens.add(token)
            self._outbox.flush(name, token)
        callbacks, self._after_flush = self._after_flush, []
        marks = [(log, log.mark()) for log in touched]
        self._flush = _Flush(tokens, (self.serial, self.size), callbacks, marks, now.mono)


def file_name(serial: int) -> str:
    """Name of the journal file with this serial."""
    return f"{PREFIX}{serial:016d}"


def serial_of(name: str) -> int | None:
    """Serial of a journal file, None for other names."""
    digits = name.removeprefix(PREFIX)
    return int(digits) if name.startswith(PREFIX) and digits.isdigit() else None


class FileHead(NamedTuple):
    """The head of a journal file."""

    version: int
    serial: int
    previous_serial: int
    """The file whose records come before these; 0 if there is none."""
    previous_end: int
    """Where that file ends. What lies behind was dropped by the process that began this one."""


def read_file_head(data: bytes | memoryview) -> FileHead | None:
    """The head of a journal file; None if it is not whole."""
    if len(data) < HEAD_BYTES:
        return None
    magic, version, serial, previous_serial, previous_end = _HEAD.unpack_from(data)
    (crc,) = struct.unpack_from("<I", data, _HEAD.size)
    if magic != MAGIC or crc != crc32c(bytes(data[: _HEAD.size])):
        return None
    return FileHead(version, serial, previous_serial, previous_end)


def flushed_note(serial: int, offset: int) -> bytes:
    """A batch of no queue: everything up to there is known to be flushed."""
    return records.encode_batch(0, 0, 0, 0, [(records.EPOCH, 0, _NOTE.pack(serial, offset))])


def read_flushed_note(payload: bytes) -> tuple[int, int]:
    """(serial, offset) of a note."""
    serial, offset = _NOTE.unpack(payload)
    return serial, offset
