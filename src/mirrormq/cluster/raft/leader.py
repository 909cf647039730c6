"""Leading: order the proposals, replicate them, and say when they are committed.

Guarantee: an entry is called committed when a majority of the voters has flushed it and it, or a later one,
is of this leader's own term: an older term's entry on a majority can still be replaced. The first entry of a
term restates the configuration with this leader's start, so every term has such an entry.

A leader that has not been answered by a majority for an election timeout steps down (check-quorum), and so
does one whose own disk owes a flush for too long. With one voter there is nobody to step down for.
"""

from collections import deque
from typing import TYPE_CHECKING

from msgspec import Struct

from mirrormq.base import limits
from mirrormq.cluster.raft import events as ev
from mirrormq.cluster.raft import membership as mb
from mirrormq.cluster.raft import messages as ms
from mirrormq.cluster.raft import progress as pg
from mirrormq.cluster.raft.entries import Entry, configuration_data
from mirrormq.cluster.raft.lease import NEVER, Proof, inherited, usable_us
from mirrormq.cluster.raft.progress import Progress
from mirrormq.cluster.raft.reads import Reads, RemoteRead
from mirrormq.cluster.raft.role import Role

if TYPE_CHECKING:
    from mirrormq.cluster.raft.raft import Raft


class _Waiting(Struct, frozen=True):
    """A proposal in the log, not yet applied."""

    index: int
    ref: object
    size: int


class Leader(Role):
    """One term of leading."""

    progress_class: type[Progress] = Progress

    def __init__(self, raft: "Raft", now: int, votes: list[ms.VoteAnswer]) -> None:
        """`votes` elected this node; they say what older leaders may have granted."""
        super().__init__(raft)
        self.timer_at = now
        self.peers: dict[str, Progress] = {}
        self.reads = Reads()
        self.proof = Proof(0, {})
        self.inherited = inherited(now, votes)
        self._departed: dict[str, int] = {}
        """When nodes that were removed have last answered."""
        self._first_index = 0
        self._proposals: list[tuple[bytes, object]] = []
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._change: tuple[mb.Change, object] | None = None
        self._change_at: tuple[int, object] | None = None
        self._transfer_to = ""
        self._transfer_until = 0
        self._has_asked = False

    def begin(self, now: int) -> None:
        """Take over: the first entry, the first round."""
        raft = self.raft
        role = raft.config.role_of(raft.me.name)
        # No member any more: it leads only until the entry that says so is committed.
        self._append_configuration(now, raft.config.put(raft.member_me(role)) if role else raft.config)
        self._first_index = raft.log.last_index
        self._send_round(now)

    def step_down(self) -> None:
        """Tell everybody who waits."""
        for _, ref in self._proposals:
            self.raft.refuse(ref, "leadership was lost")
        for waiting in self._waiting:
            self.raft.events.append(ev.Lost(waiting.ref))
        if self._change is not None:
            self.raft.refuse(self._change[1], "leadership was lost")
        if self._change_at is not None:
            self.raft.events.append(ev.Lost(self._change_at[1]))
        for ref in self.reads.take_all():
            if isinstance(ref, RemoteRead):
                self._answer_read(ref, 0, is_ok=False)
            else:
                self.raft.refuse(ref, "leadership was lost")

    # --- inputs ---

    def propose(self, command: bytes, ref: object) -> None:
        """Put a command into the log with the others of this pass."""
        is_full = len(self._proposals) + len(self._waiting) >= limits.raft_waiting_max
        if self._transfer_to or is_full or (self._bytes and self._bytes + len(command) > self.bytes_max):
            self.raft.refuse(ref, "leadership is being transferred" if self._transfer_to else "busy")
            return
        self._bytes += len(command)
        self._proposals.append((command, ref))

    def read(self, ref: object) -> None:
        """Have a read released when nothing acknowledged before it is missing here."""
        if len(self.reads) < limits.raft_waiting_max:
            self.reads.add(ref)
        elif isinstance(ref, RemoteRead):
            self._answer_read(ref, 0, is_ok=False)
        else:
            self.raft.refuse(ref, "busy")

    def _answer_read(self, read: RemoteRead, index: int, *, is_ok: bool = True) -> None:
        self.raft.send(read.peer, ms.ReadAnswer(self.raft.term, read.number, index, is_ok))

    @property
    def bytes_max(self) -> int:
        """Bytes of proposals that may wait."""
        return limits.raft_proposals_bytes_max

    def change(self, now: int, change: mb.Change, ref: object) -> None:
        """Change the membership, if no other change is under way."""
        reason = self._why_not(now, change)
        if reason:
            self.raft.refuse(ref, reason)
            return
        self._change = (change, ref)
        raft = self.raft
        if change.name == raft.me.name and change.role in (None, mb.NON_VOTER) and not self._transfer_to:
            # The successor should lead when this node goes, not be elected afterwards. If nobody can take
            # over in time, this node leads until the entry that removes it is committed.
            voters = [peer for peer in self.peers if raft.config.role_of(peer) == mb.VOTER]
            alive = [peer for peer in voters if self.answers(now, peer)]
            if alive:
                self.transfer(now, max(alive, key=lambda peer: self._progress(peer).match))

    def _why_not(self, now: int, change: mb.Change) -> str:
        """What speaks against a change; empty if nothing does."""
        raft = self.raft
        if self._change is not None or raft.config.index > raft.commit_index:
            return "another change is under way"
        try:
            after = mb.changed(raft.config, change)
        except mb.ChangeRefused as error:
            return str(error)
        progress = self.peers.get(change.name)
        if after.is_voter(change.name) and not raft.config.is_voter(change.name):
            lag = raft.log.last_index - progress.match if progress is not None else 0
            if progress is None or progress.state != pg.REPLICATE or lag > limits.raft_promote_lag_max:
                return f"{change.name} has not caught up"
        # The entry would count at once and could never be committed, nor taken back.
        answering = [voter for voter in after.voters if self.answers(now, voter)]
        if len(answering) < mb.quorum(len(after.voters)):
            return f"of the voters {', '.join(after.voters)} only {len(answering)} would answer"
        return ""

    def answers(self, now: int, member: str) -> bool:
        """Has a member answered within an election timeout?"""
        if member == self.raft.me.name:
            return True
        progress = self.peers.get(member)
        heard_at = progress.heard_at if progress is not None else NEVER
        return self.raft.accepts(member) and heard_at + limits.raft_election_us_max > now

    def transfer(self, now: int, target: str) -> bool:
        """Stop taking proposals until `target` leads, or an election timeout has passed."""
        if target not in self.peers or not self.raft.config.is_voter(target) or self._transfer_to:
            return False
        self._transfer_to, self._has_asked = target, False
        self._transfer_until = now + limits.raft_election_us_max
        return True

    def on_timer(self, now: int) -> None:
        """Heartbeats, and whether this node should still lead."""
        if now < self.timer_at:
            return
        raft = self.raft
        if self._transfer_to and now >= self._transfer_until:
            self._transfer_to = ""
        if not self.is_sole:
            if raft.is_stalled(now):
                self._resign(now, "its disk does not answer")
                return
            if not self.has_quorum(now):
                self._resign(now, "a majority of the voters does not answer")
                return
        self._send_round(now)

    def has_quorum(self, now: int) -> bool:
        """Has a majority answered a round that was sent within an election timeout?"""
        return self._majority(now, "answered_at") + limits.raft_election_us_max > now

    def on_hello(self, now: int, peer: str) -> None:
        """The peer can be sent to."""
        progress = self.peers.get(peer)
        if progress is not None:
            progress.on_link()
            self._heartbeat(now, peer, progress, self.proof.round)

    def on_link_down(self, now: int, peer: str, is_certificate: bool) -> None:  # noqa: ARG002
        """What was under way is lost, and the peer is no part of the proof any more."""
        progress = self.peers.get(peer)
        if progress is not None:
            progress.on_link()
            progress.has_ended = is_certificate and progress.heard_at != NEVER
        elif is_certificate:
            self._departed.pop(peer, None)

    def on_message(self, now: int, peer: str, message: ms.Message) -> None:
        """Answers of the peers."""
        progress = self.peers.get(peer)
        if progress is None:
            return
        if isinstance(message, ms.HeartbeatAnswer):
            self._on_round(now, peer, progress, message)
        elif isinstance(message, ms.AppendAnswer) and message.is_ok:
            progress.on_match(message.index)
            self.advance_commit()
        elif isinstance(message, ms.AppendAnswer):
            progress.on_mismatch(message.index, message.hint)
        elif isinstance(message, ms.SnapshotAnswer) and progress.is_sending(message.index, message.crc):
            if progress.on_snapshot_wanted(now, message.offset):
                self._read_part(progress)
        elif isinstance(message, ms.ReadRequest):
            self.read(RemoteRead(peer, message.number))

    def on_durable(self, now: int) -> None:  # noqa: ARG002
        """The own flush counts like that of any voter."""
        self.advance_commit()

    def on_applied(self, index: int, result: object) -> None:
        """Tell the proposer."""
        if self._waiting and self._waiting[0].index == index:
            waiting = self._waiting.popleft()
            self._bytes -= waiting.size
            self.raft.events.append(ev.Applied(waiting.ref, index, result))

    def end_pass(self, now: int) -> None:
        """Append what was proposed in this pass, and send it."""
        self._append_change(now)
        self._append_proposals()
        self.advance_commit()
        if self.reads.wants_round and self.raft.commit_index >= self._first_index:
            self._send_round(now)
        for peer, progress in self.peers.items():
            if self.raft.accepts(peer):
                self._replicate(now, peer, progress)
        self._hand_over(now)

    def after_apply(self, now: int) -> None:
        """Release reads; leave if this node is no voter any more."""
        raft = self.raft
        for ref, index in self.reads.take_ready(raft.applied_index):
            if isinstance(ref, RemoteRead):
                self._answer_read(ref, index)
            else:
                raft.events.append(ev.ReadReady(ref, index))
        config = raft.config
        if config.index <= raft.commit_index and not config.is_voter(raft.me.name):
            self._resign(now, "it is no voter any more")

    # --- leases ---

    def proven_at(self, now: int) -> int:
        """When the last round was sent that a majority has answered over links still open."""
        return self._majority(now, "proven_at")

    def lease_over(self, node: str, now: int, start: int | None) -> bool:
        """Has the lease of a node passed?"""
        raft = self.raft
        committed = raft.configs.at(raft.commit_index).find(node)
        if start is not None and committed is not None and committed.start > start:
            return True
        if node == raft.me.name:
            return False
        progress = self.peers.get(node)
        if progress is not None and progress.heard_at != NEVER:
            # It follows us, so older leaders have no say. It gave up its lease before its link ended.
            return progress.has_ended or now >= progress.heard_at + limits.lease_us
        if now < self._departed.get(node, NEVER) + limits.lease_us:
            return False
        if node == self.inherited.leader:
            return now >= min(self.inherited.leader_until, self.inherited.others_until)
        return now >= self.inherited.others_until

    # --- commit ---

    @property
    def is_sole(self) -> bool:
        """Is this node the only voter?"""
        return self.raft.config.voters == (self.raft.me.name,)

    def flushed_by_majority(self) -> int:
        """Up to where a majority of the voters has flushed the log."""
        raft = self.raft
        voters = raft.config.voters
        if voters == (raft.me.name,):
            return raft.storage.durable_index
        flushed = [
            raft.storage.durable_index if voter == raft.me.name else self._progress(voter).match
            for voter in voters
        ]
        return mb.majority_value(flushed)

    def may_commit(self, index: int) -> bool:
        """Only through an entry of this term.

        One of an older term may be on a majority and still be replaced by a leader that has a later entry.
        """
        return self.raft.log.term_at(index) == self.raft.term

    def advance_commit(self) -> None:
        """Commit what a majority has flushed."""
        raft = self.raft
        index = self.flushed_by_majority()
        if index > raft.commit_index and self.may_commit(index):
            raft.commit(index)
            if self._change_at is not None and self._change_at[0] <= index:
                raft.events.append(ev.Applied(self._change_at[1], self._change_at[0], None))
                self._change_at = None

    # --- inside ---

    def _progress(self, peer: str) -> Progress:
        found = self.peers.get(peer)
        assert found is not None, peer
        return found

    def _majority(self, now: int, what: str) -> int:
        """The latest time that a majority of the voters has reached; this node has reached `now`."""
        mine = self.raft.me.name
        times = [
            now if voter == mine else int(getattr(self._progress(voter), what))
            for voter in self.raft.config.voters
        ]
        return mb.majority_value(times) if times else NEVER

    def _resign(self, now: int, why: str) -> None:
        raft = self.raft
        raft.note(f"steps down as leader of term {raft.term}: {why}")
        raft.become_follower(now, raft.term)

    def _send_round(self, now: int) -> None:
        number = self.proof.begin(now)
        self.timer_at = now + limits.raft_heartbeat_us
        if self.raft.commit_index >= self._first_index:
            self.reads.begin_round(number, self.raft.apply_limit)
        for peer, progress in self.peers.items():
            if self.raft.accepts(peer):
                self._heartbeat(now, peer, progress, number)
        self._tell_strangers(now)
        self._on_proof()

    def _heartbeat(self, now: int, peer: str, progress: Progress, number: int) -> None:
        raft = self.raft
        left = 0
        if self._is_registered(peer) and progress.echo_at != NEVER:
            # The proof as it was when the peer's answer came, counted from when the peer sent it: the time
            # the grant spends on its way makes it shorter.
            left = max(0, self.proven_at(now) + usable_us() - progress.echo_at)
        raft.send(peer, ms.Heartbeat(raft.term, number, raft.commit_index, progress.echo, left))

    def _tell_strangers(self, now: int) -> None:
        """Tell whoever is no member. Nodes that were removed stop; those that were never members wait on."""
        raft = self.raft
        is_settled = raft.config.index <= raft.commit_index >= self._first_index
        # One that may have been deposed does not know who was joined since.
        if not is_settled or self.proven_at(now) + limits.raft_election_us_max <= now:
            return
        for peer, link in raft.links.items():
            is_member = peer in self.peers
            is_stranger = link.hello is not None and not (is_member and raft.accepts(peer))
            if is_stranger and link.told_at + limits.raft_election_us_max <= now:
                link.told_at = now
                raft.send(peer, ms.Removed(raft.term, raft.config.index, is_member))

    def _is_registered(self, peer: str) -> bool:
        """Is this start of the peer recorded, and committed?"""
        link = self.raft.links.get(peer)
        member = self.raft.configs.at(self.raft.commit_index).find(peer)
        return (
            link is not None
            and link.hello is not None
            and member is not None
            and member.token == link.hello.tokens[-1]
        )

    def _on_round(self, now: int, peer: str, progress: Progress, answer: ms.HeartbeatAnswer) -> None:
        is_first = progress.echo_at == NEVER
        progress.on_round(now, answer.round, self.proof.sent_at(answer.round), answer.sent)
        progress.on_quiet(now)
        self._on_proof()
        if is_first:
            # Do not let a holder whose leader has just died wait for the next round.
            self._heartbeat(now, peer, progress, self.proof.round)

    def _on_proof(self) -> None:
        mine = self.raft.me.name
        rounds = [
            self.proof.round if voter == mine else self._progress(voter).answered_round
            for voter in self.raft.config.voters
        ]
        self.reads.on_proven(mb.majority_value(rounds))

    def _append_change(self, now: int) -> None:
        raft = self.raft
        if raft.config.index > raft.commit_index:
            return
        if self._change is not None:
            change, ref = self._change
            # Entries of a sole voter are applied before they are durable, which two voters must not see.
            if self.is_sole and raft.commit_index < raft.log.last_index:
                return
            if self._transfer_to and change.name == raft.me.name:
                return
            self._change = None
            self._append_configuration(now, mb.changed(raft.config, change))
            self._change_at = (raft.config.index, ref)
        else:
            self._register(now)

    def _register(self, now: int) -> None:
        """Record the starts of members that have said hello and are accepted."""
        config = self.raft.config
        for peer in self.peers:
            link = self.raft.links.get(peer)
            member = config.find(peer)
            if link is None or link.hello is None or member is None or not self.raft.accepts(peer):
                continue
            hello = link.hello
            if member.token != hello.tokens[-1]:
                config = config.put(
                    mb.Member(peer, hello.identity, member.role, hello.start, hello.tokens[-1])
                )
        if config is not self.raft.config:
            self._append_configuration(now, config)

    def _append_configuration(self, now: int, config: mb.Configuration) -> None:
        raft = self.raft
        data = configuration_data(mb.encode_configuration(config))
        raft.add_entries([Entry(raft.term, raft.log.last_index + 1, data)])
        for name, progress in self.peers.items():
            if raft.config.find(name) is None and not progress.has_ended:
                # It does not know that it was removed, and uses what it was granted.
                self._departed[name] = max(progress.heard_at, self._departed.get(name, NEVER))
        members = [name for name in raft.config.names if name != raft.me.name]
        self.peers = {
            name: self.peers.get(name) or self.progress_class(now, raft.log.last_index) for name in members
        }
        if self._transfer_to not in self.peers:
            self._transfer_to = ""

    def _append_proposals(self) -> None:
        raft = self.raft
        if not self._proposals or (self._change is not None and self.is_sole):
            return
        entries: list[Entry] = []
        for command, ref in self._proposals:
            index = raft.log.last_index + 1 + len(entries)
            entries.append(Entry(raft.term, index, command))
            self._waiting.append(_Waiting(index, ref, len(command)))
        self._proposals.clear()
        raft.add_entries(entries)

    def _replicate(self, now: int, peer: str, progress: Progress) -> None:
        raft, log = self.raft, self.raft.log
        while progress.may_send(now):
            prev = progress.next - 1
            prev_term = log.term_at(prev)
            if prev_term is None:
                self._begin_snapshot(now, peer, progress)
                return
            # A probe carries no entries: most of its kind are refused.
            is_probe = progress.state == pg.PROBE
            batch = [] if is_probe else log.batch(progress.next, progress.batch_bytes)
            if not batch and not is_probe and progress.told_commit >= raft.commit_index:
                return
            size = sum(len(entry.data) for entry in batch)
            if size > limits.peer_chunk_bytes and not progress.keeps_order(is_bulk=True):
                return
            sent = tuple((entry.term, entry.data) for entry in batch)
            frame = ms.encode(ms.Append(raft.term, prev, prev_term, raft.commit_index, sent))
            is_bulk = ms.is_bulk(frame)
            if not progress.keeps_order(is_bulk):
                return
            raft.send_frame(peer, frame)
            progress.told_commit = raft.commit_index
            progress.on_sent(now, prev + len(batch), size, is_bulk=is_bulk)

    def _begin_snapshot(self, now: int, peer: str, progress: Progress) -> None:
        mark = self.raft.storage.mark
        if mark.format < 2 or mark.index < self.raft.log.base_index:
            # A snapshot of the time before there was a group does not say who belongs to it.
            self.raft.compaction.is_wanted = True
            return
        progress.begin_snapshot(now, mark)
        self._send_part(peer, progress, b"")

    def _read_part(self, progress: Progress) -> None:
        left = progress.mark.size - progress.offset
        if left > 0 and not progress.read_token:
            length = min(left, limits.raft_snapshot_part_bytes)
            progress.read_token = self.raft.storage.read_snapshot(progress.offset, length)
            progress.read_offset = progress.offset

    def on_read(self, token: int, data: bytes) -> bool:
        """A part of the snapshot was read."""
        for peer, progress in self.peers.items():
            if progress.read_token == token and token:
                progress.read_token = 0
                if progress.state == pg.SNAPSHOT and progress.read_offset == progress.offset:
                    self._send_part(peer, progress, data)
                elif progress.state == pg.SNAPSHOT:
                    # The peer has asked for another part meanwhile.
                    self._read_part(progress)
                return True
        return False

    def _send_part(self, peer: str, progress: Progress, data: bytes) -> None:
        mark = progress.mark
        part = ms.SnapshotPart(
            self.raft.term, mark.index, mark.term, mark.size, mark.crc, progress.offset, data
        )
        self.raft.send(peer, part)

    def is_sending_snapshot(self) -> bool:
        """Would a new snapshot disturb a transfer? Not for ever: the log must not grow without bound."""
        storage = self.raft.storage
        is_long = storage.log_bytes > 4 * max(self.raft.options.log_bytes_max, storage.mark.size)
        return not is_long and any(progress.state == pg.SNAPSHOT for progress in self.peers.values())

    def on_snapshot_replaced(self) -> None:
        """Reads from now on find another snapshot: transfers begin anew."""
        for progress in self.peers.values():
            if progress.state == pg.SNAPSHOT:
                progress.end_snapshot()

    def _hand_over(self, now: int) -> None:
        """Ask the target of a transfer to stand, or one that should lead rather than a witness."""
        raft = self.raft
        if not self._transfer_to and raft.config.role_of(raft.me.name) == mb.WITNESS:
            fit = [peer for peer in self.peers if self._is_fit(peer)]
            if fit and raft.commit_index == raft.log.last_index:
                self.transfer(now, fit[0])
        target = self._transfer_to
        if target and not self._has_asked and self._is_fit(target):
            self._has_asked = True
            raft.send(target, ms.TimeoutNow(raft.term))

    def _is_fit(self, peer: str) -> bool:
        """Could it win an election, and should it?"""
        raft = self.raft
        is_current = self._progress(peer).match == raft.log.last_index
        return raft.config.role_of(peer) == mb.VOTER and raft.accepts(peer) and is_current
