"""Rates in the API: RabbitMQ's fields and query parameters, summed over nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from mirrormq.base import limits
from tests.support.adminkit import KEY, AdminKit, Api, serving
from tests.support.clusterkit import ClusterKit

PERIOD = limits.rates_period_us / 1_000_000
MINUTE = "lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5"
ALL = MINUTE + "&data_rates_age=60&data_rates_incr=5&node_stats_age=60&node_stats_incr=5"
KEYED = {"Authorization": f"MirrorMQ-Key {KEY}"}
FULL = {"rate", "samples", "avg", "avg_rate"}


@pytest.fixture
def kit() -> AdminKit:
    return AdminKit()


@pytest_asyncio.fixture
async def api(kit: AdminKit) -> AsyncIterator[Api]:
    async with serving(kit) as found:
        yield found


def busy(kit: Any) -> Any:
    """Ten publishes and a look after them."""
    client = kit.client()
    client.declare("q")
    for _ in range(10):
        client.publish("q")
    kit.advance(PERIOD)
    kit.advance(1)
    return client


def details(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name.endswith("_details")}


async def test_the_overview_has_rates_and_with_lengths_of_time_samples(api: Api, kit: AdminKit) -> None:
    busy(kit)
    plain = await api.get("overview")
    assert plain["message_stats"]["publish"] == 10
    assert plain["message_stats"]["publish_details"] == {"rate": 2.0}
    assert plain["queue_totals"]["messages_ready_details"] == {"rate": 2.0}
    assert plain["churn_rates"]["connection_created"] == 1
    found = await api.get(f"overview?{ALL}")
    for part in ("message_stats", "queue_totals", "churn_rates"):
        shown = details(found[part])
        assert shown, part
        for name, value in shown.items():
            assert set(value) == FULL, (part, name)
            assert len(value["samples"]) == 13
            assert set(value["samples"][0]) == {"sample", "timestamp"}
    assert found["rates_mode"] == "basic"


@pytest.mark.parametrize("path", ["queues", "queues/%2F", "queues/%2F/q"])
async def test_a_queue_has_rates_in_lists_and_alone(api: Api, kit: AdminKit, path: str) -> None:
    busy(kit)
    row = await api.get(f"{path}?{MINUTE}")
    row = row[0] if isinstance(row, list) else row
    assert row["message_stats"]["publish"] == 10
    assert set(row["message_stats"]["publish_details"]) == FULL
    assert row["message_stats"]["publish_details"]["rate"] == 2.0
    assert row["message_stats"]["deliver_get"] == 0
    for name in ("messages_details", "messages_ready_details", "messages_unacknowledged_details"):
        assert set(row[name]) == FULL
    assert [one["sample"] for one in row["messages_details"]["samples"][:2]] == [10, 0]


async def test_connections_channels_exchanges_vhosts_and_nodes_have_rates(api: Api, kit: AdminKit) -> None:
    busy(kit)
    (connection,) = await api.get(f"connections?{ALL}")
    assert set(connection["recv_oct_details"]) == FULL
    assert connection["recv_oct_details"]["rate"] > 0
    (channel,) = await api.get(f"channels?{ALL}")
    assert channel["message_stats"]["publish"] == 10
    assert set(channel["message_stats"]["publish_details"]) == FULL
    exchange = await api.get(f"exchanges/%2F/amq.default?{ALL}")
    assert exchange["message_stats"]["publish_in"] == 10
    assert exchange["message_stats"]["publish_out_details"]["rate"] == 2.0
    (vhost,) = await api.get(f"vhosts?{ALL}")
    assert (vhost["messages"], vhost["message_stats"]["publish"]) == (10, 10)
    assert vhost["recv_oct"] == connection["recv_oct"]
    (node,) = await api.get(f"nodes?{ALL}")
    assert set(node["mem_used_details"]) == FULL
    assert node["connection_created"] == 1


async def test_disable_stats_leaves_out_what_is_counted(api: Api, kit: AdminKit) -> None:
    busy(kit)
    (row,) = await api.get("queues?disable_stats=true")
    assert "messages" not in row
    assert "message_stats" not in row
    assert row["name"] == "q"
    (row,) = await api.get("queues?disable_stats=true&enable_queue_totals=true")
    assert (row["messages"], row["messages_ready"], row["messages_unacknowledged"]) == (10, 10, 0)
    assert "message_stats" not in row
    found = await api.get("overview?disable_stats=true")
    assert "message_stats" not in found
    assert found["disable_stats"] is True


@pytest.mark.parametrize(
    "query",
    [
        "lengths_age=x&lengths_incr=5",
        "msg_rates_age=60&msg_rates_incr=0",
        "data_rates_age=5&data_rates_incr=60",
        "node_stats_age=86400&node_stats_incr=5",
    ],
)
async def test_lengths_of_time_that_make_no_sense_are_refused(api: Api, query: str) -> None:
    status, found = await api.call("GET", f"overview?{query}")
    assert status == 400
    assert query.split("_age", maxsplit=1)[0] in found["reason"]


async def test_rates_are_sums_over_all_nodes() -> None:
    cluster = ClusterKit("home", "master")
    async with serving(cluster["home"]) as api:  # type: ignore[arg-type]
        for name in ("home", "master"):
            client = cluster[name].client()
            client.declare(f"on-{name}", durable=True)
            for _ in range(5):
                client.publish(f"on-{name}")
        cluster.advance(PERIOD)
        cluster.advance(1)
        found = await api.get(f"overview?{ALL}", headers=KEYED, user=None)
        assert found["message_stats"]["publish"] == 10
        assert found["message_stats"]["publish_details"]["rate"] == 2.0
        assert found["queue_totals"]["messages_details"]["samples"][0]["sample"] == 10
        rows = await api.get(f"queues?{ALL}", headers=KEYED, user=None)
        assert [row["message_stats"]["publish_details"]["rate"] for row in rows] == [1.0, 1.0]
        exchange = await api.get(f"exchanges/%2F/amq.default?{ALL}", headers=KEYED, user=None)
        assert exchange["message_stats"]["publish_in"] == 10
        vhosts = await api.get(f"vhosts?{ALL}", headers=KEYED, user=None)
        assert [row["messages"] for row in vhosts] == [10]
        nodes = await api.get(f"nodes?{ALL}", headers=KEYED, user=None)
        assert all(set(row["mem_used_details"]) == FULL for row in nodes)


async def test_a_long_list_has_rates_and_no_samples(
    api: Api, kit: AdminKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = busy(kit)
    for number in range(4):
        client.declare(f"more{number}")
    monkeypatch.setattr(limits, "rates_sampled_rows_max", 3)
    rows = await api.get(f"queues?{ALL}")
    assert all("samples" not in row["messages_details"] for row in rows)
    page = await api.get(f"queues?{ALL}&page=1&page_size=2")
    assert all(set(row["messages_details"]) == FULL for row in page["items"])


async def test_what_a_client_takes_from_another_nodes_queue_is_counted_once() -> None:
    cluster = ClusterKit("home", "master")
    async with serving(cluster["home"]) as api:  # type: ignore[arg-type]
        owner = cluster["master"].client()
        owner.declare("far", durable=True)
        client = cluster["home"].client()
        client.consume("far")
        for _ in range(4):
            client.publish("far")
        cluster.advance(PERIOD)
        cluster.advance(1)
        stats = (await api.get("overview", headers=KEYED, user=None))["message_stats"]
        assert (stats["publish"], stats["deliver"], stats["deliver_get"]) == (4, 4, 4)
        (queue,) = await api.get("queues", headers=KEYED, user=None)
        assert (queue["node"], queue["message_stats"]["publish"], queue["message_stats"]["deliver"]) == (
            "master",
            4,
            4,
        )
        channels = await api.get("channels", headers=KEYED, user=None)
        assert sorted(row["message_stats"]["deliver"] for row in channels) == [0, 4]
