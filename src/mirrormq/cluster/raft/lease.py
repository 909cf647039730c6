"""Leases: who may act for the cluster, and when a node is certain not to act any more.

Guarantee: if the leader says that a node's lease is over, the node's own `Holder.until` has passed, whatever
was delayed, lost, paused or elected in between, provided clocks run alike within a tenth and a link that ends
at one side was closed, or lost its process, at the other.

A leader proves itself by heartbeat rounds: its proof runs for 0.9 leases from the *sending* of the last round
that a majority answered over links still open. A grant is counted on the holder's own clock, from the moment
the holder sent the message that the grant answers: a grant that was on its way for long is worth less, never
more. A new leader was elected by a majority, one of which had answered the old leader's last proven round
before it voted; so whatever older leaders granted is over one lease after the election.

The old leader itself acts on its proof. Voters say with their votes how long they may still be part of it:
not at all if they saw its link end, since it gives up a voter's support before it closes the link.
"""

from collections.abc import Iterable

from msgspec import Struct

from mirrormq.base import limits
from mirrormq.cluster.raft.messages import VoteAnswer

NEVER = -(1 << 62)


def usable_us() -> int:
    """The part of a lease its holder uses."""
    return limits.lease_us * limits.lease_use_percent // 100


class Holder(Struct):
    """This node's lease while it follows: valid before `until` on its own clock."""

    until: int = 0
    source: str = ""

    def follow(self, leader: str) -> None:
        """From now on the lease depends on the link to this leader; what older leaders granted still runs."""
        self.source = leader

    def grant(self, echo: int, left: int) -> None:
        """Take a grant of the leader that is followed."""
        self.until = max(self.until, echo + min(left, usable_us()))

    def drop(self) -> None:
        """Give the lease up."""
        self.until = 0


class Vouching(Struct):
    """What a voter has promised by answering heartbeats. It forgets that at a restart, and says so."""

    started_at: int
    leader: str = ""
    term: int = 0
    answered_at: int = NEVER

    def answer(self, now: int, leader: str, term: int) -> None:
        """A heartbeat of this leader is being answered."""
        self.leader, self.term, self.answered_at = leader, term, now

    def lead(self, me: str, term: int) -> None:
        """This node leads: it grants leases itself, and must not take an older leader for the last one."""
        self.leader, self.term, self.answered_at = me, term, NEVER

    def on_eof(self, leader: str) -> None:
        """The leader's link has ended: it had given up this voter's support before."""
        if leader == self.leader:
            self.answered_at = NEVER

    def answer_with(self, now: int, term: int, *, is_granted: bool, is_pre: bool) -> VoteAnswer:
        """The vote with what this voter still vouches for."""
        return VoteAnswer(
            term,
            is_granted,
            is_pre,
            self.leader,
            self.term,
            max(0, self.answered_at + limits.lease_us - now),
            max(0, self.started_at + limits.lease_us - now),
        )


class Inherited(Struct, frozen=True):
    """What a new leader knows about leases older leaders may have granted."""

    leader: str
    """The last leader any voter of the electing majority has answered."""
    leader_until: int
    others_until: int


def inherited(now: int, votes: Iterable[VoteAnswer]) -> Inherited:
    """Sum up the votes that elected this node at `now`."""
    counted = list(votes)
    last = max(counted, key=lambda vote: (vote.leader_term, vote.leader))
    same = [
        vote.left for vote in counted if (vote.leader_term, vote.leader) == (last.leader_term, last.leader)
    ]
    left = max(*same, *(vote.any_left for vote in counted))
    return Inherited(last.leader, now + left, now + limits.lease_us)


class Proof(Struct):
    """The rounds of heartbeats a leader has sent."""

    round: int = 0
    sent: dict[int, int] = {}
    """When each round was sent that may still be answered, oldest first."""

    def begin(self, now: int) -> int:
        """Number the next round."""
        for old in [one for one, at in self.sent.items() if at + limits.lease_us < now]:
            del self.sent[old]
        self.round += 1
        self.sent[self.round] = now
        return self.round

    def sent_at(self, answered: int) -> int:
        """When a round was sent; `NEVER` if that is too long ago to matter."""
        return self.sent.get(answered, NEVER)
