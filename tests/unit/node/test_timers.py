"""Promises about timers and ticks, which may come at any moment between other inputs."""

from mirrormq.base.types import Now
from mirrormq.wire import methods
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


def test_a_tick_between_an_ack_and_the_end_of_its_pass_does_not_undo_the_ack() -> None:
    kit = ClusterKit("home", "master")
    kit["master"].client().declare("q")
    client = kit["home"].client()
    client.publish("q", b"once")
    kit.hold("master", "home")
    client.send(methods.BasicGet(queue="q", no_ack=True))
    kit.deliver("master", "home", 10)
    kit["home"].node.tick(kit.now)
    kit.release()
    assert client.expect(methods.BasicGetOk).message_count == 0
    queue = kit.node("master").vhosts["/"].queues["q"]
    assert (queue.core.acked, queue.core.ready, queue.core.unacked) == (1, 0, 0)
