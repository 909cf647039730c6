"""The API as a server: every request is logged in, routed and answered; nothing it does can end the node.

While the node's application is stopped, `ctl` of this machine is answered as far as the process can; anything
else gets 503 with the reason.

A fault in a handler costs that request a 500 and the operator a note, with a reason but without the stack
in the answer.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from mirrormq.base import limits
from mirrormq.http.answers import Fault, encoded, error_response, json_response, not_found, unavailable
from mirrormq.http.api import Call, Handler
from mirrormq.http.auth import NOBODY, Gate, Identity
from mirrormq.http.describe import described, description_of
from mirrormq.http.openapi import Route, document
from mirrormq.http.ports import Facts, Process, Stopped
from mirrormq.http.routes import (
    access,
    ctl,
    definitions,
    live,
    messages,
    metrics,
    nodes,
    objects,
    policies,
    upkeep,
    vhosts,
    watch,
)
from mirrormq.http.routes import session as session_routes
from mirrormq.http.sessions import Sessions
from mirrormq.http.stream import Hub
from mirrormq.http.web import Files

if TYPE_CHECKING:
    import socket

CLOSE_SECONDS = 1.0
"""How long a request under way may take when the node stops."""

Next = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """The admin API of one node."""

    def __init__(self, process: Process, key: str, facts: Facts) -> None:
        self._process = process
        self._sessions = Sessions()
        self._gate = Gate(process, key, self._sessions)
        self._hub = Hub(process, self._gate, self._as_somebody)
        self._handlers: dict[Next, Handler] = {}
        self._facts = facts
        self._runner: web.AppRunner | None = None
        self._document: bytes | None = None
        self.url = ""

    def routes(self) -> list[Route]:
        """All resources, in the order in which they are looked for."""
        about = nodes.About(self._facts)
        found: list[tuple[str, str, Handler]] = []
        for module in (access, definitions, live, messages, objects, policies, vhosts):
            found += module.ROUTES
        for resources in (about.routes(), ctl.routes(about), watch.routes(about), upkeep.routes(about)):
            found += resources
        found += session_routes.routes(self._sessions)
        routes = [Route(verb, f"/api/{path}", handler) for verb, path, handler in found]
        routes += [Route(verb, path, handler) for verb, path, handler in metrics.ROUTES]
        routes += [Route("GET", "/api/openapi.json", self.openapi)]
        return routes

    def application(self) -> web.Application:
        """All resources behind the gate."""
        app = web.Application(client_max_size=limits.http_body_bytes_max, middlewares=[self._answer])
        for verb, path, handler in self.routes():
            served = self._guarded(handler)
            app.router.add_route(verb, path, served)
            if verb == "GET":
                app.router.add_route("HEAD", path, served)
        # A stream has no end, so it is no resource as the others are; neither are files.
        app.router.add_get("/api/mirrormq/stream", self._guarded(self._hub.serve), allow_head=False)
        files = Files()
        app.router.add_get("/", files.get)
        app.router.add_get("/ui/{path:.+}", files.get)
        self._router = app.router
        return app

    @described(answer=dict[str, Any], is_open=True)
    async def openapi(self, _call: Call) -> web.Response:
        """GET openapi.json: this API, described for programs."""
        if self._document is None:
            # Tens of milliseconds, once: not on the loop.
            found = await asyncio.to_thread(lambda: encoded(document(self.routes())))
            self._document = found
        return json_response(self._document)

    async def serve(self, listening: socket.socket) -> None:
        """Answer on a bound socket."""
        self._runner = web.AppRunner(
            self.application(), access_log=None, handle_signals=False, shutdown_timeout=CLOSE_SECONDS
        )
        await self._runner.setup()
        site = web.SockSite(self._runner, listening)
        await site.start()
        host, port = listening.getsockname()[:2]
        if host in ("::", "0.0.0.0"):
            host = "127.0.0.1"
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def stop(self) -> None:
        """Finish what is under way and close the socket."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            self._hub.close()
            await runner.cleanup()

    def _guarded(self, handler: Handler) -> Next:
        facts = description_of(handler)

        async def serve(request: web.Request) -> web.StreamResponse:
            who = NOBODY if facts.is_open else await self._gate.identify(request)
            call = Call(request, self._process, who, facts)
            found = await handler(call)
            if not found.prepared:
                found.headers.update(call.headers)
            return found

        self._handlers[serve] = handler
        return serve

    async def _as_somebody(self, request: web.Request, who: Identity) -> web.StreamResponse:
        """Answer a GET request that this process makes itself for somebody who has logged in."""
        match = await self._router.resolve(request)
        handler = self._handlers.get(match.handler)
        if handler is None or match.http_exception is not None:
            raise not_found()
        request._match_info = match  # as the application does with a request from outside
        return await handler(Call(request, self._process, who, description_of(handler)))

    @web.middleware
    async def _answer(self, request: web.Request, handler: Next) -> web.StreamResponse:
        """Turn everything that can go wrong into a response with a reason."""
        try:
            return await handler(request)
        except Fault as fault:
            return error_response(fault)
        except Stopped as stopped:
            return error_response(unavailable(str(stopped)))
        except web.HTTPMethodNotAllowed as error:
            return web.Response(status=405, headers={"Allow": error.headers["Allow"]})
        except web.HTTPNotFound:
            return error_response(not_found())
        except web.HTTPRequestEntityTooLarge:
            reason = f"the body is larger than {limits.http_body_bytes_max} bytes"
            return error_response(Fault(413, "payload_too_large", reason))
        except web.HTTPException:
            raise
        except UnicodeDecodeError:
            return error_response(Fault(400, "bad_request", "not_utf8"))
        except Exception as error:  # noqa: BLE001
            stack = "".join(traceback.format_exception(error))
            self._process.note("error", f"internal error in {request.method} {request.path}: {stack}")
            reason = "this is a fault of the node; its log has the details"
            return error_response(Fault(500, "internal_error", reason))
