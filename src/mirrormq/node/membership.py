"""This node as a member of its cluster: how it finds it, enters it, and what it may do while it is in.

Guarantees
- A folder belongs to one cluster. It forms one only if it was told to be alone, or stands first in a list of
  which a majority has answered that it belongs to none either; otherwise it waits for one to join.
- It takes part in Raft only when the name of its cluster is on disk. A node that was let in and does not know
  that yet could otherwise be made a voter and elected, with no name to tell those who join, itself included.
- No link is opened before this start is on disk, and nothing is proposed, unless this node is the only voter
  and has read every command there is: the number of a start is used once.
- Clients are let in after the metadata holds everything committed before this start was recorded, and sent
  away, or treated otherwise (`partition`), without a lease for `limits.pause_grace_us`, until there is one.

Phases: SEEKING (a cluster) -> WAITING (for a leader to record this start) -> ENTERING -> READY <-> PAUSED.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.cluster import identity as idn
from mirrormq.cluster.etcd.agreement import EtcdAgreement
from mirrormq.cluster.identity import Identity
from mirrormq.cluster.metadata import BadEnvelope, Metadata
from mirrormq.cluster.raft import events as ev
from mirrormq.cluster.raft import membership as mb
from mirrormq.cluster.raft import messages as ms
from mirrormq.cluster.raft.membership import Change
from mirrormq.cluster.raft.raft import Myself, Options, Raft
from mirrormq.log.disk import Disk
from mirrormq.meta.commands import Command, HaDefaults, NodeRestarted, NodeReturned
from mirrormq.meta.records import Node as NodeRecord
from mirrormq.meta.state import MetaState, Outcome
from mirrormq.node import memberframes as mf
from mirrormq.node.council import FOREIGN, Council
from mirrormq.node.memberframes import Answer, Ask, Belong, Join
from mirrormq.node.memberport import ClusterOptions, Inside, MembershipEffects, Started
from mirrormq.node.partition import Partition
from mirrormq.node.peerframes import BULK, BadFrame

if TYPE_CHECKING:
    from mirrormq.cluster.metadata import MetaMachine

SEEKING, WAITING, ENTERING, READY, PAUSED = "seeking", "waiting", "entering", "ready", "paused"

FEATURE_LEVEL = 1
"""The highest feature level this version knows."""

NEVER = 1 << 62
_SMALL = limits.peer_chunk_bytes - 16
"""What is longer travels on the bulk lane."""


class Membership:
    """Metadata, identity and phase of this node."""

    metadata: Metadata
    identity: Identity
    is_over = False
    metadata_class: type[Metadata] = Metadata
    """Tests put a class there that breaks a rule, to see that somebody notices."""

    def __init__(
        self, node: Inside, effects: MembershipEffects, next_token: Callable[[], int], options: ClusterOptions
    ) -> None:
        self._node, self._effects, self._next_token = node, effects, next_token
        self.options = options
        self.name = node.node_name
        self.phase = SEEKING
        self.is_due = False
        """Something happened that the end of the pass has to go on with."""
        self.links: dict[str, bytes] = {}
        """The cluster of each node there is a link to; zeros if it belongs to none."""
        self.council = Council(self)
        self.partition = Partition(self, node)
        self._first: Callable[[], list[Command]] = list
        self._identity_token = 0
        self._dialled: set[str] = set()
        self._told_members = ""
        self._is_introduced = self._is_joining = self._is_forming = self._is_leaving = False
        self._answered: tuple[str, ...] = ()
        """Addresses that came with the permission to join."""
        self._lease_seen = 0
        """When this node last had a lease."""
        self._held_until = 0
        """Until when the lease ran when that was looked at last."""
        self._lapses = 0
        """Counts the times it was found to have run out."""
        self._is_lapsed = False
        """It has, and what was agreed on since may not be applied here."""
        self._returning = -1
        """For which of these times the return is on its way."""

    # --- questions ------------------------------------------------------------------------------

    @property
    def now(self) -> Now:
        """The time of the input being served."""
        return self._node.now

    @property
    def state(self) -> MetaState:
        """The metadata."""
        return self._node.state

    @property
    def cluster_name(self) -> str:
        """What this node would call the cluster if nobody has given it a name."""
        return self._node.cluster_name

    @property
    def takes_clients(self) -> bool:
        """Are clients let in? Not while no majority is heard, and not in maintenance."""
        record = self.state.nodes.get(self.name)
        return self.phase == READY and not (record is not None and record.is_drained)

    @property
    def ha_defaults(self) -> HaDefaults:
        """What applies to mirrored queues where their policies say nothing."""
        return self._node.settings.ha_defaults

    @property
    def raft(self) -> Raft | EtcdAgreement:
        """What the nodes agree by: the embedded Raft, or etcd in its place (`etcdmember.py`)."""
        return self.metadata.raft

    @property
    def _embedded(self) -> Raft:
        """The embedded Raft, where nothing else is possible."""
        assert isinstance(self.metadata.raft, Raft)
        return self.metadata.raft

    @property
    def is_member(self) -> bool:
        """Does this folder belong to a cluster?"""
        return bool(self.identity.cluster)

    @property
    def is_alone(self) -> bool:
        """Is there no other member?"""
        return self.raft.config.names == (self.name,)

    @property
    def _has_company(self) -> bool:
        """Are there others, or what they left behind?"""
        return not self.is_alone or len(self.state.nodes) > 1

    @property
    def index(self) -> int:
        """Index of the last metadata command applied here, durable or not."""
        return max(self.metadata.machine.index, self.raft.applied_index)

    @property
    def durable(self) -> int:
        """Every metadata command up to this index survives."""
        return self.metadata.durable

    @property
    def confirmable(self) -> int:
        """The same, for confirms that wait for a declaration."""
        return self.metadata.durable

    @property
    def is_idle(self) -> bool:
        """Nothing of this node is on its way."""
        return self.metadata.is_idle and self._embedded.storage.is_idle

    def has_lease(self) -> bool:
        """May this node act for the cluster now?

        Not by the lease alone: whoever was without one may have been called dead, and its queues have other
        masters. So it first has a return recorded: when that is applied, so is all that came before.
        """
        return not self._is_lapsed and self.holds_lease()

    def holds_lease(self) -> bool:
        """Is there a lease, whether or not this node has returned to what was agreed on without it?"""
        return self.raft.lease_until(self.now.mono) > self.now.mono

    def waits_for(self) -> str:
        """Why clients are not served, for people; empty if they are."""
        heard = ", ".join(sorted(self.links)) or "nobody"
        if self.phase == READY:
            return ""
        if self.phase == PAUSED:
            return f"paused: {self.why_paused()}; linked with {heard}"
        if self.phase != SEEKING:
            return f"waiting for a majority of the cluster; linked with {heard}"
        if self.options.join is not None:
            return f"waiting for {self.options.join.name} to be let into its cluster; linked with {heard}"
        first = self.options.nodes[0].name if self.options.nodes else self.name
        return f"waiting for a cluster, which {first} forms when a majority is there; linked with {heard}"

    # --- start ----------------------------------------------------------------------------------

    def start(
        self, now: Now, disk: Disk, first: Callable[[], list[Command]], raft_class: type[Raft] = Raft
    ) -> Started:
        """Read identity and metadata. `first` makes the commands a new cluster begins with."""
        self._first = first
        identity = idn.new_identity(self._node.rng)
        if idn.FILE in disk.list(idn.FILE):
            identity = idn.decode_identity(disk.read(idn.FILE))
        if self.options.is_forced:
            identity = idn.forced(identity, self._node.rng)
        self.identity = identity = idn.begin_start(identity, self._node.rng)
        self.metadata = self.metadata_class(
            self.state, (self.name, identity.start), self._maker(raft_class), self._carry_proposals
        )
        self.metadata.on_event = self._on_event
        self.raft.stalled_elsewhere = self._node.journal.stalled_us
        self.metadata.is_held = True
        started = self._start_agreement(now, disk)
        self.raft.is_mute = not self.is_member
        self._save_identity()
        if self.raft.is_leader:
            self._enter_alone()
        elif self.is_member:
            self.phase = WAITING
        self.is_due = True
        return started

    def _maker(self, raft_class: type[Raft], /) -> Callable[["MetaMachine"], Raft | EtcdAgreement]:
        options = Options(death_certificate=self.options.death_certificate)
        outbox, rng, token = self._effects, self._node.rng, self._next_token
        return lambda machine: raft_class(
            self._myself(), machine, outbox, rng, next_token=token, options=options
        )

    def _myself(self) -> Myself:
        identity = self.identity
        return Myself(self.name, identity.identity, identity.start, identity.tokens)

    def _start_agreement(self, now: Now, disk: Disk) -> Started:
        raft, identity = self._embedded, self.identity
        is_own = not self.options.nodes and self.options.join is None and not identity.cluster
        forms = identity.is_founding or is_own
        found = raft.start(now.mono, disk, may_form=forms, force_sole=self.options.is_forced)
        if raft.is_leader:
            # A full disk must not keep a node from serving what it has: it need not wait for its identity.
            if not identity.cluster:
                identity = idn.belong(identity, self._node.rng.token(16), is_founding=True)
            self.identity = replace(identity, start=self.metadata.begin_alone())
        return Started(raft.is_fresh, found.mark.index, len(found.entries), found.torn_bytes)

    def _enter_alone(self) -> None:
        """The only voter knows all there is; clients come in when its first commands are in force."""
        self.phase = ENTERING
        # Not only at the first start: that one may have died before they were on disk.
        first = self._first() if next(self.state.records(), None) is None else []
        self._node.enter()
        for command in first:
            self.propose(command, _ignore, True)
        self.propose(self._restarted(), self._open, False)

    def _open(self, _: Outcome) -> None:
        self.phase = READY
        self._lease_seen = self.now.mono
        self._effects.doors(is_open=self.takes_clients)

    def _restarted(self) -> NodeRestarted:
        return NodeRestarted(
            self.name, self.is_alone, self.identity.start, self.options.address, FEATURE_LEVEL
        )

    def _save_identity(self) -> None:
        self._identity_token = self._next_token()
        self._effects.replace(idn.FILE, idn.encode_identity(self.identity), self._identity_token)

    # --- inputs ---------------------------------------------------------------------------------

    def propose(self, command: Command, done: Callable[[Outcome], None], wait: bool) -> None:
        """Change the metadata."""
        self.is_due = True
        self.metadata.propose(command, done, wait)

    def change(self, change: Change) -> str:
        """Change the configuration by one step; why not, if it is known at once."""
        self.is_due = True
        if self.raft.config.index > self.raft.commit_index:
            return "another change is under way"
        self.raft.change(self.now.mono, change, change)
        return ""

    def link_change(self, peer: str, is_up: bool, cluster: bytes, *, eof: bool) -> None:
        """A link came up or went down."""
        self.is_due = True
        now = self.now.mono
        if peer in self.links:
            del self.links[peer]
            self.raft.link_down(now, peer, eof=eof)
            self._held_until = self.raft.lease_until(now)  # it may have been given up with the link
        if is_up:
            self.links[peer] = cluster
            self.raft.link_up(now, peer)
            self.metadata.link_up(peer)
            self._seek()

    def frame(self, peer: str, payload: bytes | memoryview) -> None:
        """A frame of one of the families that are served here."""
        self.is_due = True
        family = payload[0] if len(payload) else 0
        try:
            if family == mf.RAFT:
                self._receive(peer, bytes(payload[1:]))
            elif family == mf.PROPOSALS:
                self.metadata.receive(bytes(payload[1:]))
            elif family == mf.MEMBERSHIP:
                self._on_member_frame(peer, mf.decode(payload))
            else:
                raise BadFrame(f"there is no family {family:#x}")
        except (BadFrame, BadEnvelope) as error:
            self._node.note(
                "error", f"node '{peer}' sent a bad frame: {error}", peer=peer, event="link.bad_frame"
            )
            self._effects.cut(peer, str(error))

    def _receive(self, peer: str, message: bytes) -> None:
        """Only a message renews a lease: if it had run out before, that is seen here or never."""
        now = self.now.mono
        if now >= self._held_until:
            self._lapses += 1
            self._is_lapsed = True
        self.raft.receive(now, peer, message)
        self._held_until = self.raft.lease_until(now)

    def disk_done(self, token: int) -> bool:
        """The disk has done what `token` stands for; False if it is none of these."""
        if token == self._identity_token:
            self._identity_token = 0
            self._on_identity_durable()
        elif not self._embedded.disk_done(self.now.mono, token):
            return False
        self.is_due = True
        return True

    def disk_read(self, token: int, data: bytes | None, error: str | None) -> None:
        """A part of the snapshot was read."""
        self.is_due = True
        if data is None:
            self._effects.stop(f"the metadata cannot be read: {error}")
        else:
            self._embedded.disk_read(token, data)

    def on_timer(self) -> None:
        """Time has passed."""
        now = self.now.mono
        if now >= self.timer_at:
            self.is_due = True
            self.raft.on_timer(now)
            self.council.look(now)
            if self.raft.is_leader and self.phase in (READY, PAUSED) and self._has_company:
                self.council.lead(now)

    @property
    def timer_at(self) -> int:
        """When `on_timer` is needed next."""
        at = self.council.timer_at
        if self.links or self._has_company:
            at = min(at, self.raft.timer_at)
            if self.phase == READY and not self.partition.is_cut:
                at = min(at, self._lapse_at())
        return at

    # --- the pass -------------------------------------------------------------------------------

    @property
    def needs_pass(self) -> bool:
        """Is there work that another pass would go on with at once?"""
        return self.is_due or self.metadata.needs_pass or self.partition.has_more

    def end_pass(self) -> None:
        """Apply what is agreed on, and send what is to be sent."""
        self.partition.step()
        if not self.is_due and not self.metadata.needs_pass:
            return
        self.is_due = False
        self.metadata.end_pass(self.now.mono)
        outgoing, self.raft.outgoing = self.raft.outgoing, []
        for peer, frame in outgoing:
            lane = BULK if ms.is_bulk(frame) else mf.CONTROL
            self._effects.send(peer, lane, bytes((mf.RAFT,)) + frame)
        self._look_at_lease(self.now.mono)

    def send(self, peer: str, payload: bytes) -> None:
        """Send a frame of the membership."""
        self._effects.send(peer, mf.CONTROL, payload)

    def _carry_proposals(self, leader: str, payload: bytes) -> None:
        lane = mf.CONTROL if len(payload) <= _SMALL else BULK
        self._effects.send(leader, lane, bytes((mf.PROPOSALS,)) + payload)

    # --- events ---------------------------------------------------------------------------------

    def _on_event(self, event: ev.Event) -> None:
        if isinstance(event, ev.Note):
            self._node.note("warning", event.text, event="cluster.metadata_trouble")
        elif isinstance(event, ev.LeaderChanged) and not self.is_alone:
            self._node.note(
                "info",
                "leader changed",
                term=event.term,
                leader=event.leader or "none",
                event="cluster.leader_changed",
            )
        elif isinstance(event, ev.Configured):
            self._on_configured(event.configuration)
        elif isinstance(event, ev.Registered):
            self._on_registered(event.token)
        elif isinstance(event, ev.Removed):
            self._on_removed()
        elif isinstance(event, ev.FolderRefused):
            self._effects.stop(f"node {event.leader} refuses this node: {FOREIGN}")

    def _on_configured(self, configuration: mb.Configuration) -> None:
        members = ", ".join(f"{member.name} ({member.role})" for member in configuration.members)
        if len(configuration.members) > 1 and members != self._told_members:
            self._told_members = members
            self._node.note("info", "cluster changed", members=members, event="cluster.changed")

    def _on_removed(self) -> None:
        if self._is_leaving:
            self.council.on_left()
        else:
            self._effects.stop(f"node {self.name} was removed from the cluster: reset it")

    def prepare_to_leave(self) -> None:
        """Serve nobody any more: this node is about to ask to be removed."""
        self._is_leaving = True
        self._effects.doors(is_open=False)
        self._node.send_away("this node leaves the cluster")

    def stay(self) -> None:
        """It was not removed after all."""
        self._is_leaving = False
        if self.takes_clients:
            self._effects.doors(is_open=True)

    def _on_registered(self, token: bytes) -> None:
        self.identity = idn.on_recorded(self.identity, token)
        self._save_identity()
        if self.phase == WAITING:
            self._enter()

    def _enter(self) -> None:
        self.phase = ENTERING
        lapses = self._lapses
        self.propose(self._restarted(), lambda outcome: self._on_entered(outcome, lapses), True)

    def _on_entered(self, outcome: Outcome, lapses: int) -> None:
        """Everything that was committed before this start was recorded is applied."""
        self._is_lapsed = lapses != self._lapses
        self._answered = ()
        self._node.enter()
        self._dial_known()
        self._open(outcome)

    def follow(self, record: NodeRecord) -> None:
        """The metadata says something new about a node."""
        if record.name != self.name and self._is_introduced:
            self._dial_known()

    # --- finding a cluster ----------------------------------------------------------------------

    def _on_identity_durable(self) -> None:
        self.metadata.is_held = False
        me = self.identity
        self._effects.introduce(me.identity, me.start, me.cluster)
        self._is_introduced = True
        self._dial_known()
        if self.phase == SEEKING and self.is_member:
            self._go_on_as_member()
        else:
            self._seek()

    def _go_on_as_member(self) -> None:
        """The folder belongs to a cluster now, and that is on disk."""
        for peer in sorted(self.links):
            self.send(peer, mf.encode(Belong(self.identity.cluster)))
        self.raft.speak_up()
        if self._is_forming:
            self._is_forming = False
            self._node.note(
                "info", "cluster formed", cluster=self.identity.cluster.hex(), event="cluster.formed"
            )
            self._embedded.form(self.now.mono)
            self._enter_alone()
        else:
            self.phase = WAITING

    def _dial_known(self) -> None:
        wanted = {contact.address for contact in self.options.nodes if contact.name != self.name}
        wanted.update(self._answered)
        if self.phase in (SEEKING, WAITING):
            wanted.update(self.options.known)
        if self.options.join is not None:
            wanted.add(self.options.join.address)
        for node in self.state.nodes.values():
            if node.name != self.name and node.address:
                wanted.add(node.address)
        wanted.discard(self.options.address)
        for address in sorted(wanted - self._dialled):
            self._effects.dial(address)
        for address in sorted(self._dialled - wanted):
            self._effects.undial(address)
        self._dialled = wanted

    def _seek(self) -> None:
        """Join whoever belongs to a cluster; form one if it is this node's turn."""
        if self.phase != SEEKING or self.is_member or not self._is_introduced or self._identity_token:
            return
        if any(any(cluster) for cluster in self.links.values()):
            if not self._is_joining:
                self._is_joining = True
                wish = Join(self.name, self.identity.identity, self.options.address, FEATURE_LEVEL)
                self.council.wish(wish, self._on_joined, is_patient=True)
            return
        listed = [contact.name for contact in self.options.nodes]
        if not listed or listed[0] != self.name:
            return
        fresh = [name for name in listed if name == self.name or name in self.links]
        if len(fresh) >= mb.quorum(len(listed)):
            self._is_forming = True
            self._belong(self._node.rng.token(16), is_founding=True)

    def _belong(self, cluster: bytes, *, is_founding: bool = False) -> None:
        self.identity = idn.belong(self.identity, cluster, is_founding=is_founding)
        self._save_identity()

    def _on_joined(self, answer: Answer) -> None:
        if answer.problem:
            self._node.note("critical", answer.problem, event="cluster.join_refused")
            self._effects.stop(answer.problem)
            return
        self._node.note("info", "joined", cluster=answer.cluster.hex(), event="cluster.joined")
        self._answered = answer.addresses
        self._belong(answer.cluster)

    def _on_member_frame(self, peer: str, frame: mf.Frame) -> None:
        if isinstance(frame, Ask):
            self.council.on_ask(peer, frame)
        elif isinstance(frame, Answer):
            self.council.on_answer(frame)
        elif peer in self.links:
            self.links[peer] = frame.cluster
            self._seek()

    # --- the lease ------------------------------------------------------------------------------

    def _lapse_at(self) -> int:
        """When clients are sent away if no lease comes."""
        return max(self.raft.lease_until(self.now.mono), self._lease_seen) + limits.pause_grace_us

    def _look_at_lease(self, now: int) -> None:
        if self.holds_lease():
            self._lease_seen = now
            if self.phase == PAUSED or (
                self.phase == READY and self._is_lapsed and self._returning != self._lapses
            ):
                self._return()
        elif self.phase in (READY, PAUSED) and (self.partition.is_cut or now >= self._lapse_at()):
            self.partition.cut_off()

    def pause(self) -> None:
        """Let no clients in until the lease is back."""
        self.phase = PAUSED
        self._effects.doors(is_open=False)

    def unpause(self) -> None:
        """Let clients in although there is no lease: what this node does then is another matter."""
        self.phase = READY
        self._effects.doors(is_open=self.takes_clients)

    def why_paused(self) -> str:
        """Why there is no lease, for people."""
        is_stalled = self.raft.is_stalled(self.now.mono)
        return "its disk does not answer" if is_stalled else "a majority of the cluster is out of reach"

    def _return(self) -> None:
        lapses = self._returning = self._lapses
        is_paused, self.phase = self.phase == PAUSED, ENTERING if self.phase == PAUSED else self.phase

        def done(outcome: Outcome) -> None:
            """Everything that was agreed on without this node is applied."""
            if lapses != self._lapses:
                self.phase = PAUSED if is_paused else self.phase  # its lease ran out again: it returns anew
                return
            self._is_lapsed = False
            self.partition.healed()
            if is_paused:
                self._node.note("info", "resumed: the cluster is in reach again", event="node.resumed")
                self._open(outcome)

        self.propose(NodeReturned(self.name, self.identity.start), done, True)


def _ignore(_: Outcome) -> None:
    """Nobody waits for it."""
