"""The PROXY protocol, versions 1 and 2: who really connected, told by a proxy before the client's first byte.

Pure parsing of a growing buffer; nothing here reads a socket. A header is bounded: version 1 by its
specification, version 2 by `limits.proxy_header_bytes_max`, so a sender cannot make the node hoard bytes.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from mirrormq.base import limits

V1 = b"PROXY "
V2 = b"\r\n\r\n\x00\r\nQUIT\n"
V2_HEAD = 16
V1_MAX = 107
"""Longest line of version 1, with its end."""


class Origin(NamedTuple):
    """Where a proxied connection comes from and went to; None when the proxy speaks for itself."""

    host: str
    port: int
    local_host: str
    local_port: int


class ProxyError(Exception):
    """The bytes are no PROXY header."""


class Parsed(NamedTuple):
    """A whole header: its length, and the origin it names (None: use the socket's own addresses)."""

    size: int
    origin: Origin | None


def parse(data: bytes) -> Parsed | None:
    """Read a header at the beginning of `data`; None if more bytes are needed."""
    if data.startswith(V2[: len(data)]):
        return _parse_v2(data)
    if data.startswith(V1[: len(data)]):
        return _parse_v1(data)
    raise ProxyError("the connection does not begin with a PROXY header")


def wanted(data: bytes) -> int:
    """How many more bytes surely belong to the header: reading so many never takes one of the client's."""
    if len(data) < len(V2):
        return len(V2) - len(data)
    if data.startswith(V2):
        if len(data) < V2_HEAD:
            return V2_HEAD - len(data)
        return V2_HEAD + int.from_bytes(data[14:16], "big") - len(data)
    # The shortest end of a line of version 1 is its last byte.
    return 1 if data.endswith(b"\r") else 2


def _parse_v1(data: bytes) -> Parsed | None:
    end = data.find(b"\r\n", 0, V1_MAX)
    if end < 0:
        if len(data) >= V1_MAX:
            raise ProxyError("the PROXY line has no end")
        return None
    words = data[:end].decode("ascii", "replace").split(" ")
    if len(words) >= 2 and words[1] == "UNKNOWN":
        return Parsed(end + 2, None)
    if len(words) != 6 or words[1] not in {"TCP4", "TCP6"}:
        raise ProxyError("the PROXY line is malformed")
    version = 4 if words[1] == "TCP4" else 6
    hosts = [_address(word, version) for word in words[2:4]]
    ports = [_port(word) for word in words[4:6]]
    return Parsed(end + 2, Origin(hosts[0], ports[0], hosts[1], ports[1]))


def _parse_v2(data: bytes) -> Parsed | None:
    if len(data) < V2_HEAD:
        return None
    version, command = data[12] >> 4, data[12] & 0x0F
    size = V2_HEAD + int.from_bytes(data[14:16], "big")
    if version != 2 or command > 1:
        raise ProxyError("the PROXY header has an unknown version or command")
    if size > limits.proxy_header_bytes_max:
        raise ProxyError(f"the PROXY header has {size} bytes")
    if len(data) < size:
        return None
    if command == 0:
        return Parsed(size, None)
    width = {0x11: 4, 0x21: 16}.get(data[13])
    if width is None:
        # Other families (unix sockets, datagrams): the connection is real, its origin has no address.
        return Parsed(size, None)
    if size < V2_HEAD + 2 * width + 4:
        raise ProxyError("the PROXY header is too short for its addresses")
    body = data[V2_HEAD:]
    hosts = [str(ipaddress.ip_address(body[at : at + width])) for at in (0, width)]
    ports = [int.from_bytes(body[at : at + 2], "big") for at in (2 * width, 2 * width + 2)]
    return Parsed(size, Origin(hosts[0], ports[0], hosts[1], ports[1]))


def _address(word: str, version: int) -> str:
    try:
        found = ipaddress.ip_address(word)
    except ValueError:
        raise ProxyError("the PROXY line holds no address") from None
    if found.version != version:
        raise ProxyError("the PROXY line mixes address families")
    return str(found)


def _port(word: str) -> int:
    if not word.isascii() or not word.isdigit() or int(word) > 65_535:
        raise ProxyError("the PROXY line holds no port")
    return int(word)
