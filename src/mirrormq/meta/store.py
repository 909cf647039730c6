"""The metadata made durable: what `propose` has reported as done with `wait` survives any crash.

Commands are applied at once and written to a log; those of one pass of the loop share one append and one
flush, and the next flush starts when the previous one is reported. The files are those of a Raft group with
one voter: entries (term, index, checksum, command) and a snapshot, under `meta/` in the data folder.

A snapshot begins with a new log file, and a new log file begins only when the old one is flushed to its end,
so a crash can tear nothing but the end of the newest file. The state is captured at that moment (records are
frozen, so this copies references) and encoded a slice per pass; older log files go when the snapshot is
reported durable. A crash in between leaves the old snapshot with all log files, or the new one with log files
it makes redundant.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count as count_from
from typing import NamedTuple

from msgspec import Struct

from mirrormq.base import limits
from mirrormq.log.disk import Disk, DiskOutbox
from mirrormq.meta.codec import encode_command, encode_records
from mirrormq.meta.commands import Command
from mirrormq.meta.layout import log_header, pack_chunk, pack_entry, snapshot_header
from mirrormq.meta.records import Record
from mirrormq.meta.recovery import SNAPSHOT, LogState, Recovery, log_name, read_all
from mirrormq.meta.state import MetaState, Outcome

Done = Callable[[Outcome], None]

_NOTHING_NEW = Outcome(True, None, None, [])


class Recovered(NamedTuple):
    """What recovery found. `fresh`: no command at all, so the node should propose `bootstrap_commands`."""

    fresh: bool
    snapshot_index: int
    entries: int
    torn_bytes: int


class _Waiter(Struct, frozen=True):
    index: int
    done: Done
    outcome: Outcome


class _Flushing(NamedTuple):
    """Flushes under way: when all `tokens` are reported, entries up to `last` are durable."""

    tokens: set[int]
    last: int


class MetaStore:
    """Applies commands to `state`, logs them through `outbox` and reports when they are durable.

    `next_token` numbers flushes and replaces; pass the node's own if others use the same outbox.
    """

    def __init__(
        self,
        state: MetaState,
        outbox: DiskOutbox,
        next_token: Callable[[], int] | None = None,
        *,
        log_bytes_max: int = limits.meta_log_bytes_max,
        slice_records: int = limits.meta_snapshot_slice_records,
    ) -> None:
        """Nothing is read or written before `recover`."""
        self.state = state
        self.term = 1
        self.last_index = 0
        self.durable_index = 0
        self._outbox = outbox
        self._next_token = next_token or count_from(1).__next__
        self._log_bytes_max = log_bytes_max
        self._slice_records = slice_records
        self._pending: list[bytes] = []
        self._waiters: deque[_Waiter] = deque()
        self._log = LogState("", 0, 0)
        self._older: list[str] = []
        self._older_bytes = 0
        self._flushing: _Flushing | None = None
        self._redundant: tuple[str, ...] = ()
        """Files that go when what recovery has read is durable."""
        self._roll_wanted = False
        self._snapshot: _SnapshotJob | None = None
        self._snapshot_bytes = 0

    def recover(self, disk: Disk) -> Recovered:
        """Read snapshot and log into the empty state; raises `MetaDamaged` or `MetaTooNew`.

        Watchers are not told of what is read: whoever needs it looks at the state afterwards.
        """
        found = read_all(disk, self.state)
        self.term, self.last_index, self.durable_index = found.term, found.last_index, found.flushed
        self._log, self._older, self._older_bytes = found.log, list(found.older), found.older_bytes
        self._snapshot_bytes = found.snapshot_bytes
        self._redundant = found.redundant
        self._make_durable(found)
        return Recovered(found.last_index == 0, found.snapshot_index, found.entries, found.torn_bytes)

    def _make_durable(self, found: Recovery) -> None:
        """Flush what recovery has read.

        A killed process leaves writes that can be read and that the machine may still lose. Until these
        flushes are reported nothing of it is called durable, and no file that the snapshot replaces goes.
        """
        tokens: set[int] = set()
        if found.snapshot_bytes:
            tokens.add(token := self._next_token())
            self._outbox.flush(SNAPSHOT, token)
        if found.kept is not None:
            tokens.add(token := self._next_token())
            self._outbox.replace(found.log.name, found.kept, token)
        elif found.log.name:
            tokens.add(token := self._next_token())
            self._outbox.flush(found.log.name, token)
        if tokens:
            self._flushing = _Flushing(tokens, found.log.appended)

    @property
    def durable(self) -> int:
        """Every command up to this index survives a crash."""
        return self.durable_index

    def propose(self, command: Command, done: Done, wait: bool = True) -> Outcome:
        """Apply a command, then call `done` when it is durable; at once if it was refused or `wait` is false.

        A command that changes nothing is not logged, but with `wait` it still waits for what it relied on.
        """
        # Encoded first: what cannot be stored must not be applied either.
        data = encode_command(command)
        outcome = self.state.execute(command)
        if outcome.changes:
            self.last_index += 1
            self._pending.append(pack_entry(self.term, self.last_index, self.durable_index, data))
        self.state.notify(outcome.changes)
        if outcome.ok and wait:
            self._call_when_durable(done, outcome)
        else:
            done(outcome)
        return outcome

    def barrier(self, done: Done) -> None:
        """Call `done` when everything applied so far is durable: for answers that rely on definitions."""
        self._call_when_durable(done, _NOTHING_NEW)

    def commit(self) -> None:
        """Hand the commands of this pass to the disk and go on with a snapshot. Called after every pass."""
        if self._roll_wanted and self._flushing is None and self._log.appended == self.durable_index:
            self._begin_snapshot()
        # While a new file is wanted nothing more goes into the old one, or it would never be flushed to its
        # end.
        if self._pending and not self._roll_wanted:
            self._append_pending()
        self._flush_if_idle()
        if self._snapshot is not None:
            self._go_on_with(self._snapshot)
        elif self._log.size + self._older_bytes > max(self._log_bytes_max, self._snapshot_bytes):
            self._roll_wanted = True

    def flushed(self, token: int) -> bool:
        """The disk has done what `token` stands for. False if it is none of ours."""
        if self._flushing is not None and token in self._flushing.tokens:
            self._flushing.tokens.discard(token)
            if not self._flushing.tokens:
                self._on_durable(self._flushing.last)
            return True
        if self._snapshot is not None and token == self._snapshot.token:
            for name in self._snapshot.replaces:
                self._outbox.remove(name)
                self._older.remove(name)
            self._older_bytes = 0
            self._snapshot = None
            return True
        return False

    def image(self) -> Iterator[bytes]:
        """A snapshot of the state as it is now, in parts that may be made later and on any thread."""
        return _SnapshotJob(self, self.state, ()).parts(self._slice_records)

    @property
    def is_idle(self) -> bool:
        """Nothing is waiting for the disk: a good moment to stop."""
        return not self._pending and self._flushing is None and self._log.appended == self.durable_index

    def _on_durable(self, index: int) -> None:
        self.durable_index = index
        self._flushing = None
        for name in self._redundant:
            self._outbox.remove(name)
        self._redundant = ()
        self._flush_if_idle()
        self._release_waiters()

    def _call_when_durable(self, done: Done, outcome: Outcome) -> None:
        if self.durable_index < self.last_index:
            self._waiters.append(_Waiter(self.last_index, done, outcome))
        else:
            done(outcome)

    def _release_waiters(self) -> None:
        while self._waiters and self._waiters[0].index <= self.durable_index:
            waiter = self._waiters.popleft()
            waiter.done(waiter.outcome)

    def _append_pending(self) -> None:
        log = self._log
        if not log.name:
            first = log.appended + 1
            log = LogState(log_name(first), log.appended, 0)
            self._pending.insert(0, log_header(first, self.term))
        data = b"".join(self._pending)
        self._pending.clear()
        self._outbox.append(log.name, data)
        self._log = LogState(log.name, self.last_index, log.size + len(data))

    def _flush_if_idle(self) -> None:
        if self._flushing is None and self._log.appended > self.durable_index:
            token = self._next_token()
            self._flushing = _Flushing({token}, self._log.appended)
            self._outbox.flush(self._log.name, token)

    def _begin_snapshot(self) -> None:
        """Close the log file, which is durable to its end, and capture the state."""
        self._roll_wanted = False
        # A file without entries (recovery cut a torn one down to its head) has the name the next file would
        # get: it goes on as that, and must not be removed with the older ones.
        if self._log.name != log_name(self._log.appended + 1):
            self._older.append(self._log.name)
            self._older_bytes += self._log.size
            self._log = LogState("", self._log.appended, 0)
        self._snapshot = _SnapshotJob(self, self.state, tuple(self._older))

    def _go_on_with(self, job: "_SnapshotJob") -> None:
        if job.token or not job.encode_slice(self._slice_records):
            return
        data = b"".join(job.chunks)
        self._snapshot_bytes = len(data)
        job.token = self._next_token()
        self._outbox.replace(SNAPSHOT, data, job.token)


class _SnapshotJob:
    """A snapshot on its way to the disk; `replaces` are the log files it makes redundant."""

    def __init__(self, store: MetaStore, state: MetaState, replaces: tuple[str, ...]) -> None:
        self.replaces = replaces
        self.token = 0
        self._records: list[Record] = list(state.records())
        self._encoded = 0
        self.chunks = [snapshot_header(store.last_index, store.term, state.last_id, len(self._records))]

    def parts(self, count: int) -> Iterator[bytes]:
        """The whole snapshot, so many records at a time."""
        is_done = False
        while not is_done:
            is_done = self.encode_slice(count)
            yield b"".join(self.chunks)
            self.chunks.clear()

    def encode_slice(self, count: int) -> bool:
        """Encode some more records; True when all are done."""
        end = self._encoded + count
        part = self._records[self._encoded : end]
        if part:
            self.chunks.append(pack_chunk(encode_records(part)))
            self._encoded = end
        return self._encoded >= len(self._records)
