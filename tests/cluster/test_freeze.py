"""Promises about processes that stand still for a while and do not know it (SIGSTOP, SIGCONT)."""

from __future__ import annotations

import time

import pytest

from mirrormq.wire import methods
from tests.cluster import killrun, kit
from tests.cluster.killrun import Acked, Declarer
from tests.cluster.kit import Cluster, Node, until
from tests.support.raw import Closed, RawClient, Unexpected


def answered(client: RawClient) -> bool:
    """Was the declare that a client had sent acknowledged? If not, its connection must have been closed."""
    try:
        client.expect(1, methods.QueueDeclareOk)
    except (Closed, ConnectionError):
        return False
    except Unexpected as other:
        if not isinstance(other.frame.method, methods.ConnectionClose):
            raise
        return False
    return True


def others_lead(cluster: Cluster, frozen: Node) -> Node:
    """Wait until the rest agrees on another leader."""
    rest = cluster.others(frozen)
    return until(lambda: agreed(cluster, rest, frozen), f"{rest} have a leader of their own")


def agreed(cluster: Cluster, rest: list[Node], frozen: Node) -> Node | None:
    named = {node.status().get("leader", "") for node in rest}
    found = [node for node in rest if {node.name} == named and node is not frozen]
    return found[0] if found else None


@pytest.mark.parametrize(
    "until_given_up", [False, True], ids=["longer than an election", "longer than a lease"]
)
def test_a_leader_that_stood_still_follows_the_next_one_and_nothing_acknowledged_is_lost(
    three: Cluster, until_given_up: bool
) -> None:
    leader = three.wait_whole()
    rest = three.others(leader)
    clients = [Declarer(node, "freeze") for node in three]
    for client in clients:
        client.wait_acked(killrun.BEFORE)
    waiting = leader.raw()
    marks = {node: len(node.lines) for node in three}
    with leader.frozen():
        frozen_at = time.time()
        waiting.send_method(1, methods.QueueDeclare(queue="sent-to-the-frozen", durable=True))
        others_lead(three, leader)
        for client in clients:
            if client.node is not leader:
                client.wait_acked(killrun.BEFORE, frozen_at)
        if until_given_up:
            for node in rest:
                node.wait_for("link down", leader.name, since=marks[node], seconds=20)
        thawed_at = time.time()
    was_acked = answered(waiting)
    for client in clients:
        client.wait_acked(killrun.BEFORE, thawed_at)
    promised = [acked for client in clients for acked in client.stop()]
    if was_acked:
        promised.append(Acked("sent-to-the-frozen", True, 0, 0))
    assert three.wait_whole() in rest
    assert not killrun.missing(three, promised)
    for client in clients:
        assert client.node is leader or not client.lost, "clients of the others noticed nothing"


def test_a_node_that_stood_still_does_not_disturb_the_others(three: Cluster) -> None:
    leader = three.wait_whole()
    node, other = three.others(leader)
    clients = [Declarer(one, "freeze") for one in (leader, other)]
    marks = {one: len(one.lines) for one in three}
    with node.frozen():
        frozen_at = time.time()
        until(lambda: node.name not in leader.status().get("running_nodes", [node.name]), "it is missed")
        for client in clients:
            client.wait_acked(killrun.BEFORE, frozen_at)
    promised = [acked for client in clients for acked in client.stop()]
    assert three.wait_whole() is leader
    for one in (leader, other):
        assert not one.said("leader changed", since=marks[one]), "it had no reason to stand for election"
    assert not any(client.lost for client in clients)
    assert not killrun.missing(three, promised)
    kit.declare(node.channel(), "after")
