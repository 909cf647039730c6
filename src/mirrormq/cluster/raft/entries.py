"""An entry of the replicated log, and the entries Raft writes for itself.

Commands are opaque. Bytes that begin with `RESERVED` are Raft's own; no msgpack value begins so, and
`propose` refuses a command that does.
"""

from msgspec import Struct

RESERVED = 0xC1
_CONFIGURATION = bytes((RESERVED, 1))


class Entry(Struct, frozen=True, gc=False):
    """One place of the log. The same (term, index) has the same data on every node."""

    term: int
    index: int
    data: bytes


def is_reserved(data: bytes) -> bool:
    """Is this an entry of Raft itself?"""
    return data[:1] == _CONFIGURATION[:1]


def is_configuration(data: bytes) -> bool:
    """Does this entry say who belongs to the group?"""
    return data[:2] == _CONFIGURATION


def configuration_data(encoded: bytes) -> bytes:
    """Make an entry's data of an encoded configuration."""
    return _CONFIGURATION + encoded


def encoded_configuration(data: bytes) -> bytes:
    """The encoded configuration in an entry's data."""
    assert is_configuration(data)
    return data[2:]
