"""Commands that are too long for one request to etcd, written in parts.

Guarantee: the command becomes an entry when all its parts are in etcd, or never; if the node that writes it
dies half-way, whoever leads then finishes it (all parts are there) or removes what there is of it.

First an intent is written (how many parts, of how many bytes, with which checksum), then the parts, each
guarded on the intent, so that none comes back after it was removed; at last, in one transaction, an entry
that refers to them, with the intent saying at which index that is. When the log is cut behind that entry,
intent and parts go. The number of an intent is made of who writes it and a hash of what: proposing the same
again goes on where the first attempt ended.
"""

from collections.abc import Callable
from hashlib import blake2b

import msgspec
from msgspec import Struct

from mirrormq.base import limits
from mirrormq.cluster.etcd import api
from mirrormq.cluster.etcd.desk import Desk
from mirrormq.cluster.etcd.keys import Intent, Keys, encode
from mirrormq.cluster.etcd.view import View
from mirrormq.cluster.etcd.writer import Proposal, Writer
from mirrormq.cluster.raft.entries import RESERVED
from mirrormq.kernel.crc32c import crc32c

_REFERENCE = bytes((RESERVED, 2))


class Reference(Struct, frozen=True, array_like=True):
    """What an entry says whose command is in parts."""

    number: str
    parts: int
    size: int
    crc: int


def is_reference(data: bytes) -> bool:
    """Is the command of this entry in parts?"""
    return data[:2] == _REFERENCE


def decode_reference(data: bytes) -> Reference:
    """Which parts; raises `msgspec.DecodeError`."""
    return msgspec.msgpack.decode(data[2:], type=Reference)


def encode_reference(number: str, intent: Intent) -> bytes:
    """The entry that refers to the parts of an intent."""
    found = Reference(number, intent.parts, intent.size, intent.crc)
    return _REFERENCE + msgspec.msgpack.encode(found)


class Finish:
    """The last step: the entry, and in the intent where it stands."""

    def __init__(self, bulk: "Bulk", number: str, intent: Intent, mod: int) -> None:
        self._bulk = bulk
        self._number, self._intent, self._mod = number, intent, mod

    def guards(self) -> tuple[api.Guard, ...]:
        """The intent is as it was."""
        return (api.Guard(self._bulk.keys.intent(self._number), self._mod),)

    def puts(self, index: int) -> tuple[api.Put, ...]:
        """It says now where the entry stands."""
        intent = msgspec.structs.replace(self._intent, index=index)
        return (api.Put(self._bulk.keys.intent(self._number), encode(intent)),)

    def done(self) -> None:
        """The command is in the log."""
        self._bulk.finished(self._number)

    def failed(self) -> None:
        """It may not be: whoever is in charge looks again."""
        self._bulk.again(self._number)


class Bulk:
    """The long commands of this node, and as long as it leads those of nodes that are gone."""

    def __init__(self, me: tuple[str, int], keys: Keys, desk: Desk, tools: tuple[View, Writer]) -> None:
        self.keys = keys
        self._name, self._start = me
        self._desk = desk
        self._view, self._writer = tools
        self.refuse: Callable[[object], None] = lambda _: None
        self._own: Proposal | None = None
        self._number = ""
        self._parts = 0
        self._is_asking = False
        self._is_ending = False
        self._at = 0
        self._tended: set[str] = set()
        """Intents of others that this node is looking after."""

    @property
    def is_idle(self) -> bool:
        """Is nothing of this node on its way?"""
        return self._own is None

    def step(self, now: int, applied: int, *, leads: bool) -> None:
        """Go on with this node's own command; tend what others left. Entries up to `applied` were applied."""
        if now < self._at or not self._view.is_current:
            return
        data = self._writer.peek()
        if self._own is None and data is not None and len(data) > limits.etcd_part_bytes:
            self._own = self._writer.take()
            self._number = f"{self._name}-{self._start}-{blake2b(data, digest_size=16).hexdigest()}"
            self._parts = 0
            self._is_ending = False
        if self._own is not None and not self._is_asking and not self._is_ending:
            self._write(self._own.data, applied)
        if leads:
            self._tend()

    def holds_back(self) -> bool:
        """Must later proposals wait? One command of a node goes after the other."""
        return self._own is not None

    # --- our own ---

    def _write(self, data: bytes, applied: int) -> None:
        number = self._number
        known = self._view.intents.get(number)
        step = limits.etcd_part_bytes
        parts = -(-len(data) // step)
        key = self.keys.intent(number)
        self._is_asking = True
        if known is None:
            # Not begun, or removed by a leader that took this node for dead, with all parts.
            self._parts = 0
            intent = Intent(self._name, self._start, parts, len(data), crc32c(data))
            self._desk.txn(
                (api.Guard(key, 0),),
                (api.Put(key, encode(intent)),),
                lambda now, answer: self._on_intent(now, answer, number, intent),
            )
            return
        intent, mod = known
        if intent.index > applied:
            # An earlier attempt got through, and its entry comes.
            self._is_asking = False
            self.finished(number)
        elif not intent.index and self._parts < parts:
            part = data[self._parts * step : (self._parts + 1) * step]
            at = self.keys.part(self.keys.bulk_parts(number), self._parts)
            self._desk.txn((api.Guard(key, mod),), (api.Put(at, part),), self._on_part)
        else:
            # Proposed again although there was an entry: it came too early, and was passed over.
            self._is_asking, self._is_ending = False, True
            self._writer.with_extra(encode_reference(number, intent), Finish(self, number, intent, mod))

    def _on_intent(self, now: int, answer: api.Answer, number: str, intent: Intent) -> None:
        self._is_asking = False
        if not isinstance(answer, api.TxnDone):
            self._give_back(now)
        elif answer.is_done:
            self._view.intents[number] = (intent, answer.revision)
        else:
            # There is one of an earlier attempt, which the watch tells in a moment.
            self._at = now + limits.etcd_again_us

    def _on_part(self, now: int, answer: api.Answer) -> None:
        self._is_asking = False
        if isinstance(answer, api.TxnDone) and answer.is_done:
            self._parts += 1
        else:
            self._give_back(now)

    def _give_back(self, now: int) -> None:
        """Have it proposed again, with all that came later."""
        self._at = now + limits.etcd_again_us
        own, self._own = self._own, None
        if own is not None:
            self.refuse(own.ref)

    def finished(self, number: str) -> None:
        """The entry is written."""
        self._tended.discard(number)
        if number == self._number:
            self._own = None

    def again(self, number: str) -> None:
        """It was not, as far as is known."""
        self._tended.discard(number)
        if number == self._number:
            self._is_ending = False

    # --- for others ---

    def _tend(self) -> None:
        for number, (intent, mod) in list(self._view.intents.items()):
            if number in self._tended or len(self._tended) >= limits.etcd_intents_tended_max:
                continue
            mark = self._view.mark
            living = self._view.nodes.get(intent.node)
            is_alive = living is not None and living.live.start == intent.start
            if intent.index:
                if mark is not None and intent.index < mark.log_from:
                    self._remove(number, mod)
            elif not is_alive:
                self._look_at(number, intent, mod)

    def _look_at(self, number: str, intent: Intent, mod: int) -> None:
        """Are all parts there?"""
        self._tended.add(number)
        prefix = self.keys.bulk_parts(number)

        def done(_: int, answer: api.Answer) -> None:
            if not isinstance(answer, api.TxnDone):
                self._tended.discard(number)
            elif len(answer.found[0]) == intent.parts:
                self._writer.with_extra(encode_reference(number, intent), Finish(self, number, intent, mod))
            else:
                self._remove(number, mod)

        self._desk.txn((), (api.Get(prefix, self.keys.after(prefix), is_bare=True),), done)

    def _remove(self, number: str, mod: int) -> None:
        self._tended.add(number)
        key, prefix = self.keys.intent(number), self.keys.bulk_parts(number)

        def done(_: int, __: api.Answer) -> None:
            self._tended.discard(number)

        removals = (api.Delete(key), api.Delete(prefix, self.keys.after(prefix)))
        self._desk.txn((api.Guard(key, mod),), removals, done)
