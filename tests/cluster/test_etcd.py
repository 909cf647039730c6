"""Promises of nodes that agree by a real etcd: who dies, who pauses, who belongs, and who is refused.

A slice of the campaign `make etcd-kill`; what is checked message by message is in mirrorclients.py.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrormq.client.admin import Refused
from tests.cluster import etcdrun, killrun, kit, mirrorrun
from tests.cluster.killrun import Acked, Declarer
from tests.cluster.kit import Cluster, until
from tests.support import etcdkit
from tests.support.etcdkit import Etcd, needs_etcd

pytestmark = needs_etcd
SEED = 3


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """An etcd of one member."""
    with etcdkit.running(tmp_path_factory.mktemp("etcd")) as made:
        yield made


@pytest.mark.timeout(200)
def test_nothing_confirmed_is_lost_when_members_of_etcd_and_nodes_die(tmp_path: Path) -> None:
    with etcdrun.running(tmp_path, 3, SEED, sys.stdout.write) as (run, _):
        run.round("kill -9 of an etcd member")
        run.round("kill -9 of etcd's leader and a master")
        sys.stdout.write(mirrorrun.summary(run.rounds))


def test_a_leader_and_a_member_of_etcd_that_are_killed_cost_no_acknowledged_declare(tmp_path: Path) -> None:
    with (
        etcdkit.running(tmp_path / "etcd", 3) as etcd,
        kit.cluster(tmp_path / "nodes", settings=etcd.settings()) as cluster,
    ):
        promised: list[Acked] = []
        killed, cost = killrun.kill_leader(cluster, "node", promised)
        assert cost.leads <= 1.0, cost
        cluster.start(killed)
        clients = [Declarer(node, "member") for node in cluster]
        for client in clients:
            client.wait_acked(killrun.BEFORE)
        etcd.leader().kill()
        killed_at = kit.time.time()
        for client in clients:
            client.wait_acked(killrun.BEFORE, killed_at)
            promised += client.stop()
        cluster.wait_whole()
        assert not killrun.missing(cluster, promised)
        assert not any(client.lost for client in clients), "a member of etcd costs no connection"


def test_nodes_enter_by_the_prefix_and_leave_or_are_forgotten(tmp_path: Path, one: Etcd) -> None:
    with kit.cluster(tmp_path, 0, settings=one.settings("/growing"), start=False) as cluster:
        first, second, third = (cluster.add(name) for name in ("n1", "n2", "n3"))
        cluster.start(first)
        status = first.status()
        assert (status["coordinator"], status["leader"]) == ("etcd", first.name)
        kit.declare(first.channel(), "before")
        cluster.start(second, third)
        cluster.wait_whole()
        assert all("before" in node.queues() for node in cluster)
        with pytest.raises(Refused, match="etcd"):
            stopped_join(second, first.name)
        leader = cluster.leader()
        stays, other = cluster.others(leader)
        leader.ctl("leave_cluster")
        leader.stop()
        cluster.wait_whole()
        other.kill()
        stays.ctl("forget_cluster_node", node=other.name)
        assert cluster.status_names() == [stays.name]
        assert stays.status()["members"][0]["leader"]
        # One that was forgotten is not let in with its old folder.
        other.start()
        assert other.wait_end() == 1
        assert "was removed from the cluster" in other.wait_for("mirrormq: ").text


def stopped_join(node: kit.Node, through: str) -> None:
    """join_cluster, as with Raft."""
    node.ctl("stop_app")
    try:
        node.ctl("reset")
        node.ctl("join_cluster", node=through)
    finally:
        node.ctl("start_app")


def test_a_node_that_cannot_renew_its_lease_pauses_says_why_and_comes_back(tmp_path: Path, one: Etcd) -> None:
    with kit.cluster(tmp_path, 1, settings=one.settings("/pausing")) as cluster:
        node = cluster[0]
        kit.declare(node.channel(), "kept")
        one.members[0].signal(signal.SIGSTOP)
        try:
            assert "its lease in etcd cannot be renewed" in node.wait_for("paused").text
            until(lambda: not node.accepts(), "it takes no clients")
        finally:
            one.members[0].signal(signal.SIGCONT)
        node.wait_for("resumed")
        until(node.accepts, "it takes clients again")
        assert node.queues() == {"kept"}


def test_folders_of_other_coordinators_and_other_clusters_are_refused(tmp_path: Path, one: Etcd) -> None:
    with kit.cluster(tmp_path, 1) as cluster:
        node: kit.Node = cluster[0]
        own = list(node.settings)
        assert refusal(cluster, [*own, *one.settings("/other")]).count("holds none") == 1
    with kit.cluster(tmp_path / "etcd", 1, settings=one.settings("/mine")) as cluster:
        node = cluster[0]
        own = [setting for setting in node.settings if not setting.startswith(("etcd.", "coordinator"))]
        assert "agrees by etcd: set coordinator = etcd" in refusal(cluster, own)


def refusal(cluster: Cluster, settings: list[str]) -> str:
    """Start the only node with other settings, and return why it ends."""
    node = cluster[0]
    node.stop()
    node.settings = settings
    node.start()
    assert node.wait_end() == 1
    return node.wait_for("mirrormq: ").text


def test_an_etcd_that_does_not_answer_is_waited_for_by_name_and_no_password_is_told(
    tmp_path: Path, one: Etcd
) -> None:
    (port,) = etcdkit.free_ports("127.0.0.1", 1)
    settings = ["coordinator=etcd", f"etcd.endpoints=http://127.0.0.1:{port}"]
    settings += ["etcd.user=root", "etcd.password=sesame-open"]
    with kit.cluster(tmp_path, 1, settings=settings, start=False) as cluster:
        node = cluster[0]
        node.start()
        until(lambda: f"waiting for etcd: http://127.0.0.1:{port}" in detail(node), lambda: detail(node))
        assert "sesame-open" not in node.text


def detail(node: kit.Node) -> str:
    """What a start waits for, once there is somebody to ask."""
    return str((node.asked("status") or {}).get("app_detail")) if node.said("data folder") else ""


@pytest.mark.timeout(60)
def test_a_node_logs_in_to_etcd_with_user_and_password(tmp_path: Path) -> None:
    with etcdkit.running(tmp_path / "etcd") as etcd:
        member = etcd.members[0]
        member.call("/v3/auth/user/add", {"name": "root", "password": "sesame-open"})
        member.call("/v3/auth/user/grant", {"user": "root", "role": "root"})
        member.call("/v3/auth/enable", {})
        named = [*etcd.settings(), "etcd.user=root"]
        with kit.cluster(tmp_path / "n", 1, settings=[*named, "etcd.password=wrong"], start=False) as cluster:
            node = cluster[0]
            node.start()
            refused = "invalid user ID or password (user root)"
            until(lambda: refused in detail(node), lambda: detail(node))
            assert "wrong" not in node.text + detail(node)
        with kit.cluster(tmp_path / "m", 1, settings=[*named, "etcd.password=sesame-open"]) as cluster:
            kit.declare(cluster[0].channel(), "there")
            assert "sesame-open" not in cluster[0].text
