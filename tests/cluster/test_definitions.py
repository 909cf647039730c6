"""Promises about definition files of RabbitMQ 3.10: the same objects on every node, and out again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.cluster import kit
from tests.cluster.kit import Cluster, Node, until

VHOST = "shop"
FILE = Path(__file__).parents[1] / "interop" / "definitions.json"
KINDS = ("permissions", "topic_permissions", "parameters", "policies", "queues", "exchanges", "bindings")


def file() -> dict[str, Any]:
    """One of each kind, as RabbitMQ writes it."""
    content: dict[str, Any] = json.loads(FILE.read_text().replace("@vhost@", VHOST))
    return content


def exported(node: Node) -> dict[str, list[str]]:
    """Everything a node exports, in one order."""
    content = node.get("definitions")
    lists = {kind: value for kind, value in content.items() if isinstance(value, list)}
    return {kind: sorted(json.dumps(row, sort_keys=True) for row in rows) for kind, rows in lists.items()}


def imported(cluster: Cluster, node: Node, content: dict[str, Any]) -> dict[str, list[str]]:
    """Import on one node; returns what all nodes export afterwards."""
    node.post("definitions", content)
    wanted = exported(node)
    for other in cluster:
        until(lambda other=other: exported(other) == wanted, f"{other} exports the same")
    return wanted


def works(node: Node, body: bytes) -> None:
    """Log in as an imported user, and send a message through imported objects."""
    connection = node.connect(f"imported-{VHOST}", "secret", virtual_host=VHOST)
    node.connect(f"imported-{VHOST}-512", "secret", virtual_host=VHOST).close()
    with pytest.raises(pika.exceptions.AMQPError):
        node.connect(f"imported-{VHOST}", "wrong", virtual_host=VHOST)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("orders", "new.order", body, pika.BasicProperties(delivery_mode=2), mandatory=True)
    found = until(lambda: taken(channel, "plain"), "the message came through")
    assert found == body
    connection.close()


def taken(channel: Any, queue: str) -> Any:
    return channel.basic_get(queue, auto_ack=True)[2]


def test_a_definitions_file_gives_the_same_objects_and_logins_on_every_node(three: Cluster) -> None:
    found = imported(three, three.others(three.leader())[0], file())
    wanted = file()
    for kind in KINDS:
        own = [row for row in found[kind] if json.loads(row).get("vhost") == VHOST]
        assert own == sorted(json.dumps(row, sort_keys=True) for row in wanted[kind]), kind
    for node in three:
        works(node, node.name.encode())


def test_what_was_exported_is_imported_again_unchanged_here_and_elsewhere(
    three: Cluster, tmp_path: Path
) -> None:
    first = imported(three, three[0], file())
    again = imported(three, three[2], three[1].get("definitions"))
    assert again == first
    with kit.cluster(tmp_path / "other") as other:
        assert imported(other, other[1], three[0].get("definitions")) == first
        works(other[2], b"elsewhere")


def test_imported_definitions_survive_the_kill_of_the_whole_cluster(three: Cluster) -> None:
    before = imported(three, three[1], file())
    for node in three:
        node.kill()
    three.start()
    three.wait_whole()
    for node in three:
        until(lambda node=node: exported(node) == before, f"{node} exports the same")
    works(three[0], b"after")


def test_a_file_loaded_by_every_node_at_its_start_is_in_force_before_the_first_client(tmp_path: Path) -> None:
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(file()))
    with kit.cluster(tmp_path / "nodes", settings=[f"load_definitions={path}"]) as cluster:
        for node in cluster:
            works(node, node.name.encode())
