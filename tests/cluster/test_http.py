"""The admin API of a real cluster: any node is asked, and what only another one knows or can do is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mirrormq.client.admin import AdminClient, Refused
from mirrormq.testing import Cluster, cluster
from tests.interop.waiting import until

pytestmark = pytest.mark.slow

GET = {"count": 10, "ackmode": "ack_requeue_true", "encoding": "auto"}


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with cluster(3, ["events = true"], admin=True) as found:
        yield found


def api(three: Cluster, at: int) -> AdminClient:
    url = three.nodes[at].admin_url
    assert url is not None
    return AdminClient(url, user="guest", password="guest")


def message(number: int) -> dict[str, Any]:
    return {
        "routing_key": "far",
        "payload": str(number),
        "payload_encoding": "string",
        "properties": {"delivery_mode": 2},
    }


def test_what_another_node_has_is_published_to_got_and_watched(three: Cluster) -> None:
    with api(three, 0) as here, api(three, 1) as there:
        here.request("PUT", "policies", "/", "ha", body={"pattern": "^far", "definition": {"ha-mode": "all"}})
        there.request("PUT", "queues", "/", "far", body={"durable": True})
        master = there.get("queues", "/", "far")["node"]
        other = next(
            found for found in (here, there, api(three, 2)) if found.get("overview")["node"] != master
        )
        for number in range(5):
            sent = other.request("POST", "exchanges", "/", "amq.default", "publish", body=message(number))
            assert sent == {"routed": True}
        rows = other.request("POST", "queues", "/", "far", "get", body=GET)
        assert [row["payload"] for row in rows] == ["0", "1", "2", "3", "4"]
        rows = other.request("POST", "queues", "/", "far", "get", body={**GET, "count": 2, "from": "tail"})
        assert [row["payload"] for row in rows] == ["3", "4"]
        view = until(
            lambda: (found := other.get("mirrormq", "queues", "/", "far", "view"))["told_by"] and found,
            "the master tells its marks",
        )
        assert (view["master"], len(view["ring"]), view["problem"]) == (master, 3, None)
        assert all(member["received"] == view["marks"]["end"] for member in view["members"])
        assert other.get("auth", "attempts", master) is not None
        assert other.get("nodes", master, "memory")["memory"]["total"]["rss"] > 0


def test_a_kill_of_the_master_is_seen_in_the_ring_and_on_the_timeline(three: Cluster) -> None:
    with api(three, 0) as asked:
        policy = {"pattern": "^ring", "definition": {"ha-mode": "all"}}
        asked.request("PUT", "policies", "/", "ring", body=policy)
        asked.request("PUT", "queues", "/", "ring", body={"durable": True})
    victim = next(at for at in (1, 2, 0) if three.nodes[at].name == _master(three))
    asker = next(at for at in range(3) if at != victim)
    with api(three, asker) as survivor:
        three.nodes[victim].kill()
        gone = three.nodes[victim].name
        view = until(
            lambda: (
                (found := survivor.get("mirrormq", "queues", "/", "ring", "view"))["master"]
                not in (None, gone)
                and found["told_by"]
                and found
            ),
            "another master",
        )
        assert gone not in view["ring"]
        moved = until(
            lambda: [
                row
                for row in told(survivor)
                if row["event"] == "queue.master_changed" and row.get("name") == "ring"
            ],
            "the fail-over is told",
        )
        assert (moved[-1]["from"], moved[-1]["to"]) == (gone, view["master"])
    three.nodes[victim].start()


def told(asked: AdminClient) -> list[dict[str, Any]]:
    """The timeline; nothing while the queue of events is not there, or has no master."""
    try:
        return list(asked.get("mirrormq", "timeline")["events"])
    except Refused as refused:
        if refused.status not in (404, 503):
            raise
        return []


def _master(three: Cluster) -> str:
    with api(three, 0) as asked:
        return str(asked.get("mirrormq", "queues", "/", "ring", "view")["master"])
