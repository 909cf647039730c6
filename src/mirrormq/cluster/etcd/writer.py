"""Appends to the log in etcd: one transaction at a time, guarded on the head of the log.

Guarantee: an entry is written at the index after the last one that this node had received, or not at all;
what this node proposes is written in the order in which it was proposed, though some of it may be written
twice if an answer was lost (whoever applies it passes over the second one).

Any node writes, whether it leads or not: etcd orders. If another node was faster the guard does not hold, and
the same is tried again behind what that node wrote. If it is not known what became of a transaction,
everything that waits is given back to be proposed again: its guard keeps it from happening after that.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from mirrormq.base import limits
from mirrormq.cluster.etcd import api
from mirrormq.cluster.etcd.desk import Desk
from mirrormq.cluster.etcd.keys import Head, Keys, decode, encode
from mirrormq.cluster.etcd.view import View

Make = Callable[[], bytes | None]
"""Makes an entry of the state as it is behind the last one; None if there is nothing to be written."""


class Proposal(Struct, frozen=True):
    """What is to be written, and who hears if it cannot be."""

    data: bytes
    ref: object


class Extra(Protocol):
    """What else goes with an entry into one transaction."""

    def guards(self) -> tuple[api.Guard, ...]:
        """Conditions for it."""
        ...

    def puts(self, index: int) -> tuple[api.Put, ...]:
        """Keys written with the entry at `index`."""
        ...

    def done(self) -> None:
        """It was written."""
        ...

    def failed(self) -> None:
        """It was not, or that is not known."""
        ...


class Batch(Struct):
    """A transaction on its way."""

    first: int
    entries: list[bytes]
    proposals: list[Proposal]
    extra: Extra | None = None


class Writer:
    """The proposals of one node."""

    def __init__(self, keys: Keys, desk: Desk, view: View, refuse: Callable[[object], None]) -> None:
        self._keys = keys
        self._desk = desk
        self._view = view
        self._refuse = refuse
        self._waiting: deque[Proposal] = deque()
        self._bytes = 0
        self._made: deque[Make] = deque()
        self._extra: deque[tuple[bytes, Extra]] = deque()
        self._batch: Batch | None = None
        self._at = 0
        self._behind = 0
        """Another node has written up to here; until that has come in, a transaction would fail."""

    @property
    def is_idle(self) -> bool:
        """Is nothing on its way?"""
        return self._batch is None and not (self._waiting or self._made or self._extra)

    def propose(self, data: bytes, ref: object) -> None:
        """Write an entry with the others of this pass."""
        is_full = len(self._waiting) >= limits.raft_waiting_max
        if is_full or (self._bytes and self._bytes + len(data) > limits.raft_proposals_bytes_max):
            self._refuse(ref)
            return
        self._bytes += len(data)
        self._waiting.append(Proposal(data, ref))

    def make(self, make: Make) -> None:
        """Write an entry that depends on what stands before it, if it is still wanted then."""
        self._made.append(make)

    def with_extra(self, data: bytes, extra: Extra) -> None:
        """Write an entry and other keys at once."""
        self._extra.append((data, extra))

    def peek(self) -> bytes | None:
        """The next proposal, if its turn has come."""
        is_next = self._waiting and not self._made and not self._extra and self._batch is None
        return self._waiting[0].data if is_next else None

    def take(self) -> Proposal:
        """Take that one out: it is too long to be written like the others."""
        proposal = self._waiting.popleft()
        self._bytes -= len(proposal.data)
        return proposal

    def step(self, now: int, *, is_applied: bool, is_held: bool) -> None:
        """Write what waits, if everything before is known. `is_applied`: it has been applied, too.

        `is_held`: proposals wait for one that is written in parts.
        """
        view = self._view
        if self._batch is not None or now < self._at or not view.is_current or view.received < self._behind:
            return
        if view.received != view.head:
            return
        batch = Batch(view.received + 1, [], [])
        while self._made and is_applied and not batch.entries:
            made = self._made[0]()
            if made is None:
                self._made.popleft()
            else:
                batch.entries.append(made)
        if not batch.entries and self._extra:
            data, batch.extra = self._extra.popleft()
            batch.entries.append(data)
        elif not batch.entries and not self._made and not is_held:
            self._fill(batch)
        if batch.entries:
            self._send(batch)

    def _fill(self, batch: Batch) -> None:
        size = 0
        while self._waiting and len(batch.entries) < limits.etcd_txn_entries_max:
            length = len(self._waiting[0].data)
            if length > limits.etcd_part_bytes or size + length > limits.etcd_txn_bytes_max:
                break
            size += length
            batch.proposals.append(self.take())
            batch.entries.append(batch.proposals[-1].data)

    def _send(self, batch: Batch) -> None:
        self._batch = batch
        keys = self._keys
        last = batch.first + len(batch.entries) - 1
        guards = [api.Guard(keys.head, self._view.head_mod)]
        puts = [api.Put(keys.head, encode(Head(last)))]
        puts += [api.Put(keys.entry(index), data) for index, data in enumerate(batch.entries, batch.first)]
        if batch.extra is not None:
            guards += batch.extra.guards()
            puts += batch.extra.puts(last)
        self._desk.txn(tuple(guards), tuple(puts), self._on_answer, (api.Get(keys.head),))

    def _on_answer(self, now: int, answer: api.Answer) -> None:
        batch, self._batch = self._batch, None
        assert batch is not None
        if not isinstance(answer, api.TxnDone):
            self._at = now + limits.etcd_again_us
            self._give_back(batch)
            # It may have happened, and then it is told by the watch, which may be gone as well.
            self._view.lose(now, "it is not known what was written")
        elif answer.is_done:
            self._view.took(batch.first, batch.entries, answer.revision)
            if batch.extra is not None:
                batch.extra.done()
        else:
            head = decode(Head, answer.found[0][0].value).index if answer.found[0] else 0
            self._behind = head
            for proposal in reversed(batch.proposals):
                self._waiting.appendleft(proposal)
                self._bytes += len(proposal.data)
            if batch.extra is not None:
                batch.extra.failed()

    def _give_back(self, batch: Batch) -> None:
        """Refuse all that waits, not just these: what came later must not be written before."""
        refs = {id(one.ref): one.ref for one in (*batch.proposals, *self._waiting)}
        self._waiting.clear()
        self._bytes = 0
        if batch.extra is not None:
            batch.extra.failed()
        for ref in refs.values():
            self._refuse(ref)
