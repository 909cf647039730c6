"""The OpenAPI document: valid, complete, and what bodies are checked against."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from openapi_spec_validator import OpenAPIV31SpecValidator

from mirrormq.http import help as help_pages
from mirrormq.http.describe import description_of
from mirrormq.http.ports import WebSettings
from mirrormq.http.server import Api as Server
from tests.support.adminkit import FACTS, KEY, AdminKit, Api, KitProcess, serving


@pytest.fixture
def kit() -> AdminKit:
    return AdminKit()


@pytest_asyncio.fixture
async def api(kit: AdminKit) -> AsyncIterator[Api]:
    async with serving(kit) as found:
        yield found


async def fetched(api: Api) -> dict[str, Any]:
    """The document, which nobody has to log in for."""
    async with aiohttp.ClientSession() as session, session.get(f"{api.url}/api/openapi.json") as response:
        assert response.status == 200
        return dict(await response.json())


async def test_it_is_a_valid_document(api: Api) -> None:
    found = await fetched(api)
    assert found["openapi"] == "3.1.0"
    OpenAPIV31SpecValidator(found).validate()  # type: ignore[arg-type]


async def test_every_route_is_in_it(api: Api, kit: AdminKit) -> None:
    found = await fetched(api)
    server = Server(KitProcess(kit), KEY, lambda: FACTS, WebSettings())
    registered = {
        (route.method.lower(), route.resource.canonical)
        for route in server.application().router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    files = {("get", "/"), ("get", "/ui/{path}"), ("get", "/health/ready")}
    files |= {("get", path) for path, _ in help_pages.routes(server._described)}
    named = {(verb, path) for path, verbs in found["paths"].items() for verb in verbs}
    assert registered - files == named


def test_every_resource_says_what_it_takes_and_gives(kit: AdminKit) -> None:
    server = Server(KitProcess(kit), KEY, lambda: FACTS, WebSettings())
    for route in server.routes():
        if not route.path.startswith("/api/") or "/mirrormq/s" in route.path:
            continue
        facts = description_of(route.handler)
        assert route.handler.__doc__, route
        if route.verb == "GET":
            assert facts.answer is not None, route
        elif route.verb in ("PUT", "POST") and "ctl" not in route.path and "definitions" not in route.path:
            assert facts.body is not None or "all-configuration" in route.path, route


async def test_operations_have_names_of_their_own(api: Api) -> None:
    found = await fetched(api)
    names = [facts["operationId"] for verbs in found["paths"].values() for facts in verbs.values()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("verb", "path", "body", "reason"),
    [
        ("PUT", "queues/%2F/q", {"durabel": True}, "unknown field 'durabel'; did you mean durable?"),
        ("PUT", "exchanges/%2F/e", {"typ": "topic"}, "unknown field 'typ'; did you mean type?"),
        ("PUT", "vhosts/v", {"nonsense": 1}, "unknown field 'nonsense'; there are"),
        ("PUT", "users/u", {"tags": "", "passwort": "x"}, "unknown field 'passwort'; did you mean password?"),
        (
            "PUT",
            "policies/%2F/p",
            {"pattern": "", "apply_to": "all"},
            "did you mean apply-to",
        ),
        ("POST", "bindings/%2F/e/amq.topic/q/q", {"routingkey": "x"}, "did you mean routing_key"),
        ("POST", "queues/%2F/q/get", {"cnt": 1}, "unknown field 'cnt'"),
        ("PUT", "permissions/%2F/guest", {"configure": "", "write": "", "reed": ""}, "did you mean read"),
    ],
)
async def test_a_field_that_nobody_reads_is_refused(
    api: Api, kit: AdminKit, verb: str, path: str, body: dict[str, Any], reason: str
) -> None:
    kit.client().declare("q")
    status, found = await api.call(verb, path, body)
    assert (status, found["error"]) == (400, "bad_request")
    assert reason in found["reason"]
