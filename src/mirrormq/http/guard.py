"""What a browser may do with the API from elsewhere, and what it is told about everything it gets.

Guarantees
- A request that changes something and that a foreign page made the browser send is refused, whatever
  credentials the browser added to it by itself. Programs are not browsers: they send neither header.
- CORS is off; the origins that are named in the settings, and no others, may read answers.
- Every response carries the headers that keep browsers from guessing types, framing and leaking addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from aiohttp import web

from mirrormq.http.answers import Fault
from mirrormq.http.ports import WebSettings

SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
ANY = "*"
API_POLICY = "default-src 'none'; frame-ancestors 'none'"
EXPOSED = "X-MirrorMQ-Missing, Location, Retry-After"


class Guard:
    """Looks at where requests come from, and marks responses."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._origins = frozenset(origin.rstrip("/").lower() for origin in settings.origins)

    def check(self, request: web.Request) -> None:
        """Refuse a change that a foreign page asks for."""
        if request.method in SAFE:
            return
        origin = request.headers.get("Origin")
        site = request.headers.get("Sec-Fetch-Site")
        if site in (None, "same-origin", "none") and (
            origin is None or site or self._is_own(request, origin)
        ):
            return
        if origin is not None and self._is_allowed(origin):
            return
        reason = "a page of another site asks for a change; see management.cors.allow_origins"
        raise Fault(403, "forbidden", reason)

    def preflight(self, request: web.Request, allowed: Sequence[str]) -> web.Response:
        """The answer to OPTIONS."""
        verbs = ", ".join(dict.fromkeys([*allowed, "OPTIONS"]))
        found = web.Response(status=200, headers={"Allow": verbs})
        if self._is_allowed(request.headers.get("Origin", "")):
            found.headers["Access-Control-Allow-Methods"] = verbs
            found.headers["Access-Control-Max-Age"] = str(self._settings.max_age)
            asked = request.headers.get("Access-Control-Request-Headers")
            if asked:
                found.headers["Access-Control-Allow-Headers"] = asked
        return found

    async def mark(self, request: web.Request, response: web.StreamResponse) -> None:
        """Put on a response what every response carries; what a handler has set stays."""
        headers = response.headers
        settings = self._settings
        headers.setdefault("X-Content-Type-Options", "nosniff")
        headers.setdefault("X-Frame-Options", "DENY")
        headers.setdefault("Referrer-Policy", "no-referrer")
        headers.setdefault("Content-Security-Policy", settings.content_policy or API_POLICY)
        headers.setdefault("Cache-Control", "no-cache")
        if settings.transport_policy and request.secure:
            headers.setdefault("Strict-Transport-Security", settings.transport_policy)
        headers.add("Vary", "Origin")
        origin = request.headers.get("Origin", "")
        if self._is_allowed(origin):
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Allow-Credentials"] = "true"
            headers["Access-Control-Expose-Headers"] = EXPOSED

    def _is_allowed(self, origin: str) -> bool:
        if not origin or not self._origins:
            return False
        return ANY in self._origins or origin.rstrip("/").lower() in self._origins

    def _is_own(self, request: web.Request, origin: str) -> bool:
        """Does an origin name the host that was asked, or that the proxy in front was asked?"""
        hosts = (request.headers.get("X-Forwarded-Host"), request.headers.get("Host"))
        return urlsplit(origin).netloc.lower() in {host.lower() for host in hosts if host}
