"""The message that goes to a salvage queue, or back, in place of one that only a passed-over copy had.

Guarantee: the body, the exchange, the routing key and all properties but those named here keep their bytes.
The header `x-salvaged-from` says of which queue it is, on which node it was, and the epoch of the promotion
that passed it over. In a salvage queue `expiration` is left out: nothing is to vanish there by itself.
"""

from mirrormq.base import limits
from mirrormq.kernel.message import Message
from mirrormq.wire.properties import raw_headers, replace_headers
from mirrormq.wire.table import encode_value, join_table, split_table

HEADER = "x-salvaged-from"
SUFFIX = ".salvage"


def queue_name(name: str) -> str:
    """The salvage queue of a queue; of one with a very long name the end is left out."""
    room = limits.short_string_bytes_max - len(SUFFIX)
    return name.encode()[:room].decode(errors="ignore") + SUFFIX


def make_salvaged(message: Message, origin: tuple[str, str, int], *, may_expire: bool) -> Message:
    """Mark a message with its origin: queue, node and epoch."""
    queue, node, epoch = origin
    fields = split_table(raw_headers(message.properties) or bytes(4))
    kept = [(name, value) for name, value in fields if name != HEADER]
    kept.append((HEADER, encode_value({"queue": queue, "node": node, "epoch": epoch})))
    dropped = () if may_expire else ("expiration",)
    properties = replace_headers(message.properties, join_table(kept), drop=dropped)
    return Message(message.exchange, message.routing_key, properties, message.body)
