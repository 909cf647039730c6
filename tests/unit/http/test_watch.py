"""Views and rings, synchronising, what happened, cursors: what the API has below /api/mirrormq/."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.adminkit import AdminKit, Api, serving
from tests.support.mirroredkit import MirroredKit
from tests.unit.http.test_mirrors import Keyed, lag_behind


@pytest.fixture
def kit() -> MirroredKit:
    made = MirroredKit(events=True)
    made.policy(ha_mode="nodes", ha_params=["a", "b"])
    client = made.declare("q", "b")
    for _ in range(3):
        made.confirm(client, 1)
    made.advance(2)
    return made


@pytest_asyncio.fixture
async def api(kit: MirroredKit) -> AsyncIterator[Keyed]:
    async with serving(kit["a"]) as found:  # type: ignore[arg-type]
        yield Keyed(found._session, found.url)


@pytest_asyncio.fixture
async def alone() -> AsyncIterator[tuple[AdminKit, Api]]:
    kit = AdminKit(events=True)
    async with serving(kit) as found:
        yield kit, found


async def test_a_view_shows_the_ring_and_how_far_each_member_is(kit: MirroredKit, api: Keyed) -> None:
    found = await api.get("mirrormq/queues/%2F/q/view")
    assert (found["mirrored"], found["master"], found["ring"], found["told_by"]) == (
        True,
        "b",
        ["b", "a"],
        "b",
    )
    assert (found["state"], found["problem"], found["waits_for"]) == ("running", None, [])
    end = found["marks"]["end"]
    assert found["marks"] == {"end": end, "received": end, "durable": end}
    assert [(row["node"], row["role"], row["in_sync"], row["source"]) for row in found["members"]] == [
        ("b", "master", True, None),
        ("a", "mirror", True, "b"),
    ]
    assert all(row["flushed"] == end and row["lag"] == 0 for row in found["members"])


async def test_an_unsynchronised_mirror_shows_its_progress(kit: MirroredKit, api: Keyed) -> None:
    lag_behind(kit)
    found = await api.get("mirrormq/queues/%2F/q/view")
    (behind,) = [row for row in found["members"] if not row["in_sync"]]
    assert (behind["node"], behind["role"], behind["source"]) == ("c", "mirror", "b")
    assert 0 <= behind["progress"] <= 100
    assert found["sync"]["messages"] == 3
    (row,) = [row for row in await api.get("mirrormq/sync") if row["name"] == "q"]
    assert (row["unsynchronised"], row["state"]) == (["c"], "syncing")
    assert (await api.get("mirrormq/queues/%2F/q/sync"))["unsynchronised"] == ["c"]


async def test_a_view_without_a_master_says_whom_it_waits_for(kit: MirroredKit, api: Keyed) -> None:
    kit.policy(ha_mode="nodes", ha_params=["b"])
    kit.advance(2)
    kit.kill("b")
    kit.advance(3)
    found = await api.get("mirrormq/queues/%2F/q/view")
    assert (found["master"], found["state"], found["waits_for"], found["marks"]) == (
        None,
        "down",
        ["b"],
        None,
    )
    assert found["problem"] == "the queue has no master now"


async def test_a_fail_over_is_on_the_timeline(kit: MirroredKit, api: Keyed) -> None:
    kit.kill("b")
    kit.advance(5)
    found = await api.get("mirrormq/timeline?limit=50")
    (moved,) = [
        row for row in found["events"] if row["event"] == "queue.master_changed" and row["name"] == "q"
    ]
    assert (moved["from"], moved["to"], moved["lossy"]) == ("b", "a", False)
    assert [row["at"] for row in found["events"]] == sorted(row["at"] for row in found["events"])
    some = await api.get("mirrormq/events?event=queue.master_changed&queue=q&vhost=%2F&limit=1")
    assert [row["seq"] for row in some["events"]] == [moved["seq"]]
    before = await api.get(f"mirrormq/events?event=queue.master_changed&queue=q&before={moved['seq']}")
    assert before["events"] == []


async def test_the_newest_messages_are_looked_at_and_not_taken(kit: MirroredKit, api: Keyed) -> None:
    found = await api.get("mirrormq/queues/%2F/q/messages?count=2")
    assert [row["payload"] for row in found["messages"]] == ["0", "0"]
    assert found["messages"][0]["seq"] == found["before"] < found["messages"][1]["seq"]
    older = await api.get(f"mirrormq/queues/%2F/q/messages?count=2&before={found['before']}")
    assert len(older["messages"]) == 1
    assert (await api.get("queues/%2F/q"))["messages_ready"] == 3


async def test_a_master_is_moved(kit: MirroredKit, api: Keyed) -> None:
    status, found = await api.call("POST", "mirrormq/queues/%2F/q/move", {"node": "nobody"})
    assert (status, "not in the cluster" in found["reason"]) == (400, True)
    status, found = await api.call("POST", "mirrormq/queues/%2F/q/promote", {"plan": True})
    assert (status, "has a master" in found["reason"]) == (400, True)


async def test_an_ordinary_queue_has_a_view_of_one(alone: tuple[AdminKit, Api]) -> None:
    kit, api = alone
    kit.client().declare("plain", durable=True)
    found = await api.get("mirrormq/queues/%2F/plain/view")
    assert (found["mirrored"], found["ring"], found["copies_wanted"]) == (False, [kit.node.node_name], 1)
    assert [row["role"] for row in found["members"]] == ["master"]
    assert (await api.get("mirrormq/sync")) == []
    assert (await api.get("mirrormq/cursors")) == []
    pipelines = await api.get("mirrormq/pipelines")
    assert pipelines == {"readers": [], "cursors": [], "sinks": [], "mirrors": []}
    assert (await api.get("mirrormq/cluster"))["node"] == kit.node.node_name
    status, _ = await api.call("GET", "mirrormq/queues/%2F/none/view")
    assert status == 404
    status, found = await api.call("DELETE", "mirrormq/cursors/%2F/plain/none")
    assert status == 404
