"""The cluster for administrators: what `cluster_status` makes of a view, and what a single node answers."""

from __future__ import annotations

import pytest

from mirrormq.node import requests
from mirrormq.node.report_cluster import Member, View, cluster_status, feature_flags, tolerance, view_of
from tests.support.adminkit import AdminKit


def view(*roles: str, down: tuple[int, ...] = (), is_paused: bool = False) -> View:
    """Nodes n0, n1 ... in these roles; n0 looks and leads."""
    members = tuple(
        Member(f"n{number}@h", role, number not in down, f"h:{number}") for number, role in enumerate(roles)
    )
    return View("n0@h", "c", "0a", members, "n0@h", is_paused)


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (view("voter"), "tolerates 0 failures: it is one node"),
        (view("voter", "voter"), "tolerates 0 failures; add a witness"),
        (view("voter", "voter", "witness"), "tolerates 1 failure"),
        (view("voter", "voter", "witness", down=(2,)), "tolerates 0 failures; not running: n2@h"),
        (view(*["voter"] * 5), "tolerates 2 failures"),
        (view(*["voter"] * 4), "tolerates 1 failure; add a witness"),
        (view("voter", "voter", "voter", "non-voter"), "tolerates 1 failure"),
        (
            view("voter", "voter", "voter", down=(1, 2)),
            "has no majority: 1 more of its 3 voting nodes must be running",
        ),
    ],
)
def test_what_a_cluster_can_lose_is_said_in_one_line(seen: View, text: str) -> None:
    assert tolerance(seen) == text


def test_cluster_status_has_rabbitmqs_keys_and_every_member() -> None:
    found = cluster_status(view("voter", "voter", "witness", down=(1,)))
    assert found["disk_nodes"] == ["n0@h", "n1@h", "n2@h"]
    assert found["running_nodes"] == ["n0@h", "n2@h"]
    assert list(found["versions"]) == list(found["listeners"]) == ["n0@h", "n2@h"]
    assert found["partitions"] == {}
    assert found["members"][1] == {
        "name": "n1@h",
        "role": "voter",
        "running": False,
        "leader": False,
        "address": "h:1",
    }
    assert found["failures_tolerated"] == 0


def test_a_paused_node_names_whom_it_does_not_hear() -> None:
    found = cluster_status(view("voter", "voter", "voter", down=(1, 2), is_paused=True))
    assert (found["paused"], found["partitions"]) == (True, {"n0@h": ["n1@h", "n2@h"]})


def test_alarms_of_all_running_nodes_are_listed() -> None:
    members = (Member("a@h", alarms=("disk", "memory")), Member("b@h", alarms=("disk",)))
    found = cluster_status(View("a@h", "c", "", members, "a@h"))
    assert [(entry["node"], entry["resource"]) for entry in found["alarms"]] == [
        ("a@h", "disk"),
        ("a@h", "memory"),
        ("b@h", "disk"),
    ]


def test_a_node_alone_is_a_cluster_of_one() -> None:
    kit = AdminKit()
    seen = view_of(kit.node, [{"protocol": "amqp", "port": 1}])
    assert [member.name for member in seen.members] == [kit.node.node_name]
    assert cluster_status(seen)["leader"] == kit.node.node_name


def test_a_node_alone_refuses_what_concerns_others() -> None:
    kit = AdminKit()
    refusals = {
        "not_a_cluster_node": requests.ForgetClusterNode(node="other@h"),
        "bad_request": requests.ForgetClusterNode(node=kit.node.node_name),
        "not_clustered": requests.ChangeClusterNodeType(role="witness"),
        "unsupported": requests.SetFeatureLevel(level=2),
    }
    for kind, request in refusals.items():
        assert kit.refusal(request)[0] == kind
    assert kit.refusal(requests.LeaveCluster())[0] == "not_clustered"
    assert kit.refusal(requests.EnableFeatureFlag(name="stream_queue"))[0] == "unsupported"


def test_every_feature_that_exists_is_on() -> None:
    kit = AdminKit()
    kit.ask(requests.EnableFeatureFlag(name="all"))
    kit.ask(requests.SetFeatureLevel(level=1))
    kit.ask(requests.ChangeClusterNodeType(role="voter"))
    for flag in feature_flags(1):
        assert flag["state"] == "enabled"
        kit.ask(requests.EnableFeatureFlag(name=flag["name"]))
