"""Addresses that people and programs know from RabbitMQ beside the API, and its log-in."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mirrormq.http.ports import WebSettings
from mirrormq.http.server import Api as Server
from tests.support.adminkit import FACTS, KEY, AdminKit, Api, KitProcess, serving
from tests.unit.http.test_api import add_user

LOGIN = "/api/login"


@pytest.fixture
def kit() -> AdminKit:
    return AdminKit()


@pytest_asyncio.fixture
async def api(kit: AdminKit) -> AsyncIterator[Api]:
    async with serving(kit) as found:
        yield found


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/api", "/api/index.html"),
        ("/api/", "/api/index.html"),
        ("/stats", "/api/index.html"),
        ("/doc/stats.html", "/api/index.html"),
        ("/cli", "/cli/index.html"),
        ("/cli/", "/cli/index.html"),
        ("/mgmt", "/"),
        ("/mgmt/", "/"),
    ],
)
async def test_old_addresses_lead_where_rabbitmqs_lead(api: Api, path: str, target: str) -> None:
    async with api._session.get(f"{api.url}{path}", allow_redirects=False) as found:
        assert found.status == 301
        assert found.headers["Location"] == target
    async with api._session.get(f"{api.url}{path}") as found:
        assert (found.status, found.content_type) == (200, "text/html")


async def test_the_help_page_names_every_resource(api: Api, kit: AdminKit) -> None:
    async with api._session.get(f"{api.url}/api/index.html") as found:
        page = await found.text()
        assert "script-src 'self'" in found.headers["Content-Security-Policy"]
    assert "<script" not in page
    assert " style=" not in page
    server = Server(KitProcess(kit), KEY, lambda: FACTS, WebSettings())
    for route in server.routes():
        assert f"<td>{route.verb}</td><td><code>{route.path}</code></td>" in page, route
    assert "<td>administrator</td><td>GET users</td>" not in page, "the path is told once"


async def test_the_command_line_is_described_and_rabbitmqadmin_calls_ours(api: Api) -> None:
    async with api._session.get(f"{api.url}/cli/index.html") as found:
        page = await found.text()
    for text in ("mirrormq admin", "mirrormq shims", 'href="rabbitmqadmin"'):
        assert text in page
    async with api._session.get(f"{api.url}/cli/rabbitmqadmin") as found:
        script = await found.text()
        assert found.content_type == "application/octet-stream"
    assert script.startswith("#!/bin/sh\n")
    assert script.endswith('\nexec mirrormq admin "$@"\n')
    async with api._session.get(f"{api.url}/cli/none") as found:
        assert found.status == 404


async def test_a_password_can_be_tried_by_a_form(api: Api, kit: AdminKit) -> None:
    add_user(kit, "plain", "")
    for name, password, status in (
        ("guest", "guest", 200),
        ("guest", "wrong", 401),
        ("nobody", "x", 401),
        ("plain", "plain", 401),
        ("", "", 401),
    ):
        form = {"username": name, "password": password}
        async with api._session.post(f"{api.url}{LOGIN}", data=form) as found:
            assert found.status == status, name
            assert "Set-Cookie" not in found.headers
            answer = await found.json()
        if status == 200:
            assert answer == "ok"
    for data in (b"", b"\xff=1", b"username=guest", b"{}"):
        async with api._session.post(f"{api.url}{LOGIN}", data=data) as found:
            assert found.status == 401
    foreign = {"Origin": "http://evil.example"}
    form = {"username": "guest", "password": "guest"}
    async with api._session.post(f"{api.url}{LOGIN}", data=form, headers=foreign) as found:
        assert found.status == 403
    assert not [note for note in kit.notes if "wrong" in repr(note)]
