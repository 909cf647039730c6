"""How a message tells that it came back before: `x-delivery-count` in its headers.

Guarantee: every other header, property and the body keep their bytes.
"""

from mirrormq.kernel.message import Message
from mirrormq.wire.properties import raw_headers, replace_headers
from mirrormq.wire.table import join_table, split_table


def with_delivery_count(message: Message, count: int) -> Message:
    """The same message with `x-delivery-count` in its headers; all others keep their bytes."""
    fields = split_table(raw_headers(message.properties) or bytes(4))
    kept = [(name, value) for name, value in fields if name != "x-delivery-count"]
    headers = join_table([*kept, ("x-delivery-count", b"l" + count.to_bytes(8, "big"))])
    properties = replace_headers(message.properties, headers)
    return Message(message.exchange, message.routing_key, properties, message.body)
