"""Command lines as they are printed, typed on a node's machine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cluster import kit
from tests.cluster.kit import Cluster, until
from tests.seeds.lines import COMMANDS, text, tried
from tests.seeds.tools import Result, typed
from tests.tidy.sources import CLONE

pytestmark = pytest.mark.slow

TRIED = {
    "000-stop-app", "000-reset", "000-start", "002-all", "002-exactly", "002-nodes", "002-automatic",
    "002-manual", "002-sync", "002-list", "002-cancel-sync", "002-when-synced", "002-always", "002-stop",
    "003-set-policy", "004-join", "004-leave", "000-declare", "000-declare-alternate", "000-declare-backup",
    "000-bind", "003-overview",
}  # fmt: skip


def test_every_printed_command_is_tried_here() -> None:
    assert tried(COMMANDS) == TRIED


def with_name(line: str, name: str) -> str:
    return re.sub(r"\$\{\w+\}", name, text(line))


def test_a_node_is_stopped_emptied_and_started(tmp_path: Path) -> None:
    """000-stop-app, 000-reset, 000-start: the process stays, and its data are gone."""
    with kit.cluster(tmp_path, 1) as one:
        one[0].channel().queue_declare("old", durable=True)
        assert typed(one[0], text("000-stop-app")).code == 0
        assert not one[0].accepts()
        assert typed(one[0], text("000-reset")).code == 0
        assert typed(one[0], "rabbitmqctl start_app").code == 0
        assert one[0].queues() == set()


def test_the_service_starts_a_node() -> None:
    """000-start: the unit is called mirrormq; `systemctl start mirrormq` is the line to type."""
    unit = (CLONE / "packaging" / "systemd" / "mirrormq.service").read_text(encoding="utf-8")
    assert re.search(r"^ExecStart=\S*mirrormq serve", unit, re.MULTILINE)


def admin(node: kit.Node, line: str) -> Result:
    """Type a line of rabbitmqadmin, which looks at localhost by itself."""
    program, options = "rabbitmqadmin", f"--host={node.host}"
    return typed(node, text(line).replace(program, f"{program} {options}", 1))


def test_a_queue_is_declared_and_bound_as_printed(three: Cluster) -> None:
    """000-declare, 000-bind: with a hint how it is written; a star is no wildcard on a direct exchange."""
    declared = admin(three[0], "000-declare")
    assert (declared.code, declared.out) == (0, "queue declared\n")
    assert "set_policy" in declared.err
    bound = admin(three[0], "000-bind")
    assert (bound.code, bound.out) == (0, "binding declared\n")
    assert "amq.direct is a direct exchange: only the very key '*' matches" in bound.err
    channel = three[0].channel()
    for key, wanted in (("*", True), ("any", False)):
        channel.basic_publish("amq.direct", key, b"")
        assert (channel.basic_get("myqueue", auto_ack=True)[0] is not None) == wanted
    channel.queue_delete("myqueue")


@pytest.mark.parametrize("line", ["000-declare-alternate", "000-declare-backup"])
def test_named_copies_are_refused_by_name_with_the_cure(three: Cluster, line: str) -> None:
    """000-declare-alternate, 000-declare-backup: nothing is declared that only looks like a copy."""
    refused = admin(three[0], line)
    assert refused.code == 1
    assert "named copies of a queue are not there yet" in refused.err
    assert "myqueue" not in three[0].queues()


def test_the_overview_is_shown_as_printed(three: Cluster) -> None:
    """003-overview: show, with a hint."""
    shown = admin(three[0], "003-overview")
    assert shown.code == 0
    assert "rabbitmq_version" in shown.out
    assert "show overview" in shown.err


POLICIES = {
    "002-all": {"ha-mode": "all"},
    "002-exactly": {"ha-mode": "exactly", "ha-params": 2},
    "002-nodes": {"ha-mode": "nodes"},
    "002-automatic": {"ha-mode": "all", "ha-sync-mode": "automatic"},
    "002-manual": {"ha-mode": "all", "ha-sync-mode": "manual"},
    "002-when-synced": {"ha-mode": "all", "ha-promote-on-shutdown": "when-synced"},
    "002-always": {"ha-mode": "all", "ha-promote-on-shutdown": "always"},
}


@pytest.mark.parametrize("line", POLICIES)
def test_the_keys_of_policies_mean_what_they_say(three: Cluster, line: str) -> None:
    definition = dict(POLICIES[line])
    key, _, value = text(line).partition(": ")
    assert definition[key] == value
    if value == "nodes":
        definition["ha-params"] = [three[0].name, three[1].name]
    assert typed(three[0], f"rabbitmqctl set_policy seed '^seed$' '{json.dumps(definition)}'").code == 0
    channel = three[0].channel()
    channel.queue_delete("seed")
    channel.queue_declare("seed", durable=True)
    wanted = 2 if value in ("exactly", "nodes") else 3

    def in_sync() -> int:
        rows = three[1].ctl("list_queues")
        return next((len(row.get("in_sync", ())) for row in rows if row["name"] == "seed"), 0)

    until(lambda: in_sync() == wanted, lambda: f"{in_sync()} copies")


def test_a_policy_is_set_for_a_vhost_with_a_priority(three: Cluster) -> None:
    """003-set-policy: the vhost is the option -p, as with rabbitmqctl; by place it would be the name."""
    assert text("003-set-policy").split()[:2] == ["rabbitmqctl", "set_policy"]
    line = """rabbitmqctl set_policy -p / "policy name" '^p$' '{"ha-mode": "all"}' --priority 7"""
    assert typed(three[0], line).code == 0
    rows = json.loads(typed(three[1], "rabbitmqctl list_policies --json").out)
    found = next(row for row in rows if row["name"] == "policy name")
    assert (found["vhost"], found["priority"]) == ("/", 7)
    assert typed(three[0], 'rabbitmqctl set_policy / "policy name" "[parameters]" --priority 7').code != 0


def test_mirrors_are_listed_synchronised_and_left_alone(three: Cluster) -> None:
    """002-list, 002-sync, 002-cancel-sync."""
    manual = json.dumps({"ha-mode": "all", "ha-sync-mode": "manual"})
    three[0].channel().queue_declare("myqueue", durable=True)
    channel = three[0].channel()
    channel.basic_publish("", "myqueue", b"old", mandatory=True)
    assert typed(three[0], f"rabbitmqctl set_policy mine '^myqueue$' '{manual}' --priority 9").code == 0

    def pids() -> tuple[int, int]:
        line = with_name("002-list", "name") + " --json"
        rows = json.loads(typed(three[0], line).out)
        row = next(row for row in rows if row["name"] == "myqueue")
        return len(row["slave_pids"]), len(row["synchronised_slave_pids"])

    until(lambda: pids() == (2, 0), lambda: str(pids()))
    assert typed(three[0], with_name("002-cancel-sync", "myqueue")).code == 0
    assert typed(three[0], with_name("002-sync", "myqueue")).code == 0
    assert pids() == (2, 2)
    refused = typed(three[0], with_name("002-list", "myqueue"))
    assert (refused.code, "Info key(s) myqueue are not supported" in refused.err) == (64, True)


def test_a_master_that_is_stopped_in_good_order_hands_over(three: Cluster) -> None:
    """002-stop: with a mirror in sync there is nothing to lose, and no node waits for the old master."""
    policy = json.dumps({"ha-mode": "all", "ha-promote-on-shutdown": "when-synced"})
    assert typed(three[0], f"rabbitmqctl set_policy stop '^stop$' '{policy}'").code == 0
    channel = three[2].channel()
    channel.queue_declare("stop", durable=True)
    channel.basic_publish("", "stop", b"kept", mandatory=True)
    assert typed(three[2], text("002-stop")).code == 0
    three[2].wait_end()
    assert three[0].channel().basic_get("stop", auto_ack=True)[2] == b"kept"
    three.start(three[2])


def clients_of(node: kit.Node) -> list[str]:
    return [row["name"] for row in node.ctl("list_connections") if row["node"] == node.name]


def test_a_node_joins_again_and_leaves(three: Cluster, tmp_path: Path) -> None:
    """004-join, 004-leave."""
    node = three.add("late")
    try:
        node.start()
        node.wait_ready()
        for line in ("rabbitmqctl stop_app", "rabbitmqctl reset"):
            assert typed(node, line).code == 0
        join = text("004-join").replace("rabbit@host", three[0].name)
        assert typed(node, join).code == 0
        assert typed(node, "rabbitmqctl start_app").code == 0
        until(lambda: node.name in three[0].status()["running_nodes"], "it has joined")
        channel = node.channel()
        channel.queue_declare("left", durable=True)
        channel.basic_publish("", "left", b"kept", kit.pika.BasicProperties(delivery_mode=2), mandatory=True)
        refused = typed(node, text("004-leave"))
        assert (refused.code, "1 clients are connected" in refused.err) == (69, True), refused
        channel.connection.close()
        until(lambda: not clients_of(node), "the client is gone")
        assert typed(node, text("004-leave")).code == 0
        until(lambda: node.name not in three[0].status()["disk_nodes"], "it has left")
        taken = three[0].channel().basic_get("left", auto_ack=True)
        assert taken[2] == b"kept", "its queue has gone to another node first"
    finally:
        node.close()
        three.nodes.remove(node)
