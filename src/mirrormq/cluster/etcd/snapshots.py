"""Keeps the log in etcd short: whoever leads writes a snapshot now and then, and removes what it covers.

Guarantee: at any moment the mark names a whole snapshot, and the log has every entry from `log_from` on. The
parts are written first, then the mark, guarded on the leader's key and on the mark before; only then entries
and older parts go, a few at a time, each time guarded on the mark. Two leaders that do not know of each other
cannot both write the mark, and one that was replaced removes nothing.
"""

from collections.abc import Iterator

from mirrormq.base import limits
from mirrormq.cluster.etcd import api
from mirrormq.cluster.etcd.desk import Desk
from mirrormq.cluster.etcd.keys import Keys, Mark, encode
from mirrormq.cluster.etcd.view import View
from mirrormq.cluster.raft.machine import Machine
from mirrormq.kernel.crc32c import crc32c


class Snapshots:
    """One leader's work on them."""

    def __init__(self, keys: Keys, desk: Desk, view: View, machine: Machine) -> None:
        self._keys = keys
        self._desk = desk
        self._view = view
        self._machine = machine
        self._rest: Iterator[bytes] | None = None
        self._index = 0
        self._configuration = b""
        self._pending = bytearray()
        self._parts = 0
        self._size = 0
        self._crc = 0
        self._is_asking = False
        self._cut_from = 0
        """The first entry that may still be there below `log_from`."""

    @property
    def needs_pass(self) -> bool:
        """Is there work that another pass would go on with at once?"""
        return self._rest is not None and not self._is_asking

    def is_due(self, applied: int) -> bool:
        """Has the log become long?"""
        behind = applied - (self._view.mark.index if self._view.mark is not None else 0)
        is_long = behind >= limits.etcd_log_entries_max or self._view.log_bytes >= limits.meta_log_bytes_max
        return self._rest is None and is_long and behind > limits.etcd_trailing_entries

    def begin(self, index: int, configuration: bytes) -> None:
        """Take the state as it is now, which is that behind the entry `index`."""
        self._rest = self._machine.capture()
        self._index, self._configuration = index, configuration
        self._pending = bytearray()
        self._parts = self._size = self._crc = 0

    def give_up(self) -> None:
        """Somebody else leads."""
        self._rest = None
        self._cut_from = 0

    def step(self) -> None:
        """Write the next part, or the mark, or remove what it covers."""
        if self._is_asking:
            return
        if self._rest is not None:
            part: bytes | None = b""
            if len(self._pending) < limits.etcd_part_bytes:
                part = next(self._rest, None)
                self._pending += part or b""
            if part is None and not self._pending:
                self._write_mark()
            elif part is None or len(self._pending) >= limits.etcd_part_bytes:
                self._write_part()
        elif self._view.mark is not None:
            self._cut(self._view.mark)

    def _lead_guard(self) -> api.Guard:
        leading = self._view.leading
        return api.Guard(self._keys.leader, leading.mod if leading is not None else -1)

    def _write_part(self) -> None:
        part = bytes(self._pending[: limits.etcd_part_bytes])
        del self._pending[: limits.etcd_part_bytes]
        key = self._keys.part(self._keys.snapshot(self._index), self._parts)
        self._parts += 1
        self._size += len(part)
        self._crc = crc32c(part, self._crc)
        self._is_asking = True
        self._desk.txn((self._lead_guard(),), (api.Put(key, part),), self._on_part)

    def _on_part(self, _: int, answer: api.Answer) -> None:
        self._is_asking = False
        if not (isinstance(answer, api.TxnDone) and answer.is_done):
            self._rest = None  # tried anew with the next entry

    def _write_mark(self) -> None:
        log_from = max(1, self._index - limits.etcd_trailing_entries)
        mark = Mark(self._index, log_from, self._parts, self._size, self._crc, self._configuration)
        guards = (self._lead_guard(), api.Guard(self._keys.mark, self._view.mark_mod))
        self._is_asking = True

        def done(_: int, answer: api.Answer) -> None:
            self._is_asking = False
            self._rest = None
            if isinstance(answer, api.TxnDone) and answer.is_done and answer.revision > self._view.mark_mod:
                before = self._view.mark
                self._view.mark, self._view.mark_mod = mark, answer.revision
                self._view.log_bytes = 0
                self._cut_from = before.log_from if before is not None else 1

        self._desk.txn(guards, (api.Put(self._keys.mark, encode(mark)),), done)

    def _cut(self, mark: Mark) -> None:
        """Remove some entries that the snapshot makes redundant, and at last other snapshots."""
        keys, first = self._keys, self._cut_from
        if not first:
            return
        end = min(first + limits.etcd_entries_per_cut, mark.log_from)
        guards = (self._lead_guard(), api.Guard(keys.mark, self._view.mark_mod))
        if first < end:
            # From the beginning: a leader before this one may not have come to its end.
            removals: tuple[api.Operation, ...] = (api.Delete(keys.entry(0), keys.entry(end)),)
        else:
            mine = keys.snapshot(mark.index)
            after = keys.after(mine)
            removals = (api.Delete(keys.snapshots, mine), api.Delete(after, keys.after(keys.snapshots)))
        self._is_asking = True

        def done(_: int, answer: api.Answer) -> None:
            self._is_asking = False
            if isinstance(answer, api.TxnDone):
                self._cut_from = end if first < end and answer.is_done else 0

        self._desk.txn(guards, removals, done)
