"""Whether clients should be sent to this node: GET /health/ready, for load balancers, without a log-in.

Guarantee: 200 exactly while the node takes clients and answers them; 503 with the reason while its
application is stopped, starting or stopping, or while it is paused in a minority. It tells nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from mirrormq.http import answers
from mirrormq.http.ports import RUNNING, Process
from mirrormq.node.membership import READY

PATH = "/health/ready"


def unready(process: Process) -> str:
    """Why no client should come; nothing if they should."""
    if process.state != RUNNING:
        return f"the application is {process.state}"
    phase = process.driver.node.membership.phase
    if phase != READY:
        return f"the node is {phase}"
    return ""


def ready(process: Process) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The handler of `PATH`."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        reason = unready(process)
        if reason:
            return answers.response({"status": "failed", "reason": reason}, 503)
        return answers.response({"status": "ok"})

    return answer
