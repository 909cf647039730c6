"""What other nodes may ask of this one: for every kind of question a generator of rows.

Each step of a generator is short: it builds one row, or gives None after work that made none, so that whoever
drives it can stop after any of them. The work begins with the first step, closing connections included. What
takes time gives a `Wait` and is gone on with when that is over.
"""

from collections.abc import Callable, Container, Generator, Iterator
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mirrormq.base import limits
from mirrormq.broker.census import Census
from mirrormq.broker.vhost import VHost
from mirrormq.meta import system
from mirrormq.node import (
    bulkaway,
    bulkcursors,
    closing,
    queuevalues,
    rates,
    report,
    report_mirrors,
    report_rates,
    report_view,
)
from mirrormq.node.inquiryframes import Ask, Row, text_of
from mirrormq.node.report_cluster import ClusterSource, node_details

if TYPE_CHECKING:
    from mirrormq.node.inquiry import Inquiries
    from mirrormq.node.switch import Switch

Item = TypeVar("Item")

CLOSED = "closed"
"""The one column of what closes connections: how many."""
PROBLEM = "problem"
"""The one column of what changes a mirrored queue: nothing, or why it was not done."""
NOT_READY = "is starting"


class Wait:
    """Something an answer waits for."""

    def __init__(self) -> None:
        self.value: str | None = None
        self.wake: Callable[[], None] = _nothing
        """Called when it is over."""

    def end(self, value: str) -> None:
        """It is over; a second time is ignored."""
        if self.value is None:
            self.value = value
            self.wake()


def _nothing() -> None:
    """Nobody waits yet."""


Answered = Iterator[Row | Wait | None]


class Answerer(ClusterSource, Protocol):
    """The node that is asked."""

    switch: "Switch"
    inquiries: "Inquiries"
    rates: rates.Rates
    census: Census


def queues(source: Answerer, ask: Ask) -> Answered:
    """Counters of the queues mastered here, by `id`. Their definitions are known everywhere."""
    masters = source.switch.masters
    wanted = ask.ids or list(masters)
    look = report_rates.read(ask.body, len(wanted))
    for number in wanted:
        live = masters.get(number)
        if live is None or not _is_in(ask, live.vhost):
            yield None
        else:
            row = {"id": number, **report.counters(source, live)}
            if look is not None:
                report_rates.update(row, report_rates.of_queue(source, number, look))
                yield from repeat(None, look.weight)
            yield row


def queue_values(source: Answerer, ask: Ask) -> Answered:
    """One column of the queues mastered here, many in a row as (id, value): what a list is sorted by."""
    find = queuevalues.finder(source, text_of(ask.name), report_rates.read(ask.body))
    if find is None:
        return
    for some in _parts(list(source.switch.masters.values()), limits.inquiry_values_per_row):
        values: list[tuple[int, Any]] = []
        for live in some:
            if _is_in(ask, live.vhost):
                values.append((live.record.id, find(live)))
            yield None
        yield {"values": values}


def connections(source: Answerer, ask: Ask) -> Answered:
    """Connections, or those with a name."""
    name, look = text_of(ask.name), report_rates.read(ask.body, len(source.connections))
    for found in list(source.connections.values()):
        is_wanted = name in ("", found.name) and _is_in(ask, found.vhost)
        row = report.connection(source, found) if is_wanted else None
        if row is not None and look is not None:
            report_rates.update(row, report_rates.of_connection(source, found, look))
            yield from repeat(None, look.weight)
        yield row


def channels(source: Answerer, ask: Ask) -> Answered:
    """Channels, or those of a connection; one that is named comes with its consumers."""
    name, owner = text_of(ask.name), text_of(ask.owner)
    count = 1 if name or owner else sum(source.census.channels.values())
    look = report_rates.read(ask.body, count)
    for found in list(source.connections.values()):
        if owner not in ("", found.name) or not _is_in(ask, found.vhost):
            yield None
            continue
        for member in list(found.channels.values()):
            if name not in ("", member.name):
                yield None
                continue
            row = report.channel(source, member)
            if look is not None:
                report_rates.update(row, report_rates.of_channel(source, member, look))
                yield from repeat(None, look.weight)
            if name:
                row["consumer_details"] = [
                    report.consumer(source, consumer) for consumer in member.consumers.values()
                ]
            yield row


def consumers(source: Answerer, ask: Ask) -> Answered:
    """Consumers, or those of some queues."""
    for owner in list(source.connections.values()):
        if not _is_in(ask, owner.vhost):
            yield None
            continue
        for member in list(owner.channels.values()):
            yield None
            for found in list(member.consumers.values()):
                is_wanted = not ask.ids or found.queue.record.id in ask.ids
                yield report.consumer(source, found) if is_wanted else None


def node(source: Answerer, ask: Ask) -> Answered:
    """The node itself: what it tells its administrators, and how much it holds."""
    counts = yield from counted(source)
    row = {**node_details(source, source.inquiries.describe()), "totals": counts}
    look = report_rates.read(ask.body)
    if look is not None:
        row |= report_rates.of_node(source, source.node_name, look)
        row["overview"] = yield from report_rates.overview(
            source, source.node_name, look, source.state.vhosts
        )
    yield row


def overview(source: Answerer, ask: Ask) -> Answered:
    """What a user sees of this node: what is in vhosts the user may use, and the user's own connections."""
    user, state = text_of(ask.owner), source.state
    vhosts = [name for name in state.vhosts if (user, name) in state.permissions]
    row: Row = {"totals": (yield from counted(source, user, frozenset(vhosts)))}
    look = report_rates.read(ask.body)
    if look is not None:
        row["overview"] = yield from report_rates.overview(source, source.node_name, look, vhosts)
    yield row


def rates_of(source: Answerer, ask: Ask) -> Answered:
    """What clients of this node have done, by `key`: per vhost, or per exchange."""
    kind = rates.VHOST if text_of(ask.name) == "vhosts" else rates.EXCHANGE
    keys = source.rates.keys(kind)
    look = report_rates.read(ask.body, len(keys))
    for key in keys if look is not None else ():
        yield from repeat(None, 0 if look is None else look.weight)
        if look is not None and isinstance(key, str):
            yield {"key": [key], **report_rates.of_vhost(source, key, look)}
        elif look is not None and isinstance(key, tuple):
            vhost, name = key
            yield {"key": [vhost, name], **report_rates.of_exchange(source, vhost, name, look)}


def counted(
    source: Answerer, user: str | None = None, vhosts: Container[str] | None = None
) -> Generator[None, None, dict[str, int]]:
    """Count what is only here, in steps: connections of all or of a user, messages of all or some vhosts."""
    found = {"connections": 0, "channels": 0, "consumers": 0, "ready": 0, "unacked": 0}
    for every in _parts(list(source.connections.values())):
        some = [owner for owner in every if user in (None, owner.user)]
        members = [member for owner in some for member in owner.channels.values()]
        found["connections"] += len(some)
        found["channels"] += len(members)
        found["consumers"] += sum(len(member.consumers) for member in members)
        yield None
    masters = source.switch.masters.values()
    for part in _parts([live for live in masters if not system.is_system(live.record.vhost, live.name)]):
        few = [live for live in part if vhosts is None or live.record.vhost in vhosts]
        found["ready"] += sum(live.core.ready for live in few)
        found["unacked"] += sum(live.core.unacked for live in few)
        yield None
    return found


def close_connection(source: Answerer, ask: Ask) -> Answered:
    """Close the connection with this pid or name."""
    yield {CLOSED: closing.close_one(source, text_of(ask.name), text_of(ask.reason))}


def close_connections(source: Answerer, ask: Ask) -> Answered:
    """Close the connections of a vhost, of a user, or all."""
    user = text_of(ask.owner) if ask.owner else None
    vhost = None if ask.vhost is None else text_of(ask.vhost)
    yield {CLOSED: closing.close_some(source, user, vhost, text_of(ask.reason), ask.limit)}


def copies(source: Answerer, ask: Ask) -> Answered:
    """What this node has of some mirrored queues, whoever is their master."""
    for number in ask.ids:
        yield report_mirrors.own_copy(source, number)


def view_marks(source: Answerer, ask: Ask) -> Answered:
    """How far the members of some queues are that are mastered here."""
    for number in ask.ids:
        yield report_view.measured(source, number)


def attempts(source: Any, ask: Ask) -> Answered:
    """Log-ins of this node by protocol, or with the name `source` by where they came from.

    With the name `forget` they are counted anew from now on.
    """
    wanted = text_of(ask.name)
    if wanted == "forget":
        source.logins.attempts.forget()
    elif wanted == "source":
        yield from source.logins.attempts.by_source()
    else:
        yield from source.logins.attempts.by_protocol()


def sync_queue(source: Answerer, ask: Ask) -> Answered:
    """Copy old records of a queue mastered here to all its mirrors, or with the limit 0 do so no longer."""
    for number in ask.ids[:1]:
        here = source.copies
        yield {PROBLEM: NOT_READY if here is None else here.synchronise(number, bool(ask.limit))}


def repair_queue(source: Answerer, ask: Ask) -> Answered:
    """Have the copy of a queue here fetched anew."""
    for number in ask.ids[:1]:
        here = source.copies
        yield {PROBLEM: NOT_READY if here is None else here.repair(number)}


def move_master(source: Answerer, ask: Ask) -> Answered:
    """Hand a queue mastered here over to the node named; answered when that is done, or has failed."""
    here = source.copies
    if here is None:
        yield {PROBLEM: NOT_READY}
        return
    for number in ask.ids[:1]:
        wait = Wait()
        here.transfer(number, text_of(ask.name), wait.end, ask.limit)
        while wait.value is None:
            yield wait
        yield {PROBLEM: wait.value}


def depths(source: Answerer, _ask: Ask) -> Answered:
    """How many messages the queues mastered here have, many in a row as (id, messages)."""
    for some in _parts(list(source.switch.masters.values()), limits.balance_depths_per_row):
        yield {"depths": [(live.record.id, live.core.ready + live.core.unacked) for live in some]}


def rebalance(source: Answerer, _ask: Ask) -> Answered:
    """The rebalancing that this node carries out, or did last."""
    here = source.copies
    found = None if here is None else here.balancer.run or here.balancer.last
    yield {"run": None if found is None else found.row()}


def cursors(source: Any, ask: Ask) -> Answered:
    """Cursors of the queues mastered here, or of some of them."""
    for number in ask.ids or list(source.switch.masters):
        live = source.switch.masters.get(number)
        if (
            live is None
            or live.log.kept is None
            or not len(live.log.kept.cursors)
            or not _is_in(ask, live.vhost)
        ):
            yield None
        else:
            yield from bulkcursors.listed(source, live)


def bulk(source: Any, ask: Ask) -> Answered:
    """What a client of the bulk protocol asked another node, of queues that are here."""
    for number in ask.ids or (0,):
        wait = Wait()
        rows: list[Row] = []

        def done(found: list[Row], rows: list[Row] = rows, wait: Wait = wait) -> None:
            rows += found
            wait.end("")

        bulkaway.serve(source, number, ask.body, done)
        while wait.value is None:
            yield wait
        yield from rows


def _is_in(ask: Ask, home: VHost | None) -> bool:
    return ask.vhost is None or (home is not None and home.name == text_of(ask.vhost))


def _parts(items: list[Item], most: int = limits.inquiry_counted_per_step) -> Iterator[list[Item]]:
    iterator = iter(items)
    while some := list(islice(iterator, most)):
        yield some


KINDS: dict[str, Callable[[Any, Ask], Answered]] = {
    "queues": queues,
    "queue_values": queue_values,
    "connections": connections,
    "channels": channels,
    "consumers": consumers,
    "node": node,
    "overview": overview,
    "rates": rates_of,
    "close_connection": close_connection,
    "close_connections": close_connections,
    "copies": copies,
    "views": view_marks,
    "attempts": attempts,
    "sync_queue": sync_queue,
    "repair_queue": repair_queue,
    "move_master": move_master,
    bulkaway.KIND: bulk,
    "cursors": cursors,
    "depths": depths,
    "rebalance": rebalance,
}
