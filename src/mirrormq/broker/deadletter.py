"""Dead-lettering: the message that goes to the dead-letter exchange in place of one that died in a queue.

Guarantees
- The body, all properties but `expiration` and `headers`, and all headers but those named here keep their
  bytes.
- `x-death` lists, most recent first, one entry per queue and reason: how often, and the circumstances of
  the first such death. `x-first-death-queue`, `-reason` and `-exchange` tell of the first death of all and
  never change after.
- A message that would return to a queue it has already died in is dropped, unless a consumer rejected it
  since: it would otherwise circle for ever without anybody's doing. (RabbitMQ's own order of `x-death`
  entries is scrambled from the third on; here it is kept, so the rule means what it says.)

Pure: where it is sent, and when the original is removed, is the queue's business.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError
from mirrormq.base.types import Now
from mirrormq.broker.arguments import octets, text
from mirrormq.kernel.message import Message
from mirrormq.wire.properties import raw_headers, replace_headers, split_properties
from mirrormq.wire.table import Timestamp, decode_value, encode_value, join_table, split_table

Reason = Literal["rejected", "expired", "maxlen", "delivery_limit"]
Death = dict[str, Any]


class DeadLetter:
    """A message on its way to the dead-letter exchange."""

    __slots__ = ("_deaths", "_reason", "extra_keys", "message")

    def __init__(self, message: Message, extra_keys: list[bytes], deaths: list[Death], reason: str) -> None:
        """Made by `make_dead_letter`."""
        self.message = message
        self.extra_keys = extra_keys
        """Keys to route by besides the message's own: those of CC and BCC, if it keeps its keys."""
        self._deaths = deaths
        self._reason = reason

    def may_enter(self, queue: str) -> bool:
        """Whether the message may go into a queue it is routed to; False closes a cycle."""
        if self._reason == "rejected":
            return True
        for death in self._deaths:
            if death.get("reason") == "rejected":
                return True
            if death.get("queue") == queue:
                return False
        return True


def make_dead_letter(
    message: Message, reason: Reason, now: Now, *, queue: str, exchange: str, key: bytes | None
) -> DeadLetter:
    """Build what `queue` sends to its dead-letter `exchange`; routing key `key` (None: keep the keys)."""
    fields = split_table(raw_headers(message.properties) or bytes(4))
    others = _header_keys(fields)
    deaths = _with_death(fields, _death(message, reason, now, queue=queue, cc=others))
    dropped = ["x-death", "x-delivery-count"]  # the count is about the queue it leaves
    added = [("x-death", _encode_deaths(deaths))]
    if _field(fields, "x-death") is None:
        first = {"reason": reason, "queue": queue, "exchange": text(message.exchange)}
        for name, value in first.items():
            dropped.append(f"x-first-death-{name}")
            added.append((f"x-first-death-{name}", _string(value)))
    if key is not None:
        dropped.append("CC")
    kept = [(name, value) for name, value in fields if name not in dropped]
    properties = replace_headers(message.properties, join_table(kept + added), drop=("expiration",))
    # Arguments and policies may hold longer names than AMQP can carry; no exchange has such a name.
    longest = limits.short_string_bytes_max
    routing_key = message.routing_key if key is None else key[:longest]
    sent = Message(octets(exchange)[:longest], routing_key, properties, message.body)
    return DeadLetter(sent, others if key is None else [], deaths, reason)


def _header_keys(fields: Sequence[tuple[str, bytes]]) -> list[bytes]:
    """The routing keys in the CC and BCC headers of a split header table.

    What is not a list of strings is passed over; refusing it is up to whoever accepts a publish.
    """
    keys: list[bytes] = []
    for name in ("CC", "BCC"):
        values = _value(fields, name)
        if isinstance(values, list):
            keys.extend(octets(value) for value in values if isinstance(value, str | bytes))
    return keys


def _death(message: Message, reason: Reason, now: Now, *, queue: str, cc: list[bytes]) -> Death:
    death: Death = {
        "count": 1,
        "reason": reason,
        "queue": queue,
        "time": Timestamp(now.wall // 1_000_000),
        "exchange": text(message.exchange),
        "routing-keys": [text(k) for k in (message.routing_key, *cc)],
    }
    expiration = split_properties(message.properties).get("expiration")
    if expiration is not None:
        death["original-expiration"] = text(expiration[1:])
    return death


def _with_death(fields: Sequence[tuple[str, bytes]], death: Death) -> list[Death]:
    """The history with one more death in front; a repeated one moves there with its first circumstances."""
    history = _value(fields, "x-death")
    others: list[Death] = []
    for entry in _merged(history if isinstance(history, list) else []):
        if _cause(entry) == _cause(death):
            death = entry | {"count": entry["count"] + 1}
        else:
            others.append(entry)
    return [death, *others][: limits.deaths_max]


def _merged(history: list[Any]) -> list[Death]:
    """One entry per queue and reason.

    Publishers can send a history of their own making, so nothing is taken as given. Entries without a count
    are counted, as RabbitMQ does for those of its oldest versions.
    """
    merged: dict[tuple[Any, Any], Death] = {}
    uncounted: dict[tuple[Any, Any], int] = {}
    for entry in history:
        if not isinstance(entry, Mapping):
            continue
        cause = _cause(entry)
        uncounted[cause] = uncounted.get(cause, 0) + 1
        merged.setdefault(cause, dict(entry))
    for cause, entry in merged.items():
        if not isinstance(entry.get("count"), int):
            entry["count"] = uncounted[cause]
    return list(merged.values())


def _cause(death: Mapping[str, Any]) -> tuple[str, str]:
    return repr(death.get("queue")), repr(death.get("reason"))


def _encode_deaths(deaths: list[Death]) -> bytes:
    entries = b"".join(
        b"F" + join_table((name, _encode(name, value)) for name, value in d.items()) for d in deaths
    )
    return b"A" + struct.pack(">I", len(entries)) + entries


def _encode(name: str, value: Any) -> bytes:
    if name == "count":
        # Always 64 bits wide, as RabbitMQ sends it: typed clients cast it without looking.
        return struct.pack(">cq", b"l", min(value, (1 << 63) - 1))
    if name == "routing-keys" and isinstance(value, list):
        keys = b"".join(_encode("", key) for key in value)
        return b"A" + struct.pack(">I", len(keys)) + keys
    return _string(value) if isinstance(value, str | bytes) else encode_value(value)


def _string(value: str | bytes) -> bytes:
    """A long string with its tag; `encode_value` would make something else of names that are not UTF-8."""
    raw = octets(value)
    return b"S" + struct.pack(">I", len(raw)) + raw


def _value(fields: Sequence[tuple[str, bytes]], name: str) -> Any:
    raw = _field(fields, name)
    try:
        return None if raw is None else decode_value(raw)
    except AmqpError:
        # A publisher may send what only looks well formed (NaN, deep nesting); nobody is left to be told.
        return None


def _field(fields: Sequence[tuple[str, bytes]], name: str) -> bytes | None:
    return next((raw for field, raw in fields if field == name), None)
