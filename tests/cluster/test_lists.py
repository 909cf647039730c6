"""Promises about lists and administration of a whole cluster, whichever node is asked."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pika
import pika.exceptions

from mirrormq.base import limits
from mirrormq.ctl.main import main
from mirrormq.ctl.options import Options
from mirrormq.ctl.session import Session
from tests.cluster import kit
from tests.cluster.kit import Cluster, Node, until


def ctl(node: Node, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `mirrormqctl` beside a node."""
    out, err = io.StringIO(), io.StringIO()
    session = Session(Options(), out=out, environment={})
    with contextlib.redirect_stderr(err):
        code = main(["-q", "--data", str(node.folder), *words], session=session)
    return code, out.getvalue(), err.getvalue()


def fill(cluster: Cluster) -> list[Any]:
    """A queue per node with 1, 2, 3 messages, each with a consumer at the node after; its channels."""
    for number, node in enumerate(cluster, start=1):
        channel = node.channel()
        kit.declare(channel, f"q{number}")
        for _ in range(number):
            channel.basic_publish("", f"q{number}", b"x", pika.BasicProperties(delivery_mode=2))
        channel.connection.close()
    channels = []
    for number, node in enumerate(cluster, start=1):
        channel = node.channel(confirms=False)
        channel.basic_consume(f"q{number % 3 + 1}", lambda *_: None, consumer_tag=f"at-{node.short}")
        channels.append(channel)
    return channels


def end_of(channel: Any) -> str:
    """Wait until a broker closes a client's connection; with which words."""
    try:
        while True:
            channel.connection.process_data_events(kit.DEADLINE_S)
    except pika.exceptions.ConnectionClosedByBroker as closed:
        return str(closed.reply_text)


def test_every_node_lists_the_whole_cluster(three: Cluster) -> None:
    channels = fill(three)
    names = sorted(node.name for node in three)
    for node in three:
        code, out, err = ctl(node, "list_queues", "--no-table-headers", "name", "messages", "consumers")
        assert (code, out, err) == (0, "q1\t1\t1\nq2\t2\t1\nq3\t3\t1\n", "")
        assert sorted(row["node"] for row in node.get("connections")) == names
        assert sorted(row["channel_details"]["node"] for row in node.get("consumers")) == names
        assert sorted(row["node"] for row in node.ctl("list_channels")) == names
        rows = node.get("nodes")
        assert [row["name"] for row in rows] == names
        assert [int(row["os_pid"]) for row in rows] == [one.pid for one in three]
        overview = node.get("overview")
        assert overview["queue_totals"]["messages"] == 6
        assert {overview["object_totals"][kind] for kind in ("connections", "channels", "consumers")} == {3}
        _, out, _ = ctl(node, "list_queues", "--local", "--no-table-headers", "name")
        assert out == f"q{three.nodes.index(node) + 1}\n"
    pid = next(row["pid"] for row in three[0].ctl("list_connections") if row["node"] == three[2].name)
    assert ctl(three[1], "close_connection", pid, "maintenance")[0] == 0
    assert end_of(channels[2]) == "CONNECTION_FORCED - maintenance"
    assert "Closed 2 connections" in ctl(three[2], "close_all_connections", "enough")[1]
    assert {end_of(channel) for channel in channels[:2]} == {"CONNECTION_FORCED - enough"}
    until(lambda: not three[0].get("connections"), "no connection is left")


def test_a_node_that_is_gone_or_frozen_is_named_and_the_others_are_listed(three: Cluster) -> None:
    fill(three)
    first, second, third = three
    third.kill()
    until(lambda: third.name not in first.status().get("running_nodes", ()), "the others know")
    code, out, err = ctl(first, "list_queues", "--no-table-headers", "name", "messages", "state")
    assert (code, out) == (0, "q1\t1\trunning\nq2\t2\trunning\nq3\t\tdown\n")
    assert err == f"Warning: node {third.name} is down; what only it knows is not shown\n"
    assert ctl(first, "list_queues", "--offline", "--no-table-headers", "name")[1] == "q3\n"
    assert ctl(first, "list_queues", "--online", "--no-table-headers", "name")[1] == "q1\nq2\n"
    assert ctl(first, "-s", "list_queues", "--offline", "name")[2] == ""
    states = {row["name"]: row["running"] for row in first.get("nodes")}
    assert states == {first.name: True, second.name: True, third.name: False}
    third.start()
    third.wait_ready()
    three.wait_whole()
    with second.frozen():
        # Before it counts as gone it is asked, and does not answer.
        rows = first.ctl("list_connections")
        assert {row["node"] for row in rows} <= {first.name, third.name}
    three.wait_whole()
    expected = "q1\t1\nq2\t2\nq3\t3\n"
    until(
        lambda: ctl(first, "list_queues", "--no-table-headers", "name", "messages")[1] == expected,
        "all are listed again",
        limits.peer_silence_us / 1_000_000 + kit.DEADLINE_S,
    )
