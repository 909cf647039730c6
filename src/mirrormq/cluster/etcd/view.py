"""What the keys of the cluster say, followed in the order in which they changed.

Guarantee: entries come out by index, none twice, none left out; what is known of the other keys is at least
as new as the last entry that another node has written. Whenever the order cannot be followed (the watch was
lost, what it should begin with is compacted, an entry is missing), everything is read again: the keys at one
revision, then the snapshot if the log does not reach back far enough, the log up to that revision's head, and
a watch from the revision after it.
"""

from collections import deque
from typing import Protocol

from msgspec import Struct

from mirrormq.base import limits
from mirrormq.cluster.etcd import api
from mirrormq.cluster.etcd.desk import Desk
from mirrormq.cluster.etcd.keys import Head, Intent, Keys, Lead, Live, Mark, Term, decode
from mirrormq.kernel.crc32c import crc32c


class Leading(Struct, frozen=True):
    """The key of the leader."""

    lead: Lead
    mod: int
    lease: int


class Living(Struct, frozen=True):
    """The key of a live node."""

    live: Live
    mod: int


class Hearer(Protocol):
    """Who is told what changed."""

    def on_absent(self, now: int) -> None:
        """There is no cluster under this prefix."""
        ...

    def on_snapshot(self, mark: Mark, state: bytes) -> None:
        """The state is to become this one."""
        ...

    def on_current(self, now: int) -> None:
        """Everything was read."""
        ...

    def on_node(self, name: str, living: Living | None, mod: int) -> None:
        """The key of a node was written, or removed by that revision."""
        ...

    def note(self, text: str) -> None:
        """Tell the operator."""
        ...


class View:
    """The keys, as far as they are known here."""

    def __init__(self, keys: Keys, desk: Desk, hearer: Hearer) -> None:
        self._keys = keys
        self._desk = desk
        self._hearer = hearer
        self.cluster = b""
        self.head = 0
        """Index of the last entry."""
        self.head_mod = 0
        self.mark: Mark | None = None
        self.mark_mod = 0
        self.term = 0
        self.term_mod = 0
        self.leading: Leading | None = None
        self.nodes: dict[str, Living] = {}
        self.intents: dict[str, tuple[Intent, int]] = {}
        self.received = 0
        """Index of the last entry that came in."""
        self.incoming: deque[tuple[int, bytes]] = deque()
        """Entries that are not applied."""
        self.log_bytes = 0
        """Of the entries behind the snapshot."""
        self.is_current = False
        """All keys were read, and a watch tells what changes."""
        self._is_reading = False
        self._again_at = 0
        self._revision = 0
        self._target = 0
        self._parts: list[bytes] = []
        self._watch = 0
        self._removed: dict[bytes, int] = {}
        """The revisions that removed keys of nodes and of the leader, as far as they were told."""

    # --- reading everything ---

    def step(self, now: int) -> None:
        """Read if it is due."""
        if not self.is_current and not self._is_reading and now >= self._again_at:
            self._is_reading = True
            self._desk.txn((), (api.Get(self._keys.now, self._keys.after(self._keys.now)),), self._on_keys)

    def lose(self, now: int, reason: str) -> None:
        """What is known here may be old from now on: read again."""
        if self.is_current:
            self._hearer.note(f"the keys in etcd are read again: {reason}")
        self.is_current = False
        self._watch = 0
        self._again_at = now

    def _fail(self, now: int) -> None:
        self._is_reading = False
        self._again_at = now + limits.etcd_again_us

    def _on_keys(self, now: int, answer: api.Answer) -> None:
        if not isinstance(answer, api.TxnDone):
            self._fail(now)
            return
        self._revision = answer.revision
        found = {kv.key: kv for kv in answer.found[0]}
        if self._keys.head not in found:
            self._is_reading = False
            self._again_at = now + limits.etcd_again_us
            self._hearer.on_absent(now)
            return
        self._forget(found)
        for kv in answer.found[0]:
            self._put(kv)
        self._target = self.head
        if self.mark is not None and self.received < self.mark.log_from - 1:
            self._parts = []
            self._read_snapshot()
        else:
            self._read_log(now)

    def _forget(self, found: dict[bytes, api.KeyValue]) -> None:
        """Keys that went while nobody watched."""
        for name in [one for one in self.nodes if self._keys.node(one) not in found]:
            del self.nodes[name]
            self._hearer.on_node(name, None, self._revision)
        for number in [one for one in self.intents if self._keys.intent(one) not in found]:
            del self.intents[number]
        if self._keys.leader not in found:
            self.leading = None

    def _read_snapshot(self) -> None:
        assert self.mark is not None
        prefix = self._keys.snapshot(self.mark.index)
        first = self._keys.part(prefix, len(self._parts))
        get = api.Get(first, self._keys.after(prefix), limits.etcd_parts_per_read)
        self._desk.txn((), (get,), self._on_parts)

    def _on_parts(self, now: int, answer: api.Answer) -> None:
        if not isinstance(answer, api.TxnDone):
            self._fail(now)
            return
        mark = self.mark
        assert mark is not None
        parts = answer.found[0]
        self._parts += [kv.value for kv in parts]
        if len(self._parts) < mark.parts and parts:
            self._read_snapshot()
            return
        state = b"".join(self._parts)
        self._parts = []
        if len(state) != mark.size or crc32c(state) != mark.crc:
            # A newer one has taken its place while this one was read, or it is damaged.
            self._hearer.note(f"the snapshot at entry {mark.index} in etcd is not whole; it is read again")
            self._fail(now)
            return
        self.incoming.clear()
        self.received = mark.index
        self.log_bytes = 0
        self._hearer.on_snapshot(mark, state)
        self._read_log(now)

    def _read_log(self, now: int) -> None:
        if self.received >= self._target:
            self._is_reading = False
            self.is_current = True
            keys = self._keys
            self._watch = self._desk.watch(keys.log, keys.after(keys.now), self._revision + 1)
            self._hearer.on_current(now)
            return
        first, end = self._keys.entry(self.received + 1), self._keys.entry(self._target + 1)
        self._desk.txn((), (api.Get(first, end, limits.etcd_entries_per_read),), self._on_entries)

    def _on_entries(self, now: int, answer: api.Answer) -> None:
        if not isinstance(answer, api.TxnDone):
            self._fail(now)
            return
        for kv in answer.found[0]:
            if not self._receive(kv):
                break
        if not answer.found[0] or self._keys.index_of(answer.found[0][-1].key) != self.received:
            # The log was cut while it was read: there is a newer snapshot.
            self._fail(now)
            return
        self._read_log(now)

    # --- following ---

    def on_tidings(self, now: int, tidings: api.Tidings) -> None:
        """The watch tells something."""
        if tidings.token != self._watch:
            return
        if isinstance(tidings, api.WatchLost):
            self.lose(now, tidings.reason)
            return
        for change in tidings.changes:
            kv = change.kv
            if kv.key.startswith(self._keys.log):
                if change.is_put and not self._receive(kv):
                    self.lose(now, f"entry {self.received + 1} is missing")
                    return
            elif change.is_put:
                self._put(kv)
            elif kv.key == self._keys.head:
                self.lose(now, "the keys of the cluster were removed")
                return
            else:
                self._remove(kv)

    def took(self, first: int, entries: list[bytes], revision: int) -> None:
        """Entries that this node has written itself are known before the watch tells them."""
        for index, data in enumerate(entries, first):
            if index == self.received + 1:
                self._add(index, data)
        if revision > self.head_mod:
            self.head, self.head_mod = first + len(entries) - 1, revision

    def rewind(self, index: int) -> None:
        """What came in behind this entry cannot be applied: it is to come again, or a snapshot instead."""
        self.incoming.clear()
        self.received = index

    def is_behind(self, found: tuple[api.KeyValue, ...], revision: int) -> bool:
        """Has the watch not told something yet that a look at this revision has found?"""
        keys = self._keys
        there = {kv.key: kv.mod for kv in found if kv.key.startswith(keys.nodes) or kv.key == keys.leader}
        known = {keys.node(name): living.mod for name, living in self.nodes.items()}
        if self.leading is not None:
            known[keys.leader] = self.leading.mod
        is_told = all(max(known.get(key, 0), self._removed.get(key, 0)) >= mod for key, mod in there.items())
        is_gone = any(key not in there and mod <= revision for key, mod in known.items())
        head = next((kv.mod for kv in found if kv.key == keys.head), 0)
        return not is_told or is_gone or head > self.head_mod

    def led(self, lead: Lead, revision: int, lease: int) -> None:
        """The same of the key of the leader, and of the term's if it is a new one."""
        self.leading = Leading(lead, revision, lease)
        if lead.term > self.term:
            self.term, self.term_mod = lead.term, revision

    def lived(self, name: str, live: Live, revision: int) -> None:
        """The same of this node's own key."""
        self.nodes[name] = Living(live, revision)

    def _receive(self, kv: api.KeyValue) -> bool:
        """Take an entry; False if one is missing before it."""
        index = self._keys.index_of(kv.key)
        if index == self.received + 1:
            self._add(index, kv.value)
        return index <= self.received

    def _add(self, index: int, data: bytes) -> None:
        self.incoming.append((index, data))
        self.received = index
        self.log_bytes += len(data)

    def _put(self, kv: api.KeyValue) -> None:
        keys = self._keys
        if kv.key == keys.head:
            if kv.mod > self.head_mod:
                self.head, self.head_mod = decode(Head, kv.value).index, kv.mod
        elif kv.key.startswith(keys.nodes):
            self._put_node(kv)
        elif kv.key == keys.leader:
            if self.leading is None or kv.mod > self.leading.mod:
                self.leading = Leading(decode(Lead, kv.value), kv.mod, kv.lease)
        elif kv.key == keys.term:
            if kv.mod > self.term_mod:
                self.term, self.term_mod = decode(Term, kv.value).number, kv.mod
        elif kv.key == keys.mark:
            if kv.mod > self.mark_mod:
                self.mark, self.mark_mod = decode(Mark, kv.value), kv.mod
                self.log_bytes = 0
        elif kv.key == keys.cluster:
            self.cluster = kv.value
        elif kv.key.startswith(keys.intents):
            number = keys.name_of(kv.key, keys.intents)
            self.intents[number] = (decode(Intent, kv.value), kv.mod)

    def _put_node(self, kv: api.KeyValue) -> None:
        name = self._keys.name_of(kv.key, self._keys.nodes)
        known = self.nodes.get(name)
        if known is None or kv.mod > known.mod:
            self.nodes[name] = living = Living(decode(Live, kv.value), kv.mod)
            self._hearer.on_node(name, living, kv.mod)

    def _remove(self, kv: api.KeyValue) -> None:
        keys = self._keys
        if kv.key.startswith(keys.nodes) or kv.key == keys.leader:
            self._removed[kv.key] = kv.mod
        if kv.key.startswith(keys.nodes):
            name = keys.name_of(kv.key, keys.nodes)
            known = self.nodes.get(name)
            if known is not None and known.mod < kv.mod:
                del self.nodes[name]
                self._hearer.on_node(name, None, kv.mod)
        elif kv.key == keys.leader:
            if self.leading is not None and self.leading.mod < kv.mod:
                self.leading = None
        elif kv.key.startswith(keys.intents):
            self.intents.pop(keys.name_of(kv.key, keys.intents), None)
