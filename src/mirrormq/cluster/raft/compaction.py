"""Snapshots of this node: made of its own state, or taken from a leader.

Guarantee: a snapshot holds committed entries only, and at every moment the snapshot in the file and the log
files there are give the whole log. A snapshot of our own begins with a new log file; the state is captured at
that moment and encoded a part per pass; log files it covers go when it is reported durable.

A leader's snapshot replaces log and state when it is durable. The log behind it stays only if it contains
the snapshot's last entry, which proves that the rest is consistent with it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.cluster.raft import events as ev
from mirrormq.cluster.raft.layout import RaftDamaged, SnapshotFile, read_snapshot, snapshot_chunks
from mirrormq.cluster.raft.membership import encode_configuration
from mirrormq.cluster.raft.recovery import SNAPSHOT, SnapshotMark
from mirrormq.kernel.crc32c import crc32c

if TYPE_CHECKING:
    from mirrormq.cluster.raft.raft import Raft


class _Job:
    """A snapshot of our own state on its way to the file."""

    def __init__(self, index: int, term: int, chunks: Iterator[bytes]) -> None:
        self.index = index
        self.term = term
        self.chunks = chunks
        self.made = bytearray()
        self.crc = 0
        self.token = 0


class Compaction:
    """At most one snapshot is made, and at most one collected, at a time."""

    def __init__(self, raft: "Raft") -> None:
        """Nothing to do yet."""
        self.raft = raft
        self.is_wanted = False
        self._job: _Job | None = None
        self._mark = SnapshotMark()
        self._collected = bytearray()
        self._install: tuple[int, SnapshotFile] | None = None

    @property
    def is_installing(self) -> bool:
        """Is a leader's snapshot about to replace the log?"""
        return self._install is not None

    @property
    def needs_pass(self) -> bool:
        """Are there parts to encode, or entries to free?"""
        return self.raft.log.has_dropped or (self._job is not None and not self._job.token)

    def step(self) -> None:
        """Go on with a snapshot of our own, or begin one if the log has grown."""
        raft, storage = self.raft, self.raft.storage
        raft.log.free(limits.raft_freed_per_pass)
        if self._job is not None:
            self._encode_part(self._job)
            return
        if self._install is not None:
            return
        if not self.is_wanted and storage.log_bytes > max(raft.options.log_bytes_max, storage.mark.size):
            # A peer that is being sent the present snapshot would have to begin anew.
            self.is_wanted = not raft.role.is_sending_snapshot()
        if self.is_wanted and raft.applied_index > storage.mark.index:
            storage.roll()
            self._begin_if_ready()

    def done(self, now: int, token: int) -> bool:
        """A snapshot is durable. False if the token is none of ours."""
        if self._job is not None and token == self._job.token:
            job, self._job = self._job, None
            if job.index == self.raft.storage.mark.index:
                self.raft.storage.drop_covered()
                self.raft.log.compact(job.index, limits.raft_trailing_bytes_max)
                self.raft.configs.compact(job.index)
            return True
        if self._install is not None and token == self._install[0]:
            _, snapshot = self._install
            self._install = None
            self._use(now, snapshot)
            return True
        return False

    def take_part(self, mark: SnapshotMark, offset: int, data: bytes) -> int:
        """Collect a part of a leader's snapshot; returns the next byte that is wanted."""
        if self._install is not None:
            return mark.size
        if mark != self._mark:
            self._mark, self._collected = mark, bytearray()
        if mark.size > limits.raft_snapshot_bytes_max:
            self.raft.note(f"a snapshot of {mark.size} bytes is not accepted")
            return 0
        if offset == len(self._collected):
            self._collected += data
        if len(self._collected) < mark.size:
            return len(self._collected)
        whole = bytes(self._collected)
        self._mark, self._collected = SnapshotMark(), bytearray()
        try:
            if len(whole) != mark.size or crc32c(whole) != mark.crc:
                raise RaftDamaged(SNAPSHOT, "its checksum does not match")
            snapshot = read_snapshot(SNAPSHOT, whole)
        except RaftDamaged as error:
            self.raft.note(f"a snapshot from a leader cannot be used: {error}")
            return 0
        self._job = None
        token = self.raft.storage.write_snapshot(whole, mark.index, mark.term, mark.crc)
        self._install = (token, snapshot)
        return mark.size

    def may_capture(self) -> bool:
        """With one voter entries are applied before they are durable: such a state must not be captured."""
        return self.raft.applied_index <= self.raft.commit_index

    def _begin_if_ready(self) -> None:
        raft = self.raft
        if not raft.storage.is_rolled or not self.may_capture():
            return
        index = raft.applied_index
        term = raft.log.term_at(index)
        assert term is not None
        configuration = encode_configuration(raft.configs.at(index))
        self.is_wanted = False
        self._job = _Job(index, term, snapshot_chunks(index, term, configuration, raft.machine.capture()))

    def _encode_part(self, job: _Job) -> None:
        if job.token:
            return
        chunk = next(job.chunks, None)
        if chunk is not None:
            # Not joined in the end: some megabytes of a large cluster would be copied in one pass.
            job.made += chunk
            job.crc = crc32c(chunk, job.crc)
            return
        data, job.made = job.made, bytearray()
        job.token = self.raft.storage.write_snapshot(data, job.index, job.term, job.crc)
        self.raft.role.on_snapshot_replaced()

    def _use(self, now: int, snapshot: SnapshotFile) -> None:
        raft, log = self.raft, self.raft.log
        if snapshot.index <= raft.commit_index:
            # Entries that were here already were committed meanwhile; the file is as good as ours.
            raft.storage.drop_covered()
            return
        if log.term_at(snapshot.index) == snapshot.term:
            rest = log.batch(snapshot.index + 1, 1 << 62)
            log.compact(snapshot.index)
            raft.storage.drop_covered()
        else:
            rest = []
            log.reset(snapshot.index, snapshot.term)
            raft.storage.restart_log(now, snapshot.index)
        raft.machine.restore(snapshot.state)
        raft.configs.load(snapshot, rest)
        raft.commit_index = raft.applied_index = snapshot.index
        raft.events.append(ev.Restored(snapshot.index))
        raft.on_configured(raft.configs.at(snapshot.index))
        raft.role.on_restored()
