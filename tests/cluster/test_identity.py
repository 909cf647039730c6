"""Promises about data folders: a node is its folder, and a cluster lets in only folders it can trust."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cluster import kit
from tests.cluster.kit import Cluster, Node, until

FOREIGN = "data folder is new or older than the cluster remembers; forget_cluster_node, then join"
STARTS = 3


def refused(node: Node) -> None:
    """Start a node that is not let in, and see it end with the sentence."""
    node.start()
    assert node.wait_end() == 1
    said = [line.text for line in node.said("mirrormq: ")]
    assert len(said) == 1, node.text
    assert FOREIGN in said[0]
    assert not node.said("Traceback")


def goes_on(cluster: Cluster, name: str) -> None:
    """The others still agree on things."""
    first, second = cluster.others()
    kit.declare(first.channel(), name)
    until(lambda: name in second.queues(), f"{second} knows {name}")


def test_an_emptied_data_folder_is_refused_however_often_it_is_started(three: Cluster) -> None:
    node = three.others(three.leader())[0]
    node.kill()
    shutil.rmtree(node.folder)
    for number in range(STARTS):
        refused(node)
        goes_on(three, f"round-{number}")
    three.leader().ctl("forget_cluster_node", node=node.name)
    three.start(node)
    three.wait_whole()
    assert node.said("joined")
    until(lambda: f"round-{STARTS - 1}" in node.queues(), "it learns everything")


def test_the_emptied_folder_of_a_leader_is_refused_too(three: Cluster) -> None:
    leader = three.leader()
    leader.kill()
    shutil.rmtree(leader.folder)
    refused(leader)
    goes_on(three, "after")


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "other"])
def test_a_data_folder_from_a_backup_that_misses_a_start_is_refused(three: Cluster, leads: bool) -> None:
    leader = three.leader()
    node = leader if leads else three.others(leader)[0]
    node.stop()
    copy = three.folder / "copy"
    shutil.copytree(node.folder, copy, symlinks=True)
    three.start(node)
    three.wait_whole()
    node.stop()
    shutil.rmtree(node.folder)
    for _ in range(2):
        # Also if it begins from the copy again.
        shutil.copytree(copy, node.folder, symlinks=True, dirs_exist_ok=True)
        refused(node)
    refused(node)
    goes_on(three, "after")


def test_a_data_folder_that_was_moved_away_and_back_is_welcome(three: Cluster) -> None:
    node = three.others(three.leader())[0]
    node.stop()
    node.folder.rename(three.folder / "away")
    refused(node)
    shutil.rmtree(node.folder)
    (three.folder / "away").rename(node.folder)
    three.start(node)
    three.wait_whole()


def test_a_node_with_another_secret_gets_no_link_and_both_sides_say_why(tmp_path: Path) -> None:
    with kit.cluster(tmp_path) as cluster:
        stranger = cluster.add("stranger")
        listed = next(setting for setting in cluster[0].settings if setting.startswith("cluster_nodes="))
        stranger.settings = ["cluster_secret=a secret of somebody else", f"{listed},{stranger.name}"]
        stranger.start()
        stranger.wait_for("no link", "the secrets differ")
        cluster[0].wait_for("no link", "the secrets differ")
        waiting = stranger.wait_for("waiting for a cluster").text
        assert "linked with nobody" in waiting
        assert not stranger.accepts()
        assert len(cluster[0].status()["members"]) == 3


def test_a_node_that_takes_the_name_of_another_is_refused(three: Cluster) -> None:
    node = three.others(three.leader())[0]
    twin = three.add("twin")
    twin.name = node.name
    twin.settings = [*node.settings, f"cluster_advertise={twin.host}:{kit.CLUSTER}"]
    twin.start()
    said = twin.wait_for("another node is named", node.name).text
    assert "is linked" in said
    assert not twin.accepts()
    twin.kill()
    assert three.status_names() == sorted(one.name for one in three.nodes if one is not twin)
    goes_on_with_all(three, twin)


def goes_on_with_all(cluster: Cluster, twin: Node) -> None:
    cluster.nodes.remove(twin)
    cluster.wait_whole()
    kit.declare(cluster[0].channel(), "after")
    for node in cluster:
        until(lambda node=node: "after" in node.queues(), f"{node} knows the queue")


def test_the_folder_of_another_cluster_stays_with_that_cluster(tmp_path: Path) -> None:
    with kit.cluster(tmp_path / "one") as cluster:
        foreign = cluster.add("foreign")
        foreign.start()
        foreign.wait_ready()
        kit.declare(foreign.channel(), "its-own")
        foreign.stop()
        listed = next(setting for setting in cluster[0].settings if setting.startswith("cluster_nodes="))
        foreign.settings.append(f"{listed},{foreign.name}")
        foreign.start()
        foreign.wait_for("no link", "the nodes belong to different clusters")
        foreign.wait_ready()
        assert foreign.queues() == {"its-own"}, "it goes on as what it is"
        assert len(cluster[0].status()["members"]) == 3
        # The way in is to give up what it has.
        foreign.ctl("stop_app")
        foreign.ctl("reset")
        foreign.ctl("start_app")
        cluster.wait_whole()
        assert len(cluster[0].status()["members"]) == 4
        assert foreign.queues() == set()
