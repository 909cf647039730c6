"""The message that goes from a branch into its queue.

Guarantee: the body, the exchange, the routing key and all properties keep their bytes, but for the header
`x-healed-from`, which names the node on which the message was published.
"""

from mirrormq.kernel.message import Message
from mirrormq.wire.properties import raw_headers, replace_headers
from mirrormq.wire.table import encode_value, join_table, split_table

HEADER = "x-healed-from"


def make_healed(message: Message, node: str) -> Message:
    """Mark a message with the node of its branch."""
    fields = split_table(raw_headers(message.properties) or bytes(4))
    kept = [(name, value) for name, value in fields if name != HEADER]
    kept.append((HEADER, encode_value(node)))
    properties = replace_headers(message.properties, join_table(kept))
    return Message(message.exchange, message.routing_key, properties, message.body)
