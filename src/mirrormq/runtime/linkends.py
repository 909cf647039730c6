"""How connections between nodes come about: dialled again and again, or accepted.

Guarantee: an address is dialled by one connection at a time, and not at all while its node is linked; names
are resolved anew at each attempt. At most `limits.peer_strangers_max` connections wait for a proof, their TLS
handshakes included; the oldest goes first, because an honest node needs milliseconds.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.peer.dialling import dial_delay_us
from mirrormq.peer.faults import Code
from mirrormq.runtime.values import Address

if TYPE_CHECKING:
    from mirrormq.runtime.links import Connection, PeerLinks

ATTEMPT_SECONDS = limits.peer_handshake_us / 1_000_000
HOPELESS = 16
"""Failures counted for an address that turned out to be this node's own: dialled as rarely as possible."""


async def _make(
    connection: Connection, making: Callable[[Callable[[], Connection]], Awaitable[object]]
) -> None:
    """Have the loop make a connection, whose end is known in any case."""
    try:
        await making(lambda: connection)
    except asyncio.CancelledError:
        connection.abandon()
        raise


class Target:
    """An address that is dialled."""

    def __init__(self, links: PeerLinks, address: Address) -> None:
        self.links = links
        self.address = address
        self.name = ""
        """Who was last found there."""
        self.failures = 0
        self._timer: asyncio.TimerHandle | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._is_over = False

    def schedule(self) -> None:
        """Dial soon, unless that is under way."""
        busy = self._timer is not None or self._attempt is not None or self._connection is not None
        if not busy and not self._is_over:
            delay = dial_delay_us(self.failures, self.links.rng) / 1_000_000
            self._timer = self.links.loop.call_later(delay, self._begin)

    def close(self) -> None:
        """Dial no more."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        # An attempt that has a connection is over but for its last step, and its peer is told why it ends.
        if self._attempt is not None and self._connection is None:
            self._attempt.cancel()

    # Told by the connection.

    def connected(self, connection: Connection) -> None:
        """There is a connection."""
        self._connection = connection

    def reached(self, name: str) -> None:
        """There is a link."""
        self.name = name
        self.failures = 0

    def refused(self, code: Code, name: str) -> None:
        """There will be no link by this connection."""
        self.name = name or self.name
        self.failures = HOPELESS if code is Code.SELF else self.failures + 1

    def ended(self, connection: Connection) -> None:
        """The connection is over."""
        if self._connection is connection:
            self._connection = None
            self.schedule()

    # An attempt.

    def _begin(self) -> None:
        self._timer = None
        if self.name and self.links.table.open_link(self.name) is not None:
            # The peer has dialled us; `Targets.lost` goes on when that link is down.
            self.failures = 0
            return
        self._attempt = self.links.loop.create_task(self._connect())

    async def _connect(self) -> None:
        links = self.links
        context = links.contexts.dialling if links.contexts is not None else None
        host = self.address.host
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                making = partial(
                    links.loop.create_connection,
                    host=host,
                    port=self.address.port,
                    ssl=context,
                    server_hostname=host if context is not None else None,
                )
                await _make(links.connection(self), making)
        except (OSError, ssl.SSLError) as error:
            # Of a TimeoutError the text is empty.
            self.failures += 1
            reason = getattr(error, "strerror", None) or str(error) or "no answer in time"
            links.note(str(self.address), "info", f"cannot be reached: {reason}", event="link.unreachable")
        finally:
            self._attempt = None
            self.schedule()


class Targets:
    """All addresses that are dialled."""

    def __init__(self, links: PeerLinks) -> None:
        self.links = links
        self._targets: dict[Address, Target] = {}

    def add(self, address: Address) -> None:
        """Begin to dial."""
        if address not in self._targets:
            self._targets[address] = Target(self.links, address)
            self._targets[address].schedule()

    def remove(self, address: Address) -> None:
        """Dial no more."""
        target = self._targets.pop(address, None)
        if target is not None:
            target.close()

    def lost(self, name: str) -> None:
        """The link to a peer is down, whoever had dialled."""
        for target in self._targets.values():
            if target.name == name:
                target.schedule()

    def close(self) -> None:
        """Dial no more at all."""
        for target in self._targets.values():
            target.close()
        self._targets.clear()


class Acceptor:
    """One listening socket for other nodes."""

    def __init__(self, links: PeerLinks, listening: socket.socket) -> None:
        self.links = links
        self.loop = links.loop
        self.listening = listening
        self._welcoming: dict[asyncio.Task[None], None] = {}
        """Connections that have no protocol yet, the oldest first."""

    def start(self) -> None:
        """Begin to accept."""
        self.listening.setblocking(False)
        self.listening.listen(limits.peer_strangers_max)
        self.loop.add_reader(self.listening.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more; connections that have no protocol yet are dropped."""
        self.loop.remove_reader(self.listening.fileno())
        self.listening.close()
        for task in self._welcoming:
            task.cancel()

    def _listen_again(self) -> None:
        if self.listening.fileno() >= 0:
            self.loop.add_reader(self.listening.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            accepted, address = self.listening.accept()
        except OSError as error:
            # Mostly the peer went away between the loop's notice and this call. Without a free descriptor
            # the socket would stay readable and the loop would spin.
            if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                self.loop.remove_reader(self.listening.fileno())
                self.loop.call_later(1, self._listen_again)
            return
        self._make_room()
        accepted.setblocking(False)
        task = self.loop.create_task(self._welcome(accepted, str(address[0])))
        self._welcoming[task] = None

        def done(task: asyncio.Task[None]) -> None:
            self._welcoming.pop(task, None)
            if task.cancelled():
                accepted.close()

        task.add_done_callback(done)

    def _make_room(self) -> None:
        strangers = self.links.strangers
        if len(strangers) + len(self._welcoming) < limits.peer_strangers_max:
            return
        if strangers:
            self.links.evict()
        else:
            next(iter(self._welcoming)).cancel()

    async def _welcome(self, accepted: socket.socket, host: str) -> None:
        context = self.links.contexts.accepting if self.links.contexts is not None else None
        try:
            task = asyncio.current_task()
            assert task is not None
            making = partial(
                self.loop.connect_accepted_socket,
                sock=accepted,
                ssl=context,
                ssl_handshake_timeout=ATTEMPT_SECONDS if context is not None else None,
            )
            # From then on it is no longer cancelled: see Target.close.
            connection = self.links.connection(on_made=lambda: self._welcoming.pop(task, None))
            await _make(connection, making)
        except (OSError, ssl.SSLError) as error:
            self.links.note(
                host, "info", f"no link: {getattr(error, 'reason', None) or error}", event="link.refused"
            )
