"""AMQP 0-9-1 as data: every class and method RabbitMQ 3.10 knows, with its fields, and the constants.

This is the one place that says what a method looks like on the wire; `methods.py` gives each row a class and
refuses to be imported if the two disagree. Field types: bit, octet, short, long, longlong, timestamp,
shortstr, longstr, table. Consecutive bits share octets, lowest bit first.
"""

from typing import Final, NamedTuple

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_MIN_SIZE: Final = 4096
FRAME_OVERHEAD: Final = 8
"""Octets of a frame around its payload: type, channel, size, end."""

CLASS_BASIC: Final = 60


class MethodSpec(NamedTuple):
    """One method: `fields` are (name, type) in wire order; `sync`: the sender waits for an answer."""

    name: str
    class_id: int
    method_id: int
    fields: tuple[tuple[str, str], ...]
    sync: bool
    has_content: bool


FIELD_TYPES: Final = frozenset(
    {"bit", "octet", "short", "long", "longlong", "timestamp", "shortstr", "longstr", "table"}
)

METHODS: dict[tuple[int, int], MethodSpec] = {}
METHODS_BY_NAME: dict[str, MethodSpec] = {}


def _method(
    name: str, ids: tuple[int, int], fields: str = "", *, sync: bool = False, content: bool = False
) -> None:
    """Enter one row; `fields` reads "name:type name:type"."""
    pairs = tuple((field, kind) for field, _, kind in (item.partition(":") for item in fields.split()))
    assert all(kind in FIELD_TYPES for _, kind in pairs), (name, pairs)
    assert ids not in METHODS, ids
    METHODS[ids] = METHODS_BY_NAME[name] = MethodSpec(name, *ids, pairs, sync, content)


_CLOSE = "reply_code:short reply_text:shortstr class_id:short method_id:short"
_TUNE = "channel_max:short frame_max:long heartbeat:short"
_BIND_EXCHANGE = (
    "ticket:short destination:shortstr source:shortstr routing_key:shortstr nowait:bit arguments:table"
)
_DELIVERED = "delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr"

_method(
    "connection.start",
    (10, 10),
    "version_major:octet version_minor:octet server_properties:table mechanisms:longstr locales:longstr",
    sync=True,
)
_method(
    "connection.start-ok",
    (10, 11),
    "client_properties:table mechanism:shortstr response:longstr locale:shortstr",
)
_method("connection.secure", (10, 20), "challenge:longstr", sync=True)
_method("connection.secure-ok", (10, 21), "response:longstr")
_method("connection.tune", (10, 30), _TUNE, sync=True)
_method("connection.tune-ok", (10, 31), _TUNE)
_method("connection.open", (10, 40), "virtual_host:shortstr capabilities:shortstr insist:bit", sync=True)
_method("connection.open-ok", (10, 41), "known_hosts:shortstr")
_method("connection.close", (10, 50), _CLOSE, sync=True)
_method("connection.close-ok", (10, 51))
_method("connection.blocked", (10, 60), "reason:shortstr")
_method("connection.unblocked", (10, 61))
_method("connection.update-secret", (10, 70), "new_secret:longstr reason:shortstr", sync=True)
_method("connection.update-secret-ok", (10, 71))

_method("channel.open", (20, 10), "out_of_band:shortstr", sync=True)
_method("channel.open-ok", (20, 11), "channel_id:longstr")
_method("channel.flow", (20, 20), "active:bit", sync=True)
_method("channel.flow-ok", (20, 21), "active:bit")
_method("channel.close", (20, 40), _CLOSE, sync=True)
_method("channel.close-ok", (20, 41))

_method(
    "access.request",
    (30, 10),
    "realm:shortstr exclusive:bit passive:bit active:bit write:bit read:bit",
    sync=True,
)
_method("access.request-ok", (30, 11), "ticket:short")

_method(
    "exchange.declare",
    (40, 10),
    "ticket:short exchange:shortstr type:shortstr passive:bit durable:bit auto_delete:bit internal:bit "
    "nowait:bit arguments:table",
    sync=True,
)
_method("exchange.declare-ok", (40, 11))
_method("exchange.delete", (40, 20), "ticket:short exchange:shortstr if_unused:bit nowait:bit", sync=True)
_method("exchange.delete-ok", (40, 21))
_method("exchange.bind", (40, 30), _BIND_EXCHANGE, sync=True)
_method("exchange.bind-ok", (40, 31))
_method("exchange.unbind", (40, 40), _BIND_EXCHANGE, sync=True)
_method("exchange.unbind-ok", (40, 51))

_method(
    "queue.declare",
    (50, 10),
    "ticket:short queue:shortstr passive:bit durable:bit exclusive:bit auto_delete:bit nowait:bit "
    "arguments:table",
    sync=True,
)
_method("queue.declare-ok", (50, 11), "queue:shortstr message_count:long consumer_count:long")
_method(
    "queue.bind",
    (50, 20),
    "ticket:short queue:shortstr exchange:shortstr routing_key:shortstr nowait:bit arguments:table",
    sync=True,
)
_method("queue.bind-ok", (50, 21))
_method("queue.purge", (50, 30), "ticket:short queue:shortstr nowait:bit", sync=True)
_method("queue.purge-ok", (50, 31), "message_count:long")
_method(
    "queue.delete", (50, 40), "ticket:short queue:shortstr if_unused:bit if_empty:bit nowait:bit", sync=True
)
_method("queue.delete-ok", (50, 41), "message_count:long")
_method(
    "queue.unbind",
    (50, 50),
    "ticket:short queue:shortstr exchange:shortstr routing_key:shortstr arguments:table",
    sync=True,
)
_method("queue.unbind-ok", (50, 51))

_method("basic.qos", (60, 10), "prefetch_size:long prefetch_count:short global_:bit", sync=True)
_method("basic.qos-ok", (60, 11))
_method(
    "basic.consume",
    (60, 20),
    "ticket:short queue:shortstr consumer_tag:shortstr no_local:bit no_ack:bit exclusive:bit nowait:bit "
    "arguments:table",
    sync=True,
)
_method("basic.consume-ok", (60, 21), "consumer_tag:shortstr")
_method("basic.cancel", (60, 30), "consumer_tag:shortstr nowait:bit", sync=True)
_method("basic.cancel-ok", (60, 31), "consumer_tag:shortstr")
_method(
    "basic.publish",
    (60, 40),
    "ticket:short exchange:shortstr routing_key:shortstr mandatory:bit immediate:bit",
    content=True,
)
_method(
    "basic.return",
    (60, 50),
    "reply_code:short reply_text:shortstr exchange:shortstr routing_key:shortstr",
    content=True,
)
_method("basic.deliver", (60, 60), "consumer_tag:shortstr " + _DELIVERED, content=True)
_method("basic.get", (60, 70), "ticket:short queue:shortstr no_ack:bit", sync=True)
_method("basic.get-ok", (60, 71), _DELIVERED + " message_count:long", content=True)
_method("basic.get-empty", (60, 72), "cluster_id:shortstr")
_method("basic.ack", (60, 80), "delivery_tag:longlong multiple:bit")
_method("basic.reject", (60, 90), "delivery_tag:longlong requeue:bit")
_method("basic.recover-async", (60, 100), "requeue:bit")
_method("basic.recover", (60, 110), "requeue:bit", sync=True)
_method("basic.recover-ok", (60, 111))
_method("basic.nack", (60, 120), "delivery_tag:longlong multiple:bit requeue:bit")

_method("confirm.select", (85, 10), "nowait:bit", sync=True)
_method("confirm.select-ok", (85, 11))

_method("tx.select", (90, 10), sync=True)
_method("tx.select-ok", (90, 11))
_method("tx.commit", (90, 20), sync=True)
_method("tx.commit-ok", (90, 21))
_method("tx.rollback", (90, 30), sync=True)
_method("tx.rollback-ok", (90, 31))

PROPERTY_FIELDS: Final = (
    ("content_type", "shortstr"),
    ("content_encoding", "shortstr"),
    ("headers", "table"),
    ("delivery_mode", "octet"),
    ("priority", "octet"),
    ("correlation_id", "shortstr"),
    ("reply_to", "shortstr"),
    ("expiration", "shortstr"),
    ("message_id", "shortstr"),
    ("timestamp", "timestamp"),
    ("type", "shortstr"),
    ("user_id", "shortstr"),
    ("app_id", "shortstr"),
    ("cluster_id", "shortstr"),
)
"""The properties of class basic in wire order; the first one has flag bit 15."""
