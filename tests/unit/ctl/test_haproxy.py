"""Where `haproxy_config` sends clients, by what the cluster says of its listeners."""

from __future__ import annotations

from typing import Any

import pytest

from mirrormq.ctl.commands.haproxy import UNASKED
from tests.unit.ctl.fakes import Terminal


def listener(node: str, protocol: str, interface: str, port: int) -> dict[str, Any]:
    return {"node": node, "protocol": protocol, "interface": interface, "port": port, "purpose": ""}


def cluster(*members: tuple[str, str, list[tuple[str, str, int]]]) -> dict[str, Any]:
    return {
        "cluster_name": "c",
        "members": [{"name": name, "role": role} for name, role, _ in members],
        "listeners": {
            name: [listener(name, *entry) for entry in entries] for name, _, entries in members if entries
        },
    }


EVERYWHERE = [("amqp", "[::]", 5672), ("http", "[::]", 15672)]


@pytest.fixture
def ctl(capsys: pytest.CaptureFixture[str]) -> Terminal:
    found = Terminal(capsys)
    found.node.answers["environment"] = {"proxy_protocol": True}
    return found


def servers(text: str, part: str) -> list[str]:
    section = text.partition(f"listen {part}\n")[2].partition("\n\n")[0]
    return [line.strip() for line in section.split("\n") if line.strip().startswith("server ")]


def test_a_node_that_listens_everywhere_is_reached_by_its_host(ctl: Terminal) -> None:
    ctl.node.answers["cluster_status"] = cluster(
        ("m@a", "voter", EVERYWHERE),
        ("m@b", "voter", [("amqp", "10.0.0.2", 5673), ("http", "[fd00::2]", 15673)]),
    )
    text = ctl.run("haproxy_config").out
    assert servers(text, "amqp") == [
        "server m_a a:5672 check addr a port 15672 send-proxy-v2",
        "server m_b 10.0.0.2:5673 check addr fd00::2 port 15673 send-proxy-v2",
    ]
    assert servers(text, "management") == ["server m_a a:15672 check", "server m_b [fd00::2]:15673 check"]
    assert "listen amqps" not in text


def test_a_node_that_is_down_is_where_the_others_are(ctl: Terminal) -> None:
    ctl.node.answers["cluster_status"] = cluster(
        ("m@a", "voter", EVERYWHERE), ("m@b", "voter", []), ("w@c", "witness", [])
    )
    result = ctl.run("haproxy_config")
    assert [line.split()[2] for line in servers(result.out, "amqp")] == ["a:5672", "b:5672"]
    assert result.err == ""


def test_a_node_that_is_down_on_a_shared_machine_is_left_out_with_a_warning(ctl: Terminal) -> None:
    ctl.node.answers["cluster_status"] = cluster(
        ("m1@a", "voter", EVERYWHERE), ("m2@a", "voter", []), ("m3@a", "voter", [("amqp", "[::]", 5674)])
    )
    result = ctl.run("haproxy_config")
    assert "Warning: node m2@a is not running and its ports are not known" in result.err
    assert "# Note: node m2@a is not running" in result.out
    assert UNASKED in result.err
    assert "httpchk" not in result.out.split("listen management")[0]
    assert "Warning" not in ctl.run("haproxy_config", "-s").err


def test_tls_has_a_front_of_its_own_and_a_secured_api_is_asked_by_tls(ctl: Terminal) -> None:
    secured = [("amqp", "[::]", 5672), ("amqp/ssl", "[::]", 5671), ("https", "[::]", 15671)]
    ctl.node.answers["cluster_status"] = cluster(("m@a", "voter", secured), ("m@b", "voter", secured))
    text = ctl.run("haproxy_config", "--bind-amqps", "10.0.0.9:5671").out
    check = "check addr a port 15671 check-ssl verify none send-proxy-v2"
    assert servers(text, "amqps")[0] == f"server m_a a:5671 {check}"
    assert "bind 10.0.0.9:5671\n" in text
    assert servers(text, "management")[0] == "server m_a a:15671 check ssl verify none"


def test_a_cluster_nobody_can_come_to_is_refused_and_one_node_is_warned_of(ctl: Terminal) -> None:
    ctl.node.answers["cluster_status"] = cluster(("m@a", "voter", [("http", "[::]", 15672)]))
    assert ctl.run("haproxy_config").code == 69
    ctl.node.answers["cluster_status"] = cluster(("m@a", "voter", EVERYWHERE))
    assert "the cluster is one node" in ctl.run("haproxy_config").err
