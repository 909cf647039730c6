"""Lists of the admin API are of the users' queues, unless the cluster's own are asked for."""

from __future__ import annotations

from mirrormq.meta import system
from tests.support.adminkit import AdminKit, serving


async def test_the_clusters_own_queues_are_listed_when_they_are_asked_for() -> None:
    kit = AdminKit(events=True, samples=True)
    kit.advance(1)
    kit.client().declare("mine")
    async with serving(kit) as api:
        for path, wanted in (
            ("queues", ["mine"]),
            ("queues/%2F", ["mine"]),
            ("queues?system=true", [*sorted(system.NAMES), "mine"]),
        ):
            status, rows = await api.call("GET", path)
            assert (status, sorted(row["name"] for row in rows)) == (200, sorted(wanted))
        _, rows = await api.ctl("list_queues")
        assert [row["name"] for row in rows] == ["mine"]
        _, rows = await api.ctl("list_queues", system=True)
        assert len(rows) == 3
        _, overview = await api.call("GET", "overview")
        assert overview["object_totals"]["queues"] == 1
        assert overview["queue_totals"]["messages"] == 0
        status, answer = await api.call("DELETE", f"queues/%2F/{system.EVENTS}")
        assert (status, answer["error"]) == (401, "not_authorised")
        assert ("/", system.EVENTS) in kit.node.meta.queues
