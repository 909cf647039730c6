"""Accepts connections of a listener that proxies may use, and reads their PROXY header before anything else.

Only sources the settings list may send a header, and they must: a client that could invent its address could
pass for a local one. The header is read byte-exactly from the bare socket, so that the TLS handshake or the
first AMQP byte behind it is untouched; it has `handshake_timeout` to arrive.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import ssl

from mirrormq.runtime.listener import Door, plain_host
from mirrormq.runtime.proxy import Origin, ProxyError, parse, wanted


class ProxyAcceptor:
    """One listening socket whose clients may come through a proxy."""

    def __init__(self, door: Door, listening: socket.socket, context: ssl.SSLContext | None) -> None:
        self.door = door
        self.loop = door.driver.loop
        self.listening = listening
        self.context = context
        self._welcoming: set[asyncio.Task[None]] = set()
        """References to running tasks: the loop itself keeps none."""

    def start(self) -> None:
        """Begin to accept."""
        self.listening.listen(self.door.settings.sockets.backlog)
        self.loop.add_reader(self.listening.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more; connections whose header has not come are dropped."""
        self.loop.remove_reader(self.listening.fileno())
        self.listening.close()
        for task in self._welcoming:
            task.cancel()

    def _listen_again(self) -> None:
        if self.listening.fileno() >= 0:
            self.loop.add_reader(self.listening.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            client, address = self.listening.accept()
        except OSError as error:
            # Mostly the client went away between the loop's notice and this call. Without a free descriptor
            # the socket would stay readable and the loop would spin.
            if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                self.loop.remove_reader(self.listening.fileno())
                self.loop.call_later(1, self._listen_again)
            return
        if not self.door.may_enter(client.fileno()):
            client.close()
            return
        client.setblocking(False)
        task = self.loop.create_task(self._welcome(client, plain_host(str(address[0]))))
        self._welcoming.add(task)
        task.add_done_callback(self._welcoming.discard)

    async def _welcome(self, client: socket.socket, source: str) -> None:
        """Read the header of a listed source, then hand the socket to a protocol."""
        settings = self.door.settings
        handed_over = False
        try:
            origin = None
            if self._is_proxy(source):
                async with asyncio.timeout(settings.handshake_timeout_ms / 1000):
                    origin = await self._read_header(client)
            seconds = settings.tls.handshake_timeout_ms / 1000 if self.context else None
            handed_over = True
            await self.loop.connect_accepted_socket(
                lambda: self.door.protocol(origin), client, ssl=self.context, ssl_handshake_timeout=seconds
            )
        except ProxyError as error:
            self._note(f"connection from proxy {source} refused: {error}")
        except TimeoutError:
            self._note(f"connection from proxy {source} refused: its PROXY header did not come in time")
        except (OSError, ssl.SSLError) as error:
            self._note(f"connection from {source} failed before it began: {error}")
        finally:
            if not handed_over:
                client.close()

    async def _read_header(self, client: socket.socket) -> Origin | None:
        data = b""
        while True:
            chunk = await self.loop.sock_recv(client, wanted(data))
            if not chunk:
                raise ProxyError("it ended before its PROXY header was whole")
            data += chunk
            parsed = parse(data)
            if parsed is not None:
                return parsed.origin

    def _is_proxy(self, source: str) -> bool:
        address = ipaddress.ip_address(source)
        return any(address in network for network in self.door.settings.proxy_sources)

    def _note(self, text: str) -> None:
        driver = self.door.driver
        driver.log.note("warning", text, {"event": "connection.proxy_refused"}, driver.now().wall)
