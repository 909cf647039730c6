"""Asking for votes: first whether they would be given (pre-vote), then for them.

Guarantee: the term rises only if a majority would vote for this node, so a node that cannot win disturbs
nobody. The own vote counts when it is durable.
"""

from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.cluster.raft.membership import quorum
from mirrormq.cluster.raft.messages import Message, VoteAnswer, VoteRequest
from mirrormq.cluster.raft.role import Role

if TYPE_CHECKING:
    from mirrormq.cluster.raft.raft import Raft


class Candidate(Role):
    """One attempt."""

    def __init__(self, raft: "Raft", now: int, *, is_pre: bool, is_transfer: bool) -> None:
        """Give up and ask again at `timer_at`."""
        super().__init__(raft)
        self.is_pre = is_pre
        self.is_transfer = is_transfer
        self.votes: dict[str, VoteAnswer] = {}
        self.timer_at = now + raft.election_us()
        self._has_rival = False

    def begin(self, now: int) -> None:
        """Vote for this node and ask the others."""
        raft = self.raft
        if not self.is_pre:
            raft.set_vote(now, raft.term + 1, raft.me.name)
        for peer in sorted(raft.links):
            self._ask(peer)
        self._count(now)

    def on_timer(self, now: int) -> None:
        """Nobody was elected."""
        if now >= self.timer_at:
            if self.raft.may_campaign(now):
                self.raft.campaign(now, is_pre=True)
            else:
                self.raft.become_follower(now, self.raft.term)

    def on_hello(self, now: int, peer: str) -> None:  # noqa: ARG002
        """A peer can be asked only now."""
        self._ask(peer)

    def on_message(self, now: int, peer: str, message: Message) -> None:
        """Count the answers to this attempt."""
        asked = self.raft.term + 1 if self.is_pre else self.raft.term
        if (
            isinstance(message, VoteAnswer)
            and message.is_granted
            and message.is_pre == self.is_pre
            and message.term == asked
        ):
            self.votes[peer] = message
            self._count(now)

    def on_rival(self, now: int) -> None:
        """The votes are split, maybe so that nobody wins: try again soon, and not both at once.

        Only some times: on slow links two tries would go on to cross each other.
        """
        raft = self.raft
        if not self.is_pre and not self._has_rival and raft.splits < limits.raft_split_votes_max:
            self._has_rival = True
            raft.splits += 1
            spread = limits.raft_election_eof_us << raft.splits
            self.timer_at = min(self.timer_at, now + limits.raft_election_eof_us + raft.rng.below(spread))

    def on_durable(self, now: int) -> None:
        """The own vote may count now."""
        self._count(now)

    def on_vote_given(self, now: int) -> None:
        """It was given to somebody else, who should win."""
        self.raft.become_follower(now, self.raft.term)

    def _ask(self, peer: str) -> None:
        raft = self.raft
        if raft.config.is_voter(peer) and raft.accepts(peer):
            term = raft.term + 1 if self.is_pre else raft.term
            raft.send(
                peer,
                VoteRequest(term, raft.log.last_index, raft.log.last_term, self.is_pre, self.is_transfer),
            )

    def _count(self, now: int) -> None:
        raft = self.raft
        voters = raft.config.voters
        mine = raft.me.name in voters and (self.is_pre or raft.storage.is_vote_durable)
        given = [self.votes[name] for name in voters if name in self.votes and name != raft.me.name]
        if len(given) + mine < quorum(len(voters)):
            return
        if self.is_pre:
            raft.campaign(now, is_pre=False)
        else:
            raft.become_leader(now, raft.term, given)
