"""The API as a server: every request is looked at, logged in, routed, answered and, if it changes something,
told to the log; nothing it does can end the node.

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
from yarl import URL

from mirrormq.base import limits
from mirrormq.http import audit
from mirrormq.http import help as help_pages
from mirrormq.http.answers import Fault, encoded, error_response, json_response, not_found, unavailable
from mirrormq.http.api import Call, Handler
from mirrormq.http.auth import NOBODY, Gate, Identity
from mirrormq.http.describe import described, description_of
from mirrormq.http.guard import Guard
from mirrormq.http.openapi import Route, document
from mirrormq.http.ports import Facts, Process, Stopped, WebSettings
from mirrormq.http.routes import (
    access,
    ctl,
    definitions,
    health,
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
    import ssl

CLOSE_SECONDS = 1.0
"""How long a request under way may take when the node stops."""

Next = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """The admin API of one node."""

    def __init__(self, process: Process, key: str, facts: Facts, settings: WebSettings) -> None:
        self._process = process
        self._sessions = Sessions()
        self._gate = Gate(process, key, self._sessions)
        self._guard = Guard(settings)
        self._hub = Hub(process, self._gate, self._as_somebody)
        self._handlers: dict[Next, Handler] = {}
        self._facts = facts
        self._runner: web.AppRunner | None = None
        self._document: dict[str, Any] | None = None
        self._encoded: bytes | None = None
        self.url = ""
        """Where `ctl` on this machine asks."""

    def routes(self) -> list[Route]:
        """All resources, in the order in which they are looked for."""
        about = nodes.About(self._facts)
        found: list[tuple[str, str, Handler]] = []
        for module in (access, definitions, live, messages, objects, policies, vhosts):
            found += module.ROUTES
        for resources in (about.routes(), ctl.routes(about), watch.routes(about), upkeep.routes(about)):
            found += resources
        found += session_routes.routes(self._sessions, self._gate)
        found += [("GET", "mirrormq/stream", self._hub.serve), ("GET", "openapi.json", self.openapi)]
        routes = [Route(verb, f"/api/{path}", handler) for verb, path, handler in found]
        measured = metrics.Metrics(self._process, self._facts).routes()
        return routes + [Route(verb, path, handler) for verb, path, handler in measured]

    def application(self) -> web.Application:
        """All resources behind the gate, and the files of the web UI."""
        app = web.Application(client_max_size=limits.http_body_bytes_max, middlewares=[self._answer])
        app.on_response_prepare.append(self._guard.mark)
        for verb, path, handler in self.routes():
            served = self._guarded(handler)
            app.router.add_route(verb, path, served)
            if verb == "GET":
                app.router.add_route("HEAD", path, served)
        app.router.add_route("GET", health.PATH, health.ready(self._process, self._facts))
        for path, answer in help_pages.routes(self._described):
            app.router.add_get(path, answer)
        files = Files()
        app.router.add_get("/", files.get)
        app.router.add_get("/ui/{path:.+}", files.get)
        self._router = app.router
        return app

    @described(answer=dict[str, Any], is_open=True)
    async def openapi(self, _call: Call) -> web.Response:
        """GET openapi.json: this API, described for programs."""
        if self._encoded is None:
            self._encoded = encoded(await self._described())
        return json_response(self._encoded)

    async def _described(self) -> dict[str, Any]:
        if self._document is None:
            # Tens of milliseconds, once: not on the loop.
            self._document = await asyncio.to_thread(lambda: document(self.routes()))
        return self._document

    async def serve(self, listening: socket.socket, secured: Secured | None = None) -> None:
        """Answer on a bound socket, and on one with TLS."""
        self._runner = web.AppRunner(
            self.application(), access_log=None, handle_signals=False, shutdown_timeout=CLOSE_SECONDS
        )
        await self._runner.setup()
        await web.SockSite(self._runner, listening).start()
        if secured is not None:
            await web.SockSite(self._runner, secured[0], ssl_context=secured[1]).start()
        host, port = listening.getsockname()[:2]
        if host in ("::", "0.0.0.0"):
            host = "127.0.0.1"
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def stop(self) -> None:
        """Finish what is under way and close the sockets."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            self._hub.close()
            await runner.cleanup()

    def _guarded(self, handler: Handler) -> Next:
        facts = description_of(handler)

        async def serve(request: web.Request) -> web.StreamResponse:
            call = Call(request, self._process, NOBODY, facts)
            is_told = facts.is_audited and audit.is_change(request)
            try:
                self._guard.check(request)
                if not facts.is_open:
                    call.who = await self._gate.identify(request, is_use=facts.is_use)
                found = await handler(call)
            except Fault as fault:
                if is_told and fault.status != TOO_MANY:
                    result = (fault.status, str(fault.reason))
                    audit.tell(self._process, request, call.who, result, call.known_body)
                raise
            if is_told:
                audit.tell(self._process, request, call.who, (found.status, ""), call.known_body)
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

    async def _answer_without_slash(self, request: web.Request) -> web.StreamResponse:
        """As RabbitMQ: a slash at the end of a path means nothing."""
        encoded_path, question, query = request.path_qs.partition("?")
        short = request.clone(rel_url=URL(encoded_path.rstrip("/") + question + query, encoded=True))
        match = await self._router.resolve(short)
        short._match_info = match
        match.add_app(request.app)
        if match.http_exception is not None:
            return error_response(not_found())
        return await self._answer(short, match.handler)

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
            if request.method == "OPTIONS":
                return self._guard.preflight(request, sorted(error.allowed_methods))
            return web.Response(status=405, headers={"Allow": error.headers["Allow"]})
        except web.HTTPNotFound:
            if request.path.endswith("/") and request.path.startswith("/api/"):
                return await self._answer_without_slash(request)
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
            self._process.note(
                "error", f"internal error in {request.method} {request.path}: {stack}", event="internal_error"
            )
            reason = "this is a fault of the node; its log has the details"
            return error_response(Fault(500, "internal_error", reason))


class Exporter(Api):
    """Metrics alone, for whoever reaches the port: Prometheus logs in nowhere."""

    def application(self) -> web.Application:
        """The metrics."""
        app = web.Application(middlewares=[self._answer])
        for path, answer in metrics.Metrics(self._process, self._facts).open_routes():
            app.router.add_get(path, answer)
        return app


TOO_MANY = 429

if TYPE_CHECKING:
    Secured = tuple[socket.socket, ssl.SSLContext]
