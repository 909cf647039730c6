"""MirrorMQ: a highly available AMQP 0-9-1 broker with mirrored queues, in Python."""

__version__ = "0.1.0"
