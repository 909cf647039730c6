"""Promises about links that are cut, in one direction or both, and links that are slow."""

from __future__ import annotations

import itertools

import pytest

from mirrormq.wire import methods
from tests.cluster import killrun, kit
from tests.cluster.killrun import Declarer
from tests.cluster.kit import Cluster, Node, until
from tests.support.raw import Closed, RawClient

FORCED = 320
NUMBERS = itertools.count(1)


def declare(node: Node) -> str:
    """Declare a queue with a new name on a new connection."""
    name = f"q{next(NUMBERS)}"
    channel = node.channel()
    kit.declare(channel, name)
    channel.connection.close()
    return name


def chosen(cluster: Cluster, *, leads: bool) -> tuple[Node, list[Node]]:
    """The leader, or one that does not lead; and the other two."""
    leader = cluster.leader()
    node = leader if leads else cluster.others(leader)[0]
    return node, cluster.others(node)


def wait_paused(node: Node) -> None:
    """Wait until a node knows that it is in the minority and has let go of its clients."""
    until(lambda: node.status().get("paused"), f"{node} is paused", 40)
    until(lambda: not node.accepts(), f"{node} takes no clients")


def forced(client: RawClient) -> str:
    """Why a client was sent away."""
    close = client.expect(0, methods.ConnectionClose)
    assert close.reply_code == FORCED
    client.send_method(0, methods.ConnectionCloseOk())
    assert client.is_closed()
    return close.reply_text


@pytest.fixture(params=[True, False], ids=["leader", "other"])
def leads(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_a_node_cut_off_pauses_sends_its_clients_away_and_comes_back_by_itself(
    proxied: Cluster, leads: bool
) -> None:
    node, others = chosen(proxied, leads=leads)
    before = declare(node)
    idle, busy = node.raw(), node.raw()
    proxied.net.isolate(node.name)
    # Nobody may acknowledge this one: the node cannot know that the cluster has agreed.
    busy.send_method(1, methods.QueueDeclare(queue="undecided", durable=True))
    working = [Declarer(other, "majority") for other in others]
    for client in working:
        client.wait_acked(killrun.BEFORE)
    assert "out of reach" in forced(idle)
    assert "out of reach" in forced(busy)
    wait_paused(node)
    assert sorted(node.status()["partitions"][node.name]) == sorted(other.name for other in others)
    proxied.net.heal()
    node.wait_for("resumed", seconds=40)
    promised = [acked for client in working for acked in client.stop()]
    assert proxied.wait_whole() in others or not leads
    until(node.accepts, f"{node} takes clients again")
    assert not any(client.lost for client in working), "the majority kept its clients"
    assert not killrun.missing(proxied, promised)
    after = declare(node)
    for other in proxied:
        until(lambda other=other: {before, after} <= other.queues(), f"{other} knows the queues")


def test_a_short_cut_is_noticed_by_nobody(proxied: Cluster) -> None:
    node, others = chosen(proxied, leads=False)
    clients = [Declarer(one, "short") for one in proxied]
    for client in clients:
        client.wait_acked(killrun.BEFORE)
    proxied.net.isolate(node.name)
    # Long enough for an election timeout of the one that is cut off.
    clients[proxied.nodes.index(others[0])].wait_acked(200, kit.time.time())
    proxied.net.heal()
    for client in clients:
        client.wait_acked(killrun.BEFORE, kit.time.time())
    promised = [acked for client in clients for acked in client.stop()]
    assert not any(client.lost for client in clients)
    proxied.wait_whole()
    assert not killrun.missing(proxied, promised)


@pytest.mark.parametrize("towards", [True, False], ids=["from the leader", "to the leader"])
def test_a_link_that_is_deaf_in_one_direction_costs_at_most_one_node(proxied: Cluster, towards: bool) -> None:
    leader = proxied.leader()
    node, other = proxied.others(leader)
    ends = (leader.name, node.name) if towards else (node.name, leader.name)
    working = Declarer(other, "one-way")
    proxied.net.cut_one_way(*ends)
    wait_paused(node)
    working.wait_acked(killrun.BEFORE, kit.time.time())
    assert proxied.leader(leader, other) is leader, "the leader is not unseated by who cannot hear it"
    proxied.net.heal()
    node.wait_for("resumed", seconds=40)
    promised = working.stop()
    proxied.wait_whole()
    assert not working.lost
    assert not killrun.missing(proxied, promised)


def test_two_nodes_that_cannot_reach_each_other_are_still_led_by_the_third(proxied: Cluster) -> None:
    leader = proxied.leader()
    one, other = proxied.others(leader)
    on_other = declare(other)
    proxied.net.cut(one.name, other.name)
    clients = [Declarer(node, "partial") for node in proxied]
    # Longer than the links' patience: they are given up and dialled again, in vain.
    one.wait_for("link down", since=len(one.lines), seconds=40)
    for client in clients:
        client.wait_acked(killrun.BEFORE, kit.time.time())
    promised = [acked for client in clients for acked in client.stop()]
    assert proxied.leader() is leader
    assert not any(client.lost for client in clients), "nobody is paused"
    proxied.net.heal()
    proxied.wait_whole()
    assert not killrun.missing(proxied, promised)
    until(lambda: used(one, on_other), "the queue on the other side is in reach again")


def test_a_node_without_a_link_to_the_leader_waits_and_the_others_go_on(proxied: Cluster) -> None:
    leader = proxied.leader()
    node, other = proxied.others(leader)
    proxied.net.cut(leader.name, node.name)
    working = [Declarer(one, "partial") for one in (leader, other)]
    wait_paused(node)
    for client in working:
        client.wait_acked(killrun.BEFORE, kit.time.time())
    assert proxied.leader(leader, other) is leader
    proxied.net.heal()
    node.wait_for("resumed", seconds=40)
    promised = [acked for client in working for acked in client.stop()]
    proxied.wait_whole()
    assert not killrun.missing(proxied, promised)


def test_slow_links_slow_things_down_and_cost_nothing_else(proxied: Cluster) -> None:
    leader = proxied.wait_whole()
    marks = {node: len(node.lines) for node in proxied}
    for one, other in itertools.combinations(proxied, 2):
        proxied.net.delay(one.name, other.name, 0.2)
    node, other = proxied.others(leader)
    began = kit.time.monotonic()
    on_other = declare(other)
    assert kit.time.monotonic() - began > 0.4, "a majority is two hops away"
    assert used(node, on_other)
    clients = [Declarer(one, "slow") for one in proxied]
    for client in clients:
        client.wait_acked(5)
    promised = [acked for client in clients for acked in client.stop()]
    for one in proxied:
        assert not one.said("leader changed", since=marks[one]), "slow is not gone"
        assert not one.said("paused", since=marks[one])
    assert not killrun.missing(proxied, promised)
    assert not any(client.lost for client in clients)


def used(node: Node, queue: str) -> bool:
    """Can a message be sent through a queue from this node?"""
    channel = node.channel()
    try:
        channel.basic_publish("", queue, b"x", kit.pika.BasicProperties(delivery_mode=2), mandatory=True)
        return channel.basic_get(queue, auto_ack=True)[2] == b"x"
    except (kit.pika.exceptions.AMQPError, Closed):
        return False
    finally:
        if channel.connection.is_open:
            channel.connection.close()
