"""One node's AMQP semantics, without any I/O: exchanges, routing, queues, consumers, channels, connections.

Definitions come from `meta` and nowhere else; what happens per message is done by `kernel`.
"""
