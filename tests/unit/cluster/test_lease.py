"""Leases: what is granted, and what a new leader may conclude from the votes it got."""

from __future__ import annotations

from mirrormq.base import limits
from mirrormq.cluster.raft.lease import NEVER, Holder, Proof, Vouching, inherited, usable_us
from mirrormq.cluster.raft.progress import Progress

LEASE = limits.lease_us


def test_a_grant_is_counted_from_when_the_holder_asked_however_late_it_comes() -> None:
    holder = Holder()
    holder.grant(1_000, 500)
    assert holder.until == 1_500
    holder.grant(1_000, 2 * LEASE)
    assert holder.until == 1_000 + usable_us()


def test_a_voter_vouches_for_a_lease_from_its_last_answer_unless_it_saw_the_end() -> None:
    voter = Vouching(NEVER)
    voter.answer(0, "n1", 4)
    assert voter.answer_with(LEASE - 10, 5, is_granted=True, is_pre=False).left == 10
    voter.on_eof("n2")
    assert voter.answer_with(0, 5, is_granted=True, is_pre=False).left == LEASE
    voter.on_eof("n1")
    answer = voter.answer_with(0, 5, is_granted=True, is_pre=False)
    assert (answer.leader, answer.leader_term, answer.left) == ("n1", 4, 0)


def test_a_restarted_voter_says_that_it_may_have_forgotten_a_lease() -> None:
    voter = Vouching(100)
    assert voter.answer_with(200, 5, is_granted=True, is_pre=False).any_left == LEASE - 100


def votes(*voters: Vouching, now: int = 0) -> list:  # type: ignore[type-arg]
    return [voter.answer_with(now, 9, is_granted=True, is_pre=False) for voter in voters]


def test_the_old_leaders_lease_is_over_at_once_if_every_voter_saw_its_end() -> None:
    one, other = Vouching(NEVER), Vouching(NEVER)
    for voter in (one, other):
        voter.answer(0, "n1", 4)
        voter.on_eof("n1")
    found = inherited(7, votes(one, other, now=7))
    assert (found.leader, found.leader_until, found.others_until) == ("n1", 7, 7 + LEASE)


def test_one_voter_that_did_not_see_the_end_keeps_the_old_leaders_lease_alive() -> None:
    one, other = Vouching(NEVER), Vouching(NEVER)
    for voter in (one, other):
        voter.answer(0, "n1", 4)
    one.on_eof("n1")
    assert inherited(7, votes(one, other, now=7)).leader_until == LEASE


def test_a_node_that_led_meanwhile_does_not_take_an_older_leader_for_the_last() -> None:
    one, other = Vouching(NEVER), Vouching(NEVER)
    for voter in (one, other):
        voter.answer(0, "n1", 4)
        voter.on_eof("n1")
    one.lead("n2", 5)
    assert inherited(7, votes(one, other, now=7)).leader == "n2"


def test_rounds_that_are_too_old_to_matter_are_forgotten() -> None:
    proof = Proof(0, {})
    first = proof.begin(0)
    last = proof.begin(2 * LEASE)
    assert proof.sent_at(first) == NEVER
    assert proof.sent_at(last) == 2 * LEASE


def test_a_machine_that_was_switched_off_is_granted_no_lease_by_its_clock_of_before() -> None:
    peer = Progress(0, 1)
    peer.on_round(1_000, 1, 900, echo=10**12)
    peer.on_link()
    peer.on_round(2_000, 2, 1_900, echo=500)
    assert peer.echo == 500
