"""Clusters for tests: nodes are killed, stopped, paused and started one by one, and nothing is left over."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pika
import pika.exceptions
import pytest

from mirrormq.testing import BrokerError, ClusterNode, cluster
from mirrormq.testing.cluster import own_address
from tests.integration.localrun import wait_until_gone
from tests.integration.test_testing_plugin import inner, run
from tests.support import raw

pytestmark = pytest.mark.slow
pytest_plugins = "pytester"
__all__ = ["inner"]


def connect(node: ClusterNode) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(node.url))


def test_single_nodes_are_killed_stopped_and_started_again_with_their_data() -> None:
    with cluster(nodes=3) as made:
        first, second, third = made.nodes
        assert len({node.pid for node in made.nodes}) == 3
        connection = connect(first)
        connection.channel().queue_declare("kept", durable=True)
        connection.close()
        third.kill()
        assert [node.is_running for node in made.nodes] == [True, True, False]
        with pytest.raises(BrokerError, match="does not run"):
            third.ask("add_vhost", name="v")
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connect(third)
        connect(second).close()
        third.start()
        connect(third).close()
        with pytest.raises(BrokerError, match="runs already"):
            third.start()
        url = first.url
        first.restart()
        assert first.url == url
        connection = connect(first)
        connection.channel().queue_declare("kept", passive=True)
        connection.close()
        assert "stopping: SIGTERM" in first.log


def test_a_node_that_ended_by_itself_is_noticed_and_started_again() -> None:
    with cluster(nodes=1) as made:
        [node] = made.nodes
        os.kill(node.pid, signal.SIGKILL)
        os.waitid(os.P_PID, node.pid, os.WEXITED | os.WNOWAIT)
        assert not node.is_running
        made.start_all()
        connect(node).close()


def test_a_cluster_leaves_neither_processes_nor_folders_even_with_a_paused_node() -> None:
    with cluster(nodes=2) as made:
        pids = [node.pid for node in made.nodes]
        folders = [Path(f"/proc/{pid}/cwd").resolve() for pid in pids]
        made.nodes[1].pause()
    for pid in pids:
        wait_until_gone(pid)
    assert not any(folder.exists() for folder in folders)
    assert not folders[0].parent.exists()


def test_two_clusters_of_one_process_do_not_meet() -> None:
    with cluster(nodes=1) as one, cluster(nodes=1) as two:
        assert one.nodes[0].host == two.nodes[0].host == own_address(os.getpid())
        assert one.nodes[0].port != two.nodes[0].port
        for made in (one, two):
            connect(made.nodes[0]).close()


def test_settings_reach_every_node_and_a_wrong_one_is_told() -> None:
    with cluster(nodes=2, config=["channel_max = 7"], admin=True) as made:
        for node in made.nodes:
            with raw.connect(node.host, node.port) as client:
                assert client.handshake().channel_max == 7
            assert str(node.admin_url).startswith(f"http://{node.host}:")
    with pytest.raises(BrokerError, match="no_such_setting"), cluster(2, ["no_such_setting = 1"]):
        pass


def test_the_fixture_gives_every_test_all_nodes_again(inner: pytest.Pytester) -> None:
    inner.makeini("[pytest]\nmirrormq_nodes = 2\n")
    inner.makepyfile(
        """
        import pika

        pids = set()

        def declare(node):
            connection = pika.BlockingConnection(pika.URLParameters(node.url))
            connection.channel().queue_declare("same", durable=True)
            connection.close()

        def test_one_kills(mirrormq_cluster):
            pids.add(mirrormq_cluster.nodes[0].pid)
            for node in mirrormq_cluster.nodes:
                declare(node)
            mirrormq_cluster.nodes[1].kill()

        def test_the_next_does_not_notice(mirrormq_cluster):
            assert mirrormq_cluster.nodes[0].pid in pids
            for node in mirrormq_cluster.nodes:
                declare(node)
            mirrormq_cluster.nodes[0].pause()

        def test_nor_does_the_one_after(mirrormq_cluster):
            for node in mirrormq_cluster.nodes:
                declare(node)
        """
    )
    run(inner).assert_outcomes(passed=3)


def test_a_killed_test_run_leaves_no_node_and_no_folder(inner: pytest.Pytester, tmp_path: Path) -> None:
    report = tmp_path / "report"
    inner.makepyfile(
        f"""
        import os, pathlib, signal

        def test_it(mirrormq_cluster):
            nodes = mirrormq_cluster.nodes
            nodes[2].kill()
            words = [str(nodes[0].pid), str(nodes[1].pid), os.readlink(f"/proc/{{nodes[0].pid}}/cwd")]
            pathlib.Path({str(report)!r}).write_text(" ".join(words))
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert run(inner).ret == -signal.SIGKILL
    first, second, folder = report.read_text().split()
    wait_until_gone(int(first))
    wait_until_gone(int(second))
    # The data of the node that was killed before goes too.
    assert not Path(folder).parent.exists()


@pytest.mark.parametrize("process", [1, 255, 256, 65_535, 4_194_304])
def test_the_address_of_a_cluster_is_a_loopback_address_of_one_process(process: int) -> None:
    octets = [int(part) for part in own_address(process).split(".")]
    assert octets[0] == 127
    assert 64 <= octets[1] < 128
    assert all(0 <= octet <= 255 for octet in octets)
    assert own_address(process) != own_address(process + 1)


def test_any_node_may_be_killed_at_once_and_the_others_go_on() -> None:
    with cluster(3) as made:
        leader = made.ask("cluster_status")["leader"]
        victim = next(node for node in made.nodes if node.name == leader)
        victim.kill()
        made.ask("add_vhost", name="after", actor=made.user)
