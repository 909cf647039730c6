"""Distinct names for integers and strings that must not be mixed up, and the facts an input carries.

Time never comes from a clock in the core: each input brings its own `Now`.
"""

from typing import NamedTuple, NewType

Seq = NewType("Seq", int)
"""Position of a record in one queue's log."""

Epoch = NewType("Epoch", int)
"""Number of a view; grows by one with each view change."""

Micros = NewType("Micros", int)
"""A time or a duration in microseconds."""

ConnId = NewType("ConnId", int)
"""A client connection of this node, never reused while the process lives."""

QueueId = NewType("QueueId", int)
"""Identity of a queue, different for each declaration of the same name."""

NodeName = NewType("NodeName", str)
"""`name@host` of a node."""


class Now(NamedTuple):
    """The time of an input in microseconds: `mono` for timers, `wall` for expiry and timestamps."""

    mono: int
    wall: int


class Peer(NamedTuple):
    """The other end of a client connection, as the listener saw it (after the PROXY protocol)."""

    host: str
    port: int
    local_host: str
    local_port: int
    tls: bool = False
    cert_name: str | None = None
    """The name in the verified client certificate that EXTERNAL logs in as."""
    is_inside: bool = False
    """A connection of the node's own admin API, which has found out who `cert_name` is."""
