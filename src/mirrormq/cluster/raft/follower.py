"""Following a leader, or waiting for one.

Guarantee: an answer to entries leaves when they are flushed, and says that this log is the leader's up to
there. Entries are given up only if the leader's contradict them, never if they merely arrive again.

A snapshot is collected in memory and checked as a whole; it replaces file, log and state only when it is
durable, and until then the node goes on with what it had.
"""

from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.cluster.raft import events as ev
from mirrormq.cluster.raft import messages as ms
from mirrormq.cluster.raft.entries import Entry
from mirrormq.cluster.raft.recovery import SnapshotMark
from mirrormq.cluster.raft.role import Role

if TYPE_CHECKING:
    from mirrormq.cluster.raft.raft import Raft


class Follower(Role):
    """Knows the leader of the term or waits for one."""

    def __init__(self, raft: "Raft", now: int) -> None:
        """Wait for an election timeout."""
        super().__init__(raft)
        self.timer_at = now + raft.election_us()
        self.matched = 0
        """The log is the leader's up to here."""
        self.answered = 0
        self.is_owed_answer = False

    def step_down(self) -> None:
        """Nobody will answer what was asked."""
        for ref in self.raft.forwarded.take_all():
            self.raft.refuse(ref, "the leader has changed")

    def read(self, ref: object) -> None:
        """Ask the leader, with all other reads of this pass."""
        if self.raft.leader not in self.raft.links or len(self.raft.forwarded) >= limits.raft_waiting_max:
            self.raft.refuse(ref, "busy" if self.raft.leader else "there is no leader")
        else:
            self.raft.forwarded.add(ref)

    def end_pass(self, now: int) -> None:  # noqa: ARG002
        """Send what is to be asked."""
        number = self.raft.forwarded.take_request()
        if number:
            self.raft.send(self.raft.leader, ms.ReadRequest(self.raft.term, number))

    def after_apply(self, now: int) -> None:  # noqa: ARG002
        """Release reads."""
        for ref, index in self.raft.forwarded.take_ready(self.raft.applied_index):
            self.raft.events.append(ev.ReadReady(ref, index))

    def on_timer(self, now: int) -> None:
        """No leader was heard for an election timeout."""
        if now < self.timer_at:
            return
        if self.raft.may_campaign(now):
            self.campaign(now)
        else:
            self.timer_at = now + self.raft.election_us()

    def campaign(self, now: int) -> None:
        """Ask first whether the others would vote for this node."""
        self.raft.campaign(now, is_pre=True)

    def on_vote_given(self, now: int) -> None:
        """Give the candidate time to win."""
        self.timer_at = now + self.raft.election_us()

    def on_link_down(self, now: int, peer: str, is_certificate: bool) -> None:
        """The leader is dead if its link has ended: no need to wait."""
        if peer == self.raft.leader:
            self.step_down()
        if is_certificate and peer == self.raft.leader:
            self.raft.set_leader("")
            self.timer_at = now + 1 + self.raft.rng.below(limits.raft_election_eof_us)

    def on_message(self, now: int, peer: str, message: ms.Message) -> None:
        """Do what the leader says."""
        if isinstance(message, ms.Append):
            self._on_heard(now)
            self._on_append(peer, message)
        elif isinstance(message, ms.Heartbeat):
            self._on_heard(now)
            self._on_heartbeat(now, peer, message)
        elif isinstance(message, ms.SnapshotPart):
            self._on_heard(now)
            self._on_snapshot_part(peer, message)
        elif isinstance(message, ms.ReadAnswer) and peer == self.raft.leader:
            if message.is_ok:
                self.raft.forwarded.on_answer(message.number, message.index)
            else:
                self.step_down()
        elif isinstance(message, ms.TimeoutNow) and peer == self.raft.leader and self.raft.may_campaign(now):
            self.raft.campaign(now, is_pre=False, is_transfer=True)

    def on_durable(self, now: int) -> None:  # noqa: ARG002
        """Answer for what is flushed now."""
        self._answer()

    def on_restored(self) -> None:
        """The log now begins behind the leader's snapshot."""
        self.matched = max(self.matched, self.raft.commit_index)
        self.is_owed_answer = True
        self._answer()

    def _on_heard(self, now: int) -> None:
        self.raft.heard_at = now
        self.timer_at = now + self.raft.election_us()

    def _on_append(self, leader: str, append: ms.Append) -> None:
        raft, log = self.raft, self.raft.log
        if raft.compaction.is_installing:
            # The log is about to be replaced. The leader asks again.
            return
        terms = [append.prev_term, *(term for term, _ in append.entries)]
        first = append.prev_index
        if first < log.base_index:
            # What a snapshot covers is committed, so it is the leader's.
            skipped = log.base_index - first
            terms, first = terms[skipped:], log.base_index
        differs = log.differs_at(first, terms)
        if differs == first and first == append.prev_index:
            self._mismatch(leader, append.prev_index)
            return
        if differs is not None:
            raft.add_entries(
                [
                    Entry(term, append.prev_index + 1 + at, data)
                    for at, (term, data) in enumerate(append.entries)
                    if append.prev_index + 1 + at >= differs
                ]
            )
        self.matched = max(self.matched, append.prev_index + len(append.entries))
        self.is_owed_answer = True
        raft.commit(max(raft.commit_index, min(append.commit, self.matched)))
        self._answer()

    def _mismatch(self, leader: str, prev_index: int) -> None:
        log = self.raft.log
        hint = log.last_index
        if prev_index <= log.last_index:
            # All entries of the term that differs are doubtful, but nothing committed is.
            hint = max(log.first_of_term(prev_index) - 1, self.raft.commit_index)
        self.raft.send(leader, ms.AppendAnswer(self.raft.term, False, prev_index, min(hint, prev_index)))

    def _answer(self) -> None:
        """Say how far the log is the leader's *and* flushed: this is what the leader counts."""
        raft = self.raft
        flushed = self.flushed_match()
        if raft.leader and (flushed > self.answered or (self.is_owed_answer and flushed == self.matched)):
            self.answered = flushed
            self.is_owed_answer = False
            raft.send(raft.leader, ms.AppendAnswer(raft.term, True, flushed))

    def flushed_match(self) -> int:
        """How far the log is the leader's and flushed."""
        return min(self.matched, self.raft.storage.durable_index)

    def take_grant(self, now: int, heartbeat: ms.Heartbeat) -> None:  # noqa: ARG002
        """Hold the lease for what is left of it, counted from when this node asked for it."""
        self.raft.holder.grant(heartbeat.echo, heartbeat.left)

    def _on_heartbeat(self, now: int, leader: str, heartbeat: ms.Heartbeat) -> None:
        raft = self.raft
        raft.holder.follow(leader)
        if raft.is_stalled(now):
            # F13: whoever cannot flush can do nothing as a master. It takes no lease, and asks for none: when
            # the one it has is over others get what it holds up.
            return
        if heartbeat.left:
            self.take_grant(now, heartbeat)
        raft.vouching.answer(now, leader, raft.term)
        raft.commit(max(raft.commit_index, min(heartbeat.commit, self.matched)))
        raft.send(leader, ms.HeartbeatAnswer(raft.term, heartbeat.round, now))

    def _on_snapshot_part(self, leader: str, part: ms.SnapshotPart) -> None:
        raft = self.raft
        mark = SnapshotMark(part.index, part.last_term, part.size, part.crc)
        if part.index <= raft.commit_index:
            # It is already here, or more; what is committed is the leader's.
            self.matched = max(self.matched, part.index)
            self.is_owed_answer = True
            self._answer()
            return
        wanted = raft.compaction.take_part(mark, part.offset, part.data)
        raft.send(leader, ms.SnapshotAnswer(raft.term, part.index, part.crc, wanted))
