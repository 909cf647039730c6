"""The API as a server: every request is logged in, routed and answered; nothing it does can end the node.

While the node's application is stopped, `ctl` of this machine is answered as far as the process can; anything
else gets 503 with the reason.

A fault in a handler costs that request a 500 and the operator a note, with a reason but without the stack
in the answer.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import web

from mirrormq.base import limits
from mirrormq.http.answers import Fault, error_response, not_found, unavailable
from mirrormq.http.api import Call, Handler
from mirrormq.http.auth import Gate
from mirrormq.http.ports import Facts, Process, Stopped
from mirrormq.http.routes import access, ctl, definitions, live, metrics, nodes, objects, policies, vhosts

if TYPE_CHECKING:
    import socket

CLOSE_SECONDS = 1.0
"""How long a request under way may take when the node stops."""

Next = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """The admin API of one node."""

    def __init__(self, process: Process, key: str, facts: Facts) -> None:
        self._process = process
        self._gate = Gate(process, key)
        self._facts = facts
        self._runner: web.AppRunner | None = None
        self.url = ""

    def application(self) -> web.Application:
        """All resources behind the gate."""
        app = web.Application(client_max_size=limits.http_body_bytes_max, middlewares=[self._answer])
        for module in (access, definitions, live, objects, policies, vhosts):
            for verb, path, handler in module.ROUTES:
                app.router.add_route(verb, f"/api/{path}", self._guarded(handler))
        for verb, path, handler in metrics.Metrics(self._process, self._facts).routes():
            app.router.add_route(verb, path, self._guarded(handler))
        about = nodes.About(self._facts)
        for verb, path, handler in (*about.routes(), *ctl.routes(about)):
            app.router.add_route(verb, f"/api/{path}", self._guarded(handler))
        return app

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
            await runner.cleanup()

    def _guarded(self, handler: Handler) -> Next:
        async def serve(request: web.Request) -> web.StreamResponse:
            who = await self._gate.identify(request)
            call = Call(request, self._process, who)
            found = await handler(call)
            if not found.prepared:
                found.headers.update(call.headers)
            return found

        return serve

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
