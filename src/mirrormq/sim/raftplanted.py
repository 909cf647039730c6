"""Raft with one rule switched off: a simulator that does not notice is broken.

Each is a subclass of the shipped node that gets one thing wrong; the shipped code has no switches. `PLANTED`
are gross bugs the random slice must find; the others belong to directed schedules (tests/sim).
"""

from mirrormq.cluster.raft import messages as ms
from mirrormq.cluster.raft.compaction import Compaction
from mirrormq.cluster.raft.follower import Follower
from mirrormq.cluster.raft.leader import Leader
from mirrormq.cluster.raft.raft import Raft
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


PLANTED: dict[str, type[Raft]] = {
    "append-answered-before-flush": AnswersBeforeFlush,
    "commit-on-minority": CommitsOnMinority,
    "vote-forgotten": ForgetsVote,
}
