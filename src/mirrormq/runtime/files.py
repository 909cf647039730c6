"""The Disk port over real files: effects on one file are done in the order given; a failure is final.

Promises of `log/disk.py` kept here: a flush or replace is reported only when it is durable, folder entry
included; a replace is atomic; temporary files are never listed. After the first failure nothing more is
written or reported, because nobody can know what the disk still holds: the node ends with the reason. Only a
failing read is told to whoever asked. A full disk is no failure where a reserve is kept: it is given up, and
if that is not enough, writing waits for space.

Appends, flushes and reads go to the flusher's native thread, in order; flushes that wait while another one
runs are done together. Replacing, removing and the flushing of segments is done by a thread of its own, when
all that was ordered before is done; a confirm never waits for it. What is ordered for a file that is replaced
or removed is held back meanwhile. All callbacks come on the
thread that calls `collect`, which the loop does whenever `fileno()` is readable.
"""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from mirrormq.base import limits
from mirrormq.log import journal, segments
from mirrormq.node.effects import Append, Flush, Read, Remove, Replace
from mirrormq.runtime.flusher import Flusher
from mirrormq.runtime.folder import OWN_FILES
from mirrormq.runtime.reserve import Reserve
from mirrormq.runtime.slowflush import flush_files

DiskEffect = Append | Flush | Read | Replace | Remove
Names = list[str]
Tokens = list[int]
TEMPORARY = ".new"

FULL_CLOSE_S = 1.0
"""How long a stop waits for a disk that is full."""
LOOK_S = 0.1
"""How long it waits before it looks whether the disk has become full."""


class Hearer(NamedTuple):
    """Whom the files tell what was done."""

    durable: Callable[[Tokens], None]
    """Flushes and replaces, by token."""
    was_read: Callable[[int, bytes | None, str | None], None]
    """Token and data of a read, or None and why there is none."""
    failed: Callable[[str], None]
    """The reason why nothing more is written."""
    look: Callable[[], None]
    """Much was written, or the reserve was given up: time to look how much space is left."""


SlowEffect = Replace | Remove | Flush


class Changed(NamedTuple):
    """A replace, remove or flush that the slow thread has tried."""

    effect: SlowEffect
    error: OSError | None


class Opened:
    """A file that is open."""

    __slots__ = ("descriptor", "is_dirty")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_dirty = False
        """Something was appended since the last flush was ordered."""


class Files:
    """Reads files at start; then two threads write them."""

    def __init__(
        self,
        folder: Path,
        hearer: Hearer,
        *,
        open_max: int = limits.open_data_files_max,
        reserve: Reserve | None = None,
    ) -> None:
        """`reserve`: given up when the disk is full; it belongs to the caller."""
        self.folder = folder
        self._reserve = reserve or Reserve(folder, 0, 0)
        self._hearer = hearer
        self._open_max = max(open_max, 2)  # a file and its folder
        self._opened: OrderedDict[str, Opened] = OrderedDict()
        """Least recently used first."""
        self._named: set[str] = set()
        """Files whose name a flush ordered in this process makes durable."""
        self._ends: dict[str, int] = {}
        """Where preallocated files end: their size does not tell."""
        self._held: dict[str, list[DiskEffect]] = {}
        """What waits for a replace or remove of its file."""
        self._marks: dict[int, SlowEffect | None] = {}
        """What may begin when the flusher has come to a mark; None: a descriptor is closed."""
        self._closing = 0
        """Descriptors the flusher has not closed yet; when they are many, effects wait in the backlog."""
        self._backlog: deque[DiskEffect] = deque()
        self._reads: dict[int, str] = {}
        self._last_mark = 0
        self._unseen_bytes = 0
        """Appended since the hearer was last told to look."""
        self._given = 0
        self._has_failed = False
        self._changes: SimpleQueue[SlowEffect | None] = SimpleQueue()
        self._changed: SimpleQueue[Changed] = SimpleQueue()
        self._unreadable: list[tuple[int, str]] = []
        self._flusher: Flusher
        self._thread = threading.Thread(target=self._change_files, name="files", daemon=True)

    # Before the first effect: what recovery reads.

    def list(self, prefix: str) -> Names:
        """Names of the files that begin with `prefix`, sorted."""
        # No wider than the prefix: a node may have ten thousand segments.
        below = prefix.rpartition("/")[0]
        names = names_below(self.folder, f"{below}/" if below else "")
        return sorted(name for name in names if name.startswith(prefix) and name not in OWN_FILES)

    def size(self, name: str) -> int:
        """Bytes of a file."""
        return self._path(name).stat().st_size

    def read(self, name: str) -> bytes:
        """The whole content of a file."""
        return self.read_part(name, 0, self.size(name))

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        """Part of a file's content."""
        return read_part(self._path(name), offset, length)

    # While the node runs.

    def start(self) -> None:
        """Begin to carry out effects."""
        self._flusher = Flusher(self._reserve.descriptor if self._reserve.size else -1)
        self._reserve.on_given = self._flusher.wake
        self._thread.start()

    def fileno(self) -> int:
        """Readable when `collect` has something to tell."""
        return self._flusher.fileno()

    @property
    def flush_count(self) -> int:
        """Flushes the disk was asked for."""
        return self._flusher.counters()[0]

    def make_reserve(self) -> None:
        """There is space again: keep some back."""
        self._flusher.reserve(self._reserve.descriptor, self._reserve.size)

    def order(self, effect: DiskEffect) -> None:
        """Take an effect; it is carried out after all earlier ones on the same file."""
        if self._backlog or self._closing > self._open_max:
            self._backlog.append(effect)
        else:
            self._order(effect)

    def _order(self, effect: DiskEffect) -> None:
        if self._has_failed:
            return
        held = self._held.get(effect.file)
        if held is not None:
            held.append(effect)
            return
        try:
            self._carry_out(effect)
        except OSError as error:
            if isinstance(effect, Read):
                # Told by `collect`: whoever asks must not be answered before it has finished asking.
                self._unreadable.append((effect.token, error.strerror or str(error)))
                self._flusher.wake()
            else:
                self._fail(effect.file, error)

    def collect(self) -> None:
        """Tell what was done since the last call."""
        durable: Tokens = []
        taken = self._flusher.take()
        errors = [error for token, error, _ in taken if error and token not in self._reads]
        if errors:
            # What was refused because of a failure may stand before it: a flush waits for a batch's writes.
            error = next((error for error in errors if error != errno.ECANCELED), errors[0])
            self._fail(self._name_of(self._flusher.counters()[1]), OSError(error, os.strerror(error)))
        for token, error, data in taken:
            if token in self._reads:
                self._answer(token, error, data)
            elif error:
                continue
            elif token < 0:
                self._reached(self._marks.pop(token))
            else:
                durable.append(token)
        while not self._changed.empty():
            self._after_change(self._changed.get(), durable)
        if durable and not self._has_failed:
            self._hearer.durable(durable)
        while self._backlog and (self._closing <= self._open_max or self._has_failed):
            self._order(self._backlog.popleft())
        unreadable, self._unreadable = self._unreadable, []
        for token, reason in unreadable:
            self._hearer.was_read(token, None, reason)
        given = self._flusher.counters()[2] + self._reserve.given
        if given != self._given or self._unseen_bytes >= limits.disk_look_bytes:
            self._given, self._unseen_bytes = given, 0
            self._hearer.look()

    def close(self, timeout_s: float) -> bool:
        """Finish what was ordered, tell it, and stop; False if the disk did not finish in time."""
        until = time.monotonic() + timeout_s
        full_until = 0.0
        ready = select.poll()
        ready.register(self.fileno(), select.POLLIN)
        while (self._held or self._backlog) and not self._has_failed and time.monotonic() < until:
            if self._reserve.is_waiting and not full_until:
                # Space will not come because somebody stops. It may have run out a moment ago, or just now.
                full_until = time.monotonic() + FULL_CLOSE_S
                until = min(until, full_until)
            ready.poll(min(LOOK_S, max(0, until - time.monotonic())) * 1000)
            self.collect()
        if self._reserve.is_waiting:
            until = min(until, time.monotonic() + FULL_CLOSE_S)
        for opened in self._opened.values():
            self._flusher.close_file(opened.descriptor)
        self._changes.put(None)
        self._reserve.stop_waiting()
        self._thread.join(max(0, until - time.monotonic()))
        has_ended = self._flusher.close(max(0, until - time.monotonic())) and not self._thread.is_alive()
        self.collect()
        return has_ended

    # Appends, flushes and reads.

    def _carry_out(self, effect: DiskEffect) -> None:
        if isinstance(effect, Append):
            opened = self._open(effect.file)
            opened.is_dirty = True
            self._flusher.append(opened.descriptor, effect.data)
            self._unseen_bytes += len(effect.data)
            if effect.file in self._ends:
                self._ends[effect.file] += len(effect.data)
        elif isinstance(effect, Flush) and effect.file.startswith(segments.PREFIX):
            self._mark(effect)
        elif isinstance(effect, Flush):
            self._flush(effect)
        elif isinstance(effect, Read):
            descriptor = self._open(effect.file, may_create=False).descriptor
            self._reads[effect.token] = effect.file
            self._flusher.read(descriptor, effect.offset, effect.length, effect.token)
        else:
            self._forget(effect.file)
            self._held[effect.file] = []
            self._mark(effect)

    def _flush(self, effect: Flush) -> None:
        opened = self._open(effect.file)
        if effect.file not in self._named:
            # Before the file's own flush, so that its report covers the name. Nothing tells whether
            # an earlier process got as far as this.
            self._flush_folder(self._path(effect.file).parent)
            self._named.add(effect.file)
        opened.is_dirty = False
        self._flusher.flush(opened.descriptor, effect.token)

    def _flush_folder(self, folder: Path) -> None:
        name = f"{folder}/"
        opened = self._opened.get(name)
        if opened is None:
            opened = Opened(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            self._keep(name, opened)
        else:
            self._opened.move_to_end(name)
        self._flusher.flush_folder(opened.descriptor)

    def _open(self, file: str, *, may_create: bool = True) -> Opened:
        opened = self._opened.get(file)
        if opened is None:
            opened = Opened(self._descriptor(file, may_create=may_create))
            self._keep(file, opened)
        else:
            self._opened.move_to_end(file)
        return opened

    def _descriptor(self, file: str, *, may_create: bool) -> int:
        path = self._path(file)
        flags = os.O_RDWR | os.O_CLOEXEC
        if may_create:
            flags |= os.O_CREAT
            if not path.parent.is_dir():
                self._reserve.retry(lambda: path.parent.mkdir(parents=True, exist_ok=True))
                self._flush_folder(path.parent.parent)
        if not file.startswith(journal.PREFIX):
            return self._reserve.retry(lambda: os.open(path, flags | os.O_APPEND, 0o640))
        descriptor = self._reserve.retry(lambda: os.open(path, flags, 0o640))
        end = self._ends.get(file)
        if end is None:
            end = self._ends[file] = os.fstat(descriptor).st_size
            if end == 0 and may_create:
                # A flush of space that is there already has no size to write down.
                self._flusher.reserve(descriptor, limits.journal_file_bytes)
        os.lseek(descriptor, end, os.SEEK_SET)
        return descriptor

    def _keep(self, file: str, opened: Opened) -> None:
        """Note that a file is open; if these are too many, close the one not used for longest."""
        self._opened[file] = opened
        if len(self._opened) <= self._open_max:
            return
        file, opened = next(iter(self._opened.items()))
        if opened.is_dirty and not file.startswith(segments.PREFIX):
            # The system tells a failed write only to those who have the file open: ask while we do.
            self._flusher.flush(opened.descriptor, 0)
        self._forget(file)

    def _forget(self, file: str) -> None:
        """Close a file after what was ordered for it."""
        opened = self._opened.pop(file, None)
        if opened is not None:
            self._flusher.close_file(opened.descriptor)
            self._closing += 1
            self._mark(None)

    def _mark(self, effect: SlowEffect | None) -> None:
        self._last_mark -= 1
        self._marks[self._last_mark] = effect
        self._flusher.mark(self._last_mark)

    def _reached(self, effect: SlowEffect | None) -> None:
        if effect is None:
            self._closing -= 1
        else:
            self._changes.put(effect)

    def _answer(self, token: int, error: int, data: bytes | None) -> None:
        del self._reads[token]
        if not self._has_failed:
            self._hearer.was_read(token, data, os.strerror(error) if error else None)

    def _fail(self, file: str, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._hearer.failed(f"writing {self.folder / file} failed: {error.strerror or error}")

    def _name_of(self, descriptor: int) -> str:
        """Name of an open file; one that was closed in the meantime is only known to be ours."""
        return next((name for name, file in self._opened.items() if file.descriptor == descriptor), "")

    # Replacing and removing.

    def _after_change(self, changed: Changed, durable: Tokens) -> None:
        effect = changed.effect
        if changed.error is not None:
            self._fail(effect.file, changed.error)
            return
        if isinstance(effect, Flush):
            durable.append(effect.token)
            return
        self._ends.pop(effect.file, None)
        self._named.discard(effect.file)
        if isinstance(effect, Replace):
            self._named.add(effect.file)
            durable.append(effect.token)
        for held in self._held.pop(effect.file):
            self._order(held)

    def _change_files(self) -> None:
        """The slow thread: all that waits is taken at once, so that flushes in a row become one."""
        goes_on = True
        while goes_on:
            waiting = [self._changes.get()]
            while not self._changes.empty():
                waiting.append(self._changes.get())
            goes_on = None not in waiting
            ordered = (effect for effect in waiting if effect is not None)
            for kind, group in groupby(ordered, key=type):
                effects = tuple(group)
                for some in (effects,) if kind is Flush else ((one,) for one in effects):
                    self._try_to_change(some)

    def _try_to_change(self, effects: tuple[SlowEffect, ...]) -> None:
        first = effects[0]
        error = None
        try:
            if isinstance(first, Flush):
                flush_files(self.folder, sorted({effect.file for effect in effects}))
            elif isinstance(first, Replace):
                _replace(self._path(first.file), first.data, self._reserve)
            else:
                self._path(first.file).unlink(missing_ok=True)
        except OSError as caught:
            error = caught
        for effect in effects:
            self._changed.put(Changed(effect, error))
        self._flusher.wake()

    def _path(self, file: str) -> Path:
        assert file and not file.startswith("/") and ".." not in file.split("/"), file
        return self.folder / file


def names_below(folder: Path, below: str = "") -> Iterator[str]:
    """Names of all files in a part of the folder ("" or ending in `/`), temporary ones left out."""
    try:
        entries = list(os.scandir(folder / below))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from names_below(folder, f"{below}{entry.name}/")
        elif entry.is_file() and not entry.name.endswith(TEMPORARY):
            yield below + entry.name


def read_part(path: Path, offset: int, length: int) -> bytes:
    """Up to `length` bytes of a file from `offset` on: fewer only at its end. An OSError names the file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(descriptor, length, offset)
        while len(data) < length and (more := os.pread(descriptor, length - len(data), offset + len(data))):
            data += more
        return data
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def _replace(path: Path, data: bytes | bytearray, reserve: Reserve) -> None:
    if not path.parent.is_dir():
        reserve.wait(lambda: path.parent.mkdir(parents=True, exist_ok=True))
        _flush_folder(path.parent.parent)
    temporary = path.with_name(path.name + TEMPORARY)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = reserve.wait(lambda: os.open(temporary, flags, 0o640))
    try:
        written = 0
        while written < len(data):
            rest = memoryview(data)[written:]
            written += reserve.wait(partial(os.write, descriptor, rest))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
