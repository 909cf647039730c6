"""Rates and samples as RabbitMQ's management API has them: `publish_details: {rate, samples, avg ...}`.

Guarantees
- `rate` is what the last two looks differ by, per second. Samples are there if a length of time was asked for
  (`msg_rates_age`, `msg_rates_incr` ...), newest first, at multiples of the increment.
- Everything in one answer is of the same moments, also what other nodes add: they are asked with the same
  `Look`, and `add` sums it up.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Struct

from mirrormq.base import limits
from mirrormq.broker.census import CHURN
from mirrormq.kernel.cores import QUEUE_COUNTS
from mirrormq.kernel.tally import CHANNEL_COUNTS, EXCHANGE_COUNTS
from mirrormq.node import rates
from mirrormq.node.history import History

if TYPE_CHECKING:
    from mirrormq.broker.channel import Channel
    from mirrormq.broker.connection import Connection

Row = dict[str, Any]
Span = tuple[int, int]
"""Age and increment in seconds."""
Columns = Mapping[str, tuple[int, ...]]
"""Names, and the numbers of the counters whose sum each is."""

PERIOD_S = limits.rates_period_us // 1_000_000
DETAILS = "_details"
_RATE = f"{DETAILS}.rate"
LENGTHS, MESSAGES, DATA, NODE = "lengths", "msg_rates", "data_rates", "node_stats"
SPANS = (LENGTHS, MESSAGES, DATA, NODE)


class Look(Struct, frozen=True, array_like=True):
    """Which moments an answer is about."""

    end: int
    """The last one, as a number of periods."""
    lengths: Span | None = None
    msg_rates: Span | None = None
    data_rates: Span | None = None
    node_stats: Span | None = None

    def bounded(self, rows: int) -> "Look":
        """For a list of so many rows: without samples if they are too many."""
        return self if rows <= limits.rates_sampled_rows_max else Look(self.end)

    @property
    def weight(self) -> int:
        """What a row with this look costs beside a row without, in steps of an answer that make no row."""
        spans = ((self.msg_rates, 12), (self.lengths, 3), (self.data_rates, 2))
        samples = sum((span[0] // span[1] + 1) * width for span, width in spans if span is not None)
        return samples // 2


_looks = msgspec.msgpack.Decoder(Look)
packed = msgspec.msgpack.Encoder().encode


def read(body: bytes, rows: int = 1) -> Look | None:
    """The look another node asks for, for so many rows; None if for none, or for one that nobody may have."""
    if not body:
        return None
    try:
        look = _looks.decode(body)
    except msgspec.MsgspecError:
        return None
    spans = (look.lengths, look.msg_rates, look.data_rates, look.node_stats)
    is_fine = all(span is None or is_possible(*span) for span in spans)
    return look.bounded(rows) if is_fine else None


def is_possible(age: int, increment: int) -> bool:
    """May samples for so long, so far apart, be asked for?"""
    return 0 < increment <= age and age // increment < limits.rates_samples_max


class RateSource(Protocol):
    """The node, as far as its past goes."""

    rates: rates.Rates


def _columns(names: Sequence[str], **sums: tuple[str, ...]) -> Columns:
    found = {name: (number,) for number, name in enumerate(names)}
    return found | {name: tuple(map(names.index, parts)) for name, parts in sums.items()}


_TAKEN = ("deliver", "deliver_no_ack", "get", "get_no_ack")
_QUEUE_MESSAGES = _columns(QUEUE_COUNTS[:-2], deliver_get=_TAKEN)
_CHANNEL_MESSAGES = _columns(CHANNEL_COUNTS, deliver_get=_TAKEN)
_EXCHANGE_MESSAGES = _columns(EXCHANGE_COUNTS)
_DEPTHS = ("messages_ready", "messages_unacknowledged")


def _only(names: Sequence[str], wanted: Iterable[str], **sums: tuple[str, ...]) -> Columns:
    found = _columns(names, **sums)
    return {name: found[name] for name in (*wanted, *sums)}


_QUEUE_DEPTHS = _only(QUEUE_COUNTS, _DEPTHS, messages=_DEPTHS)
_VHOST_DEPTHS = _only(rates.VHOST_COUNTS, _DEPTHS, messages=_DEPTHS)
_VHOST_DATA = _only(rates.VHOST_COUNTS, ("recv_oct", "send_oct"))
_CONNECTION_DATA = _only(rates.CONNECTION_COUNTS, ("recv_oct", "send_oct"))
_CHURN = _only(rates.NODE_COUNTS, CHURN)
_NODE = _only(rates.NODE_COUNTS, rates.NODE_COUNTS[len(CHURN) :])


# --- one object ---


def of_queue(source: RateSource, queue_id: int, look: Look) -> Row:
    """What is added to the row of a queue mastered here."""
    past = source.rates.of(rates.QUEUE, queue_id)
    return {
        "message_stats": _totals(past, _QUEUE_MESSAGES)
        | _details(past, look, look.msg_rates, _QUEUE_MESSAGES),
        **_details(past, look, look.lengths, _QUEUE_DEPTHS),
    }


def queue_rate(column: str) -> Callable[[RateSource, int, Look], float] | None:
    """How to find one rate of a queue mastered here, as `message_stats.publish_details.rate`."""
    for path, columns in (("message_stats.", _QUEUE_MESSAGES), ("", _QUEUE_DEPTHS)):
        numbers = columns.get(column.removeprefix(path).removesuffix(_RATE))
        if numbers is not None and column.startswith(path) and column.endswith(_RATE):
            wanted = numbers
            return lambda source, queue_id, look: _rate(source.rates.of(rates.QUEUE, queue_id), look, wanted)
    return None


def _rate(past: History, look: Look, numbers: tuple[int, ...]) -> float:
    now, before = past.at(look.end), past.at(look.end - 1)
    return sum(now[number] - before[number] for number in numbers) / PERIOD_S


def of_channel(source: RateSource, found: "Channel", look: Look) -> Row:
    """What is added to the row of a channel."""
    past = source.rates.of(rates.CHANNEL, found.uid)
    exact = _summed(found.core.tally.of_channel(), _CHANNEL_MESSAGES)
    return {"message_stats": exact | _details(past, look, look.msg_rates, _CHANNEL_MESSAGES)}


def of_connection(source: RateSource, found: "Connection", look: Look) -> Row:
    """What is added to the row of a connection."""
    past = source.rates.of(rates.CONNECTION, found.conn_id)
    return _details(past, look, look.data_rates, _CONNECTION_DATA)


def of_exchange(source: RateSource, vhost: str, name: str, look: Look) -> Row:
    """What is added to the row of an exchange, by what clients of this node did."""
    past = source.rates.of(rates.EXCHANGE, (vhost, name))
    stats = _totals(past, _EXCHANGE_MESSAGES) | _details(past, look, look.msg_rates, _EXCHANGE_MESSAGES)
    return {"message_stats": stats}


def of_vhost(source: RateSource, name: str, look: Look) -> Row:
    """What is added to the row of a vhost, by what is on this node."""
    past = source.rates.of(rates.VHOST, name)
    return {
        "message_stats": _totals(past, _CHANNEL_MESSAGES)
        | _details(past, look, look.msg_rates, _CHANNEL_MESSAGES),
        **_totals(past, _VHOST_DEPTHS),
        **_details(past, look, look.lengths, _VHOST_DEPTHS),
        **_totals(past, _VHOST_DATA),
        **_details(past, look, look.data_rates, _VHOST_DATA),
    }


def of_node(source: RateSource, name: str, look: Look) -> Row:
    """What is added to the row of this node."""
    past = source.rates.of(rates.NODE, name)
    return {
        "io_write_bytes": past.last[_NODE["io_write_bytes"][0]],
        "io_sync_count": past.last[_NODE["io_sync_count"][0]],
        **_totals(past, _CHURN),
        **_details(past, look, look.node_stats, _CHURN),
        **_details(past, look, look.node_stats, _NODE),
    }


def overview(source: RateSource, name: str, look: Look, vhosts: Iterable[str]) -> Generator[None, None, Row]:
    """This node's part of the overview, as far as it is about these vhosts, in steps."""
    found: Row = {"message_stats": {}, "queue_totals": {}, "churn_rates": {}}
    for vhost in list(vhosts):
        yield from repeat(None, 1 + look.weight)
        row = of_vhost(source, vhost, look)
        found["message_stats"] = add(found["message_stats"], row.pop("message_stats"))
        depths = {column: value for column, value in row.items() if column.startswith("messages")}
        found["queue_totals"] = add(found["queue_totals"], depths)
    past = source.rates.of(rates.NODE, name)
    found["churn_rates"] = _totals(past, _CHURN) | _details(past, look, look.node_stats, _CHURN)
    return found


# --- forms ---


def _summed(values: Sequence[int], columns: Columns) -> Row:
    return {name: sum(values[number] for number in numbers) for name, numbers in columns.items()}


def _totals(past: History, columns: Columns) -> Row:
    return _summed(past.last, columns)


def _details(past: History, look: Look, span: Span | None, columns: Columns) -> Row:
    """`*_details` of every column."""
    now, before = past.at(look.end), past.at(look.end - 1)
    found: Row = {}
    for name, numbers in columns.items():
        moved = sum(now[number] - before[number] for number in numbers)
        found[name + DETAILS] = {"rate": moved / PERIOD_S}
    if span is not None:
        _add_samples(found, past, moments(look.end, span), columns)
    return found


def moments(end: int, span: Span) -> list[int]:
    """The seconds at which samples are shown, newest first."""
    age, increment = span
    last = end * PERIOD_S // increment * increment
    return [last - back * increment for back in range(age // increment + 1)]


def _add_samples(found: Row, past: History, seconds: list[int], columns: Columns) -> None:
    rows = past.series([second // PERIOD_S for second in seconds])
    width = max(1, seconds[0] - seconds[-1])
    stamps = [second * 1000 for second in seconds]
    for name, numbers in columns.items():
        first, *others = numbers
        values = [row[first] for row in rows]
        for number in others:
            values = [value + row[number] for value, row in zip(values, rows, strict=True)]
        found[name + DETAILS] |= {
            "samples": [
                {"sample": value, "timestamp": stamp} for value, stamp in zip(values, stamps, strict=True)
            ],
            "avg_rate": (values[0] - values[-1]) / width,
            "avg": sum(values) / len(values),
        }


def add(one: Row, other: Row) -> Row:
    """The sum of what two nodes say of the same thing at the same moments."""
    found = dict(one)
    for name, value in other.items():
        mine = found.get(name)
        if mine is None:
            found[name] = value
        elif isinstance(value, dict):
            found[name] = add(mine, value)
        elif isinstance(value, list):
            found[name] = [
                {"sample": first["sample"] + second["sample"], "timestamp": first["timestamp"]}
                for first, second in zip(mine, value, strict=False)
            ]
        else:
            found[name] = mine + value
    return found


def update(row: Row, extra: Row) -> None:
    """Add rates to a row that has counters: exact counters stay."""
    stats = extra.pop("message_stats", None)
    row.update(extra)
    if stats is not None:
        row["message_stats"] = stats | row.get("message_stats", {})
