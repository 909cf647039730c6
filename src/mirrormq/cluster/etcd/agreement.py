"""One node of a cluster that agrees by etcd: the same inputs, questions and events as `raft.Raft` has.

Guarantee: as that of Raft (commands are applied once, in one order, on every node, and a term has one
leader), provided etcd keeps what it has acknowledged.

The log of commands is kept in etcd, so the state machine above is the same. What is different: any node
writes to the log (`writer`), nothing is kept on this node's disk, there are no votes, and leases are etcd's
(`tenure`). Who belongs to the cluster stands in the log, as with Raft; a node that finds itself missing adds
itself.
"""

from collections.abc import Callable, Iterator

import msgspec
from msgspec import Struct

from mirrormq.base import limits
from mirrormq.base.rng import Rng
from mirrormq.cluster.etcd import api, bulk
from mirrormq.cluster.etcd.bulk import Bulk
from mirrormq.cluster.etcd.desk import Desk
from mirrormq.cluster.etcd.keys import BadValue, Head, Keys, Lead, Mark, Term, decode, encode
from mirrormq.cluster.etcd.snapshots import Snapshots
from mirrormq.cluster.etcd.tenure import Tenure
from mirrormq.cluster.etcd.view import Living, View
from mirrormq.cluster.etcd.writer import Writer
from mirrormq.cluster.identity import is_accepted
from mirrormq.cluster.raft import entries as entry_kinds
from mirrormq.cluster.raft import events as ev
from mirrormq.cluster.raft import membership as mb
from mirrormq.cluster.raft.layout import snapshot_chunks
from mirrormq.cluster.raft.machine import Machine
from mirrormq.cluster.raft.raft import Myself
from mirrormq.kernel.crc32c import crc32c

_TOLD = b"L"


class EtcdOptions(Struct, frozen=True):
    """What an installation may choose."""

    prefix: str = "/mirrormq"
    death_certificate: bool = True


class _Link(Struct):
    """An open link: the lease the peer has told last over it, and whether ours was told."""

    told: int = 0
    has_ours: bool = False


class EtcdAgreement:
    """The inputs, and what the parts share."""

    def __init__(
        self,
        me: Myself,
        machine: Machine,
        rng: Rng,
        options: EtcdOptions,
        *,
        cluster: bytes = b"",
        was_member: bool = False,
    ) -> None:
        """`cluster`: the one this folder belongs to, empty if to none; `was_member`: it has recorded it.

        Nothing is asked before `begin`.
        """
        self.me = me
        self.machine = machine
        self.options = options
        self.config = mb.Configuration()
        self.applied_index = 0
        self.leader = ""
        self.term = 0
        self.events: list[ev.Event] = []
        self.outgoing: list[tuple[str, bytes]] = []
        self.stalled_elsewhere: Callable[[int], int] = lambda _: 0
        """For how long the disk has owed a flush that leases are about."""
        self.is_mute = True
        """It does not enter the cluster, until `speak_up`."""
        self.timer_at = 0
        self._cluster, self._was_member = cluster, was_member
        self._rng = rng
        self._keys = keys = Keys(self.options.prefix)
        self._desk = desk = Desk()
        self._view = view = View(keys, desk, self)
        self._tenure = Tenure((me.name, me.identity, me.start), keys, desk, view)
        self._tenure.on_held = self._on_held
        self._writer = Writer(keys, desk, view, lambda ref: self._refuse(ref, "etcd did not answer"))
        self._bulk = Bulk((me.name, me.start), keys, desk, (view, self._writer))
        self._bulk.refuse = lambda ref: self._refuse(ref, "etcd did not answer")
        self._snapshots = Snapshots(keys, desk, view, machine)
        self._links: dict[str, _Link] = {}
        self._has_begun = False
        self._is_touched = False
        self._is_found = False
        self._is_registering = self._is_registered = self._is_out = False
        self._is_electing = False
        self._elect_at = 0
        self._changing: set[mb.Change] = set()
        """Changes of the membership on their way."""
        self._reads: list[object] = []
        self._reading: list[object] | None = None
        self._ready: list[tuple[int, object]] = []
        """Reads that wait until an index is applied."""
        self._poll_at = self._look_at = 0
        self._looked: tuple[tuple[api.KeyValue, ...], int] | None = None
        """What the last look at all keys has found, and at which revision."""
        self._bodies: dict[int, bytes] = {}
        """Commands in parts that were read, by the index of their entry."""
        self._fetching = 0
        self._to_bury: dict[int, int] = {}
        """Leases of processes that are gone, and until when it is of use to have them revoked."""

    # --- start ---

    def begin(self) -> None:
        """This start is on disk: look what there is under the prefix."""
        self._has_begun = self._is_touched = True

    def speak_up(self) -> None:
        """The name of the cluster is on disk: enter it."""
        self.is_mute = False
        self._is_touched = True

    # --- inputs ---

    def answer(self, now: int, answer: api.Answer | api.Tidings) -> None:
        """etcd answers a request, or tells what changed."""
        self._is_touched = True
        try:
            if isinstance(answer, api.Seen | api.WatchLost):
                self._view.on_tidings(now, answer)
            else:
                self._desk.answer(now, answer)
        except BadValue as error:
            self.events.append(ev.Unfit(f"prefix {self.options.prefix} in etcd: {error}"))

    def take_requests(self) -> list[api.Request]:
        """What is to be asked of etcd."""
        requests, self._desk.requests = self._desk.requests, []
        return requests

    def on_timer(self, now: int) -> None:
        """Time has passed."""
        self._is_touched = True
        self.timer_at = now + limits.raft_heartbeat_us

    def receive(self, now: int, peer: str, frame: bytes) -> None:  # noqa: ARG002
        """A peer tells the lease it holds."""
        link = self._links.get(peer)
        if link is None or frame[:1] != _TOLD or len(frame) != 9:
            self.note(f"a message of {peer} cannot be read: does it use etcd, too?")
            return
        link.told = int.from_bytes(frame[1:], "big")

    def link_up(self, now: int, peer: str) -> None:  # noqa: ARG002
        """A link to a peer is open."""
        self._is_touched = True
        self._links[peer] = _Link()
        self._tell(peer)

    def link_down(self, now: int, peer: str, *, eof: bool) -> None:
        """A link is gone. `eof`: the other side ended it. Told *before* the socket is closed by this side."""
        self._is_touched = True
        link = self._links.pop(peer, None)
        if link is None:
            return
        if link.has_ours:
            self._tenure.suspend()
        if eof and link.told and self.options.death_certificate:
            self._to_bury[link.told] = now + limits.lease_us

    def propose(self, command: bytes, ref: object) -> None:
        """Have a command applied everywhere."""
        self._is_touched = True
        assert not entry_kinds.is_reserved(command)
        self._writer.propose(command, ref)

    def read(self, ref: object) -> None:
        """Be told when the state here contains all that was acknowledged anywhere before this call."""
        self._is_touched = True
        if len(self._reads) < limits.raft_waiting_max:
            self._reads.append(ref)
        else:
            self._refuse(ref, "busy")

    def change(self, now: int, change: mb.Change, ref: object) -> None:  # noqa: ARG002
        """Change the membership by one step. Asking again while that is on its way changes nothing."""
        self._is_touched = True
        if change in self._changing:
            return
        self._changing.add(change)

        def make() -> bytes | None:
            try:
                after = mb.changed(self.config, change)
            except mb.ChangeRefused as error:
                self._refuse(ref, str(error))
                after = self.config
            if after.members == self.config.members:
                self._changing.discard(change)
                return None
            return _entry(after)

        self._writer.make(make)

    def transfer(self, now: int, target: str) -> bool:  # noqa: ARG002
        """Hand the leadership to another node that lives."""
        living, leading = self._view.nodes.get(target), self._view.leading
        if not self.is_leader or living is None or leading is None or self._is_electing:
            return False
        lead = Lead(target, living.live.start, self._view.term + 1)
        guards = (api.Guard(self._keys.leader, leading.mod), api.Guard(self._keys.node(target), living.mod))
        self._put_leader(lead, living.live.lease, guards)
        return True

    def end_pass(self, now: int) -> None:
        """Ask what is to be asked, apply what has come."""
        if not self._has_begun or not (self._is_touched or self.needs_pass):
            return
        self._is_touched = False
        try:
            self._step(now)
        except BadValue as error:
            self.events.append(ev.Unfit(f"prefix {self.options.prefix} in etcd: {error}"))

    def _step(self, now: int) -> None:
        self._bury(now)
        self._view.step(now)
        self._apply()
        self._look_at_leader(now)
        self._enter()
        self._tenure.step(now, is_stalled=self.is_stalled(now))
        self._campaign(now)
        self._bulk.step(now, self.applied_index, leads=self.is_leader)
        is_applied = self.applied_index == self._view.received
        self._writer.step(now, is_applied=is_applied, is_held=self._bulk.holds_back())
        self._step_reads(now)
        self._step_snapshots()

    def image(self) -> Iterator[bytes]:
        """A snapshot file of the state as it is now, without members: a group of its own starts on it."""
        return snapshot_chunks(self.applied_index, self.term, b"", self.machine.capture())

    # --- questions ---

    @property
    def is_leader(self) -> bool:
        """Does this node lead, as far as it knows?"""
        return self.leader == self.me.name

    @property
    def commit_index(self) -> int:
        """What was applied is in etcd."""
        return self.applied_index

    durable_index = commit_index

    @property
    def snapshot_index(self) -> int:
        """The last entry that the snapshot covers."""
        return self._view.mark.index if self._view.mark is not None else 0

    @property
    def needs_pass(self) -> bool:
        """Is there work that another pass would go on with at once?"""
        can_apply = bool(self._view.incoming) and not self._fetching
        return can_apply or (self.is_leader and self._snapshots.needs_pass)

    @property
    def is_idle(self) -> bool:
        """Nothing of this node is on its way."""
        return self._writer.is_idle and self._bulk.is_idle

    @property
    def lapses(self) -> int:
        """How often this node's lease was lost."""
        return self._tenure.lapses

    @property
    def problem(self) -> str:
        """Why etcd could not be asked the last time; empty if it could."""
        return self._desk.problem

    def is_stalled(self, now: int) -> bool:
        """Has the disk owed a flush for too long?"""
        return self.stalled_elsewhere(now) > limits.raft_disk_stall_us

    def lease_until(self, now: int) -> int:  # noqa: ARG002
        """Before this moment this node may act for the cluster."""
        return self._tenure.until()

    def lease_over(self, node: str, now: int, start: int | None = None) -> bool:  # noqa: ARG002
        """Is it certain that a node (or that start of it) holds no lease? Only the leader is asked."""
        if not self.is_leader or not self._view.is_current:
            return False
        member = self.config.find(node)
        if start is not None and member is not None and member.start > start:
            return True
        living = self._view.nodes.get(node)
        return node != self.me.name and (living is None or (start is not None and living.live.start > start))

    def answers(self, node: str, now: int) -> bool:  # noqa: ARG002
        """Does another node hold a lease?"""
        return self._view.is_current and node in self._view.nodes

    # --- told by the parts ---

    def note(self, text: str) -> None:
        """Tell the operator."""
        self.events.append(ev.Note(text))

    def on_absent(self, now: int) -> None:  # noqa: ARG002
        """There is no cluster under this prefix: found one, if this folder belongs to none."""
        prefix = self.options.prefix
        if self._cluster or self._is_found:
            self.events.append(
                ev.Unfit(
                    f"this data folder belongs to cluster {(self._cluster or self._view.cluster).hex()}, and"
                    f" prefix {prefix} in etcd holds none: is it the right prefix, and the right etcd?"
                )
            )
            return
        keys = self._keys
        first = mb.Configuration((mb.Member(self.me.name, self.me.identity, mb.VOTER),))
        puts = (
            api.Put(keys.cluster, self._rng.token(16)),
            api.Put(keys.head, encode(Head(1))),
            api.Put(keys.entry(1), _entry(first)),
        )
        self._desk.txn((api.Guard(keys.head, 0), api.Guard(keys.cluster, 0)), puts, lambda *_: None)

    def on_snapshot(self, mark: Mark, state: bytes) -> None:
        """The log does not reach back far enough: become what the snapshot says."""
        self.machine.restore(state)
        self.config = mb.decode_configuration(mark.configuration, mark.index)
        self.applied_index = mark.index
        self._bodies.clear()
        self._fetching = 0
        self.events.append(ev.Restored(mark.index))
        self._on_configured()

    def on_current(self, now: int) -> None:
        """All keys were read."""
        cluster = self._view.cluster
        if self._cluster and cluster != self._cluster:
            self.events.append(
                ev.Unfit(
                    f"this data folder belongs to cluster {self._cluster.hex()}, and prefix"
                    f" {self.options.prefix} in etcd holds cluster {cluster.hex()}: reset this node first"
                )
            )
        self._poll_at = now + limits.etcd_poll_us
        self._looked = None

    def on_node(self, name: str, living: Living | None, mod: int) -> None:
        """The key of a node was written or removed."""
        if name == self.me.name:
            self._tenure.on_key(living, mod)

    # --- entering ---

    def _enter(self) -> None:
        """Have this start recorded, once everything was applied."""
        if not self._view.is_current or self.applied_index != self._view.received or self._is_out:
            return
        if not self._is_found:
            self._is_found = True
            self.events.append(ev.Found(self._view.cluster))
        mine = self.config.find(self.me.name)
        if mine is not None and mine.token == self.me.tokens[-1]:
            self._tenure.is_wanted = True
        elif self.is_mute or self._is_registering:
            return
        elif mine is None and self._was_member:
            self._on_out()
        elif mine is not None and not is_accepted(
            (mine.identity, mine.token), self.me.identity, self.me.tokens
        ):
            self._is_out = True
            self.events.append(ev.FolderRefused(self.leader or "etcd"))
        else:
            self._is_registering = True
            self._writer.make(self._registration)

    def _registration(self) -> bytes | None:
        mine = self.config.find(self.me.name)
        role = mine.role if mine is not None else mb.VOTER
        if self._is_out or (mine is not None and mine.token == self.me.tokens[-1]):
            return None
        member = mb.Member(self.me.name, self.me.identity, role, self.me.start, self.me.tokens[-1])
        return _entry(self.config.put(member))

    def _on_configured(self) -> None:
        self.events.append(ev.Configured(self.config))
        mine = self.config.find(self.me.name)
        if mine is None and self._is_registered:
            self._on_out()

    def _on_out(self) -> None:
        """This node was removed."""
        self._is_out = True
        self._tenure.resign()
        self.events.append(ev.Removed(self.config.index))

    def _on_held(self) -> None:
        """There is a new lease: tell it to whoever may see our links end."""
        for peer in self._links:
            self._tell(peer)
        if not self._is_registered:
            # Not before: whoever leads takes a node without a key for dead.
            self._is_registered = True
            self.events.append(ev.Registered(self.me.tokens[-1]))

    def _tell(self, peer: str) -> None:
        if self._tenure.lease:
            self._links[peer].has_ours = True
            self.outgoing.append((peer, _TOLD + self._tenure.lease.to_bytes(8, "big")))

    def _bury(self, now: int) -> None:
        """Have the keys of processes removed that are gone, or have given up their leases."""
        for lease, until in list(self._to_bury.items()):
            del self._to_bury[lease]

            def done(then: int, answer: api.Answer, lease: int = lease, until: int = until) -> None:
                if isinstance(answer, api.Failed) and then < until:
                    self._to_bury[lease] = until

            if now < until:
                self._desk.revoke(lease, done)

    # --- leading ---

    def _look_at_leader(self, now: int) -> None:
        leading = self._view.leading
        leader, term = "", max(self.term, self._view.term)
        if leading is not None:
            is_older = leading.lead.name == self.me.name and leading.lease != self._tenure.lease
            leader, term = ("" if is_older else leading.lead.name), leading.lead.term
        if leader == self.me.name and self._tenure.is_expired(now):
            leader = ""  # it cannot prove itself any more
        if (leader, term) != (self.leader, self.term) and (leader or leader != self.leader):
            self.leader, self.term = leader, max(term, self.term)
            self.events.append(ev.LeaderChanged(self.term, leader))
            if not self.is_leader:
                self._snapshots.give_up()

    def _campaign(self, now: int) -> None:
        """Lead, if nobody does."""
        view, leading = self._view, self._view.leading
        is_mine = leading is not None and leading.lead.name == self.me.name
        is_free = leading is None or (is_mine and leading.lease != self._tenure.lease)
        if not view.is_current or not is_free or self._is_electing or now < self._elect_at:
            return
        if self._tenure.until() <= now or self.config.role_of(self.me.name) != mb.VOTER or self._is_out:
            return
        lead = Lead(self.me.name, self.me.start, view.term + 1)
        guards = (
            api.Guard(self._keys.leader, leading.mod if leading is not None else 0),
            api.Guard(self._keys.node(self.me.name), self._tenure.mod),
        )
        self._put_leader(lead, self._tenure.lease, guards)

    def _put_leader(self, lead: Lead, lease: int, guards: tuple[api.Guard, ...]) -> None:
        self._is_electing = True
        term = api.Guard(self._keys.term, self._view.term_mod)
        puts = (
            api.Put(self._keys.term, encode(Term(lead.term))),
            api.Put(self._keys.leader, encode(lead), lease),
        )

        def done(now: int, answer: api.Answer) -> None:
            self._is_electing = False
            # Whoever else was faster is told by the watch; until then there is no use in trying again.
            self._elect_at = now + limits.etcd_again_us
            if isinstance(answer, api.TxnDone) and answer.is_done:
                self._view.led(lead, answer.revision, lease)

        self._desk.txn((*guards, term), puts, done)

    # --- applying ---

    def _apply(self) -> None:
        incoming = self._view.incoming
        for _ in range(limits.raft_apply_slice_entries):
            if not incoming or self._fetching:
                return
            index, data = incoming[0]
            if bulk.is_reference(data):
                if index not in self._bodies:
                    self._fetch(index, data)
                    return
                data = self._bodies.pop(index)
            incoming.popleft()
            if entry_kinds.is_configuration(data):
                self.config = mb.decode_configuration(entry_kinds.encoded_configuration(data), index)
                self.applied_index = index
                self._on_configured()
            else:
                self.machine.apply(index, data)
                self.applied_index = index

    def _fetch(self, index: int, data: bytes) -> None:
        """Read the parts of a long command."""
        try:
            reference = bulk.decode_reference(data)
        except msgspec.DecodeError as error:
            raise BadValue(f"entry {index} refers to nothing that is known here ({error})") from error
        self._fetching = index
        body = bytearray()
        prefix = self._keys.bulk_parts(reference.number)
        count = 0

        def ask() -> None:
            get = api.Get(
                self._keys.part(prefix, count), self._keys.after(prefix), limits.etcd_parts_per_read
            )
            self._desk.txn((), (get,), done)

        def done(now: int, answer: api.Answer) -> None:
            nonlocal count
            if self._fetching != index:
                return
            found = answer.found[0] if isinstance(answer, api.TxnDone) else ()
            for kv in found:
                body.extend(kv.value)
                count += 1
            if found and count < reference.parts:
                ask()
                return
            self._fetching = 0
            if len(body) == reference.size and crc32c(body) == reference.crc:
                self._bodies[index] = bytes(body)
            else:
                # Removed, because a newer snapshot covers it, or etcd did not answer.
                self._view.rewind(self.applied_index)
                self._view.lose(now, f"the parts of entry {index} are not there")

        ask()

    # --- reading ---

    def _step_reads(self, now: int) -> None:
        for index, ref in self._ready:
            if index <= self.applied_index:
                self.events.append(ev.ReadReady(ref, index))
        self._ready = [one for one in self._ready if one[0] > self.applied_index]
        is_due = bool(self._reads) or now >= self._poll_at
        if self._reading is None and is_due and self._view.is_current:
            self._reading, self._reads = self._reads, []
            self._poll_at = now + limits.etcd_poll_us
            gets = [api.Get(self._keys.head)]
            if now >= self._look_at:
                gets.append(api.Get(self._keys.now, self._keys.after(self._keys.now)))
            self._desk.txn((), tuple(gets), self._on_head)

    def _on_head(self, now: int, answer: api.Answer) -> None:
        reading, self._reading = self._reading or [], None
        if not isinstance(answer, api.TxnDone) or not answer.found[0]:
            for ref in reading:
                self._refuse(ref, "etcd did not answer")
            self._poll_at = now + limits.etcd_again_us
            return
        head = decode(Head, answer.found[0][0].value).index
        self._ready += [(head, ref) for ref in reading]
        if len(answer.found) == 1:
            return
        self._look_at = now + limits.etcd_poll_us
        if self._looked is not None and self._view.is_current and self._view.is_behind(*self._looked):
            # It should have been told since the last look: a watch may be lost without a word.
            self._view.lose(now, "the watch does not tell what changed")
        self._looked = (answer.found[1], answer.revision) if self._view.is_current else None

    def _step_snapshots(self) -> None:
        if self.is_leader and self._view.is_current:
            if self._snapshots.is_due(self.applied_index):
                self._snapshots.begin(self.applied_index, mb.encode_configuration(self.config))
            self._snapshots.step()

    def _refuse(self, ref: object, reason: str) -> None:
        self.events.append(ev.Refused(ref, self.leader, reason))


def _entry(configuration: mb.Configuration) -> bytes:
    return entry_kinds.configuration_data(mb.encode_configuration(configuration))
