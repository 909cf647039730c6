"""Binds listening sockets, and says who is in the way and what would work instead when a port is busy."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Callable, Iterable

from mirrormq.runtime.faults import StartError
from mirrormq.runtime.processes import port_owner
from mirrormq.runtime.settings import SocketSettings
from mirrormq.runtime.values import Address

ADMIN_OFFSET = 10_000
"""The admin API listens this far above AMQP, as RabbitMQ's ports do."""

CLUSTER_OFFSET = 20_000
"""The listener for other nodes is this far above AMQP, as RabbitMQ's is."""

PORT_BASE_MAX = 65_535 - CLUSTER_OFFSET
"""Highest base whose admin and cluster ports still exist."""

BASE_STEP = 10
"""Distance of the bases tried when one is busy; a local cluster fits in between."""


class Bound:
    """One address for clients; its socket is closed while nobody is to come in."""

    def __init__(
        self, listening: socket.socket, options: SocketSettings, context: ssl.SSLContext | None
    ) -> None:
        self.socket = listening
        self.address = bound_address(listening)
        self.context = context
        self.is_open = True
        """The port is held. The socket does not tell: a closed server lets go of it a little later."""
        self._options = options

    @property
    def protocol(self) -> str:
        """Return what is spoken there, as RabbitMQ calls it."""
        return "amqp/ssl" if self.context else "amqp"

    def url(self) -> str:
        """Return the address for a client on this machine."""
        scheme = "amqps" if self.context else "amqp"
        return f"{scheme}://{Address(self.address.host or '127.0.0.1', self.address.port)}"

    def open(self, cure: Callable[[], str]) -> None:
        """Take the port again."""
        if not self.is_open:
            self.socket = bind(self.address, self._options, cure)
            self.is_open = True

    def close(self) -> None:
        """Give the port up."""
        self.is_open = False
        self.socket.close()


def bind(address: Address, options: SocketSettings, cure: Callable[[], str]) -> socket.socket:
    """Bind one address; `cure` is asked for a command that would work if the port is busy."""
    family, target = _target(address)
    listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # An unnamed host means every interface: one socket serves IPv4 too.
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if not address.host else 1)
        if options.send_buffer_bytes:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer_bytes)
        if options.receive_buffer_bytes:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer_bytes)
        listening.bind(target)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"Port {address.port} is used by {port_owner(address.port)}: stop it, or run: {cure()}"
            ) from None
        if error.errno == errno.EACCES:
            raise StartError(
                f"Port {address.port} needs the right to bind ports below 1024: run: {cure()}"
            ) from None
        raise StartError(f"Cannot listen on {address}: {error.strerror}.") from None
    listening.setblocking(False)
    return listening


def free_base(wanted: int, ports_of: Callable[[int], Iterable[int]]) -> int:
    """Find the next base above `wanted` all of whose ports are free."""
    for base in range(max(wanted, 1024) + BASE_STEP, PORT_BASE_MAX, BASE_STEP):
        if all(_is_free(port) for port in ports_of(base)):
            return base
    return PORT_BASE_MAX


def bound_address(listening: socket.socket) -> Address:
    """Return host and port as bound; port 0 has become a real one."""
    host, port = listening.getsockname()[:2]
    return Address("" if host in {"::", "0.0.0.0"} else host, port)


def _is_free(port: int) -> bool:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError:
        return False
    return True


def _target(address: Address) -> tuple[socket.AddressFamily, tuple[str, int]]:
    if not address.host:
        family, host = (socket.AF_INET6, "::") if _has_ipv6() else (socket.AF_INET, "0.0.0.0")
        return family, (host, address.port)
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise StartError(f"Cannot listen on {address}: the host is not known ({error.strerror}).") from None
    family, _, _, _, target = found[0]
    return family, (str(target[0]), int(target[1]))


def _has_ipv6() -> bool:
    if not socket.has_dualstack_ipv6():
        return False
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
