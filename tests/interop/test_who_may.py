"""The table of who gets what of the management API, asked of RabbitMQ 3.10.8 itself, where installed.

Unit tests ask the same of us (`tests/unit/http/test_every_path.py`), so the table cannot drift from either.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pika
import pytest

from tests.interop import brokers
from tests.interop.brokers import Broker
from tests.interop.waiting import pump
from tests.support import rabbitmq
from tests.support.adminpaths import PEOPLE, TABLE, TAGS

pytestmark = pytest.mark.slow
STATISTICS_S = 40.0
LAST = {"connections/{connection}": 1, "reset": 2, "reset/{node}": 2}
"""What ends the connection the others are asked about, and then what forgets its statistics."""
ALL = {"configure": ".*", "write": ".*", "read": ".*"}


class Original:
    """RabbitMQ with the users of the table."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        for tag in (*TAGS, ""):
            name = tag or "untagged"
            self.ask("PUT", f"users/{name}", {"tags": tag, "password": name})
            self.ask("PUT", f"permissions/%2F/{name}", ALL)
        self.ask("PUT", "queues/%2F/q", {"durable": True})
        self.node = self.rows("overview")["node"]

    def ask(self, verb: str, path: str, body: Any = None, user: str | None = "guest") -> int:
        return self._asked(verb, path, body, user)[0]

    def rows(self, path: str) -> Any:
        return json.loads(self._asked("GET", path, None, "guest")[1])

    def _asked(self, verb: str, path: str, body: Any, user: str | None) -> tuple[int, bytes]:
        is_form = isinstance(body, str)
        headers = {"Content-Type": "application/x-www-form-urlencoded" if is_form else "application/json"}
        data = None if body is None else body if is_form else json.dumps(body)
        if user is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(f'{user}:{user}'.encode()).decode()}"
        address = (self._broker.host, self._broker.http_port)
        with contextlib.closing(http.client.HTTPConnection(*address, timeout=30)) as connection:
            connection.request(verb, f"/api/{path}", data, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    @contextlib.contextmanager
    def client(self) -> Iterator[dict[str, str]]:
        """The names of a connection and its channel, once statistics know them."""
        parameters = pika.ConnectionParameters(self._broker.host, self._broker.port, heartbeat=0)
        connection = pika.BlockingConnection(parameters)
        connection.channel()

        def seen() -> Any:
            found = self.rows("connections"), self.rows("channels")
            return found if all(found) else None

        connections, channels = pump(connection, seen, "the connection's statistics", STATISTICS_S)
        yield {"connection": quote(connections[0]["name"]), "channel": quote(channels[0]["name"])}
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


@pytest.fixture(scope="module")
def original() -> Iterator[Original]:
    if not rabbitmq.installed():
        pytest.skip("rabbitmq-server is not installed")
    with brokers.rabbitmq_server() as broker:
        yield Original(broker)


def test_rabbitmq_lets_each_tag_do_what_the_table_says(original: Original) -> None:
    names = {"node": original.node, "port": str(original._broker.port)}
    differing = []
    with original.client() as live:
        for row in sorted(TABLE, key=lambda row: LAST.get(row.route if row.verb == "DELETE" else "", 0)):
            if row.is_ours:
                continue
            path = row.path.format_map(names | live)
            found = []
            for user in PEOPLE:
                for before in row.before:
                    original.ask(*before)
                found.append(original.ask(row.verb, path, row.body, user))
            if tuple(found) != row.statuses:
                differing.append((row.verb, row.route, found))
    assert differing == []
