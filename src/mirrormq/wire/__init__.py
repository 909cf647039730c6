"""AMQP 0-9-1 on the wire, without I/O: the specification's tables and the codec built on them."""
