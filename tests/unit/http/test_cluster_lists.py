"""The admin API on a cluster: whichever node is asked, lists are of all nodes, and gaps are named."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from mirrormq.base import limits
from mirrormq.http.answers import next_turn
from mirrormq.http.api import MISSING
from mirrormq.node import inquiryframes as frames
from mirrormq.wire import methods
from tests.support.adminkit import FACTS, KEY, Api, serving
from tests.support.clusterkit import LEADER, ClusterKit


@pytest.fixture
def cluster() -> ClusterKit:
    return ClusterKit("home", "master", "third")


class Asked(Api):
    """Asks the node `home` with its key, and keeps what was said of nodes that are missing."""

    missing: dict[str, str]

    async def call(self, verb: str, path: str, body: Any = None, **who: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"MirrorMQ-Key {KEY}", **(who.get("headers") or {})}
        target = aiohttp.client.URL(f"{self.url}/api/{path}", encoded=True)
        async with self._session.request(verb, target, headers=headers, json=body) as response:
            data = await response.read()
            found = json.loads(response.headers.get(MISSING, "[]"))
            self.missing = {entry["node"]: entry["reason"] for entry in found}
            return response.status, json.loads(data) if data else None


@pytest_asyncio.fixture
async def api(cluster: ClusterKit) -> AsyncIterator[Asked]:
    async with serving(cluster["home"]) as found:  # type: ignore[arg-type]
        yield Asked(found._session, found.url)


def questions(cluster: ClusterKit, target: str) -> list[frames.Ask]:
    """What `home` asks a node from now on."""
    found: list[frames.Ask] = []
    carry = cluster.carry

    def listen(one: str, other: str, payload: bytes) -> None:
        if (one, other) == ("home", target) and payload[:1] == frames.FIRST:
            frame = frames.decode(payload)
            if isinstance(frame, frames.Ask):
                found.append(frame)
        carry(one, other, payload)

    cluster.carry = listen  # type: ignore[method-assign]
    return found


def fill(cluster: ClusterKit) -> None:
    """A queue on every node, with as many messages as the node's name has letters."""
    for name in ("home", "master", "third"):
        client = cluster[name].client()
        client.declare(f"on-{name}", durable=True)
        for _ in name:
            client.publish(f"on-{name}")


# --- queues ---


async def test_queues_of_all_nodes_are_listed_with_their_counters(cluster: ClusterKit, api: Asked) -> None:
    fill(cluster)
    rows = await api.get("queues")
    assert [(row["name"], row["node"], row["messages"], row["state"]) for row in rows] == [
        ("on-home", "home", 4, "running"),
        ("on-master", "master", 6, "running"),
        ("on-third", "third", 5, "running"),
    ]
    assert not api.missing
    own, *others = rows
    for other in others:
        assert set(other) == set(own), "rows look the same wherever the master is"
    (status, listed) = await api.ctl("list_queues")
    assert status == 200
    assert [(row["name"], row["messages"]) for row in listed] == [
        (row["name"], row["messages"]) for row in rows
    ]
    assert [row["pid"].split(".")[0] for row in listed] == ["<home", "<master", "<third"]


async def test_lists_of_queues_are_sorted_and_paged_by_what_masters_say(
    cluster: ClusterKit, api: Asked
) -> None:
    fill(cluster)
    rows = await api.get("queues?sort=messages&sort_reverse=true&columns=name,messages")
    assert [row["messages"] for row in rows] == [6, 5, 4]
    page = await api.get("queues?page=2&page_size=2&sort=messages")
    assert [row["name"] for row in page["items"]] == ["on-master"]
    assert (page["total_count"], page["item_count"], page["page_count"]) == (3, 1, 2)


async def test_a_node_is_asked_once_and_only_for_what_is_shown(cluster: ClusterKit, api: Asked) -> None:
    client = cluster["master"].client()
    for number in range(20):
        client.declare(f"q{number:02}")
    asked, unasked = questions(cluster, "master"), questions(cluster, "third")
    assert len(await api.get("queues")) == 20
    page = await api.get("queues?page=1&page_size=5")
    assert all("messages" in row for row in page["items"])
    assert [len(ask.ids) for ask in asked] == [20, 5]
    assert not unasked, "it has no queue"
    await api.ctl("list_queues", local=True)
    assert len(asked) == 2


async def test_of_more_queues_than_fit_in_a_question_all_are_asked_for(
    cluster: ClusterKit, api: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster)
    cluster["third"].client().declare("more")
    monkeypatch.setattr(limits, "inquiry_ids_max", 2)
    asked = questions(cluster, "third")
    assert [row["messages"] for row in await api.get("queues")] == [0, 4, 6, 5]
    assert [ask.ids for ask in asked] == [()]


async def test_a_queue_whose_node_is_down_is_down_and_has_no_counters(
    cluster: ClusterKit, api: Asked
) -> None:
    fill(cluster)
    cluster.kill("third")
    rows = {row["name"]: row for row in await api.get("queues")}
    assert rows["on-third"]["state"] == "down"
    assert "messages" not in rows["on-third"]
    assert rows["on-master"]["messages"] == 6
    assert api.missing == {"third": "is down"}
    _, local = await api.ctl("list_queues", local=True)
    assert [row["name"] for row in local] == ["on-home"]
    assert not api.missing


async def test_a_queue_whose_node_does_not_answer_is_down_after_a_while(
    cluster: ClusterKit, api: Asked
) -> None:
    fill(cluster)
    cluster.hold("third", "home")
    task = asyncio.create_task(api.get("queues"))
    while not cluster.node("home").inquiries._open:
        await next_turn()
    cluster.advance(limits.inquiry_silence_us / 1_000_000)
    rows = {row["name"]: row["state"] for row in await task}
    assert rows == {"on-home": "running", "on-master": "running", "on-third": "down"}
    assert api.missing == {"third": "does not answer"}
    cluster.release()


async def test_one_queue_is_shown_with_its_consumers_on_all_nodes(cluster: ClusterKit, api: Asked) -> None:
    fill(cluster)
    for name in ("third", "home"):
        cluster[name].client().consume("on-third", f"at-{name}", no_ack=False)
    row = await api.get("queues/%2f/on-third")
    assert (row["consumers"], row["messages"]) == (2, 5)
    tags = {entry["consumer_tag"]: entry["channel_details"]["node"] for entry in row["consumer_details"]}
    assert tags == {"at-home": "home", "at-third": "third"}
    assert (await api.call("GET", "queues/%2f/nothing"))[0] == 404


# --- connections, channels, consumers ---


async def test_live_things_of_all_nodes_are_listed(cluster: ClusterKit, api: Asked) -> None:
    fill(cluster)
    for name in ("home", "master", "third"):
        cluster[name].client().consume("on-master", f"at-{name}")
    connections = await api.get("connections")
    assert sorted(row["node"] for row in connections) == ["home"] * 2 + ["master"] * 2 + ["third"] * 2
    names = [row["name"] for row in connections]
    assert names == sorted(names)
    assert "pid" not in connections[0]
    assert len(await api.get("channels")) == len(await api.get("vhosts/%2f/channels")) == 6
    assert len(await api.get("vhosts/%2f/connections")) == 6
    for path in ("consumers", "consumers/%2f"):
        assert [row["consumer_tag"] for row in await api.get(path)] == ["at-home", "at-master", "at-third"]
    _, listed = await api.ctl("list_connections")
    assert [row["node"] for row in listed] == ["home"] * 2 + ["master"] * 2 + ["third"] * 2
    assert {row["protocol"] for row in listed} == {"{0,9,1}"}
    _, listed = await api.ctl("list_channels")
    assert len(listed) == 6
    _, listed = await api.ctl("list_consumers")
    assert [row["channel_pid"] for row in listed] == ["<home.1.2.1>", "<master.1.2.1>", "<third.1.2.1>"]
    assert (await api.ctl("list_consumers", vhost="none"))[0] == 400


async def test_single_live_things_are_found_on_any_node(cluster: ClusterKit, api: Asked) -> None:
    cluster["master"].client()
    client = cluster["third"].client()
    client.close_socket()
    client = cluster["third"].client()
    client.declare("orders")
    client.consume("orders", "mine")
    (name,) = (row["name"] for row in await api.get("connections") if row["node"] == "third")
    quoted = name.replace(" ", "%20").replace(">", "%3E")
    assert (await api.get(f"connections/{quoted}"))["node"] == "third"
    (channel,) = await api.get(f"connections/{quoted}/channels")
    assert channel["node"] == "third"
    found = await api.get(f"channels/{quoted}%20(1)")
    assert [consumer["consumer_tag"] for consumer in found["consumer_details"]] == ["mine"]
    status, _ = await api.call("DELETE", f"connections/{quoted}", headers={"X-Reason": "enough"})
    assert status == 204
    assert client.expect(methods.ConnectionClose, 0).reply_text == "CONNECTION_FORCED - enough"
    for path in ("connections/nothing", "connections/nothing/channels", "channels/nothing"):
        assert (await api.call("GET", path))[0] == 404


async def test_ctl_closes_connections_of_other_nodes(cluster: ClusterKit, api: Asked) -> None:
    client = cluster["third"].client()
    assert await api.ctl("close_connection", connection="<third.1.1.0>", reason="x") == (200, {"closed": 1})
    client.expect(methods.ConnectionClose, 0)
    cluster["master"].client()
    assert (await api.ctl("close_connections"))[1]["closed"] >= 1
    assert (await api.ctl("close_connection", connection="nothing"))[0] == 400
    assert (await api.ctl("inquire", kind="connections"))[0] == 404, "it is no command"


# --- nodes ---


async def test_all_members_are_listed_with_what_they_tell(cluster: ClusterKit, api: Asked) -> None:
    cluster.node("master").inquiries.describe = lambda: FACTS
    cluster.kill("third")
    rows = {row["name"]: row for row in await api.get("nodes")}
    assert {name: row["running"] for name, row in rows.items()} == {
        "home": True,
        LEADER: True,
        "master": True,
        "third": False,
    }
    assert (rows["master"]["os_pid"], rows["master"]["fd_total"]) == ("4711", 1024)
    assert "totals" not in rows["master"]
    assert set(rows["master"]) == set(rows["home"])
    assert set(rows["third"]) == {"name", "running", "type", "partitions"}
    assert api.missing == {"third": "is down"}
    assert (await api.get("nodes/master"))["name"] == "master"
    assert (await api.get("nodes/third"))["running"] is False
    assert (await api.call("GET", "nodes/nobody"))[0] == 404


async def test_a_node_that_does_not_answer_is_shown_by_its_news(cluster: ClusterKit, api: Asked) -> None:
    cluster.node("third").membership.phase = "entering"
    (row,) = (row for row in await api.get("nodes") if row["name"] == "third")
    assert row["running"] is True
    assert {"uptime", "mem_used", "disk_free", "applications"} <= set(row)
    assert "os_pid" not in row
    assert api.missing == {"third": "is starting"}


async def test_the_overview_counts_all_nodes(cluster: ClusterKit, api: Asked) -> None:
    fill(cluster)
    cluster["third"].client().consume("on-third", no_ack=False)
    for name in ("master", "third"):
        cluster.node(name).news.set_listeners([("amqp", "::", 5672)])
    cluster.advance(1)
    found = await api.get("overview")
    depths = {name: value for name, value in found["queue_totals"].items() if isinstance(value, int)}
    assert depths == {
        "messages": 15,
        "messages_ready": 10,
        "messages_unacknowledged": 5,
    }
    assert found["object_totals"] == {
        "connections": 4,
        "channels": 4,
        "consumers": 1,
        "exchanges": 8,
        "queues": 3,
    }
    assert [row["node"] for row in found["listeners"]] == ["home", "master", "third"]


async def test_a_node_that_is_alone_asks_nobody(cluster: ClusterKit) -> None:
    from tests.support.adminkit import AdminKit

    kit = AdminKit()
    async with serving(kit) as api:
        kit.node.inquiries.ask = None  # type: ignore[assignment, method-assign]
        for path in ("queues", "connections", "channels", "consumers", "nodes", "overview"):
            await api.get(path)
        assert (await api.ctl("list_queues"))[0] == 200
