"""Whether clients should be sent to this node: GET /health/ready, for load balancers, without a log-in.

Guarantee: 200 exactly while the node takes clients and answers them; 503 with the reason while its
application is stopped, starting or stopping, while it is paused in a minority, and while its listeners for
clients are closed for any other reason. It tells nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from mirrormq.http import answers
from mirrormq.http.ports import RUNNING, Facts, Process
from mirrormq.node.membership import READY

PATH = "/health/ready"


def unready(process: Process, facts: Facts) -> str:
    """Why no client should come; nothing if they should."""
    if process.state != RUNNING:
        return f"the application is {process.state}"
    phase = process.driver.node.membership.phase
    if phase != READY:
        return f"the node is {phase}"
    if not any(entry["protocol"].startswith("amqp") for entry in facts().get("listeners", ())):
        return "no listener for clients is open"
    return ""


def ready(process: Process, facts: Facts) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The handler of `PATH`."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        reason = unready(process, facts)
        if reason:
            return answers.response({"status": "failed", "reason": reason}, 503)
        return answers.response({"status": "ok"})

    return answer
