"""GET /metrics for Prometheus: the node as a whole; /metrics/per-object adds every queue mastered here.

Outside of /api, where scrapers look for it, and behind the same log-in: the user needs the tag `monitoring`.
"""

from __future__ import annotations

from itertools import chain

from aiohttp import web

from mirrormq.http import answers
from mirrormq.http.api import Call
from mirrormq.node import metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def of_node(call: Call) -> web.StreamResponse:
    """GET /metrics."""
    call.need_monitor()
    return await _written(call, per_object=False)


async def of_objects(call: Call) -> web.StreamResponse:
    """GET /metrics/per-object."""
    call.need_monitor()
    return await _written(call, per_object=True)


async def _written(call: Call, *, per_object: bool) -> web.StreamResponse:
    totals = metrics.Totals()
    kept: list[metrics.QueueFacts] = []
    async for few in answers.slices(metrics.facts(call.node)):
        for fact in few:
            totals.add(fact)
        if per_object:
            kept += few
    families = metrics.of_node(call.node, totals)
    if per_object:
        own = {"rabbitmq_queue_messages_ready", "rabbitmq_queue_messages_unacked"}
        families = chain((family for family in families if family.name not in own), metrics.of_queues(kept))
    pieces: list[bytes] = []
    async for batch in answers.slices(metrics.lines(families)):
        pieces += batch
    return web.Response(body=b"".join(pieces), headers={"Content-Type": CONTENT_TYPE})


ROUTES = (("GET", "/metrics", of_node), ("GET", "/metrics/per-object", of_objects))
