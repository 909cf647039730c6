"""The keys of a cluster in etcd, and what is written in them (docs/etcd.md has the table).

Everything stands under one prefix. `log/` and `now/` are watched by every node, as one range; `parts/` holds
what is too long to be told to everybody: snapshots and the parts of long commands.
"""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

_DIGITS = 20
_PART_DIGITS = 6


class BadValue(Exception):
    """A key holds what this version cannot read; the text names key and cause."""


class Head(Struct, frozen=True, array_like=True):
    """The last entry of the log."""

    index: Annotated[int, Meta(ge=0)]


class Mark(Struct, frozen=True, array_like=True):
    """The snapshot that counts, and from where on the log is kept."""

    index: int
    log_from: int
    parts: int
    size: int
    crc: int
    configuration: bytes


class Term(Struct, frozen=True, array_like=True):
    """The last term there was."""

    number: int


class Lead(Struct, frozen=True, array_like=True):
    """Who leads; the key goes with that node's lease."""

    name: str
    start: int
    term: int


class Live(Struct, frozen=True, array_like=True):
    """A node that holds a lease, with which this key goes."""

    identity: bytes
    start: int
    lease: int


class Intent(Struct, frozen=True, array_like=True):
    """A command in parts. `index`: the entry that refers to it, 0 while there is none."""

    node: str
    start: int
    parts: int
    size: int
    crc: int
    index: int = 0


class Keys:
    """The names under one prefix."""

    def __init__(self, prefix: str) -> None:
        base = prefix.rstrip("/").encode() + b"/"
        self.log = base + b"log/"
        self.now = base + b"now/"
        self.cluster = self.now + b"cluster"
        self.head = self.now + b"head"
        self.mark = self.now + b"mark"
        self.term = self.now + b"term"
        self.leader = self.now + b"leader"
        self.nodes = self.now + b"nodes/"
        self.intents = self.now + b"bulk/"
        self.snapshots = base + b"parts/snapshot/"
        self.bulk = base + b"parts/bulk/"

    def entry(self, index: int) -> bytes:
        """An entry of the log."""
        return self.log + _number(index, _DIGITS)

    def index_of(self, key: bytes) -> int:
        """The index of an entry's key; raises `BadValue`."""
        digits = key[len(self.log) :]
        if not digits.isdigit():
            raise BadValue(f"there is a key {key!r}: something else wrote it")
        return int(digits)

    @staticmethod
    def name_of(key: bytes, prefix: bytes) -> str:
        """What stands behind a prefix; raises `BadValue`."""
        try:
            return key[len(prefix) :].decode()
        except UnicodeDecodeError:
            raise BadValue(f"there is a key {key!r}: something else wrote it") from None

    def node(self, name: str) -> bytes:
        """The key that a live node has."""
        return self.nodes + name.encode()

    def intent(self, number: str) -> bytes:
        """A long command that is being written."""
        return self.intents + number.encode()

    def bulk_parts(self, number: str) -> bytes:
        """What the keys of its parts begin with."""
        return self.bulk + number.encode() + b"/"

    def snapshot(self, index: int) -> bytes:
        """What the keys of a snapshot's parts begin with."""
        return self.snapshots + _number(index, _DIGITS) + b"/"

    @staticmethod
    def part(prefix: bytes, number: int) -> bytes:
        """One part."""
        return prefix + _number(number, _PART_DIGITS)

    @staticmethod
    def after(prefix: bytes) -> bytes:
        """The end of everything that begins with a prefix."""
        return prefix[:-1] + bytes((prefix[-1] + 1,))


def _number(value: int, digits: int) -> bytes:
    return str(value).zfill(digits).encode()


T = TypeVar("T", bound=Struct)
_encoder = msgspec.msgpack.Encoder()


def encode(value: Struct) -> bytes:
    """What is written in a key."""
    return _encoder.encode(value)


def decode(kind: type[T], data: bytes) -> T:
    """Read what is written in a key; raises `BadValue`."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = kind.__name__.lower()
        raise BadValue(f"the key of a {what} cannot be read ({error}): something else wrote it") from error
