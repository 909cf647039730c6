"""Prometheus: GET /metrics has the node as a whole, /metrics/per-object every queue, channel and connection
by itself, /metrics/detailed the families and vhosts that are asked for, under names of their own.

At the management port they need a log-in with the tag `monitoring`; at the port of `prometheus.tcp.port`,
which has nothing else, they need none, as in RabbitMQ. Everything is looked at and written in slices.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import chain
from typing import TypeVar

from aiohttp import web

from mirrormq.broker.channel import Channel
from mirrormq.broker.connection import Connection
from mirrormq.broker.queue import Queue
from mirrormq.broker.routes import Place
from mirrormq.broker.vhost import VHost
from mirrormq.http import answers
from mirrormq.http.answers import bad_request
from mirrormq.http.api import Call, Handler
from mirrormq.http.ports import Driver, Facts, Process
from mirrormq.node import metrics, metrics_cluster, metrics_format
from mirrormq.node import metrics_objects as objects
from mirrormq.node.metrics_format import Column, Family, Table

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RABBITMQ, DETAILED = "rabbitmq_", "rabbitmq_detailed_"

Item = TypeVar("Item")
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

    async def of_node(self, request: web.Request) -> web.StreamResponse:
        """GET /metrics."""
        return await self._whole(request, None)

    async def of_objects(self, request: web.Request) -> web.StreamResponse:
        """GET /metrics/per-object: objects in place of their sums."""
        return await self._whole(request, Tables())

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
        return await _written(request, chain(tables.lines(DETAILED), metrics_format.lines(cluster)))

    async def _whole(self, request: web.Request, tables: Tables | None) -> web.StreamResponse:
        driver = self._driver
        totals = metrics.Totals()
        await self._look(tables, totals, set())
        # Counting open files, and channels of connections, takes as long as a slice, each.
        await answers.next_turn()
        facts = self._facts()
        await answers.next_turn()
        node = driver.node
        families: Iterable[Family] = metrics.of_node(node, totals, facts)
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
        return await _written(request, pieces)

    async def _look(self, tables: Tables | None, totals: metrics.Totals, vhosts: set[str]) -> None:
        """Look at every object, in slices."""
        node = self._driver.node
        looking = _Looking(node, tables, totals, vhosts)
        await _in_slices(looking.at_queue, objects.queues(node))
        await _in_slices(looking.at_channel, list(node.channels.values()))
        await _in_slices(looking.at_connection, list(node.connections.values()))
        if tables is not None:
            places = (
                (vhost, place) for vhost in list(node.vhosts.values()) for place in vhost.router.places()
            )
            await _in_slices(looking.at_exchange, places)


class _Looking:
    """Takes down one object after the other."""

    def __init__(
        self, node: metrics.MetricSource, tables: Tables | None, totals: metrics.Totals, vhosts: set[str]
    ) -> None:
        self._node = node
        self._tables = tables
        self._totals = totals
        self._vhosts = vhosts

    def at_queue(self, live: Queue) -> None:
        """A queue mastered here."""
        fact = metrics.fact_of(self._node, live)
        self._totals.add(fact)
        if self._tables is None or not _is_in(fact.vhost, self._vhosts):
            return
        labels = objects.queue_labels(fact.vhost, fact.name)
        self._tables.queues.add(labels, objects.queue_row(live))
        if fact.epoch:
            self._tables.mirrors.add(labels, objects.mirror_row(fact))
        for name, lag in fact.cursors:
            self._tables.cursors.add((*labels, ("cursor", name)), (lag,))

    def at_channel(self, found: Channel) -> None:
        """A channel of a client of this node."""
        row = objects.channel_row(found)
        self._totals.add_channel(row)
        if self._tables is not None and _is_in(found.vhost.name, self._vhosts):
            self._tables.channels.add(objects.channel_labels(self._node, found), row)

    def at_connection(self, found: Connection) -> None:
        """A client of this node."""
        row = objects.connection_row(found)
        self._totals.add_connection(row)
        if self._tables is not None and (found.vhost is None or _is_in(found.vhost.name, self._vhosts)):
            self._tables.connections.add(objects.connection_labels(self._node, found), row)

    def at_exchange(self, found: tuple[VHost, Place]) -> None:
        """An exchange, by what clients of this node did with it."""
        vhost, place = found
        if self._tables is not None and _is_in(vhost.name, self._vhosts):
            labels = (("vhost", vhost.name), ("exchange", place.record.name))
            self._tables.exchanges.add(labels, place.tally.of_exchange())


async def _in_slices(look: Callable[[Item], None], items: Iterable[Item]) -> None:
    """The looking itself is what takes time, so it is part of what is sliced."""
    async for _ in answers.slices(map(look, items)):
        pass


def _is_in(vhost: str, wanted: set[str]) -> bool:
    return not wanted or vhost in wanted


def _none(_node: metrics.MetricSource, _vhosts: set[str]) -> Iterator[Family]:
    return iter(())


def _guarded(answer: Answer) -> Handler:
    async def serve(call: Call) -> web.StreamResponse:
        call.need_monitor()
        return await answer(call.request)

    return serve


async def _written(request: web.Request, pieces: Iterable[bytes]) -> web.StreamResponse:
    return await answers.pieces_response(request, pieces, {"content-type": CONTENT_TYPE})
