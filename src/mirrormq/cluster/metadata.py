"""The definitions, agreed on by all nodes of the cluster.

Guarantee: `done` is called once for each proposal, on the node that made it, when this node has applied it
(and, with `wait`, when no crash can take it back); a proposal is applied once, however often it had to be
sent because leaders came and went; proposals of one node are applied in the order in which they were made.

A proposal travels as an envelope: node, its data folder, start of that, number, command. Numbers of a start
are dense. The state remembers the last one applied per folder (`records.Session`), so one that arrives
again is passed over, and one that comes too early (its predecessor was lost on the way) as well: whoever
made it sends everything that is not applied again, in order, to each new leader and over each new link, when
the leader says that it could not take something, and when it sees one of its own passed over.

A node that leads hands proposals to Raft; any other sends them to the leader. While there is none they wait.
With etcd in the place of Raft (`etcd/`) every node hands its proposals to etcd itself.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mirrormq.base import limits
from mirrormq.cluster.coordination import Done, Leadership
from mirrormq.cluster.etcd.agreement import EtcdAgreement
from mirrormq.cluster.raft import events as ev
from mirrormq.cluster.raft.raft import Raft
from mirrormq.cluster.raft.recovery import SNAPSHOT
from mirrormq.meta.codec import (
    Unreadable,
    decode_command,
    decode_records,
    encode_command,
    encode_records,
)
from mirrormq.meta.commands import Command, tag_of
from mirrormq.meta.layout import MetaTooNew, read_snapshot
from mirrormq.meta.records import Record, Session
from mirrormq.meta.state import MetaState, Outcome

_SINGLE_NODE_SNAPSHOT = b"MMQMSNP\x00"
_LENGTH = 4


class Envelope(Struct, frozen=True, array_like=True, gc=False):
    """A command and who proposed it."""

    node: str
    folder: bytes
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
        self.on_early: Callable[[], None] = lambda: None
        """Called when a proposal of this node was passed over because one before it is missing."""
        self.folder = b""
        """Identity of this node's data folder."""
        self._node = node
        self._on_own = on_own

    def apply(self, index: int, command: bytes) -> object:
        """Carry out a command; entries of a node that was never part of a cluster have no envelope."""
        self.index = index
        if not _is_envelope(command):
            return self._execute(command)
        try:
            envelope = _decoder.decode(command)
        except msgspec.DecodeError as error:
            raise MetaTooNew(
                f"entry {index}", f"it is no proposal as they are known here ({error})"
            ) from error
        key = (envelope.node, envelope.folder)
        session = self.state.sessions.get(key) or Session(*key, index, 0, 0)
        if envelope.start < session.start:
            return None
        if envelope.start > session.start:
            session = Session(*key, session.since, envelope.start, 0)
        if envelope.number != session.number + 1:
            if envelope.number > session.number and key == (self._node, self.folder):
                self.on_early()
            return None
        outcome = self._execute(envelope.command, session)
        if key == (self._node, self.folder):
            self._on_own(envelope.start, envelope.number, outcome)
        return outcome

    def capture(self) -> Iterator[bytes]:
        """The state as it is now: records are frozen, so references are enough."""
        # Taken here and not by the generator, which begins when its first part is asked for.
        return _encoded(self.state.last_id, list(self.state.records()))

    def restore(self, data: bytes) -> None:
        """Become what was captured, and tell the watchers what that changed."""
        if data.startswith(_SINGLE_NODE_SNAPSHOT):
            found = read_snapshot(SNAPSHOT, data)
            self.state.notify(self.state.become(found.last_id, found.records))
            return
        parts = _parts(data)
        try:
            last_id = msgspec.msgpack.decode(next(parts), type=int)
            records = [record for part in parts for record in decode_records(part)]
        except (Unreadable, msgspec.DecodeError) as error:
            raise MetaTooNew(SNAPSHOT, f"a record is unknown here ({error})") from error
        self.state.notify(self.state.become(last_id, records))

    def _execute(self, command: bytes, session: Session | None = None) -> Outcome:
        try:
            decoded = decode_command(command)
        except Unreadable as error:
            raise MetaTooNew(f"entry {self.index}", f"its command is unknown here ({error})") from error
        outcome = self.state.execute(decoded)
        if session is not None:
            refused = session.refused
            if not outcome.ok:
                refused = (*refused, (session.number + 1, str(outcome.error), outcome.detail))
            refused = refused[-limits.session_refusals_max :]
            self._remember(replace(session, number=session.number + 1, refused=refused))
        self.state.notify(outcome.changes)
        return outcome

    def _remember(self, session: Session) -> None:
        # Not by `put`: nobody watches sessions, and this happens with every command.
        sessions = self.state.sessions
        is_new = session.identity not in sessions
        sessions[session.identity] = session
        if is_new:
            known = sorted((one.since, one.folder) for one in sessions.values() if one.node == session.node)
            for _, folder in known[: -limits.session_folders_max]:
                del sessions[session.node, folder]


class _Pending(Struct):
    """A proposal of this node that is not applied yet."""

    data: bytes
    done: Done
    wait: bool


class _Waiter(Struct, frozen=True):
    """Somebody who is called when everything up to an index is durable."""

    index: int
    done: Callable[[], None]


class _Read(Struct, frozen=True, eq=False):
    """Somebody who is called when the state holds all that was acknowledged before."""

    done: Callable[[], None]


class Metadata:
    """Proposals of one node, on their way through the cluster: `Coordination` by Raft or etcd."""

    machine_class: type[MetaMachine] = MetaMachine
    """Tests put a machine there that breaks a rule, to see that somebody notices."""

    def __init__(
        self,
        state: MetaState,
        me: tuple[str, int],
        make_raft: Callable[[MetaMachine], Raft | EtcdAgreement],
        send: Callable[[str, bytes], None],
    ) -> None:
        """`me`: this node's name, and which start of its data folder this is. `send` takes proposals for
        another node: its name and a payload for `receive` there.
        """
        self.state = state
        self._name, self._start = me
        self._pending: dict[int, _Pending] = {}
        self._waiters: deque[_Waiter] = deque()
        """By ascending index."""
        self._number = 0
        self._send = send
        self._to_send: list[int] = []
        self._again: bool = False
        self._again_at = 0
        """Something was not taken: when everything is to be sent again (0: not)."""
        self._turned_down: set[str] = set()
        """Nodes whose proposals this node could not take."""
        self._reads: list[_Read] = []
        """Reads that wait for a leader."""
        self.machine = self.machine_class(state, self._name, self._on_own)
        self.raft = make_raft(self.machine)
        """What the nodes agree by: the embedded Raft, or etcd in its place."""
        self.machine.folder = self.raft.me.identity
        self.machine.on_early = self._on_early
        self.is_held = False
        """Nothing may be proposed yet: the number of this start is not on disk."""
        self.on_event: Callable[[ev.Event], None] = _ignore
        """Hears what Raft tells, for those who look after membership."""
        self.on_leadership: Callable[[Leadership], None] = _ignore

    def begin_alone(self) -> int:
        """Go on with a number of this start that no command has, and return it: all there are were read.

        So the only voter does not depend on what it wrote down about its starts.
        """
        session = self.state.sessions.get((self._name, self.raft.me.identity))
        if session is not None:
            self._start = max(self._start, session.start + 1)
        self.is_held = False
        return self._start

    # --- inputs ---

    def propose(self, command: Command, done: Done, wait: bool = True) -> None:
        """Have a command applied; `done` hears its outcome, with `wait` when it cannot be lost any more."""
        # Encoded first: what cannot be stored must not take a number.
        data = encode_command(command)
        self._number += 1
        envelope = Envelope(self._name, self.raft.me.identity, self._start, self._number, data)
        self._pending[self._number] = _Pending(_encoder.encode(envelope), done, wait)
        self._to_send.append(self._number)

    def barrier(self, done: Callable[[], None]) -> None:
        """Call `done` when everything applied so far is durable."""
        self._when_durable(self.raft.applied_index, done)

    def read(self, done: Callable[[], None]) -> None:
        """Call `done` when the state here holds everything that was acknowledged before this call."""
        self._reads.append(_Read(done))

    def image(self) -> Iterator[bytes]:
        """A snapshot file of the state as it is now, for a backup: its parts may be made on any thread.

        It names no members: whoever starts on it is a group of its own.
        """
        return self.raft.image()

    def receive(self, payload: bytes) -> None:
        """Proposals of another node, sent here because this one leads; none: send yours again, but later."""
        try:
            envelopes = _list_decoder.decode(payload)
            nodes: list[str] = []
            for envelope in envelopes:
                decoded = _decoder.decode(envelope)
                # What cannot be read here would stop every node that applies it.
                decode_command(decoded.command)
                nodes.append(decoded.node)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Unreadable) as error:
            raise BadEnvelope(str(error)) from error
        self._again = self._again or not envelopes
        for envelope, node in zip(envelopes, nodes, strict=True):
            self.raft.propose(envelope, node)

    def link_up(self, peer: str) -> None:
        """A link is open: what was sent to this peer over an earlier one may be lost."""
        if peer == self.raft.leader and isinstance(self.raft, Raft):
            self._send_again()

    def end_pass(self, now: int) -> None:
        """Send what was proposed, let Raft do its work, and tell whose proposals are done."""
        if self._again and not self._again_at:
            self._again, self._again_at = False, now + limits.proposals_again_us
        if self._again_at and now >= self._again_at:
            self._send_again()
        self._send_new()
        if self._taker:
            reads, self._reads = self._reads, []
            for read in reads:
                self.raft.read(read)
        self.raft.end_pass(now)
        events, self.raft.events = self.raft.events, []
        for event in events:
            self._on_event(event)
            self.on_event(event)
        for node in sorted(self._turned_down):
            self._send(node, _list_encoder.encode([]))
        self._turned_down.clear()
        self._release()

    @property
    def needs_pass(self) -> bool:
        """Is there work that another pass would go on with at once?"""
        return self.raft.needs_pass or bool(self._to_send and self._taker and not self.is_held)

    @property
    def _taker(self) -> str:
        """Who takes proposals."""
        return self.raft.leader if isinstance(self.raft, Raft) else self._name

    @property
    def leadership(self) -> Leadership:
        """Who leads now, as far as this node knows."""
        return Leadership(self.raft.term, self.raft.leader)

    @property
    def durable(self) -> int:
        """Every command up to this index survives."""
        return self.raft.durable_index

    @property
    def is_idle(self) -> bool:
        """Nothing of this node is on its way."""
        return not self._pending and not self._waiters and not self._reads

    # --- inside ---

    def _on_event(self, event: ev.Event) -> None:
        if isinstance(event, ev.LeaderChanged):
            if event.leader and isinstance(self.raft, Raft):
                self._send_again()
            self.on_leadership(Leadership(event.term, event.leader))
        elif isinstance(event, ev.Restored):
            self._on_restored()
        elif isinstance(event, ev.ReadReady) and isinstance(event.ref, _Read):
            # A sole voter applies before the flush, and what is told must not be lost.
            self._when_durable(self.raft.applied_index, event.ref.done)
        elif isinstance(event, ev.Refused) and isinstance(event.ref, _Read):
            self._reads.append(event.ref)
        elif isinstance(event, ev.Refused) and event.ref == self._name:
            self._again = True
        elif isinstance(event, ev.Refused) and isinstance(event.ref, str):
            self._turned_down.add(event.ref)

    def _on_early(self) -> None:
        # Large proposals travel on a lane of their own: smaller ones may overtake them.
        self._again = True

    def _send_again(self) -> None:
        self._again, self._again_at = False, 0
        self._to_send = sorted(self._pending)

    def _send_new(self) -> None:
        taker = self._taker
        if not self._to_send or not taker or self.is_held:
            return
        numbers, self._to_send = self._to_send, []
        chosen = [self._pending[number].data for number in numbers if number in self._pending]
        if taker == self._name:
            for data in chosen:
                self.raft.propose(data, self._name)
        else:
            for payload in _payloads(chosen):
                self._send(taker, payload)

    def _on_restored(self) -> None:
        """A leader's snapshot has carried out commands of this node, too: tell what became of them."""
        session = self.state.sessions.get((self._name, self.raft.me.identity))
        if session is None or session.start != self._start:
            return
        refused = {number: (error, detail) for number, error, detail in session.refused}
        is_full = len(refused) >= limits.session_refusals_max
        for number in [number for number in self._pending if number <= session.number]:
            error, detail = refused.get(number, (None, ""))
            if error is None and is_full and number < min(refused):
                error, detail = "unknown", "what became of it was lost on the way; look before trying again"
            self._pending.pop(number).done(Outcome(error is None, error, None, [], detail))

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
        while self._waiters and self._waiters[0].index <= self.raft.durable_index:
            self._waiters.popleft().done()


def _is_envelope(data: bytes) -> bool:
    """An envelope is an array of five, a command of a single node a map."""
    return data[:1] == b"\x95"


def describe_entry(data: bytes) -> dict[str, Any]:
    """Who proposed what, of an entry that was written by this layer."""
    node, start, number, command = "", 0, 0, data
    if _is_envelope(data):
        node, _, start, number, command = msgspec.structs.astuple(_decoder.decode(data))
    return {"command": tag_of(decode_command(command)), "node": node, "start": start, "number": number}


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


def _encoded(last_id: int, records: list[Record]) -> Iterator[bytes]:
    yield _with_length(msgspec.msgpack.encode(last_id))
    rest = iter(records)
    while part := list(islice(rest, limits.meta_snapshot_slice_records)):
        yield _with_length(encode_records(part))


def _with_length(part: bytes) -> bytes:
    return len(part).to_bytes(_LENGTH, "big") + part


def _parts(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        end = at + _LENGTH + int.from_bytes(data[at : at + _LENGTH], "big")
        yield data[at + _LENGTH : end]
        at = end


def _ignore(event: object) -> None:
    """Nobody listens."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)
_list_encoder = msgspec.msgpack.Encoder()
_list_decoder = msgspec.msgpack.Decoder(list[bytes])
