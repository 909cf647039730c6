"""What is shown of mirrored queues: who has a copy, how far each is, and what the queue waits for."""

from __future__ import annotations

from typing import Any

import pytest

from mirrormq.meta.records import Queue
from mirrormq.meta.state import MetaState
from mirrormq.mirror.ports import Options
from mirrormq.node import report_mirrors
from mirrormq.node.report import queue_pid
from tests.support.copieskit import CopiesNet
from tests.support.metakit import changed, cluster, declare_mirrored, declare_queue
from tests.support.viewkit import dead, policy, restarted


class Live:
    """A queue without a broker: what a report reads of it."""

    class Core:
        ready = 8
        unacked = 2

    def __init__(self, record: Queue) -> None:
        self.record = record
        self.core = self.Core()
        self.damage: str | None = None


class Node:
    """One node of the cluster, as reports read it."""

    def __init__(self, name: str, state: MetaState, copies: Any = None) -> None:
        self.node_name = name
        self.state = state
        self.copies = copies

    def described(self, name: str = "q") -> dict[str, Any]:
        return report_mirrors.described(self, self.state.queues["/", name], queue_pid)

    def measured(self, name: str = "q") -> dict[str, Any]:
        live: Any = Live(self.state.queues["/", name])
        return report_mirrors.measured(self, live)


@pytest.fixture
def state() -> MetaState:
    return cluster("a", "b", "c")


def test_a_queue_that_is_not_mirrored_has_no_columns_about_mirrors(state: MetaState) -> None:
    declare_queue(state, "q", node="a")
    assert Node("a", state).described() == {}
    assert Node("a", state).measured() == {"state": "running"}


def test_rabbitmqs_columns_and_ours_name_the_same_mirrors(state: MetaState) -> None:
    policy(state)
    view = declare_mirrored(state, "q", "a", "b")
    changed(state, "q", "add_learner", "c")
    row = Node("b", state).described()
    assert row["slave_pids"] == row["mirror_pids"] == [queue_pid("b", view.id), queue_pid("c", view.id)]
    assert row["synchronised_slave_pids"] == row["synchronised_mirror_pids"] == [queue_pid("b", view.id)]
    assert (row["slave_nodes"], row["synchronised_slave_nodes"]) == (["b", "c"], ["b"])
    assert row["recoverable_slaves"] == ["b"]
    assert (row["master"], row["in_sync"], row["unsynchronised"]) == ("a", ["a", "b"], ["c"])
    assert (row["epoch"], row["losses"], row["copies_wanted"]) == (2, 0, 3)
    assert "leader" not in row


def test_a_restarted_mirror_counts_as_not_synchronised_and_a_dead_one_as_not_there(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b", "c", durable=True)
    restarted(state, "b")
    dead(state, "c")
    row = Node("a", state).described()
    assert (row["in_sync"], row["unsynchronised"], row["slave_nodes"]) == (["a"], ["b"], ["b"])
    assert row["recoverable_slaves"] == ["b", "c"]


def test_a_quorum_queue_shows_its_leader_its_members_and_who_is_there(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b", "c", durable=True, arguments={"x-queue-type": "quorum"})
    dead(state, "b")
    row = Node("a", state).described()
    assert (row["leader"], row["members"], row["online"]) == ("a", ["a", "b", "c"], ["a", "c"])


def test_without_a_master_the_state_says_whether_it_went_down_in_good_order(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", durable=True)
    record = state.queues["/", "q"]
    changed(state, "q", "add_learner", "b")
    assert report_mirrors.state_without_master(state, record) == "down"
    changed(state, "q", "stop")
    dead(state, "a")
    row = Node("b", state).described()
    assert (row["master"], row["in_sync"], row["unsynchronised"]) == (None, [], ["b"])
    assert report_mirrors.state_without_master(state, record) == "stopped_clean"
    assert report_mirrors.awaited(state, state.views["/", "q"]) == ["a"]


def test_the_master_tells_how_far_behind_each_mirror_is(state: MetaState) -> None:
    view = declare_mirrored(state, "q", "a", "b", "c")
    net = CopiesNet(state, "a", "b", "c")
    node = Node("a", state, net["a"])
    net["a"].append(view.id, 3)
    net.run()
    row = node.measured()
    assert (row["state"], row["mirror_lag"], row["sync_progress"]) == ("running", 0, None)
    assert row["durable_mark"] == net["a"].logs[view.id].end > 3
    net.deaf.add("c")
    net["a"].append(view.id, 5)
    net.run()
    row = node.measured()
    assert row["mirror_lag"] == 5
    assert [(mirror["node"], mirror["state"], mirror["lag"]) for mirror in row["mirrors"]] == [
        ("b", "in-sync", 0),
        ("c", "in-sync", 5),
    ]
    assert Node("b", state, net["b"]).measured() == {"state": "running"}


def test_a_mirror_that_is_copied_to_makes_the_queue_syncing_with_its_progress(state: MetaState) -> None:
    declare_mirrored(state, "q", "a")
    net = CopiesNet(state, "a", "b", "c", options=Options(is_manual=True))
    net.deaf.update(("b", "c"))
    changed(state, "q", "add_learner", "b")
    changed(state, "q", "add_learner", "c")
    node = Node("a", state, net["a"])
    row = node.measured()
    assert (row["state"], [mirror["state"] for mirror in row["mirrors"]]) == ("running", ["waiting"] * 2)
    net["a"].told = [("b", 40, 1000, "copying"), ("c", 70, 2000, "copying")]
    row = node.measured()
    assert (row["state"], row["sync_progress"], row["sync_messages"]) == ("syncing", 40, 4)
    assert [(mirror["progress"], mirror["bytes_sent"]) for mirror in row["mirrors"]] == [
        (40, 1000),
        (70, 2000),
    ]


def test_a_queue_is_held_or_transferring_as_its_master_says(state: MetaState) -> None:
    view = declare_mirrored(state, "q", "a", "b")
    net = CopiesNet(state, "a", "b", options=Options(min_in_sync=3))
    node = Node("a", state, net["a"])
    assert node.measured()["state"] == "held"
    copy = net["a"].mirrors.copies[view.id]
    assert copy.master is not None
    copy.master.transfer_to = "b"
    assert node.measured()["state"] == "transferring"


def test_a_damaged_queue_is_shown_as_such(state: MetaState) -> None:
    live: Any = Live(declare_queue(state, "q", node="a"))
    live.damage = "checksum"
    assert report_mirrors.measured(Node("a", state), live) == {"state": "damaged"}


def test_a_node_is_critical_for_what_nobody_else_has_in_sync(state: MetaState) -> None:
    declare_mirrored(state, "safe", "a", "b")
    declare_mirrored(state, "lonely", "a")
    declare_mirrored(state, "voted", "a", durable=True, arguments={"x-queue-type": "quorum"})
    declare_mirrored(state, "elsewhere", "b")
    node = Node("a", state)
    assert [row["name"] for row in report_mirrors.sync_critical(node)] == ["lonely", "voted"]
    assert [row["name"] for row in report_mirrors.sync_critical(node, quorum=True)] == ["voted"]
    (row,) = report_mirrors.sync_critical(node, quorum=False)
    assert row == {
        "name": "lonely",
        "virtual_host": "/",
        "readable_name": "queue 'lonely' in vhost '/'",
        "type": "classic",
    }


def test_a_copy_is_described_by_its_own_node_whoever_is_the_master(state: MetaState) -> None:
    view = declare_mirrored(state, "q", "a", "b")
    net = CopiesNet(state, "a", "b")
    net["a"].append(view.id, 2)
    net.run()
    end = net["a"].logs[view.id].end
    assert report_mirrors.own_copy(Node("b", state, net["b"]), view.id) == {
        "id": view.id,
        "node": "b",
        "end": end,
        "flushed": end,
        "low": 1,
        "is_complete": True,
        "copied": 0,
        "copied_of": 0,
    }
    assert report_mirrors.own_copy(Node("c", state), view.id) is None
    assert report_mirrors.own_copy(Node("b", state, net["b"]), 999) is None
