"""One node of a group that agrees on a log of commands (docs/protocol/raft.md).

Guarantee: a command that was reported as applied, and durable, is applied at the same index on every node
and is never lost while a majority of the voters' disks is intact; commands are applied in one order.

Inputs are methods with `now` (microseconds of a clock that never goes back and counts suspended time).
Effects: disk effects go to the outbox at once, frames are in `outgoing`, events in `events`; whoever drives
this takes them after `end_pass`. No frame leaves before the term and the vote it was sent under are durable.

Roles are objects (`follower`, `candidate`, `leader`); this file holds what outlives a role: term, vote, log,
configuration, links, commit and apply.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count as count_from

from msgspec import Struct

from mirrormq.base import limits
from mirrormq.base.rng import Rng
from mirrormq.cluster.identity import is_accepted
from mirrormq.cluster.raft import entries as entry_kinds
from mirrormq.cluster.raft import events as ev
from mirrormq.cluster.raft import messages as ms
from mirrormq.cluster.raft import voting
from mirrormq.cluster.raft.candidate import Candidate
from mirrormq.cluster.raft.compaction import Compaction
from mirrormq.cluster.raft.configs import Configurations
from mirrormq.cluster.raft.entries import Entry
from mirrormq.cluster.raft.follower import Follower
from mirrormq.cluster.raft.layout import snapshot_chunks
from mirrormq.cluster.raft.leader import Leader
from mirrormq.cluster.raft.lease import NEVER, Holder, Vouching, usable_us
from mirrormq.cluster.raft.log import RaftLog
from mirrormq.cluster.raft.machine import Machine
from mirrormq.cluster.raft.membership import NON_VOTER, VOTER, WITNESS, Change, Configuration, Member
from mirrormq.cluster.raft.reads import ForwardedReads
from mirrormq.cluster.raft.recovery import Recovery
from mirrormq.cluster.raft.storage import Storage
from mirrormq.log.disk import Disk, DiskOutbox

FROM_LEADER = (ms.Append, ms.Heartbeat, ms.SnapshotPart)


class Myself(Struct, frozen=True):
    """This node: its name, its data folder, and the starts it can prove, this one last."""

    name: str
    identity: bytes
    start: int
    tokens: tuple[bytes, ...]


class Options(Struct, frozen=True):
    """What an installation may choose."""

    death_certificate: bool = True
    """A link that ends says that the other side is dead, or has given up what depends on the link."""
    log_bytes_max: int = limits.meta_log_bytes_max


class Link(Struct):
    """An open link to a peer."""

    hello: ms.Hello | None = None
    refused: bool = False
    """It was noted that this peer is refused."""
    told_at: int = NEVER
    """When this node, leading, has last told the peer that it is no member."""


class Raft:
    """The inputs, and what all roles share. Tests replace parts to see what a rule is good for."""

    follower_class: type[Follower] = Follower
    leader_class: type[Leader] = Leader
    storage_class: type[Storage] = Storage
    compaction_class: type[Compaction] = Compaction

    def __init__(
        self,
        me: Myself,
        machine: Machine,
        outbox: DiskOutbox,
        rng: Rng,
        *,
        next_token: Callable[[], int] | None = None,
        options: Options | None = None,
    ) -> None:
        """Nothing is read or written before `start`. `next_token` numbers effects of the shared outbox."""
        self.me = me
        self.machine = machine
        self.rng = rng
        self.options = options or Options()
        self.storage = self.storage_class(outbox, next_token or count_from(1).__next__)
        self.log = RaftLog()
        self.configs = Configurations()
        self.compaction = self.compaction_class(self)
        self.term = 0
        self.vote = ""
        self.voted_at = NEVER
        """When this node, since its start, last voted for another one."""
        self.commit_index = 0
        self.applied_index = 0
        self.leader = ""
        self.splits = 0
        """Elections since there was a leader in which this node and another stood at once."""
        self.stalled_elsewhere: Callable[[int], int] = lambda _: 0
        """For how long the disk has owed a flush of something else that leases are about."""
        self.heard_at = 0
        """When this node last heard from the leader it follows."""
        self.links: dict[str, Link] = {}
        self.is_mute = False
        """It says hello to nobody, and so is sent nothing and counted on by nobody, until `speak_up`."""
        self.forwarded = ForwardedReads(me.start)
        self.holder = Holder()
        self.vouching = Vouching(0)
        self.role: Follower | Candidate | Leader = self.follower_class(self, 0)
        self.events: list[ev.Event] = []
        self.outgoing: list[tuple[str, bytes]] = []
        self._gated: deque[tuple[str, Link, bytes]] = deque()
        self._is_touched = True
        """There was an input since the last pass: most passes of a node's loop have none for Raft."""
        self._is_registered = False
        self.is_fresh = True
        """The folder held nothing when it was opened."""
        self._removed_at = 0
        """The last index at which a configuration without this node is known to be committed."""
        self._refused_by = ""

    # --- start ---

    def start(self, now: int, disk: Disk, *, may_form: bool = False, force_sole: bool = False) -> Recovery:
        """Read the folder; raises `RaftDamaged` or `RaftTooNew`.

        `may_form`: a node without entries becomes a group of its own; others wait for a leader. The
        folder of a node that was never part of a group, or that was restored from a backup, is a group with
        one voter.

        `force_sole`: an operator gives up all other members. What they have and this folder has not is lost,
        and what was never committed may become true. The folder must have been given a new identity before
        (`identity.forced`), so that others who are alive after all do not take this node for a member.
        """
        found = self.storage.recover(now, disk)
        self.term, self.vote = found.term, found.vote
        self.log.reset(found.mark.index, found.mark.term)
        self.log.append(found.entries)
        self.commit_index = self.applied_index = found.mark.index
        if found.snapshot is not None:
            self.machine.restore(found.snapshot.state)
        self.configs.load(found.snapshot, found.entries)
        is_single = found.mark.format == 1 or any(file.format == 1 for file in found.files)
        is_copy = found.snapshot is not None and not found.snapshot.configuration
        is_fresh = not found.entries and found.snapshot is None and not found.term
        self.is_fresh = is_fresh and not is_single
        # Whoever forms a group may have died when its vote was on disk, and nothing else.
        is_empty = not found.entries and found.snapshot is None
        is_alone = not self.configs.latest.members and (is_single or is_copy or (may_form and is_empty))
        if is_alone or force_sole or self._is_renamed():
            self.configs.latest_is(Configuration((self.member_me(VOTER),)))
        # The first start there ever was has no earlier life that could have promised anything.
        self.vouching = Vouching(now if self.me.start > 1 else NEVER)
        self.role = self.follower_class(self, now)
        if self.config.voters == (self.me.name,):
            self.become_leader(now, self.term + 1)
            while self.applied_index < self.log.last_index:
                self._apply()
        return found

    def _is_renamed(self) -> bool:
        """Was this folder the only member, under another name? Nobody else knows it by that."""
        members = self.config.members
        return (
            len(members) == 1 and members[0].identity == self.me.identity and members[0].name != self.me.name
        )

    def form(self, now: int) -> None:
        """Become a group of its own: for a fresh node that nobody has found yet."""
        assert not self.config.members, self.config
        self.configs.latest_is(Configuration((self.member_me(VOTER),)))
        self.become_leader(now, self.term + 1)

    # --- inputs ---

    def on_timer(self, now: int) -> None:
        """Time has passed; call it at `timer_at` at the latest."""
        self._is_touched = True
        self.role.on_timer(now)

    def receive(self, now: int, peer: str, frame: bytes) -> None:
        """A frame from a peer, over the link that is open."""
        self._is_touched = True
        link = self.links.get(peer)
        if link is None:
            return
        try:
            message = ms.decode(frame)
        except ms.BadMessage as error:
            self.note(f"a message of {peer} cannot be read: {error}")
            return
        if isinstance(message, ms.Hello):
            link.hello, link.refused = message, False
            if self.accepts(peer):
                self.role.on_hello(now, peer)
        elif link.hello is not None and self._may_say(peer, link.hello, message):
            self._dispatch(now, peer, message)

    def link_up(self, now: int, peer: str) -> None:
        """A link to a peer is open; it says hello first."""
        self._is_touched = True
        assert peer not in self.links, peer
        self.links[peer] = Link()
        if not self.is_mute:
            self._say_hello(peer)
        self.role.on_link(now, peer)

    def speak_up(self) -> None:
        """Take part from now on: whoever is linked hears the hello that was withheld."""
        self._is_touched = True
        if self.is_mute:
            self.is_mute = False
            for peer in self.links:
                self._say_hello(peer)

    def link_down(self, now: int, peer: str, *, eof: bool) -> None:
        """A link is gone. `eof`: the other side ended it. Told *before* the socket is closed by this side."""
        self._is_touched = True
        if self.links.pop(peer, None) is None:
            return
        is_certificate = eof and self.options.death_certificate
        if peer == self.holder.source or not eof:
            # Whoever closes a link gives up its lease first: the other side may take the end as a proof.
            self.holder.drop()
        if is_certificate:
            self.vouching.on_eof(peer)
        self.role.on_link_down(now, peer, is_certificate)

    def disk_done(self, now: int, token: int) -> bool:
        """The disk has done what `token` stands for. False if it is none of ours."""
        if not self.storage.done(now, token) and not self.compaction.done(now, token):
            return False
        self._is_touched = True
        self.role.on_durable(now)
        return True

    def disk_read(self, token: int, data: bytes) -> bool:
        """The disk has read what `token` stands for. False if it is none of ours."""
        is_ours = isinstance(self.role, Leader) and self.role.on_read(token, data)
        self._is_touched = self._is_touched or is_ours
        return is_ours

    def propose(self, command: bytes, ref: object) -> None:
        """Have a command applied everywhere; `ref` is told what became of it."""
        self._is_touched = True
        assert not entry_kinds.is_reserved(command)
        if isinstance(self.role, Leader):
            self.role.propose(command, ref)
        else:
            self.refuse(ref, "not the leader")

    def read(self, ref: object) -> None:
        """Be told when the state here contains all that was acknowledged anywhere before this call."""
        self._is_touched = True
        if isinstance(self.role, Candidate):
            self.refuse(ref, "there is no leader")
        else:
            self.role.read(ref)

    def change(self, now: int, change: Change, ref: object) -> None:
        """Change the membership by one step."""
        self._is_touched = True
        if isinstance(self.role, Leader):
            self.role.change(now, change, ref)
        else:
            self.refuse(ref, "not the leader")

    def transfer(self, now: int, target: str) -> bool:
        """Hand the leadership to a voter that has caught up, if it can be done within an election timeout."""
        self._is_touched = True
        return isinstance(self.role, Leader) and self.role.transfer(now, target)

    def end_pass(self, now: int) -> None:
        """Append, flush, send and apply what the inputs of this pass have caused."""
        if not self._is_touched and not self.needs_pass:
            return
        self._is_touched = False
        self.role.end_pass(now)
        self.storage.end_pass(now)
        self._apply()
        self.role.after_apply(now)
        self.compaction.step()
        self.release()

    def image(self) -> Iterator[bytes]:
        """A snapshot file of the state as it is now, without members: a group of its own starts on it."""
        term = self.log.term_at(self.applied_index)
        assert term is not None
        return snapshot_chunks(self.applied_index, term, b"", self.machine.capture())

    # --- questions ---

    @property
    def config(self) -> Configuration:
        """The configuration that counts: the last one in the log."""
        return self.configs.latest

    @property
    def is_leader(self) -> bool:
        """Does this node lead, as far as it knows?"""
        return isinstance(self.role, Leader)

    @property
    def is_removed(self) -> bool:
        """Has the group removed this node, and not added it again?"""
        is_back = self.config.index > self._removed_at and self.config.find(self.me.name) is not None
        return bool(self._removed_at) and not is_back

    @property
    def durable_index(self) -> int:
        """Everything applied up to here survives any crash. Behind `applied_index` with one voter only."""
        return self.commit_index

    @property
    def timer_at(self) -> int:
        """When `on_timer` is to be called next."""
        return self.role.timer_at

    @property
    def needs_pass(self) -> bool:
        """Is there work that another pass would go on with at once?"""
        return self.applied_index < self.apply_limit or self.compaction.needs_pass

    def lease_until(self, now: int) -> int:
        """Before this moment this node may act for the cluster."""
        if isinstance(self.role, Leader):
            return self.role.proven_at(now) + usable_us()
        return self.holder.until

    def lease_over(self, node: str, now: int, start: int | None = None) -> bool:
        """Is it certain that a node (or that start of it) holds no lease? Only the leader can say so."""
        return isinstance(self.role, Leader) and self.role.lease_over(node, now, start)

    def answers(self, node: str, now: int) -> bool:
        """Has this node, which leads, been answered by another lately?"""
        return isinstance(self.role, Leader) and self.role.answers(now, node)

    # --- for the roles ---

    def send(self, peer: str, message: ms.Message) -> None:
        """Send, once term and vote are durable; dropped if there is no link."""
        self.send_frame(peer, ms.encode(message))

    def send_frame(self, peer: str, frame: bytes) -> None:
        """The same for a message that is encoded already."""
        link = self.links.get(peer)
        if link is not None and len(self._gated) < limits.raft_gated_max:
            self._gated.append((peer, link, frame))

    def note(self, text: str) -> None:
        """Tell the operator."""
        self.events.append(ev.Note(text))

    def refuse(self, ref: object, reason: str) -> None:
        """Nothing is done for `ref`."""
        self.events.append(ev.Refused(ref, self.leader, reason))

    def member_me(self, role: str) -> Member:
        """This node as a member, with this start."""
        return Member(self.me.name, self.me.identity, role, self.me.start, self.me.tokens[-1])

    def accepts(self, peer: str) -> bool:
        """Is the other end of the link the member of that name, on a disk no older than we remember?"""
        link = self.links.get(peer)
        if link is None or link.hello is None:
            return False
        member = self.config.find(peer)
        if member is None:
            return True
        hello = link.hello
        if is_accepted((member.identity, member.token), hello.identity, hello.tokens):
            return True
        if not link.refused:
            link.refused = True
            self.note(
                f"{peer} is refused: its data folder is new or older than this node remembers;"
                " forget_cluster_node, then join"
            )
        return False

    def set_vote(self, now: int, term: int, vote: str) -> None:
        """Remember term and vote."""
        if (term, vote) != (self.term, self.vote):
            assert term >= self.term, (term, self.term)
            assert term > self.term or not self.vote, (term, self.vote, vote)
            self.term, self.vote = term, vote
            self.storage.save_vote(now, term, vote)

    def set_leader(self, leader: str) -> None:
        """Remember who leads in this term."""
        if leader != self.leader:
            self.leader = leader
            self.splits = 0 if leader else self.splits
            self.events.append(ev.LeaderChanged(self.term, leader))

    def become_follower(self, now: int, term: int, leader: str = "") -> None:
        """Follow whoever leads in `term`."""
        self.role.step_down()
        if isinstance(self.role, Leader):
            self.holder.drop()
        if term > self.term:
            self.set_vote(now, term, "")
            self.leader = ""
        self.role = self.follower_class(self, now)
        self.set_leader(leader)

    def campaign(self, now: int, *, is_pre: bool, is_transfer: bool = False) -> None:
        """Ask for votes, or whether they would be given."""
        self.role.step_down()
        self.set_leader("")
        self.role = Candidate(self, now, is_pre=is_pre, is_transfer=is_transfer)
        self.role.begin(now)

    def become_leader(self, now: int, term: int, votes: list[ms.VoteAnswer] | None = None) -> None:
        """Lead: elected by `votes`, or as the only voter, who needs none but its own."""
        if term > self.term:
            self.set_vote(now, term, self.me.name)
        own = self.vouching.answer_with(now, term, is_granted=True, is_pre=False)
        self.holder.drop()
        self.vouching.lead(self.me.name, term)
        self.role.step_down()
        leader = self.leader_class(self, now, [own, *(votes or [])])
        self.role = leader
        self.set_leader(self.me.name)
        leader.begin(now)

    def is_stalled(self, now: int) -> bool:
        """Has the disk owed a flush for too long, of this log or of another one of this node?"""
        return max(self.storage.stalled_us(now), self.stalled_elsewhere(now)) > limits.raft_disk_stall_us

    def hears_leader(self, now: int) -> bool:
        """Is there a leader as far as this node can tell?"""
        return self.is_leader or bool(self.leader and now < self.heard_at + limits.raft_election_us_min)

    def may_campaign(self, now: int) -> bool:
        """May this node stand for election?"""
        return (
            not self.is_removed
            and not self.is_stalled(now)
            and any(self._votes_in(config) for config in self.configs.since(self.commit_index))
        )

    def election_us(self) -> int:
        """A random election timeout; a witness gives everybody else time to stand."""
        spread = limits.raft_election_us_max - limits.raft_election_us_min
        timeout = limits.raft_election_us_min + self.rng.below(spread)
        is_witness = self.config.role_of(self.me.name) == WITNESS
        return timeout * limits.raft_witness_patience if is_witness else timeout

    def add_entries(self, new: list[Entry]) -> None:
        """Put entries behind (or in place of) the end of the log, here and on disk."""
        first = new[0].index
        assert first > self.commit_index, (first, self.commit_index)
        previous = self.log.term_at(first - 1)
        assert previous is not None
        if first <= self.log.last_index:
            self.log.truncate(first)
            self.configs.truncate(first)
        self.log.append(new)
        self.storage.append(new, previous)
        self.configs.scan(new)

    def commit(self, index: int) -> None:
        """Everything up to `index` is committed."""
        assert index <= self.log.last_index, (index, self.log.last_index)
        if index > self.commit_index:
            before = self.configs.at(self.commit_index)
            self.commit_index = index
            committed = self.configs.at(index)
            if committed is not before:
                self.on_configured(committed)

    def on_configured(self, committed: Configuration) -> None:
        """A configuration is committed."""
        self.events.append(ev.Configured(committed))
        mine = committed.find(self.me.name)
        if mine is not None and mine.token == self.me.tokens[-1] and not self._is_registered:
            self._is_registered = True
            self.events.append(ev.Registered(mine.token))
        if mine is None and self.is_leader:
            # Anybody else is told by its leader: in a log that is being caught up with this may be long ago.
            self._on_removed(committed.index)

    @property
    def apply_limit(self) -> int:
        """How far entries may be applied: with one voter, who cannot be contradicted, before the flush."""
        if isinstance(self.role, Leader) and self.role.is_sole:
            return self.log.last_index
        return self.commit_index

    # --- inside ---

    def _say_hello(self, peer: str) -> None:
        self.send(peer, ms.Hello(self.me.identity, self.me.start, self.me.tokens))

    def _may_say(self, peer: str, hello: ms.Hello, message: ms.Message) -> bool:
        """Is this message worth something, coming from that data folder?

        What must not count are votes and answers of a disk that has forgotten what it promised. A leader is
        one because accepted disks have elected it, and a candidate with another identity has joined under it:
        this node may just be behind, and would never catch up if it did not listen.
        """
        if isinstance(message, (*FROM_LEADER, ms.TimeoutNow, ms.Removed)) or self.accepts(peer):
            return True
        member = self.config.find(peer)
        return (
            isinstance(message, ms.VoteRequest) and member is not None and member.identity != hello.identity
        )

    def _votes_in(self, config: Configuration) -> bool:
        """Is this very folder a voter there?

        One that was removed or demoted by an entry that may not be committed must still stand: it may be the
        only one that has the entry, and then nobody else can win, nor is it asked for its vote in vain. After
        a restart nobody knows what is committed, so every configuration in the log may be in force.
        """
        mine = config.find(self.me.name)
        return mine is not None and mine.identity == self.me.identity and mine.role != NON_VOTER

    def _on_stranger(self, now: int, peer: str, message: ms.Removed) -> None:
        """A leader says that this node is none of its members."""
        if self.leader != peer:
            # Somebody may lead a group of its own (`force_sole`): those who are content with another leader,
            # or were until a moment ago, do not belong to it.
            heard_at = max(self.heard_at, self.vouching.started_at)
            if self.hears_leader(now) or (not self.accepts(peer) and now < heard_at + limits.lease_us):
                return
        if message.is_folder:
            if peer != self._refused_by:
                self._refused_by = peer
                self.events.append(ev.FolderRefused(peer))
            return
        # Whatever the term: it tells what is committed, which no later term takes back.
        mine = self.config.find(self.me.name)
        is_news = message.index > self.configs.at(self.commit_index).index
        if is_news and mine is not None and mine.identity == self.me.identity:
            self._on_removed(message.index)

    def _on_removed(self, index: int) -> None:
        if index > self._removed_at:
            self._removed_at = index
            self.events.append(ev.Removed(index))

    def _dispatch(self, now: int, peer: str, message: ms.Message) -> None:
        assert not isinstance(message, ms.Hello)
        if isinstance(message, ms.VoteRequest):
            voting.on_request(self, now, peer, message)
            return
        if isinstance(message, ms.Removed):
            self._on_stranger(now, peer, message)
            return
        if message.term > self.term:
            is_promise = isinstance(message, ms.VoteAnswer) and message.is_pre and message.is_granted
            if not is_promise:
                self.become_follower(now, message.term, peer if isinstance(message, FROM_LEADER) else "")
        elif message.term < self.term:
            # A leader that does not know of this term would never learn of it: we do not answer, and so never
            # follow. The answer makes it step down.
            if isinstance(message, FROM_LEADER):
                self.send(peer, ms.AppendAnswer(self.term, False, 0))
            return
        if isinstance(message, FROM_LEADER):
            if isinstance(self.role, Leader) and not self.accepts(peer):
                return  # it leads a group of its own (`force_sole`), to which this node was joined by mistake
            assert not isinstance(self.role, Leader), f"two leaders in term {self.term}"
            if self.leader != peer:
                self.become_follower(now, message.term, peer)
        self.role.on_message(now, peer, message)

    def _apply(self) -> None:
        limit = min(self.apply_limit, self.applied_index + limits.raft_apply_slice_entries)
        while self.applied_index < limit:
            entry = self.log.entry(self.applied_index + 1)
            is_ours = entry_kinds.is_reserved(entry.data)
            result = None if is_ours else self.machine.apply(entry.index, entry.data)
            self.applied_index = entry.index
            self.role.on_applied(entry.index, result)

    def release(self) -> None:
        """Let messages go whose term and vote are durable."""
        if self.storage.is_vote_durable:
            for peer, link, frame in self._gated:
                if self.links.get(peer) is link:
                    self.outgoing.append((peer, frame))
            self._gated.clear()
