"""Client sockets: accepts them, reads them into one shared buffer, writes them, and closes them gently.

One buffer of `limits.read_buffer_bytes` serves every connection of the loop, because the node keeps nothing
of it after `client_bytes`; an idle connection therefore costs no read buffer at all.

A closed connection is half-closed first and read until the client hangs up too (bounded in time): closing a
socket with unread input makes the kernel send a reset, which can overtake the last frame, the one that tells
the client why.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from typing import Any, cast

from mirrormq.base import limits
from mirrormq.base.types import Peer
from mirrormq.runtime.driver import Driver
from mirrormq.runtime.proxy import Origin
from mirrormq.runtime.settings import Settings
from mirrormq.runtime.tls import login_name


class Door:
    """What all listeners of a node share: the driver, the settings, the read buffer and who may come in."""

    def __init__(self, driver: Driver[Any], settings: Settings, files_max: int) -> None:
        self.driver = driver
        self.settings = settings
        self.read_buffer = memoryview(bytearray(limits.read_buffer_bytes))
        self._descriptor_max = files_max * limits.open_files_percent_max // 100
        self._refused = 0
        self._told_at = 0

    def protocol(self, origin: Origin | None = None) -> ClientProtocol:
        """Make the protocol of one connection; `origin` is what a proxy said of it."""
        return ClientProtocol(self, origin)

    def may_enter(self, descriptor: int) -> bool:
        """Whether a new connection may stay.

        The kernel gives out the lowest free descriptor, so its number tells how many files are open at least:
        connections, handshakes, HTTP and files of the data folder, without counting any of them.
        """
        connection_max = self.settings.connection_max
        if descriptor >= self._descriptor_max:
            self._refuse(f"{limits.open_files_percent_max} % of the files this process may open are open")
            return False
        if connection_max and len(self.driver.clients) >= connection_max:
            self._refuse(f"connection_max of {connection_max} is reached")
            return False
        return True

    def _refuse(self, reason: str) -> None:
        """Tell of refused connections, once per second at most: the line must not add to the flood."""
        self._refused += 1
        now = self.driver.now()
        if now.mono - self._told_at >= limits.tick_us:
            text = f"new connections are refused: {reason}"
            self.driver.log.note(
                "error", text, {"event": "connection.limit", "refused": self._refused}, now.wall
            )
            self._refused, self._told_at = 0, now.mono

    async def serve(self, listening: socket.socket, context: ssl.SSLContext | None) -> asyncio.Server:
        """Accept connections of one socket."""
        seconds = self.settings.tls.handshake_timeout_ms / 1000 if context else None
        return await self.driver.loop.create_server(
            self.protocol,
            sock=listening,
            ssl=context,
            ssl_handshake_timeout=seconds,
            backlog=self.settings.sockets.backlog,
        )


class ClientProtocol(asyncio.BufferedProtocol):
    """One client connection."""

    __slots__ = ("conn", "door", "driver", "is_closing", "is_reading", "linger", "origin", "transport")

    def __init__(self, door: Door, origin: Origin | None) -> None:
        self.door = door
        self.driver = door.driver
        self.origin = origin
        self.conn = 0
        self.is_closing = False
        self.is_reading = True
        self.linger: asyncio.TimerHandle | None = None

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the node of a new client, unless too many files are open."""
        self.transport = cast(asyncio.Transport, transport)
        settings = self.door.settings
        client = self.transport.get_extra_info("socket")
        if not self.door.may_enter(client.fileno()):
            self.is_closing = True
            self.transport.abort()
            return
        set_options(client, settings)
        self.transport.set_write_buffer_limits(
            limits.client_output_bytes_high, limits.client_output_bytes_low
        )
        self.conn = self.driver.open(self, peer_of(self.transport, self.origin, settings))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Lend the shared buffer: it is read and handed on before anybody else can ask for it."""
        return self.door.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hand on what was read."""
        if not self.is_closing:
            self.driver.bytes(self.conn, self.door.read_buffer[:nbytes])

    def eof_received(self) -> bool:
        """The client hung up: the transport closes itself."""
        return False

    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        if not self.is_closing:
            self.driver.paused(self.conn)

    def resume_writing(self) -> None:
        """The client has caught up."""
        if not self.is_closing:
            self.driver.writable(self.conn)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The socket is closed."""
        if self.linger is not None:
            self.linger.cancel()
        if self.conn:
            self.driver.lost(self.conn)

    # Called by the driver.

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send bytes; after the connection is closing they have no reader any more."""
        if self.is_closing:
            return
        if len(pieces) == 1:
            self.transport.write(pieces[0])
        else:
            self.transport.writelines(pieces)

    def pause_reading(self) -> None:
        """Stop reading."""
        if self.is_reading and not self.is_closing:
            self.is_reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if not self.is_reading and not self.is_closing:
            self.is_reading = True
            self.transport.resume_reading()

    def hang_up(self) -> None:
        """Close after everything written has gone out; what the client still sends is read and dropped."""
        if self.is_closing:
            return
        self.is_closing = True
        self.linger = self.driver.loop.call_later(limits.close_linger_ms_max / 1000, self.transport.abort)
        if not self.is_reading:
            self.transport.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            # TLS has no half-close; its close carries a notice of its own.
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.is_closing = True
        self.transport.abort()


def set_options(client: Any, settings: Settings) -> None:
    """Set what the settings ask for on a client's socket; the event loop has set TCP_NODELAY already."""
    if not settings.sockets.nodelay:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
    if settings.sockets.keepalive:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def peer_of(transport: asyncio.Transport, origin: Origin | None, settings: Settings) -> Peer:
    """Describe the other end of a connection, as the proxy or else the socket says."""
    peer = transport.get_extra_info("peername") or ("", 0)
    local = transport.get_extra_info("sockname") or ("", 0)
    secured = transport.get_extra_info("ssl_object")
    name = login_name(secured.getpeercert(), settings.tls) if secured is not None else None
    where = origin or Origin(peer[0], peer[1], local[0], local[1])
    return Peer(
        plain_host(where.host),
        where.port,
        plain_host(where.local_host),
        where.local_port,
        secured is not None,
        name,
    )


def plain_host(host: str) -> str:
    """Write an IPv4 address that came through an IPv6 socket as the IPv4 address it is, and drop zones."""
    host = host.partition("%")[0]
    if not host.startswith("::ffff:"):
        return host
    mapped = ipaddress.IPv6Address(host).ipv4_mapped
    return str(mapped) if mapped is not None else host
