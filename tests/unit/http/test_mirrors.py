"""Mirrored queues in the admin API: RabbitMQ's fields and actions, health checks, and metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from mirrormq.node.metrics_format import Family, lines
from tests.support.adminkit import KEY, Api, serving
from tests.support.mirroredkit import MirroredKit


@pytest.fixture
def kit() -> MirroredKit:
    made = MirroredKit()
    made.policy(ha_mode="nodes", ha_params=["a", "b"])
    client = made.declare("q", "b")
    for _ in range(3):
        made.confirm(client, 1)
    return made


class Keyed(Api):
    """Asks with the node's key."""

    async def call(self, verb: str, path: str, body: Any = None, **who: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"MirrorMQ-Key {KEY}"}
        return await super().call(verb, path, body, **{**who, "user": None, "headers": headers})

    async def metrics(self, path: str = "/metrics") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Samples by name and labels, as Prometheus reads them."""
        headers = {"Authorization": f"MirrorMQ-Key {KEY}"}
        async with self._session.get(f"{self.url}{path}", headers=headers) as response:
            assert response.status == 200
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = await response.text()
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                assert key not in found, f"{key} twice"
                found[key] = sample.value
        return found


@pytest_asyncio.fixture
async def api(kit: MirroredKit) -> AsyncIterator[Keyed]:
    async with serving(kit["a"]) as found:  # type: ignore[arg-type]
        yield Keyed(found._session, found.url)


def lag_behind(kit: MirroredKit) -> None:
    """Give the queue a mirror on c that is not in sync for a long time."""
    kit.policy(ha_mode="nodes", ha_params=["a", "b", "c"], ha_sync_max_throughput=1)
    kit.advance(1)
    assert [entry.node for entry in kit.view().learners] == ["c"]


async def test_a_mirrored_queue_has_rabbitmqs_fields_whichever_node_is_asked(
    kit: MirroredKit, api: Keyed
) -> None:
    lag_behind(kit)
    row = await api.get("queues/%2F/q")
    assert (row["node"], row["slave_nodes"], row["synchronised_slave_nodes"]) == ("b", ["a", "c"], ["a"])
    assert (row["recoverable_slaves"], row["state"]) == (["a"], "syncing")
    assert (row["in_sync"], row["unsynchronised"], row["messages"]) == (["b", "a"], ["c"], 3)
    assert 0 <= row["sync_messages"] < 3
    assert "slave_pids" not in row
    kit["a"].client().declare("plain")
    plain = await api.get("queues/%2F/plain")
    assert plain["recoverable_slaves"] is None
    assert "slave_nodes" not in plain


async def test_a_sync_is_begun_and_cancelled_by_rabbitmqs_actions(kit: MirroredKit, api: Keyed) -> None:
    lag_behind(kit)
    copy = kit["b"].node.copies.mirrors.copies[kit.view().id]
    assert await api.call("POST", "queues/%2F/q/actions", {"action": "sync"}) == (204, None)
    assert copy.master.is_sync_wanted
    assert await api.call("POST", "queues/%2F/q/actions", {"action": "cancel_sync"}) == (204, None)
    assert not copy.master.is_sync_wanted
    status, found = await api.call("POST", "queues/%2F/q/actions", {"action": "dance"})
    assert (status, found["error"]) == (400, "bad_request")
    status, _ = await api.call("POST", "queues/%2F/none/actions", {"action": "sync"})
    assert status == 404
    assert (await api.call("POST", "queues/%2F/q/actions", {}))[0] == 400


async def test_health_checks_name_the_queues_that_only_this_node_has_in_sync(
    kit: MirroredKit, api: Keyed
) -> None:
    path = "health/checks/node-is-mirror-sync-critical"
    assert await api.call("GET", path) == (200, {"status": "ok"})
    assert await api.call("GET", "health/checks/node-is-quorum-critical") == (200, {"status": "ok"})
    kit.policy(ha_mode="nodes", ha_params=["b", "a"])
    kit.declare("lonely", "a")
    kit.policy(ha_mode="nodes", ha_params=["a"])
    kit.advance(3)
    assert [entry.node for entry in kit.view("lonely").members] == ["a"]
    status, found = await api.call("GET", path)
    assert (status, found["status"]) == (503, "failed")
    assert {row["name"] for row in found["queues"]} >= {"lonely"}
    kit.kill("c")
    kit.advance(3)
    status, found = await api.call("GET", "health/checks/node-is-quorum-critical")
    assert (status, found["reason"]) == (503, "Without this node the cluster has no majority")


async def test_ctl_commands_about_mirrors_are_served(kit: MirroredKit, api: Keyed) -> None:
    status, found = await api.ctl("check_critical")
    assert (status, found["is_single"], found["mirrored"]) == (200, False, [])
    status, found = await api.ctl("sync_status", vhost="/", name="q")
    assert (status, found["master"], found["in_sync"]) == (200, "b", ["b", "a"])
    status, rows = await api.ctl("list_queues")
    (row,) = rows
    assert (status, row["master"], row["epoch"]) == (200, "b", kit.view().epoch)
    assert row["synchronised_slave_pids"] == [f"<a.2.{row['pid'].split('.')[2]}.0>"]


async def test_metrics_count_copies_and_what_happened_to_them(kit: MirroredKit, api: Keyed) -> None:
    found = await api.metrics()
    assert found["mirrormq_identity_info", (("cluster", "a"), ("node", "a"))] == 1
    assert found["mirrormq_mirrored_queues", ()] == 0
    kit.kill("b")
    kit.advance(3)
    found = await api.metrics()
    assert found["mirrormq_mirrored_queues", ()] == 1
    assert found["mirrormq_in_sync_copies", ()] == 1
    assert found["mirrormq_queues_below_target", ()] == 1
    assert found["mirrormq_queues_without_master", ()] == 0
    assert found["mirrormq_failovers_total", ()] == 1
    assert found["mirrormq_promotions_total", (("reason", "failure"),)] == 1
    assert found["mirrormq_lossy_promotions_total", ()] == 0
    assert found["rabbitmq_queue_messages_ready", ()] == 3


async def test_metrics_per_object_have_a_sample_for_each_queue(kit: MirroredKit, api: Keyed) -> None:
    kit["a"].client().declare('plain"quoted\\')
    kit.policy(ha_mode="nodes", ha_params=["a", "b"], ha_min_in_sync=1)
    kit.declare("mine", "a")
    kit.policy(ha_mode="nodes", ha_params=["a", "b", "c"], ha_sync_max_throughput=1)
    kit.advance(1)
    found = await api.metrics("/metrics/per-object")
    mine = (("queue", "mine"), ("vhost", "/"))
    assert found["mirrormq_queue_in_sync_copies", mine] >= 2
    assert found["mirrormq_queue_wanted_copies", mine] == 3
    assert found["mirrormq_queue_lossy_promotions_total", mine] == 0
    assert found["rabbitmq_queue_messages_ready", (("queue", 'plain"quoted\\'), ("vhost", "/"))] == 0
    assert ("rabbitmq_queue_messages_ready", ()) not in found


async def test_metrics_need_a_log_in(api: Keyed) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{api.url}/metrics") as response:
        assert response.status == 401


def test_names_that_are_no_text_do_not_break_the_format() -> None:
    family = Family("m", "gauge", "h", [((("queue", "a\udcff\n"),), 0.5), ((), 3.0)])
    text = b"".join(lines([family])).decode()
    assert text == '# HELP m h\n# TYPE m gauge\nm{queue="a\\\\xff\\n"} 0.5\nm 3\n'
