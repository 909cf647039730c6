"""Promises about nodes that die: the leader under load, several at once, the whole cluster."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import killrun, kit
from tests.cluster.killrun import Acked, Declarer
from tests.cluster.kit import Cluster, Node, until

MESSAGES = 50


def test_a_killed_leader_is_replaced_at_once_and_no_acknowledged_declare_is_lost(three: Cluster) -> None:
    rounds = killrun.run(three, 3, sys.stdout.write)
    assert sorted(cost.leads for cost in rounds)[1] <= 0.5, killrun.summary(rounds)
    assert not any(cost.lost for cost in rounds), "clients of survivors keep their connections"


def test_five_nodes_lose_two_leaders_in_turn_and_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with kit.cluster(tmp_path, 5) as cluster:
        promised: list[Acked] = []
        first, _ = killrun.kill_leader(cluster, "one", promised)
        second = cluster.leader()
        clients = [Declarer(node, "two") for node in cluster.others(second)]
        for client in clients:
            client.wait_acked(killrun.BEFORE)
        killed_at = second.kill()
        for client in clients:
            client.wait_acked(killrun.BEFORE, killed_at)
            promised += client.stop()
        assert not killrun.missing(cluster, promised)
        # In any order: the one that knows less first.
        cluster.start(first)
        cluster.start(second)
        cluster.wait_whole()
        assert not killrun.missing(cluster, promised)


def test_two_of_three_gone_stops_changes_until_one_is_back(three: Cluster) -> None:
    leader = three.leader()
    one, other = three.others(leader)
    one.kill()
    other.kill()
    leader.wait_for("paused")
    until(lambda: not leader.accepts(), "the only node left takes no clients")
    assert leader.status()["paused"]
    three.start(other)
    leader.wait_for("resumed")
    until(leader.accepts, "it takes clients again")
    kit.declare(leader.channel(), "after")
    three.start(one)
    three.wait_whole()
    assert all("after" in node.queues() for node in three)


def fill(node: Node, name: str) -> list[bytes]:
    """Confirmed persistent messages in a durable queue that lives on this node."""
    channel = node.channel()
    channel.exchange_declare("letters", "topic", durable=True)
    kit.declare(channel, name, arguments={"x-max-priority": 3})
    channel.queue_bind(name, "letters", f"{name}.#")
    bodies = [f"{name} {number}".encode() * 10 for number in range(MESSAGES)]
    persistent = kit.pika.BasicProperties(delivery_mode=2)
    for body in bodies:
        channel.basic_publish("letters", f"{name}.x", body, persistent, mandatory=True)
    return bodies


def empty(node: Node, name: str) -> list[bytes]:
    """Everything in a queue."""
    channel = node.channel()
    found: list[bytes] = []
    while True:
        method, _, body = channel.basic_get(name, auto_ack=True)
        if method is None:
            return found
        found.append(body)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_cluster_killed_as_a_whole_comes_back_with_definitions_and_confirmed_messages(
    three: Cluster, seed: int
) -> None:
    filled = {node: fill(node, f"on-{node.short}") for node in three}
    three[1].ctl("add_user", name="somebody", password="secret")
    before = three.wait_whole().ctl("export_definitions")
    order = list(three)
    random.Random(seed).shuffle(order)
    for node in order:
        node.kill()
    random.Random(seed + 100).shuffle(order)
    for node in order:
        node.start()
    three.wait_ready()
    three.wait_whole()
    for node in three:
        assert node.ctl("export_definitions") == before
    for place, (node, bodies) in enumerate(filled.items()):
        reader = three[(place + seed) % 3]
        until(lambda node=node, reader=reader: reachable(reader, f"on-{node.short}"), f"{node} is in reach")
        assert empty(reader, f"on-{node.short}") == bodies


def reachable(node: Node, name: str) -> bool:
    """Can a queue be used through this node?"""
    channel = node.channel()
    try:
        channel.queue_declare(name, passive=True)
    except kit.pika.exceptions.ChannelClosedByBroker:
        return False
    finally:
        channel.connection.close()
    return True


def test_a_cluster_killed_under_load_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with kit.cluster(tmp_path) as cluster:
        clients: list[Any] = [Declarer(node, "load") for node in cluster]
        for client in clients:
            client.wait_acked(killrun.BEFORE)
        for node in cluster:
            node.kill()
        killed_at = time.time()
        for node in reversed(cluster.nodes):
            node.start()
        cluster.wait_ready()
        for client in clients:
            client.wait_acked(killrun.BEFORE, killed_at)
        promised = [acked for client in clients for acked in client.stop()]
        cluster.wait_whole()
        assert not killrun.missing(cluster, promised)
