"""Promises about the times at which the node wants to be woken."""

from mirrormq.base.types import Now
from tests.support.clusterkit import ClusterKit


def test_a_timer_that_woke_too_early_is_not_forgotten() -> None:
    cluster = ClusterKit("home")
    leader = cluster.leader.node
    due = leader.membership.timer_at
    now = cluster.now.mono
    assert now < due
    # The machine's timer wakes a moment before its time; the end of that pass is a moment after it.
    leader.on_timer(Now(due - 1, cluster.now.wall))
    leader.end_pass(Now(due + 1, cluster.now.wall))
    wanted = leader.next_timer()
    assert wanted is not None
    assert wanted <= due + 2
    leader.on_timer(Now(wanted, cluster.now.wall))
    assert leader.membership.timer_at > wanted, "the heartbeat was sent"
