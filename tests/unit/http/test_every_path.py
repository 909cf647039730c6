"""Every path and verb of the admin API, asked by nobody, by a user without a tag and with each tag, and once
wrongly. A resource without a row in the table is a failure, so that none goes untried.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio

from mirrormq.http.ports import WebSettings
from mirrormq.http.server import Api as Server
from tests.support.adminkit import FACTS, KEY, AdminKit, Api, KitProcess, serving
from tests.support.adminpaths import PEOPLE, TABLE, TAGS, Row
from tests.unit.http.test_api import add_user

BELOW = "/api/"
METRICS = ("/metrics", "/metrics/per-object", "/metrics/detailed")
"""Beside the API; `test_metrics.py` asks for them."""


@pytest.fixture
def kit() -> AdminKit:
    made = AdminKit()
    made.client().declare("q", durable=True)
    for tag in (*TAGS, ""):
        add_user(made, tag or "untagged", tag, "/")
    return made


@pytest_asyncio.fixture
async def api(kit: AdminKit) -> AsyncIterator[Api]:
    async with serving(kit) as found:
        yield found


def test_every_resource_has_a_row() -> None:
    server = Server(KitProcess(AdminKit()), KEY, lambda: FACTS, WebSettings())
    served = {(route.verb, route.path) for route in server.routes() if route.path not in METRICS}
    rows = [(row.verb, BELOW + row.route) for row in TABLE]
    assert served == set(rows)
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.verb} {row.route}")
async def test_each_tag_may_what_rabbitmq_lets_it(api: Api, kit: AdminKit, row: Row) -> None:
    (connection,) = kit.node.connections.values()
    names = {
        "connection": quote(connection.name),
        "channel": quote(connection.channels[1].name),
        "node": kit.node.node_name,
        "port": "5672",
    }

    async def status_of(user: str | None, path: str, body: Any) -> int:
        given = {"node": kit.node.node_name} if body == {"node": "{node}"} else body
        return (await api.call(row.verb, path.format_map(names), given, user=user))[0]

    found = []
    for user in PEOPLE:
        for verb, path, *body in row.before:
            assert (await api.call(verb, path, *body))[0] in (201, 204, 404), (verb, path)
        found.append(await status_of(user, row.path, row.body))
    assert tuple(found) == row.statuses
    if row.wrong is not None:
        path, body, expected = row.wrong
        assert await status_of("administrator", path or row.path, body) == expected
