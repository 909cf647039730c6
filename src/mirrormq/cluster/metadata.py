"""The definitions, agreed on by all nodes of the cluster.

Guarantee: `done` is called once for each proposal, on the node that made it, when this node has applied it
(and, with `wait`, when no crash can take it back); a proposal is applied once, however often it had to be
sent because leaders came and went; proposals of one node are applied in the order in which they were made.

A proposal travels as an envelope: node, start of its data folder, number, command. Numbers of a start are
dense. The state remembers the last one applied per node (`records.Session`), so an envelope that arrives
again is passed over, and one that comes too early (its predecessor was lost on the way) as well: whoever
made it sends everything that is not applied again, in order, to each new leader and over each new link.

A node that leads hands proposals to Raft; any other sends them to the leader. While there is none they wait.
"""

from collections.abc import Callable, Iterator
from itertools import islice

import msgspec
from msgspec import Struct

from mirrormq.base import limits
from mirrormq.cluster.raft import events as ev
from mirrormq.cluster.raft.raft import Raft
from mirrormq.meta.codec import (
    Unreadable,
    decode_command,
    decode_records,
    encode_command,
    encode_records,
)
from mirrormq.meta.commands import Command
from mirrormq.meta.layout import read_snapshot
from mirrormq.meta.records import Record, Session
from mirrormq.meta.state import MetaState, Outcome

Done = Callable[[Outcome], None]

_SINGLE_NODE_SNAPSHOT = b"MMQMSNP\x00"
_LENGTH = 4


class Envelope(Struct, frozen=True, array_like=True):
    """A command and who proposed it."""

    node: str
    start: int
    number: int
    command: bytes


class BadEnvelope(Exception):
    """Bytes from a peer that are no list of proposals."""


class MetaMachine:
    """The definitions as the state machine under Raft."""

    def __init__(self, state: MetaState, node: str, on_own: Callable[[int, int, Outcome], None]) -> None:
        """`on_own` hears of this node's proposals: start, number and outcome."""
        self.state = state
        self.index = 0
        """Of the entry applied last, or being applied."""
        self._node = node
        self._on_own = on_own

    def apply(self, index: int, command: bytes) -> object:
        """Carry out a command; entries of a node that was never part of a cluster have no envelope."""
        self.index = index
        if not _is_envelope(command):
            return self._execute(command)
        envelope = _decoder.decode(command)
        session = self.state.sessions.get(envelope.node)
        if session is not None and envelope.start < session.start:
            return None
        last = session.number if session is not None and session.start == envelope.start else 0
        if envelope.number != last + 1:
            return None
        session = Session(envelope.node, envelope.start, envelope.number)
        outcome = self._execute(envelope.command, session)
        if envelope.node == self._node:
            self._on_own(envelope.start, envelope.number, outcome)
        return outcome

    def capture(self) -> Iterator[bytes]:
        """The state as it is now: records are frozen, so references are enough."""
        records: list[Record] = list(self.state.records())
        yield _with_length(msgspec.msgpack.encode(self.state.last_id))
        rest = iter(records)
        while part := list(islice(rest, limits.meta_snapshot_slice_records)):
            yield _with_length(encode_records(part))

    def restore(self, data: bytes) -> None:
        """Become what was captured, and tell the watchers what that changed."""
        if data.startswith(_SINGLE_NODE_SNAPSHOT):
            found = read_snapshot("meta/snapshot", data)
            self.state.notify(self.state.become(found.last_id, found.records))
            return
        parts = _parts(data)
        last_id = msgspec.msgpack.decode(next(parts), type=int)
        records = [record for part in parts for record in decode_records(part)]
        self.state.notify(self.state.become(last_id, records))

    def _execute(self, command: bytes, session: Session | None = None) -> Outcome:
        outcome = self.state.execute(decode_command(command))
        if session is not None:
            self.state.put(session)
            self.state.take_changes()
        self.state.notify(outcome.changes)
        return outcome


class _Pending(Struct):
    """A proposal of this node that is not applied yet."""

    data: bytes
    done: Done
    wait: bool


class _Waiter(Struct, frozen=True):
    """Somebody who is called when everything up to an index is durable."""

    index: int
    done: Callable[[], None]


class Metadata:
    """Proposals of one node, on their way through the cluster."""

    machine_class: type[MetaMachine] = MetaMachine
    """Tests put a machine there that breaks a rule, to see that somebody notices."""

    def __init__(
        self,
        state: MetaState,
        me: tuple[str, int],
        make_raft: Callable[[MetaMachine], Raft],
        send: Callable[[str, bytes], None],
    ) -> None:
        """`me`: this node's name, and which start of its data folder this is. `send` takes proposals for
        another node: its name and a payload for `receive` there.
        """
        self.state = state
        self._name, self._start = me
        self._pending: dict[int, _Pending] = {}
        self._waiters: list[_Waiter] = []
        self._number = 0
        self._send = send
        self._to_send: list[int] = []
        self.machine = self.machine_class(state, self._name, self._on_own)
        self.raft = make_raft(self.machine)
        self.on_event: Callable[[ev.Event], None] = _ignore
        """Hears what Raft tells, for those who look after membership."""

    # --- inputs ---

    def propose(self, command: Command, done: Done, wait: bool = True) -> None:
        """Have a command applied; `done` hears its outcome, with `wait` when it cannot be lost any more."""
        # Encoded first: what cannot be stored must not take a number.
        data = encode_command(command)
        self._number += 1
        envelope = Envelope(self._name, self._start, self._number, data)
        self._pending[self._number] = _Pending(_encoder.encode(envelope), done, wait)
        self._to_send.append(self._number)

    def barrier(self, done: Callable[[], None]) -> None:
        """Call `done` when everything applied so far is durable."""
        self._when_durable(self.raft.applied_index, done)

    def receive(self, payload: bytes) -> None:
        """Proposals of another node, sent here because this one leads. If it does not, they come again."""
        try:
            envelopes = _list_decoder.decode(payload)
            for envelope in envelopes:
                # What cannot be read here would stop every node that applies it.
                decode_command(_decoder.decode(envelope).command)
        except (msgspec.DecodeError, Unreadable) as error:
            raise BadEnvelope(str(error)) from error
        for envelope in envelopes:
            self.raft.propose(envelope, None)

    def link_up(self, peer: str) -> None:
        """A link is open: what was sent to this peer over an earlier one may be lost."""
        if peer == self.raft.leader:
            self._send_again()

    def end_pass(self, now: int) -> None:
        """Send what was proposed, let Raft do its work, and tell whose proposals are done."""
        self._send_new()
        self.raft.end_pass(now)
        events, self.raft.events = self.raft.events, []
        for event in events:
            if isinstance(event, ev.LeaderChanged) and event.leader:
                self._send_again()
            self.on_event(event)
        self._release()

    @property
    def needs_pass(self) -> bool:
        """Is there work that another pass would go on with at once?"""
        return self.raft.needs_pass or bool(self._to_send and self.raft.leader)

    @property
    def durable(self) -> int:
        """Every command up to this index survives."""
        return self.raft.durable_index

    @property
    def is_idle(self) -> bool:
        """Nothing of this node is on its way."""
        return not self._pending and not self._waiters

    # --- inside ---

    def _send_again(self) -> None:
        self._to_send = sorted(self._pending)

    def _send_new(self) -> None:
        leader = self.raft.leader
        if not self._to_send or not leader:
            return
        numbers, self._to_send = self._to_send, []
        chosen = [self._pending[number].data for number in numbers if number in self._pending]
        if leader == self._name:
            for data in chosen:
                self.raft.propose(data, None)
        else:
            for payload in _payloads(chosen):
                self._send(leader, payload)

    def _on_own(self, start: int, number: int, outcome: Outcome) -> None:
        pending = self._pending.pop(number, None) if start == self._start else None
        if pending is None:
            return
        if outcome.ok and pending.wait:
            done = pending.done
            self._when_durable(self.machine.index, lambda: done(outcome))
        else:
            pending.done(outcome)

    def _when_durable(self, index: int, done: Callable[[], None]) -> None:
        if self.raft.durable_index >= index:
            done()
        else:
            self._waiters.append(_Waiter(index, done))

    def _release(self) -> None:
        durable = self.raft.durable_index
        ready = [waiter for waiter in self._waiters if waiter.index <= durable]
        if ready:
            self._waiters = [waiter for waiter in self._waiters if waiter.index > durable]
            for waiter in ready:
                waiter.done()


def _is_envelope(data: bytes) -> bool:
    """An envelope is an array of four, a command of a single node a map."""
    return data[:1] == b"\x94"


def _payloads(envelopes: list[bytes]) -> Iterator[bytes]:
    """Lists of envelopes that fit a frame, or hold one that does not."""
    some: list[bytes] = []
    size = 0
    for envelope in envelopes:
        if some and size + len(envelope) > limits.proposals_bytes_max:
            yield _list_encoder.encode(some)
            some, size = [], 0
        some.append(envelope)
        size += len(envelope)
    if some:
        yield _list_encoder.encode(some)


def _with_length(part: bytes) -> bytes:
    return len(part).to_bytes(_LENGTH, "big") + part


def _parts(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        end = at + _LENGTH + int.from_bytes(data[at : at + _LENGTH], "big")
        yield data[at + _LENGTH : end]
        at = end


def _ignore(event: ev.Event) -> None:
    """Nobody listens."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)
_list_encoder = msgspec.msgpack.Encoder()
_list_decoder = msgspec.msgpack.Decoder(list[bytes])
