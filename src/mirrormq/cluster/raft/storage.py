"""Term, vote, log and snapshot made durable; what was reported durable survives any crash.

Entries of one pass share one append and one flush, and the next flush starts when the previous one is
reported. Nothing is ever overwritten: giving up the end of the log in favour of a leader's entries is written
as those entries (`recovery.py`), and it is durable when they are. Term and vote are a file of their own that
is replaced; `is_vote_durable` gates every message this node sends.

A new log file begins only when the old one is flushed to its end, so a crash can tear nothing but the end of
the newest file. Older files go when a snapshot that covers them is reported durable.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mirrormq.cluster.raft.entries import Entry
from mirrormq.cluster.raft.layout import FORMAT, VoteFile, log_header, pack_entry, pack_vote
from mirrormq.cluster.raft.recovery import (
    SNAPSHOT,
    VOTE,
    FileState,
    Recovery,
    SnapshotMark,
    log_name,
    read_all,
)
from mirrormq.kernel.crc32c import crc32c
from mirrormq.log.disk import Disk, DiskOutbox


class _Pending(NamedTuple):
    entry: Entry
    previous_term: int


class _Flushing:
    """Flushes under way: when all `tokens` are reported, entries up to `last` are durable."""

    def __init__(self, tokens: set[int], last: int, size: int) -> None:
        self.tokens = tokens
        self.last = last
        self.size = size


class Storage:
    """The disk effects of one node."""

    def __init__(self, outbox: DiskOutbox, next_token: Callable[[], int]) -> None:
        """Nothing is read or written before `recover`."""
        self.mark = SnapshotMark()
        """The snapshot in the file, which may not be durable yet."""
        self.durable_index = 0
        self.written_index = 0
        """Last entry handed to the disk or waiting for it."""
        self.log_bytes = 0
        self._outbox = outbox
        self._next_token = next_token
        self._files: list[FileState] = []
        """Older ones, then the current."""
        self._has_current = False
        self._last_number = 0
        self._durable_bytes = 0
        self._pending: deque[_Pending] = deque()
        self._flushing: _Flushing | None = None
        self._redundant: tuple[str, ...] = ()
        self._roll_wanted = False
        self._vote = VoteFile()
        self._vote_tokens: set[int] = set()
        self._void: dict[int, tuple[str, ...]] = {}
        """Files that go when the vote file that says so is durable, by its token."""
        self._snapshot_token = 0
        self._since: dict[int, int] = {}
        """When each flush that is not reported yet was asked for, oldest first."""

    def recover(self, now: int, disk: Disk) -> Recovery:
        """Read the folder; what a killed process left unflushed is flushed, and not durable until then."""
        found = read_all(disk)
        self.mark = found.mark
        self._files = list(found.files)
        self._redundant = found.redundant
        self._last_number = found.last_number
        self._has_current = bool(found.files)
        self.log_bytes = sum(file.size for file in found.files)
        self.written_index = found.entries[-1].index if found.entries else found.mark.index
        self._vote = VoteFile(found.term, found.vote, found.log_from)
        if found.has_vote_file:
            self._vote_tokens.add(token := self._flush(now, VOTE))
            self._void[token] = found.void if found.files else ()
        tokens: set[int] = set()
        if found.mark.size:
            tokens.add(self._flush(now, SNAPSHOT))
        if found.kept is not None:
            tokens.add(token := self._token(now))
            self._outbox.replace(found.files[-1].name, found.kept, token)
        elif found.files:
            tokens.add(self._flush(now, found.files[-1].name))
        size = found.files[-1].size if found.files else 0
        if tokens:
            self._flushing = _Flushing(tokens, self.written_index, size)
        if found.void and not found.files:
            # None of them counts. Some that were void before may have come back beside ones that do.
            self._give_up(now, found.void)
        # Entries of the old format say something else about what was durable: they get no new neighbours.
        self._roll_wanted = bool(found.files) and found.files[-1].format != FORMAT
        return found

    # --- term and vote ---

    def save_vote(self, now: int, term: int, vote: str) -> None:
        """Make term and vote durable; no message leaves before."""
        self._write_vote(now, VoteFile(term, vote, self._vote.log_from))

    @property
    def is_vote_durable(self) -> bool:
        """Would the term and the vote survive a crash?"""
        return not self._vote_tokens

    # --- log ---

    def append(self, entries: Sequence[Entry], previous_term: int) -> None:
        """Write entries, and so give up whatever was at their indexes and behind."""
        first = entries[0].index
        assert first <= self.written_index + 1, (first, self.written_index)
        if first <= self.written_index:
            self.durable_index = min(self.durable_index, first - 1)
            while self._pending and self._pending[-1].entry.index >= first:
                self._pending.pop()
            if self._flushing is not None:
                # It covers what remains of those entries, and none of the new ones.
                self._flushing.last = min(self._flushing.last, first - 1)
        for entry in entries:
            self._pending.append(_Pending(entry, previous_term))
            previous_term = entry.term
        self.written_index = entries[-1].index

    def end_pass(self, now: int) -> None:
        """Hand what is pending to the disk. Called after every pass."""
        if self._roll_wanted and self._flushing is None and not self._owes_flush:
            self._roll_wanted = False
            self._has_current = False
        # While a new file is wanted nothing goes into the old one, or it would never be flushed to its end.
        if self._pending and not self._roll_wanted:
            self._write_pending()
        self._flush_if_idle(now)

    def roll(self) -> None:
        """Begin a new log file with the next entries."""
        self._roll_wanted = self._has_current

    @property
    def is_rolled(self) -> bool:
        """Has the last `roll` happened?"""
        return not self._roll_wanted

    def done(self, now: int, token: int) -> bool:
        """The disk has done what `token` stands for. False if it is none of ours."""
        self._since.pop(token, None)
        if token in self._vote_tokens:
            self._vote_tokens.discard(token)
            for name in self._void.pop(token, ()):
                self._outbox.remove(name)
            return True
        if self._flushing is not None and token in self._flushing.tokens:
            self._flushing.tokens.discard(token)
            if not self._flushing.tokens:
                self._on_flushed(now, self._flushing)
            return True
        return False

    def stalled_us(self, now: int) -> int:
        """For how long the oldest flush of log or vote has been under way."""
        for since in self._since.values():
            return now - since
        return 0

    @property
    def is_idle(self) -> bool:
        """Is nothing waiting for the disk?"""
        return not self._pending and self._flushing is None and not self._vote_tokens and not self._owes_flush

    # --- snapshot ---

    def write_snapshot(self, data: bytes | bytearray, index: int, term: int, crc: int | None = None) -> int:
        """Replace the snapshot, whose checksum may be known; returns the token that will be reported."""
        crc = crc32c(data) if crc is None else crc
        self.mark = SnapshotMark(index, term, len(data), crc, FORMAT)
        self._snapshot_token = self._next_token()
        self._outbox.replace(SNAPSHOT, data, self._snapshot_token)
        return self._snapshot_token

    def read_snapshot(self, offset: int, length: int) -> int:
        """Ask for bytes of the snapshot `mark` names; returns the token they will come under."""
        token = self._next_token()
        self._outbox.read(SNAPSHOT, offset, length, token)
        return token

    def drop_covered(self) -> None:
        """Remove log files the snapshot, now durable, makes redundant."""
        # Only from the front: what is left is read as one log.
        while len(self._files) > self._has_current and self._files[0].last <= self.mark.index:
            file = self._files.pop(0)
            self._outbox.remove(file.name)
            self.log_bytes -= file.size

    def restart_log(self, now: int, index: int) -> None:
        """Give up the whole log in favour of a durable snapshot that ends at `index`."""
        self._give_up(now, tuple(file.name for file in self._files))
        self._files = []
        self._has_current = False
        self._roll_wanted = False
        self._pending.clear()
        # Flushes under way are of files that are gone: their reports say nothing any more.
        if self._flushing is not None:
            for token in sorted(self._flushing.tokens):
                self._since.pop(token, None)
        self._flushing = None
        self.log_bytes = 0
        self.written_index = self.durable_index = index

    # --- inside ---

    def _give_up(self, now: int, names: tuple[str, ...]) -> None:
        """Let these files, and all before them, count no more.

        A removed file may come back after a crash, and some of several do: the rest would look like a log
        with holes. So they are void first, and removed when that is durable.
        """
        token = self._write_vote(now, self._vote._replace(log_from=self._last_number + 1))
        self._void[token] = names

    def _write_vote(self, now: int, content: VoteFile) -> int:
        self._vote = content
        self._vote_tokens.add(token := self._token(now))
        self._outbox.replace(VOTE, pack_vote(content), token)
        return token

    @property
    def _owes_flush(self) -> bool:
        return self._has_current and self._files[-1].size > self._durable_bytes

    def _write_pending(self) -> None:
        chunks: list[bytes] = []
        if not self._has_current:
            first = self._pending[0]
            self._last_number = number = max(first.entry.index, self._last_number + 1)
            self._files.append(FileState(log_name(number), number, FORMAT, 0, 0))
            self._has_current, self._durable_bytes = True, 0
            chunks.append(log_header(first.entry.index, first.previous_term))
        current = self._files[-1]
        for pending in self._pending:
            chunks.append(pack_entry(pending.entry, self._durable_bytes))
            current.last = max(current.last, pending.entry.index)
        self._pending.clear()
        data = b"".join(chunks)
        self._outbox.append(current.name, data)
        current.size += len(data)
        self.log_bytes += len(data)

    def _flush_if_idle(self, now: int) -> None:
        if self._flushing is None and self._owes_flush:
            current = self._files[-1]
            last = self._pending[0].entry.index - 1 if self._pending else self.written_index
            self._flushing = _Flushing({self._flush(now, current.name)}, last, current.size)

    def _on_flushed(self, now: int, flushed: _Flushing) -> None:
        self.durable_index = max(self.durable_index, flushed.last)
        self._durable_bytes = flushed.size
        self._flushing = None
        for name in self._redundant:
            self._outbox.remove(name)
        self._redundant = ()
        self._flush_if_idle(now)

    def _flush(self, now: int, name: str) -> int:
        token = self._token(now)
        self._outbox.flush(name, token)
        return token

    def _token(self, now: int) -> int:
        token = self._next_token()
        self._since[token] = now
        return token
