"""Raft with one rule switched off: a simulator that does not notice is broken.

Each is a subclass of the shipped node that gets one thing wrong; the shipped code has no switches. `PLANTED`
are gross bugs the random slice must find; the others belong to directed schedules (tests/sim).
"""

from mirrormq.base import limits
from mirrormq.cluster.raft import messages as ms
from mirrormq.cluster.raft.compaction import Compaction
from mirrormq.cluster.raft.follower import Follower
from mirrormq.cluster.raft.leader import Leader
from mirrormq.cluster.raft.lease import Inherited
from mirrormq.cluster.raft.membership import Change, changed
from mirrormq.cluster.raft.progress import Progress
from mirrormq.cluster.raft.raft import Raft
from mirrormq.cluster.raft.reads import Reads
from mirrormq.cluster.raft.storage import Storage


class _HastyFollower(Follower):
    def flushed_match(self) -> int:
        return self.matched


class AnswersBeforeFlush(Raft):
    """Says that entries are flushed when they are written."""

    follower_class = _HastyFollower


class _MinorityLeader(Leader):
    def flushed_by_majority(self) -> int:
        return self.raft.storage.durable_index


class CommitsOnMinority(Raft):
    """Takes its own flush for that of a majority."""

    leader_class = _MinorityLeader


class _ForgetfulStorage(Storage):
    def save_vote(self, now: int, term: int, vote: str) -> None:  # noqa: ARG002
        super().save_vote(now, term, "")


class ForgetsVote(Raft):
    """Remembers the term, but not whom it voted for."""

    storage_class = _ForgetfulStorage


class _AnyTermLeader(Leader):
    def may_commit(self, index: int) -> bool:  # noqa: ARG002
        return True


class CommitsOldTerms(Raft):
    """Counts copies of an older term's entry."""

    leader_class = _AnyTermLeader


class TellsVoteBeforeFlush(Raft):
    """Lets messages go whose vote is not durable."""

    def release(self) -> None:
        """Do not wait for the disk."""
        self.outgoing += [(peer, frame) for peer, link, frame in self._gated if self.links.get(peer) is link]
        self._gated.clear()


class _BoldFollower(Follower):
    def campaign(self, now: int) -> None:
        self.raft.campaign(now, is_pre=False)


class NoPreVote(Raft):
    """Raises the term without asking whether it could win."""

    follower_class = _BoldFollower


class _EagerCompaction(Compaction):
    def may_capture(self) -> bool:
        return True


class SnapshotsUncommitted(Raft):
    """Applies, and captures, what is only in its own log."""

    compaction_class = _EagerCompaction

    @property
    def apply_limit(self) -> int:
        """Everything there is."""
        return self.log.last_index if self.is_leader else self.commit_index


class AcceptsAnyDisk(Raft):
    """Takes a name for a proof."""

    def accepts(self, peer: str) -> bool:
        """Whoever says hello."""
        link = self.links.get(peer)
        return link is not None and link.hello is not None


class _CarelessHolder(Follower):
    def take_grant(self, now: int, heartbeat: ms.Heartbeat) -> None:
        self.raft.holder.grant(now, heartbeat.left)


class GrantsFromArrival(Raft):
    """Counts a grant from when it arrives."""

    follower_class = _CarelessHolder


class _StubbornLeader(Leader):
    def has_quorum(self, now: int) -> bool:  # noqa: ARG002
        return True


class NoCheckQuorum(Raft):
    """Leads on whether anybody answers or not."""

    leader_class = _StubbornLeader


class AcceptsOlderDisks(Raft):
    """Knows a folder by its identity alone."""

    def accepts(self, peer: str) -> bool:
        """Whatever starts it can prove."""
        link, member = self.links.get(peer), self.config.find(peer)
        if link is None or link.hello is None:
            return False
        return member is None or member.identity in (b"", link.hello.identity)


class VotesWhileLed(Raft):
    """Listens to candidates although it hears its leader."""

    def hears_leader(self, now: int) -> bool:  # noqa: ARG002
        """Never."""
        return False


class _HastyHeir(Leader):
    def begin(self, now: int) -> None:
        self.inherited = Inherited("", now, now)
        super().begin(now)


class ForgetsOldGrants(Raft):
    """Thinks that only its own grants count."""

    leader_class = _HastyHeir


class LeadsOnStalledDisk(Raft):
    """Does not look at its disk."""

    def is_stalled(self, now: int) -> bool:  # noqa: ARG002
        """Never."""
        return False


class _ImpatientLeader(Leader):
    def change(self, now: int, change: Change, ref: object) -> None:  # noqa: ARG002
        self._append_configuration(now, changed(self.raft.config, change))


class ChangesAtOnce(Raft):
    """Begins a change of membership before the last one is committed."""

    leader_class = _ImpatientLeader


class _CarelessLeader(Leader):
    def answers(self, now: int, member: str) -> bool:  # noqa: ARG002
        return True


class ChangesBlindly(Raft):
    """Does not ask who would be left to agree."""

    leader_class = _CarelessLeader


class ObeysUncommitted(Raft):
    """Does not stand any more once an entry removes it, committed or not."""

    def may_campaign(self, now: int) -> bool:
        """Only as a voter of the last configuration."""
        return super().may_campaign(now) and self.config.is_voter(self.me.name)


class _HastyReads(Reads):
    def begin_round(self, number: int, commit_index: int) -> None:
        super().begin_round(number, commit_index)
        self.on_proven(number)


class _HastyReader(Leader):
    def begin(self, now: int) -> None:
        self.reads = _HastyReads()
        super().begin(now)


class ReadsWithoutProof(Raft):
    """Answers reads without asking whether it still leads."""

    leader_class = _HastyReader


class _UnorderedProgress(Progress):
    def keeps_order(self, is_bulk: bool) -> bool:  # noqa: ARG002
        return True

    @property
    def batch_bytes(self) -> int:
        return limits.raft_append_bytes_max


class _UnorderedLeader(Leader):
    progress_class = _UnorderedProgress


class MixesLanes(Raft):
    """Sends entries by whatever lane they fit, whether those before them have arrived or not."""

    leader_class = _UnorderedLeader


class _ImpatientProgress(Progress):
    def on_quiet(self, now: int) -> None:
        super().on_quiet(now + limits.raft_resend_us - limits.raft_election_us_max)

    def on_snapshot_wanted(self, now: int, offset: int) -> bool:
        super().on_snapshot_wanted(now, offset)
        return True


class _ImpatientSender(Leader):
    progress_class = _ImpatientProgress


class RepeatsParts(Raft):
    """Sends again what was not answered within an election timeout."""

    leader_class = _ImpatientSender


class CampaignsAfterRemoval(Raft):
    """Does not believe that it was removed."""

    @property
    def is_removed(self) -> bool:
        """Never."""
        return False


PLANTED: dict[str, type[Raft]] = {
    "append-answered-before-flush": AnswersBeforeFlush,
    "commit-on-minority": CommitsOnMinority,
    "vote-forgotten": ForgetsVote,
}
