"""A blocking client of a node's HTTP admin API, on the standard library only, so that `ctl` starts fast.

Every failure is one of two: `Refused` (the node answered and said why) or `Unreachable` (it did not answer).
A node's key file opens the API on the machine itself; from elsewhere a user name and password do.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

MISSING = "X-MirrorMQ-Missing"
"""Header of a list that lacks what some nodes have: JSON, [{"node", "reason"}]."""

KEY_SCHEME = "MirrorMQ-Key"
"""Authorization scheme of the node's key file (the user's password travels as Basic)."""


class Refused(Exception):
    """The node answered with an error: `error` is its kind, `reason` a sentence for people."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        super().__init__(f"{status} {error}: {reason}")
        self.status = status
        self.error = error
        self.reason = reason


class Unreachable(Exception):
    """Nothing answered at the address, or not in time."""


class AdminClient:
    """One keep-alive connection to the admin API of one node."""

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str = "",
        key: str | None = None,
        timeout: float | None = 60.0,
        cafile: str | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Connect to `url` at the first request; the key wins over user and password.

        Over TLS the server is checked by the authorities in `cafile`, or as `context` says.
        """
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address of an admin API; it looks like http://host:15672")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._root = parts.path.rstrip("/").removesuffix("/api")
        port = parts.port or (15671 if parts.scheme == "https" else 15672)
        if parts.scheme == "https":
            context = context or ssl.create_default_context(cafile=cafile)
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, port, timeout=timeout, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(parts.hostname, port, timeout=timeout)
        self.missing: dict[str, str] = {}
        """Nodes whose rows the last answer lacks, and why."""
        # RabbitMQ has resources that give no JSON, and refuses to delete their contents for it.
        self._headers = {"Accept": "application/json, */*;q=0.5", "Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"{KEY_SCHEME} {key}"
        elif user is not None:
            token = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        self._connection.close()

    def get(self, *path: str, query: Mapping[str, str] | None = None) -> Any:
        """GET /api/<path>, each part quoted."""
        return self.request("GET", *path, query=query)

    def ctl(self, command: str, **arguments: Any) -> Any:
        """Run one administrative command by name (POST /api/ctl/<command>) and return its result."""
        return self.request("POST", "ctl", command, body=arguments)

    def request(self, verb: str, *path: str, body: Any = None, query: Mapping[str, str] | None = None) -> Any:
        """Send one request and return the decoded answer, or None when it is empty."""
        target = f"{self._root}/api/" + "/".join(quote(part, safe="") for part in path)
        if query:
            target += "?" + urlencode(query)
        payload = None if body is None else json.dumps(body).encode()
        try:
            status, data = self._exchange(verb, target, payload)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Unreachable(f"{self.url} does not answer: {_cause(error)}") from error
        if status >= 400:
            raise _refused(status, data)
        return json.loads(data) if data.strip() else None

    def _exchange(self, verb: str, target: str, payload: bytes | None) -> tuple[int, bytes]:
        fresh = self._connection.sock is None
        try:
            return self._once(verb, target, payload)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            # The node may close an idle connection just as we write on it: nothing was answered, so ask again
            # on a new one. On a new connection the same error is an answer of a kind and is passed on.
            if fresh:
                raise
            self._connection.close()
            return self._once(verb, target, payload)

    def _once(self, verb: str, target: str, payload: bytes | None) -> tuple[int, bytes]:
        self._connection.request(verb, target, payload, self._headers)
        answer = self._connection.getresponse()
        self.missing = _missing(answer.headers.get(MISSING, "[]"))
        return answer.status, answer.read()


def _refused(status: int, data: bytes) -> Refused:
    """Read {"error", "reason"}; anything else, such as a proxy's page, is quoted as it is."""
    try:
        found = json.loads(data)
        reason = found["reason"]
        return Refused(status, str(found["error"]), reason if isinstance(reason, str) else json.dumps(reason))
    except (ValueError, TypeError, KeyError):
        text = data.decode(errors="replace").strip()[:200]
        return Refused(
            status, http.client.responses.get(status, "error"), text or f"no reason given (HTTP {status})"
        )


def _missing(text: str) -> dict[str, str]:
    try:
        return {str(found["node"]): str(found["reason"]) for found in json.loads(text)}
    except (ValueError, TypeError, KeyError):
        return {}


def _cause(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
