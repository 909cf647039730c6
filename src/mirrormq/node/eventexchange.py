"""The exchange `amq.rabbitmq.event`: what happens in the cluster, as messages without a body.

Guarantees
- Nothing is built and nothing is published unless something is bound to the exchange.
- A message goes the way of every other: to all queues bound with its routing key, mastered here or elsewhere.
- Clients cannot publish to it.

Routing keys and headers are those of RabbitMQ's event exchange plugin where it has them (docs/events.md).
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mirrormq.kernel.message import Message
from mirrormq.meta.topology import EVENT_EXCHANGE, EVENT_VHOST
from mirrormq.wire.properties import Properties, encode_properties

if TYPE_CHECKING:
    from mirrormq.node.node import Node

Headers = Mapping[str, Any]


class EventExchange:
    """Publishes on behalf of this node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self.published = 0

    @property
    def is_heard(self) -> bool:
        """Is anything bound?"""
        return bool(self._node.meta.bindings_from(EVENT_VHOST, EVENT_EXCHANGE))

    def tell(self, key: str, headers: Callable[[], dict[str, Any]]) -> None:
        """Tell of something whose headers are not made yet."""
        if self.is_heard:
            self.publish(key, **headers())

    def publish(self, key: str, **headers: Any) -> None:
        """Tell of something, if anybody wants to hear of it."""
        vhost = self._node.vhosts.get(EVENT_VHOST)
        if vhost is None or not self.is_heard:
            return
        wall = self._node.now.wall
        table = {
            **{name: plain(value) for name, value in headers.items()},
            "node": self._node.node_name,
            "timestamp_in_ms": wall // 1000,
        }
        routed = vhost.route(EVENT_EXCHANGE, key.encode(), table)
        if not routed.queues:
            return
        properties = Properties(headers=table, delivery_mode=2, timestamp=wall // 1_000_000)
        message = Message(EVENT_EXCHANGE.encode(), key.encode(), encode_properties(properties), b"")
        self.published += 1
        for queue in routed.queues:
            queue.core.push(message)


def plain(value: Any) -> Any:
    """A value for others to read: names of clients need not be Unicode, which is shown by escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {str(plain(name)): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
