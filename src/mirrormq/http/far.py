"""What other nodes hold, for lists of the whole cluster.

A node that is alone asks nobody and waits for nothing. Rows of others are kept as the bytes they came in and
decoded one by one as they are shown: ten thousand of them as objects would be large and die slowly.

A list is shown even if a node does not answer; the answer then names the node in the header
`X-MirrorMQ-Missing`, as JSON: [{"node", "reason"}].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec

from mirrormq.base import limits
from mirrormq.http import answers
from mirrormq.http.answers import Row
from mirrormq.http.api import Call
from mirrormq.meta.records import Queue
from mirrormq.node import queuevalues, report, report_rates
from mirrormq.node.inquiry import Replies
from mirrormq.node.inquiryframes import row_of
from mirrormq.node.queuevalues import Finder
from mirrormq.node.report_rates import Look
from mirrormq.node.requests import Inquire

_NOBODY = Replies({}, {})


async def inquire(call: Call, kind: str, **narrowed: Any) -> Replies:
    """Ask the other nodes for rows; `narrowed` are fields of `Inquire`."""
    if not call.node.inquiries.others():
        return _NOBODY
    replies: Replies = await call.ask(Inquire(actor=call.who.name, kind=kind, **narrowed))
    call.missing.update(replies.missing)
    return replies


def merged(call: Call, own: Iterable[Row], replies: Replies) -> Iterator[Row]:
    """Rows of this node and of the others, in the order of the nodes' names."""
    parts: dict[str, Iterable[Row]] = {node: map(row_of, rows) for node, rows in replies.rows.items()}
    parts[call.node.node_name] = own
    return chain.from_iterable(parts[node] for node in sorted(parts))


class Far(msgspec.Struct, frozen=True, gc=False):
    """A connection or channel of another node: what lists are ordered and narrowed by; the rest is unread."""

    name: str = ""
    user: str | None = None
    vhost: str | None = None
    raw: msgspec.Raw = msgspec.Raw(b"")

    def row(self) -> Row:
        """All of it."""
        return row_of(self.raw)


class _Face(msgspec.Struct, gc=False):
    name: str = ""
    user: str | None = None
    vhost: str | None = None


_faces = msgspec.msgpack.Decoder(_Face)


async def found_far(replies: Replies) -> list[Far]:
    """What the other nodes listed, in the order of their names."""
    rows = chain.from_iterable(replies.rows[node] for node in sorted(replies.rows))
    return await answers.collected(map(_far, rows))


def _far(raw: msgspec.Raw) -> Far:
    face = _faces.decode(raw)
    return Far(face.name, face.user, face.vhost, raw)


class _Numbered(msgspec.Struct, gc=False):
    id: int = 0


_numbers = msgspec.msgpack.Decoder(_Numbered)


class FarQueues:
    """Counters of queues whose masters are other nodes: one question per node, however many queues."""

    def __init__(self, call: Call, look: Look | None = None) -> None:
        """`look`: with rates at these moments."""
        self._call = call
        self._look = look
        self._rows: dict[int, msgspec.Raw] = {}
        self._missing: set[str] = set()

    async def fetch(self, records: Iterable[Queue]) -> None:
        """Ask for the counters of those among these queues whose master is another node."""
        call = self._call
        own = call.node.node_name
        records = await answers.collected(records)
        self._look = None if self._look is None else self._look.bounded(len(records))
        if not call.node.inquiries.others():
            return
        ids: list[int] = []
        nodes: set[str] = set()
        async for batch in answers.slices(records):
            far = [record for record in batch if record.node not in ("", own)]
            nodes.update(record.node for record in far)
            ids += [record.id for record in far]
        if not nodes:
            return
        few = tuple(ids) if len(ids) <= limits.inquiry_ids_max else ()
        body = b"" if self._look is None else report_rates.packed(self._look)
        replies = await inquire(call, "queues", ids=few, nodes=tuple(nodes), body=body)
        self._missing.update(replies.missing)
        async for rows in answers.slices(chain.from_iterable(replies.rows.values())):
            self._rows.update((_numbers.decode(raw).id, raw) for raw in rows)

    def row(self, record: Queue) -> Row:
        """A queue with its counters, wherever its master is."""
        row = report.queue(self._call.node, record)
        counters = self._rows.get(record.id)
        if counters is not None:
            row.update(row_of(counters))
            del row["id"]
        elif self._look is not None and "messages" in row:
            report_rates.update(row, report_rates.of_queue(self._call.node, record.id, self._look))
        elif record.node in self._missing:
            row["state"] = "down"
        return row

    async def value_of(self, column: str) -> Callable[[Queue], Any] | None:
        """How to find the value of a column without making the row; None if it takes the row.

        Sorting 10,000 queues by how many messages they have must not make 10,000 rows, here or elsewhere.
        """
        if column in _DEFINED:
            return lambda record: getattr(record, column)
        node = self._call.node
        if column == "node":
            return lambda record: record.node or node.node_name
        look = None if self._look is None else Look(self._look.end)
        find = queuevalues.finder(node, column, look)
        if find is None:
            return None
        body = b"" if look is None else report_rates.packed(look)
        replies = await inquire(self._call, "queue_values", name=column, body=body)
        values: dict[int, Any] = {}
        async for rows in answers.slices(chain.from_iterable(replies.rows.values())):
            for raw in rows:
                values.update(row_of(raw)["values"])
        return lambda record: self._value(record, find, values)

    def _value(self, record: Queue, find: Finder, values: Mapping[int, Any]) -> Any:
        if record.id in values:
            return values[record.id]
        home = self._call.node.vhosts.get(record.vhost)
        live = None if home is None else home.queues.get(record.name)
        if live is None or not live.is_local or live.record.id != record.id:
            return None
        return find(live)


_DEFINED = frozenset(("name", "vhost", "durable", "auto_delete", "exclusive"))
