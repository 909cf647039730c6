"""Promises about losses that were allowed, kept by real processes: what only a dead master had comes back."""

from __future__ import annotations

import base64
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from mirrormq.wire import methods
from mirrormq.wire.properties import Properties
from tests.cluster import kit
from tests.cluster.kit import Cluster, Node, until
from tests.cluster.mirrorrun import set_policy

pytestmark = pytest.mark.slow

LOST, LATER = 3_000, 20
BODY = 600
QUEUE = "q"
PERSISTENT = Properties(delivery_mode=2)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with kit.cluster(tmp_path_factory.mktemp("salvage")) as made:
        yield made


def body(number: int) -> bytes:
    return b"%d" % number + b" " * BODY


def publish(node: Node, queue: str, numbers: range) -> None:
    """Publish persistent messages, each confirmed."""
    client = node.raw()
    client.call(1, methods.ConfirmSelect(), methods.ConfirmSelectOk)
    for number in numbers:
        client.publish(1, methods.BasicPublish(routing_key=queue), body(number), PERSISTENT)
    while client.expect(1, methods.BasicAck).delivery_tag < len(numbers):
        pass
    client.close()


def row(node: Node, queue: str = QUEUE) -> dict[str, Any]:
    """A queue in list_queues."""

    def found() -> dict[str, Any] | None:
        rows = node.ctl("list_queues", vhost="/")
        return next((one for one in rows if one["name"] == queue), None)

    return until(found, f"{node} has heard of {queue}")


def depth(node: Node, queue: str) -> int:
    return row(node, queue).get("messages") or 0


def metric(node: Node, name: str) -> float:
    """A number that Prometheus would read."""
    request = urllib.request.Request(f"http://{node.host}:{kit.ADMIN}/metrics")
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    with urllib.request.urlopen(request) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.split()[0] == name)


def taken(node: Node, queue: str) -> list[tuple[int, dict[str, Any]]]:
    """Number and headers of everything in a queue, taken out."""
    client = node.raw()
    passive = methods.QueueDeclare(queue=queue, passive=True)
    count = client.call(1, passive, methods.QueueDeclareOk).message_count
    client.call(1, methods.BasicConsume(queue=queue, no_ack=True), methods.BasicConsumeOk)
    found = []
    for _ in range(count):
        client.expect(1, methods.BasicDeliver)
        content = client.expect_content(1)
        found.append((int(content.body), content.properties.headers or {}))
    client.close()
    return found


def test_what_only_the_dead_master_had_is_in_the_salvage_queue_once_though_it_dies_again_meanwhile(
    three: Cluster,
) -> None:
    old, new, third = three
    set_policy(old, "ha", "^q$", {"ha-mode": "nodes", "ha-params": [old.name]})
    kit.declare(old.channel(), QUEUE)
    publish(old, QUEUE, range(LOST))
    risky = {"ha-sync-mode": "manual", "ha-promote-on-failure": "always"}
    both = {"ha-mode": "nodes", "ha-params": [old.name, new.name]}
    set_policy(third, "ha", "^q$", both | risky)
    until(lambda: row(third).get("unsynchronised") == [new.name], "there is a mirror without old messages")
    old.kill()
    until(lambda: row(third)["master"] == new.name, "it has taken over")
    until(lambda: row(third)["to_salvage"] == [old.name], "it is known who has more")
    assert row(third)["losses"] == 1
    publish(new, QUEUE, range(LOST, LOST + LATER))
    old.start()
    salvage = f"{QUEUE}.salvage"
    until(lambda: salvage in third.queues() and depth(third, salvage) > LOST // 20, "some of it is salvaged")
    old.kill()
    old.start()
    until(lambda: not row(third)["to_salvage"], "all of it is salvaged", 60)
    found = taken(third, salvage)
    counts = Counter(number for number, _ in found)
    assert sorted(counts) == list(range(LOST))
    assert set(counts.values()) == {1}
    origin = found[0][1]["x-salvaged-from"]
    assert (origin["queue"], origin["node"]) == (QUEUE, old.name)
    assert (row(third)["salvaged"], row(third)["salvage_dropped"]) == (LOST, 0)
    old.wait_for(f"{LOST} messages that only this node had", f"moved to queue '{salvage}'")
    assert metric(old, "mirrormq_salvaged_messages_total") == LOST
    set_policy(third, "ha", "^q$", both)
    until(lambda: sorted(row(third)["in_sync"]) == sorted([old.name, new.name]), "both are in sync again")
    assert [number for number, _ in taken(third, QUEUE)] == list(range(LOST, LOST + LATER))
