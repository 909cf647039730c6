"""The overview of somebody who may not watch the node: figures of the virtual hosts the user may use, and the
user's own connections, wherever they are.
"""

from __future__ import annotations

from typing import Any

import pytest

from mirrormq.base import limits
from mirrormq.node import requests as ask
from mirrormq.wire import methods
from tests.support.adminkit import AdminKit, Api, serving
from tests.support.clusterkit import ClusterKit
from tests.support.turns import watched
from tests.unit.http.test_api import add_user

PERIOD = limits.rates_period_us / 1_000_000
MINUTE = "lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5"
ALL = {"configure": ".*", "write": ".*", "read": ".*"}
ONLY_WATCHERS = {"listeners", "contexts"}


def numbers(row: dict[str, Any]) -> dict[str, int]:
    return {name: value for name, value in row.items() if isinstance(value, int)}


@pytest.mark.parametrize("tag", ["management", "policymaker"])
async def test_users_see_totals_and_rates_of_the_vhosts_they_may_use(tag: str) -> None:
    kit = AdminKit()
    kit.ask(ask.AddVHost(name="own"))
    kit.ask(ask.AddVHost(name="foreign"))
    for vhost in ("own", "foreign"):
        kit.ask(ask.SetPermissions(vhost=vhost, user="guest", **ALL))
    add_user(kit, "ann", tag, "own")
    for user, vhost, count in (("ann", "own", 3), ("guest", "own", 2), ("guest", "foreign", 20)):
        client = kit.client(user, user, vhost)
        client.declare(f"of-{user}")
        for _ in range(count):
            client.publish(f"of-{user}")
    kit.advance(PERIOD)
    kit.advance(1)
    async with serving(kit) as api:
        everything = await api.get("overview")
        found = await api.get("overview", user="ann")
        assert set(everything) - set(found) == ONLY_WATCHERS
        assert found["object_totals"] == {"connections": 1, "channels": 1, "queues": 2, "exchanges": 7}
        assert numbers(found["queue_totals"]) == {
            "messages": 5,
            "messages_ready": 5,
            "messages_unacknowledged": 0,
        }
        assert found["message_stats"]["publish"] == 5
        assert found["message_stats"]["publish_details"]["rate"] == 1.0
        assert found["churn_rates"] == everything["churn_rates"]
        shown = await api.get(f"overview?{MINUTE}", user="ann")
        assert shown["queue_totals"]["messages_details"]["samples"][0]["sample"] == 5
        kit.ask(ask.ClearPermissions(vhost="own", user="ann"))
        nothing = await api.get("overview", user="ann")
        assert nothing["object_totals"] == {"connections": 1, "channels": 1, "queues": 0, "exchanges": 0}
        assert nothing["queue_totals"]["messages"] == 0


async def test_what_users_see_is_of_all_nodes() -> None:
    cluster = ClusterKit("home", "master")
    async with serving(cluster["home"]) as api:  # type: ignore[arg-type]
        await managed(api)
        for name in ("home", "master"):
            client = cluster[name].client()
            client.declare(f"on-{name}", durable=True)
            client.publish(f"on-{name}")
        cluster.advance(PERIOD)
        cluster.advance(1)
        for vhosts, count in ((("/",), 2), ((), 0)):
            if not vhosts:
                await api.ctl("clear_permissions", vhost="/", user="guest")
            found = await api.get("overview")
            assert numbers(found["queue_totals"])["messages_ready"] == count
            assert found["message_stats"].get("publish", 0) == count
            assert found["object_totals"]["connections"] == 2
            assert found["object_totals"]["channels"] == 2
            assert found["object_totals"]["queues"] == count


async def managed(api: Api) -> None:
    """Guest is no administrator any more."""
    assert (await api.ctl("set_user_tags", name="guest", tags=["management"]))[0] == 200


@pytest.mark.slow
async def test_figures_of_ten_thousand_queues_are_summed_in_slices() -> None:
    kit = AdminKit()
    add_user(kit, "ann", "management", "/")
    client = kit.client()
    for number in range(10_000):
        client.send(methods.QueueDeclare(queue=f"q{number}", nowait=True))
    kit.advance(PERIOD)
    kit.advance(1)
    async with serving(kit) as api:
        await api.get("overview", user="ann")  # the password is checked once
        with watched() as turns:
            found = await api.get(f"overview?{MINUTE}", user="ann")
    assert found["object_totals"]["queues"] == 10_000
    # The bound is 2 ms; on a machine that does other things a cache miss costs more.
    assert turns.longest < 0.01
