"""Prometheus: GET /metrics has the node as a whole, /metrics/per-object every queue, channel and connection
by itself, /metrics/detailed the families and vhosts that are asked for, under names of their own.

At the management port they need a log-in with the tag `monitoring`; at the port of `prometheus.tcp.port`,
which has nothing else, they need none, as in RabbitMQ. Everything is looked at and written in slices.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import chain

from aiohttp import web

from mirrormq.broker.queue import Queue
from mirrormq.http import answers
from mirrormq.http.answers import bad_request
from mirrormq.http.api import Call, Handler
from mirrormq.http.ports import Driver, Facts, Process
from mirrormq.node import metrics, metrics_cluster, metrics_format
from mirrormq.node import metrics_objects as objects
from mirrormq.node.metrics_format import Column, Family, Table

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RABBITMQ, DETAILED = "rabbitmq_", "rabbitmq_detailed_"

Chosen = Callable[[Column], bool]
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Tables:
    """What was found of every kind of object."""

    def __init__(self, chosen: Chosen | None = None) -> None:
        self.queues = Table(objects.QUEUE_COLUMNS, chosen)
        self.mirrors = Table(objects.MIRROR_COLUMNS, chosen)
        self.cursors = Table(objects.CURSOR_COLUMNS, chosen)
        self.channels = Table((*objects.CHANNEL_COLUMNS, *objects.COUNTER_COLUMNS), chosen)
        self.connections = Table(objects.CONNECTION_COLUMNS, chosen)
        self.exchanges = Table(objects.EXCHANGE_COLUMNS, chosen)

    @property
    def all(self) -> tuple[Table, ...]:
        """In the order they are written."""
        return (self.queues, self.mirrors, self.cursors, self.channels, self.connections, self.exchanges)

    def lines(self, prefix: str) -> Iterator[bytes]:
        """All of them."""
        return chain.from_iterable(table.lines(prefix) for table in self.all if table.shown)


class Metrics:
    """The resources."""

    def __init__(self, process: Process, facts: Facts) -> None:
        self._process = process
        self._facts = facts

    def routes(self) -> list[tuple[str, str, Handler]]:
        """At the management port."""
        return [("GET", path, _guarded(answer)) for path, answer in self.open_routes()]

    def open_routes(self) -> list[tuple[str, Answer]]:
        """At a port of their own."""
        return [
            ("/metrics", self.of_node),
            ("/metrics/per-object", self.of_objects),
            ("/metrics/detailed", self.of_families),
        ]

    @property
    def _driver(self) -> Driver:
        return self._process.driver

    async def of_node(self, _request: web.Request) -> web.StreamResponse:
        """GET /metrics."""
        return await self._whole(None)

    async def of_objects(self, _request: web.Request) -> web.StreamResponse:
        """GET /metrics/per-object: objects in place of their sums."""
        return await self._whole(Tables())

    async def of_families(self, request: web.Request) -> web.StreamResponse:
        """GET /metrics/detailed?family=...&vhost=...: without a family there is nothing."""
        wanted = set(request.query.getall("family", []))
        vhosts = set(request.query.getall("vhost", []))
        known = {column.group for table in Tables().all for column in table.columns}
        unknown = wanted - known - set(metrics_cluster.FAMILIES) - set(metrics_cluster.SILENT)
        if unknown:
            raise bad_request(f"no such family: {', '.join(sorted(unknown))}")
        tables = Tables(lambda column: column.group in wanted)
        totals = metrics.Totals()
        await self._look(tables, totals, vhosts)
        node = self._driver.node
        cluster = (
            family for name in wanted for family in metrics_cluster.FAMILIES.get(name, _none)(node, vhosts)
        )
        return await _written(chain(tables.lines(DETAILED), metrics_format.lines(cluster)))

    async def _whole(self, tables: Tables | None) -> web.StreamResponse:
        driver = self._driver
        totals = metrics.Totals()
        await self._look(tables, totals, set())
        node = driver.node
        families: Iterable[Family] = metrics.of_node(node, totals, self._facts())
        if tables is None:
            families = chain(families, totals.families(), objects.totals(node))
        families = chain(families, objects.of_protocol(node))
        flushes, passes = node.journal.flush_times, driver.passes
        text = "Time from the begin of a flush of the journal to its end."
        pieces = chain(
            metrics_format.lines(families),
            metrics_format.histogram("mirrormq_journal_flush_seconds", text, flushes),
            metrics_format.histogram("mirrormq_loop_pass_seconds", "Time a pass of the loop takes.", passes),
            tables.lines(RABBITMQ) if tables is not None else (),
        )
        return await _written(pieces)

    async def _look(self, tables: Tables | None, totals: metrics.Totals, vhosts: set[str]) -> None:
        """Look at every object, in slices."""
        node = self._driver.node
        async for some in answers.slices(objects.queues(node)):
            for live in some:
                _take_queue(node, live, tables, totals, vhosts)
        async for channels in answers.slices(list(node.channels.values())):
            for channel in channels:
                row = objects.channel_row(channel)
                totals.add_channel(row)
                if tables is not None and _is_in(channel.vhost.name, vhosts):
                    tables.channels.add(objects.channel_labels(node, channel), row)
        async for connections in answers.slices(list(node.connections.values())):
            for found in connections:
                row = objects.connection_row(found)
                totals.add_connection(row)
                if tables is not None and (found.vhost is None or _is_in(found.vhost.name, vhosts)):
                    tables.connections.add(objects.connection_labels(node, found), row)
        for vhost in list(node.vhosts.values()) if tables is not None else ():
            async for places in answers.slices(vhost.router.places()):
                for place in places if tables is not None and _is_in(vhost.name, vhosts) else ():
                    labels = (("vhost", vhost.name), ("exchange", place.record.name))
                    tables.exchanges.add(labels, place.tally.of_exchange())  # type: ignore[union-attr]


def _take_queue(
    node: metrics.MetricSource,
    live: Queue,
    tables: Tables | None,
    totals: metrics.Totals,
    vhosts: set[str],
) -> None:
    fact = metrics.fact_of(node, live)
    totals.add(fact)
    if tables is None or not _is_in(fact.vhost, vhosts):
        return
    labels = objects.queue_labels(fact.vhost, fact.name)
    tables.queues.add(labels, objects.queue_row(live))
    if fact.epoch:
        tables.mirrors.add(labels, objects.mirror_row(fact))
    for name, lag in fact.cursors:
        tables.cursors.add((*labels, ("cursor", name)), (lag,))


def _is_in(vhost: str, wanted: set[str]) -> bool:
    return not wanted or vhost in wanted


def _none(_node: metrics.MetricSource, _vhosts: set[str]) -> Iterator[Family]:
    return iter(())


def _guarded(answer: Answer) -> Handler:
    async def serve(call: Call) -> web.StreamResponse:
        call.need_monitor()
        return await answer(call.request)

    return serve


async def _written(pieces: Iterable[bytes]) -> web.StreamResponse:
    found: list[bytes] = []
    async for batch in answers.slices(pieces):
        found += batch
    return web.Response(body=b"".join(found), headers={"Content-Type": CONTENT_TYPE})
