"""Frames of an open link: made, and found again in a stream cut at any place.

Guarantee: a frame comes out whole and unchanged or the link ends; nothing is skipped. What one link holds in
memory is bounded by one frame, one bulk payload and the window, whatever the other end sends.

    crc u32 | length u32 | kind u8 | flags u8 | zero u16 | payload (little-endian)

The CRC32C covers everything behind it. TCP's own checksum lets one damaged segment in 65,536 pass, and marks,
votes and leases, unlike batches, carry no checksum of their own. It costs 7 µs per chunk of 64 KiB here.
With TLS it is not needed, but one format is worth more than the saving.
"""

import struct
from enum import IntEnum
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.kernel.crc32c import crc32c
from mirrormq.peer.faults import Code, PeerFault

if TYPE_CHECKING:
    from collections.abc import Iterable

Payload = bytes | bytearray
Data = bytes | bytearray | memoryview


class Lane(IntEnum):
    """What a payload is. CONTROL overtakes BULK; within a lane order is kept."""

    CONTROL = 1
    BULK = 2


class Kind(IntEnum):
    """Kinds of frames; the numbers are part of the protocol."""

    CONTROL = 1
    BULK = 2
    PING = 3
    PONG = 4
    GRANT = 5
    GOODBYE = 6


MORE = 1
"""Flag of a bulk frame: the payload goes on in the next bulk frame."""

HEAD = struct.Struct("<IIBBH")
HEAD_BYTES = HEAD.size
_BEHIND_CRC = struct.Struct("<IBBH")
_CRC = struct.Struct("<I")
PING = struct.Struct("<Q")
PONG = struct.Struct("<QQ")
GRANT = struct.Struct("<Q")

FIXED_LENGTHS = {Kind.PING: PING.size, Kind.PONG: PONG.size, Kind.GRANT: GRANT.size}

Frame = tuple[Kind, Payload]
"""A whole payload; a bulk payload that came in chunks is one frame here."""


def frame(kind: Kind, payload: Data = b"") -> bytes:
    """Write a small frame as one piece."""
    assert len(payload) <= limits.peer_chunk_bytes, (kind, len(payload))
    rest = _BEHIND_CRC.pack(len(payload), kind, 0, 0) + payload
    return _CRC.pack(crc32c(rest)) + rest


def head_of(parts: "Iterable[Data]", length: int, *, has_more: bool) -> bytes:
    """Write the head of a bulk frame whose payload is in several places."""
    rest = _BEHIND_CRC.pack(length, Kind.BULK, MORE if has_more else 0, 0)
    crc = crc32c(rest)
    for part in parts:
        crc = crc32c(part, crc)
    return _CRC.pack(crc) + rest


class Incoming:
    """Finds frames in the bytes of one link and joins chunks of bulk payloads."""

    __slots__ = ("_bulk", "_has_more", "_stash", "bulk_bytes", "fault", "granted")

    def __init__(self) -> None:
        self._stash = bytearray()
        """The beginning of a frame that has not arrived whole."""
        self._bulk = bytearray()
        self._has_more = False
        self.bulk_bytes = 0
        """Bulk bytes received so far."""
        self.granted = 0
        """Bulk bytes the other end may have sent by now."""
        self.fault: PeerFault | None = None
        """What was wrong with the bytes; nothing is taken any more."""

    def receive(self, data: memoryview) -> list[Frame]:
        """Take bytes, none of which are referred to afterwards; returns the frames before any fault."""
        found: list[Frame] = []
        if self.fault is None:
            try:
                self._find(data, found)
            except PeerFault as fault:
                self.fault = fault
        return found

    def _find(self, data: memoryview, found: list[Frame]) -> None:
        at = 0
        if self._stash:
            at = self._fill(data, found)
        end = len(data)
        while end - at >= HEAD_BYTES:
            stop = at + HEAD_BYTES + self._length(data, at)
            if stop > end:
                break
            self._take(data[at:stop], found)
            at = stop
        if at < end:
            self._stash += data[at:]

    def _fill(self, data: memoryview, found: list[Frame]) -> int:
        """Complete the frame that has begun; returns how many bytes were used."""
        stash, at = self._stash, 0
        if len(stash) < HEAD_BYTES:
            at = min(len(data), HEAD_BYTES - len(stash))
            stash += data[:at]
            if len(stash) < HEAD_BYTES:
                return at
        wanted = HEAD_BYTES + self._length(stash, 0) - len(stash)
        part = data[at : at + wanted]
        stash += part
        if len(part) == wanted:
            self._stash = bytearray()
            self._take(memoryview(stash), found)
        return at + len(part)

    def _length(self, data: Data, at: int) -> int:
        length: int = HEAD.unpack_from(data, at)[1]
        if length > limits.peer_chunk_bytes:
            raise PeerFault(Code.BROKEN, f"a frame of {length} bytes is too long")
        return length

    def _take(self, raw: memoryview, found: list[Frame]) -> None:
        crc, length, number, flags, zero = HEAD.unpack_from(raw)
        if crc32c(raw[4:]) != crc:
            raise PeerFault(Code.BROKEN, "a frame arrived damaged")
        if number == Kind.CONTROL and not flags and not zero:
            found.append((Kind.CONTROL, bytes(raw[HEAD_BYTES:])))
            return
        if zero or number not in Kind._value2member_map_:
            raise PeerFault(Code.BROKEN, f"frames of kind {number} are not known")
        kind = Kind(number)
        if kind is Kind.BULK:
            self._take_bulk(raw[HEAD_BYTES:], flags, found)
            return
        if flags or length != FIXED_LENGTHS.get(kind, length):
            raise PeerFault(Code.BROKEN, f"a frame of kind {kind.name} is malformed")
        found.append((kind, bytes(raw[HEAD_BYTES:])))

    def _take_bulk(self, chunk: memoryview, flags: int, found: list[Frame]) -> None:
        if flags & ~MORE or (not chunk and (flags or self._has_more)):
            raise PeerFault(Code.BROKEN, "a frame of kind BULK is malformed")
        self.bulk_bytes += len(chunk)
        if self.bulk_bytes > self.granted:
            raise PeerFault(Code.BROKEN, "more bulk bytes came than were granted")
        if len(self._bulk) + len(chunk) > limits.peer_bulk_bytes_max:
            raise PeerFault(Code.BROKEN, "a bulk payload is too long")
        if flags & MORE:
            self._bulk += chunk
            self._has_more = True
        elif self._has_more:
            self._bulk += chunk
            found.append((Kind.BULK, self._bulk))
            self._bulk = bytearray()
            self._has_more = False
        else:
            found.append((Kind.BULK, bytes(chunk)))
