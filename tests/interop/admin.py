"""Administration of a broker under test through RabbitMQ's HTTP API, which MirrorMQ answers as well.

Only what the interop tests need, with the standard library's HTTP client, so that a mistake in our own
client package cannot hide one in the server. A refused request raises `Refused` with status and reason.
"""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any
from urllib.parse import quote


class Refused(Exception):
    """The broker answered a request with an error status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason


class Admin:
    """One HTTP connection to the admin API of a broker, re-opened when the broker closed it."""

    def __init__(self, host: str, port: int, user: str, password: str) -> None:
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
        self._connection = http.client.HTTPConnection(host, port, timeout=30)

    def close(self) -> None:
        self._connection.close()

    def request(self, verb: str, *path: str, body: Any = None, query: str = "") -> Any:
        """Send a request to /api/<path...>, each part quoted; the decoded answer or None when it is empty."""
        target = "/api/" + "/".join(quote(part, safe="") for part in path) + query
        payload = None if body is None else json.dumps(body)
        try:
            answer, data = self._exchange(verb, target, payload)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            # An idle keep-alive connection was closed by the broker between two requests.
            self._connection.close()
            answer, data = self._exchange(verb, target, payload)
        if answer.status >= 400:
            raise Refused(answer.status, data.decode(errors="replace"))
        return json.loads(data) if data.strip() else None

    def _exchange(
        self, verb: str, target: str, payload: str | None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        self._connection.request(verb, target, payload, self._headers)
        answer = self._connection.getresponse()
        return answer, answer.read()

    def get(self, *path: str) -> Any:
        return self.request("GET", *path)

    def put(self, *path: str, body: Any = None) -> Any:
        return self.request("PUT", *path, body={} if body is None else body)

    def post(self, *path: str, body: Any = None) -> Any:
        return self.request("POST", *path, body={} if body is None else body)

    def delete(self, *path: str) -> Any:
        return self.request("DELETE", *path)

    def add_vhost(self, name: str) -> None:
        self.put("vhosts", name)

    def delete_vhost(self, name: str) -> None:
        self.delete("vhosts", name)

    def add_user(self, name: str, password: str, tags: str = "") -> None:
        self.put("users", name, body={"password": password, "tags": tags})

    def delete_user(self, name: str) -> None:
        self.delete("users", name)

    def permit(
        self, user: str, vhost: str, configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> None:
        self.put("permissions", vhost, user, body={"configure": configure, "write": write, "read": read})

    def permit_topic(self, user: str, vhost: str, exchange: str, write: str = ".*", read: str = ".*") -> None:
        self.put("topic-permissions", vhost, user, body={"exchange": exchange, "write": write, "read": read})
