"""Promises about how nodes with the same list become one cluster, and find it again."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.cluster import kit
from tests.cluster.kit import Cluster, until

ORDERS = list(itertools.permutations(range(3)))


def one_cluster(cluster: Cluster) -> str:
    """Check that all nodes belong to one cluster; returns its id."""
    cluster.wait_whole()
    (found,) = {node.status()["cluster_id"] for node in cluster}
    assert found
    return str(found)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "".join(str(place + 1) for place in order))
def test_three_fresh_nodes_form_one_cluster_in_whatever_order_they_start(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    with kit.cluster(tmp_path, start=False) as cluster:
        for place in order:
            cluster[place].start()
            # The next one comes when this one looks for the others already.
            cluster[place].wait_for("data folder is new")
        cluster.wait_ready()
        assert one_cluster(cluster)
        formed = [node for node in cluster if node.said("cluster formed")]
        assert formed == [cluster[0]], "only the first listed forms a cluster"
        assert sum(len(node.said("joined")) for node in cluster) == 2
        channel = cluster[0].channel()
        kit.declare(channel, "everywhere")
        for node in cluster:
            until(lambda node=node: "everywhere" in node.queues(), f"{node} knows the queue")


def test_five_fresh_nodes_form_one_cluster(tmp_path: Path) -> None:
    with kit.cluster(tmp_path, 5) as cluster:
        assert one_cluster(cluster)
        assert cluster[4].status()["tolerance"] == "tolerates 2 failures"


def test_without_the_first_listed_node_the_others_wait_and_say_for_whom(tmp_path: Path) -> None:
    with kit.cluster(tmp_path, start=False) as cluster:
        first, *others = cluster
        for node in others:
            node.start()
        for node in others:
            said = node.wait_for("waiting for a cluster", seconds=20).text
            assert f"{first.name} forms" in said
            (other,) = set(others) - {node}
            assert f"linked with {other.name}" in said
            assert not node.accepts()
            status = node.ctl("status")
            assert status["app"] == "starting"
            assert first.name in status["app_detail"]
        first.start()
        cluster.wait_ready()
        assert one_cluster(cluster)


def test_a_minority_of_the_list_forms_no_cluster(tmp_path: Path) -> None:
    with kit.cluster(tmp_path, start=False) as cluster:
        first, second, third = cluster
        first.start()
        first.wait_for("waiting for a cluster", seconds=20)
        assert not first.accepts()
        second.start()
        cluster.wait_ready(first, second)
        third.start()
        cluster.wait_ready()
        assert one_cluster(cluster)


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 0, 2)], ids=["321", "213"])
def test_nodes_find_their_cluster_again_with_everything_it_knew(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    with kit.cluster(tmp_path) as cluster:
        before = one_cluster(cluster)
        kit.declare(cluster[1].channel(), "kept")
        for node in cluster:
            assert node.stop() == 0
        for place in order:
            cluster[place].start()
        cluster.wait_ready()
        assert one_cluster(cluster) == before
        assert not any(node.said("cluster formed") or node.said("joined") for node in cluster)
        for node in cluster:
            assert node.queues() == {"kept"}


def test_a_majority_of_a_known_cluster_starts_without_the_rest(three: Cluster) -> None:
    first, second, third = three
    for node in three:
        node.stop()
    three.start(third, second)
    assert three.leader(second, third) in (second, third)
    kit.declare(third.channel(), "without-the-first")
    three.start(first)
    three.wait_whole()
    until(lambda: "without-the-first" in first.queues(), "the late one knows the queue")
