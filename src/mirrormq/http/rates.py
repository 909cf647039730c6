"""Which rates and samples a request asks for: RabbitMQ's query parameters.

`lengths_age` and `lengths_incr`, and the same with `msg_rates`, `data_rates` and `node_stats`, in seconds:
both of a pair or none. `disable_stats=true` leaves out everything that is counted, `enable_queue_totals=true`
shows the lengths of queues nevertheless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mirrormq.base import limits
from mirrormq.http.answers import Row, bad_request, whole_number
from mirrormq.http.api import Call
from mirrormq.http.far import inquire
from mirrormq.node import report_rates
from mirrormq.node.inquiryframes import row_of
from mirrormq.node.report_rates import SPANS, Look, Span

TOTALS = ("messages", "messages_ready", "messages_unacknowledged")


def look_of(call: Call) -> Look | None:
    """The moments the answer is about; None if nothing counted is wanted."""
    if is_disabled(call):
        return None
    spans = {name: _span(call, name) for name in SPANS}
    return Look(call.node.rates.shown, **spans)


def is_disabled(call: Call) -> bool:
    """Does the request want no statistics?"""
    return call.flag("disable_stats")


def _span(call: Call, name: str) -> Span | None:
    query = call.request.query
    texts = [query.get(f"{name}_{part}") for part in ("age", "incr")]
    if None in texts:
        return None
    age, increment = map(whole_number, texts)
    if age is None or increment is None or min(age, increment) < 0:
        raise bad_request(f"{name}_age and {name}_incr must be whole numbers of seconds")
    if not report_rates.is_possible(age, increment):
        raise bad_request(
            f"{name}_age must be {name}_incr or more, and fewer than {limits.rates_samples_max} times as much"
        )
    return (age, increment)


def without_stats(call: Call, row: Row) -> Row:
    """A queue's row as `disable_stats` shows it."""
    wanted = {*BASIC, *TOTALS} if call.flag("enable_queue_totals") else BASIC
    return {name: value for name, value in row.items() if name in wanted}


BASIC = frozenset(
    ("name", "vhost", "type", "node", "durable", "auto_delete", "exclusive", "arguments", "state", "policy")
)


class Everywhere:
    """Rates of what clients of every node use: vhosts, or exchanges."""

    def __init__(self, call: Call, kind: str, own: Callable[..., Row]) -> None:
        self._call = call
        self._kind = kind
        self._own = own
        self.look = look_of(call)
        self._far: dict[tuple[str, ...], Row] = {}

    async def fetch(self, records: Sequence[Any] = ()) -> None:
        """Ask the other nodes; for the rates of many there are no samples."""
        call = self._call
        if self.look is None:
            return
        self.look = self.look.bounded(len(records))
        replies = await inquire(call, "rates", name=self._kind, body=report_rates.packed(self.look))
        for rows in replies.rows.values():
            for row in map(row_of, rows):
                key = tuple(row.pop("key"))
                known = self._far.get(key)
                self._far[key] = row if known is None else report_rates.add(known, row)

    def add_to(self, row: Row, *key: str) -> Row:
        """A row with its rates."""
        if self.look is not None:
            own = self._own(self._call.node, *key, self.look)
            far = self._far.get(key)
            report_rates.update(row, own if far is None else report_rates.add(own, far))
        return row
