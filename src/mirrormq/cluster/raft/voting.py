"""Whom this node votes for.

Guarantee: at most one vote per term, remembered before it is told, and only for a log that holds everything
this node's log may have helped to commit.

A node that hears its leader refuses, whatever the term: one that was cut off cannot depose a leader the
others are content with. It answers as soon as it saw the leader's link end, or if the leader itself has asked
the candidate to stand.
"""

from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.cluster.raft.messages import VoteRequest

if TYPE_CHECKING:
    from mirrormq.cluster.raft.raft import Raft


def on_request(raft: "Raft", now: int, peer: str, request: VoteRequest) -> None:
    """Answer a candidate, or one that asks whether it may become one."""
    if raft.hears_leader(now) and not request.is_transfer:
        if request.is_pre:
            _answer(raft, now, peer, request, is_granted=False)
        return
    if request.is_pre:
        # Whoever this node has just voted for may lead already: a later term would only unseat it.
        is_free = raft.vote in ("", raft.me.name, peer) or now >= raft.voted_at + limits.raft_vote_us
        is_granted = is_free and request.term > raft.term and is_current(raft, request)
        _answer(raft, now, peer, request, is_granted=is_granted)
        return
    if request.term > raft.term:
        # Who does not get this vote may be unable to win: it must not keep this node from standing.
        due = now + limits.raft_election_us_max if raft.is_leader else raft.timer_at
        raft.become_follower(now, request.term)
        raft.role.timer_at = min(raft.role.timer_at, due)
    is_granted = request.term == raft.term and raft.vote in ("", peer) and is_current(raft, request)
    if is_granted:
        raft.set_vote(now, raft.term, peer)
        raft.voted_at = now
        raft.role.on_vote_given(now)
    elif request.term == raft.term and raft.vote == raft.me.name:
        raft.role.on_rival(now)
    _answer(raft, now, peer, request, is_granted=is_granted)


def is_current(raft: "Raft", request: VoteRequest) -> bool:
    """Is the candidate's log at least as complete as ours?"""
    return (request.last_term, request.last_index) >= (raft.log.last_term, raft.log.last_index)


def _answer(raft: "Raft", now: int, peer: str, request: VoteRequest, *, is_granted: bool) -> None:
    # A promise names the term that was asked for; a refusal tells ours, which the other may not know.
    term = request.term if is_granted else raft.term
    raft.send(peer, raft.vouching.answer_with(now, term, is_granted=is_granted, is_pre=request.is_pre))
