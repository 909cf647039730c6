"""Whatever the OpenAPI document allows, and much that it does not: a real node answers every request with a
documented status and an answer of the documented form, never with a fault of its own, and goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from mirrormq.testing import Broker, running

pytestmark = pytest.mark.slow

CHECKS = (
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)
SECONDS = float(os.environ.get("HTTP_PROPERTY_SECONDS", "25"))
"""For all operations together."""
EXAMPLES = int(os.environ.get("HTTP_PROPERTY_EXAMPLES", "6"))
FAULT, UNAVAILABLE = 500, 503
AUTH = ("guest", "guest")
LEFT_OUT = ("/api/ctl/", "/api/mirrormq/stream", "/api/reset", "/metrics")
"""Commands (some stop the node), a stream that never ends, and text for Prometheus."""
KEPT = ("guest", "/")
KNOWN = {
    "queue": "q",
    "destination": "q",
    "exchange": "e",
    "source": "e",
    "kind": "q",
    "end": "source",
    "user": "ann",
    "component": "federation-upstream",
    "unit": "days",
    "within": "1",
    "port": "1",
    "protocol": "amqp",
}
"""Parts of paths for which there is something; names made up by a machine hit nothing."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running(admin=True) as found:
        yield found


def test_every_operation_keeps_to_the_document(broker: Broker) -> None:
    url = broker.admin_url
    assert url is not None
    schema = schemathesis.openapi.from_url(f"{url}/api/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    wanted = [operation for operation in operations if not operation.path.startswith(LEFT_OUT)]
    assert len(wanted) > 120
    tried: dict[str, int] = {}
    until = time.monotonic() + SECONDS
    session = requests.Session()
    session.auth = AUTH
    problems: list[str] = []
    node = session.get(f"{url}/api/overview", timeout=10).json()["node"]
    for operation in wanted:
        _furnish(session, f"{url}/api")
        try:
            _try(operation, session, until, tried, KNOWN | {"vhost": "v", "node": node, "name": "p"})
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001  (all of them are told at once)
            problems.append(f"{operation.label}: {error!r}\n{error}"[:2000])
    assert not problems, "\n\n".join(problems)
    assert sum(tried.values()) >= len(wanted), "too little time for one request each"
    assert requests.get(f"{url}/api/health/checks/virtual-hosts", auth=AUTH, timeout=10).status_code == 200
    assert requests.get(f"{url}/api/whoami", auth=AUTH, timeout=10).json()["name"] == "guest"


def _furnish(session: requests.Session, url: str) -> None:
    """See that there is something of each kind."""
    for path, body in (
        ("vhosts/v", {}),
        ("queues/v/q", {"durable": True}),
        ("exchanges/v/e", {"type": "topic", "durable": True}),
        ("users/ann", {"password": "ann", "tags": "management"}),
        ("permissions/v/ann", {"configure": "", "write": "", "read": ""}),
        ("policies/v/p", {"pattern": "^none$", "definition": {"max-length": 1}}),
        ("global-parameters/p", {"value": 1}),
    ):
        assert session.put(f"{url}/{path}", json=body, timeout=10).status_code in (201, 204), path


def _try(
    operation: Any, session: requests.Session, until: float, tried: dict[str, int], known: dict[str, str]
) -> None:
    """Some requests of one operation; those that would lock the test out are left out."""

    @hypothesis.given(case=operation.as_strategy())
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def attempt(case: Any) -> None:
        count = tried.get(operation.label, 0)
        if count and time.monotonic() > until:
            return
        if case.method != "GET" and any(value in KEPT for value in (case.path_parameters or {}).values()):
            return
        tried[operation.label] = count + 1
        if count % 2 == 0:
            case.path_parameters = {
                name: known.get(name, value) for name, value in (case.path_parameters or {}).items()
            }
        response = case.call(session=session, timeout=20)
        # 503 is the documented answer of a check that failed, and of a node that cannot know.
        assert response.status_code < FAULT or response.status_code == UNAVAILABLE, response.text
        case.validate_response(response, checks=list(CHECKS))

    attempt()


def test_junk_in_place_of_json_is_refused(broker: Broker) -> None:
    url = broker.admin_url
    junk: tuple[bytes, ...] = (b"{", b"[]", b"1", b'"x"', b"\xff\xfe", b"null", b"{" * 5000, b'{"a":' * 2000)
    paths = (
        ("PUT", "queues/%2F/q"),
        ("PUT", "users/u"),
        ("PUT", "policies/%2F/p"),
        ("POST", "definitions"),
        ("POST", "queues/%2F/q/get"),
        ("POST", "exchanges/%2F/amq.topic/publish"),
        ("POST", "bindings/%2F/e/amq.topic/q/q"),
        ("POST", "users/bulk-delete"),
        ("POST", "ctl/add_user"),
    )
    for verb, path in paths:
        for body in junk:
            answer = requests.request(verb, f"{url}/api/{path}", data=body, auth=AUTH, timeout=10)
            assert answer.status_code in (400, 404), (verb, path, body[:20], answer.text)
            assert answer.json()["reason"]
