"""Reading queues of a real cluster in bulk: from its mirrors, and through a fail-over with a cursor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from mirrormq.client.amqp import AmqpClient, Confirmed
from mirrormq.client.bulk import BulkClient, BulkError, Gone, Target
from mirrormq.testing import Cluster, ClusterNode, cluster
from tests.cluster.kit import until
from tests.support.bulkkit import bodies

COUNT = 20_000
SENT = [b"%08d" % number + b"x" * 500 for number in range(COUNT)]


@pytest.fixture
def three() -> Iterator[Cluster]:
    with cluster(nodes=3) as found:
        found.ask("set_policy", vhost="/", name="ha", pattern=".*", definition={"ha-mode": "all"})
        publish(found.nodes[0], "q", SENT)
        yield found


def publish(node: ClusterNode, queue: str, messages: list[bytes]) -> None:
    with AmqpClient(node.host, node.port, timeout=30) as client:
        client.declare(queue)
        last = confirmed = 0
        for body in messages:
            last = client.publish(queue, body)
            if last - confirmed > 5_000:
                confirmed = wait(client, last - 2_500, confirmed)
        wait(client, last, confirmed)


def wait(client: AmqpClient, upto: int, confirmed: int) -> int:
    while confirmed < upto:
        event = client.next_event()
        if isinstance(event, Confirmed):
            confirmed = max(confirmed, event.tag)
    return confirmed


def reader(*nodes: ClusterNode, **more: Any) -> BulkClient:
    return BulkClient(Target([(node.host, node.port) for node in nodes], **more))


def facts_of(client: BulkClient, queue: str = "q") -> dict[str, Any]:
    found: dict[str, Any] = client.call("queues", queue=queue)["queues"][0]
    return found


def span(facts: dict[str, Any], **more: Any) -> dict[str, Any]:
    found = {"queue": facts["queue"], "id": facts["id"], "start": facts["low"], "end": facts["next"]}
    return {**found, "end_epoch": facts["end_epoch"], **more}


def cpu_seconds(node: ClusterNode) -> float:
    with open(f"/proc/{node.pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_every_member_gives_the_same_records_at_the_address_that_is_told(three: Cluster) -> None:
    with reader(three.nodes[1]) as client:
        facts = facts_of(client)
    assert len(facts["members"]) == 3
    found = {}
    for member in facts["members"]:
        host, _, port = member["address"].rpartition(":")
        with BulkClient(Target([(host, int(port))])) as client:
            found[member["node"]] = b"".join(client.read(**span(facts)))
            assert client.welcome["node"] == member["node"]
    one, two, three_ = found.values()
    assert bodies(one) == SENT
    assert one == two == three_


def test_what_a_mirror_gives_costs_the_master_nothing(three: Cluster) -> None:
    with reader(three.nodes[0]) as client:
        facts = facts_of(client)
    by_name = {node.name: node for node in three.nodes}
    master = by_name[facts["master"]]
    mirror = next(node for node in three.nodes if node is not master)
    with reader(mirror) as client:
        before, before_mirror = cpu_seconds(master), cpu_seconds(mirror)
        for _ in range(40):
            assert sum(map(len, client.read(**span(facts)))) > COUNT * 500
        spent, spent_mirror = cpu_seconds(master) - before, cpu_seconds(mirror) - before_mirror
    assert spent <= max(0.3, spent_mirror / 2)


def test_a_reader_follows_a_fail_over_and_gets_what_was_confirmed(three: Cluster) -> None:
    with reader(*three.nodes, query="follow") as client:
        opened = client.call("cursor_open", queue="q", name="c", at="earliest", reader="r1", query="follow")
        facts = facts_of(client)
        by_name = {node.name: node for node in three.nodes}
        master = by_name[facts["master"]]
        rest = [node for node in three.nodes if node is not master]
        master.kill()
    with reader(*rest, query="follow") as client:

        def is_back() -> bool:
            try:
                return facts_of(client)["next"] >= facts["next"]
            except (BulkError, Gone):
                return False

        until(is_back, "another master")
        later = facts_of(client)
        assert later["id"] == facts["id"]
        assert bodies(b"".join(client.read(**span(facts, start=opened["seq"], relay=True)))) == SENT
        client.call("cursor_advance", queue="q", name="c", to=facts["next"], reader="r1")
        (row,) = client.call("cursor_list", queue="q")["cursors"]
        assert row["seq"] == facts["next"]


def test_all_members_have_the_same_digests(three: Cluster) -> None:
    with reader(three.nodes[0]) as client:
        facts = facts_of(client)
        asked = {**span(facts), "upto": facts["next"], "step": 1_000}
        found = {
            node.name: b"".join(client.stream("digest", **asked, node=node.name)) for node in three.nodes
        }
    assert len(set(found.values())) == 1
