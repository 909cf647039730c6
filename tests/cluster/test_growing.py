"""Promises about clusters that grow and shrink while clients work, by the commands an operator knows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrormq.client.admin import Refused
from tests.cluster import killrun, kit
from tests.cluster.killrun import Acked, Declarer
from tests.cluster.kit import Cluster, Node, until


def join(cluster: Cluster, node: Node, through: Node) -> None:
    """stop_app, reset, join_cluster, start_app."""
    cluster.start(node)
    node.ctl("stop_app")
    node.ctl("reset")
    node.ctl("join_cluster", node=through.name, address=f"{through.host}:{kit.CLUSTER}")
    node.ctl("start_app")
    cluster.wait_whole()


def leave(cluster: Cluster, node: Node) -> None:
    """leave_cluster, and the process is gone, too."""
    node.ctl("leave_cluster")
    assert node.ctl("status")["app"] == "stopped"
    node.stop()
    cluster.wait_whole()
    assert node.name not in cluster.status_names()


@contextlib.contextmanager
def working(promised: list[Acked], prefix: str, *nodes: Node) -> Iterator[None]:
    """Clients that declare on some nodes all the time and must not lose their connections."""
    clients = [Declarer(node, prefix) for node in nodes]
    for client in clients:
        client.wait_acked(5)
    try:
        yield
        for client in clients:
            client.wait_acked(5, kit.time.time())
    finally:
        for client in clients:
            promised += client.stop()
    assert not any(client.lost for client in clients), "clients of nodes that stay notice nothing"


def test_a_cluster_grows_from_one_to_five_nodes_and_shrinks_back_while_clients_work(tmp_path: Path) -> None:
    with kit.cluster(tmp_path, 0, start=False) as cluster:
        first = cluster.add("n1")
        cluster.start(first)
        promised: list[Acked] = []
        with working(promised, "grow", first):
            for number in range(2, 6):
                through = cluster[number // 2 - 1]
                node = cluster.add(f"n{number}")
                join(cluster, node, through)
                assert not killrun.missing(cluster, promised)
        assert len(cluster.status_names()) == 5
        assert first.status()["tolerance"] == "tolerates 2 failures"
        leader = cluster.leader()
        stays, *others = cluster.others(leader)
        with working(promised, "shrink", stays):
            leave(cluster, leader)
            dead = others.pop()
            dead.kill()
            stays.ctl("forget_cluster_node", node=dead.name)
            cluster.wait_whole()
            for node in others:
                leave(cluster, node)
        assert cluster.status_names() == [stays.name]
        expect_kept(stays, promised, {leader, dead, *others})
        stays.stop()
        cluster.start(stays)
        expect_kept(stays, promised, {leader, dead, *others})


def expect_kept(node: Node, promised: list[Acked], gone: set[Node]) -> None:
    """Everything is there but the queues that lived on nodes that left."""
    lost = {f"-{one.short}-" for one in gone}
    exchanges = {row["name"] for row in node.ctl("list_exchanges")}
    queues = node.queues()
    for one in promised:
        if not one.is_queue:
            assert one.name in exchanges
        elif not any(part in one.name for part in lost):
            assert one.name in queues
        else:
            assert one.name not in queues


def test_a_node_with_data_of_its_own_is_told_how_to_join(tmp_path: Path) -> None:
    with kit.cluster(tmp_path, 0, start=False) as cluster:
        first, second = cluster.add("n1"), cluster.add("n2")
        cluster.start()
        with pytest.raises(Refused, match="run stop_app first"):
            second.ctl("join_cluster", node=first.name)
        second.ctl("stop_app")
        with pytest.raises(Refused, match="stop_app, reset, join_cluster and start_app in this order"):
            second.ctl("join_cluster", node=first.name)
        with pytest.raises(Refused, match="is this node itself"):
            second.ctl("join_cluster", node=second.name)


def test_a_node_that_runs_is_not_forgotten_and_the_last_one_does_not_leave(three: Cluster) -> None:
    leader = three.leader()
    node, other = three.others(leader)
    with pytest.raises(Refused, match="is running: stop it first"):
        leader.ctl("forget_cluster_node", node=node.name)
    with pytest.raises(Refused, match="not in the cluster"):
        leader.ctl("forget_cluster_node", node="nobody@nowhere")
    leave(three, node)
    leave(three, other)
    with pytest.raises(Refused, match="there is nothing to leave"):
        leader.ctl("leave_cluster")


def test_messages_that_only_a_leaving_node_has_keep_it_in_unless_forced(three: Cluster) -> None:
    node = three.others(three.leader())[0]
    channel = node.channel()
    kit.declare(channel, "only-here")
    channel.basic_publish("", "only-here", b"x", kit.pika.BasicProperties(delivery_mode=2), mandatory=True)
    with pytest.raises(Refused, match="'only-here' among them"):
        node.ctl("leave_cluster")
    assert node.accepts()
    node.ctl("leave_cluster", force=True)
    three.nodes.remove(node)
    try:
        three.wait_whole()
        for other in three:
            until(lambda other=other: "only-here" not in other.queues(), f"{other} knows that it is gone")
        node.ctl("start_app")
        until(lambda: len(three.others()[0].status()["members"]) == 3, "listed as it is, it joins again")
    finally:
        three.nodes.append(node)


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "other"])
def test_one_of_two_nodes_leaves_and_the_other_goes_on_alone(tmp_path: Path, leads: bool) -> None:
    with kit.cluster(tmp_path, 2) as cluster:
        leader = cluster.leader()
        (other,) = cluster.others(leader)
        leaving, staying = (leader, other) if leads else (other, leader)
        promised: list[Acked] = []
        with working(promised, "pair", staying):
            leave(cluster, leaving)
        assert cluster.status_names() == [staying.name]
        expect_kept(staying, promised, {leaving})


def test_reset_says_what_to_do_if_the_other_node_cannot_decide_alone(tmp_path: Path) -> None:
    with kit.cluster(tmp_path, 2) as cluster:
        leader = cluster.leader()
        leader.ctl("stop_app")
        with pytest.raises(Refused, match="start_app, then leave_cluster"):
            leader.ctl("reset")
        leader.ctl("start_app")
        cluster.wait_whole()
        leave(cluster, leader)


def test_two_nodes_say_that_they_tolerate_no_failure(tmp_path: Path) -> None:
    with kit.cluster(tmp_path, 0, start=False) as cluster:
        first, second = cluster.add("n1"), cluster.add("n2")
        cluster.start(first)
        join(cluster, second, first)
        assert second.status()["tolerance"] == "tolerates 0 failures; add a witness"
