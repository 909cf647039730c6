"""Who asks, and what that person may see: RabbitMQ's user tags, or the node's key from the machine itself.

Guarantees: the key is accepted only from the node's own machine and compared in constant time; a wrong
password says nothing but "Login failed"; log-ins go through the node's own check with its limits on
failures.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from dataclasses import dataclass

from aiohttp import web

from mirrormq.base.types import Peer
from mirrormq.http.answers import Fault, not_authorised, unavailable
from mirrormq.http.ports import RUNNING, Driver, Process
from mirrormq.meta.authenticator import is_loopback
from mirrormq.node.requests import AuthenticateUser, Request
from mirrormq.node.steps import Answer

KEY_SCHEME = "mirrormq-key"
REALM = {"WWW-Authenticate": 'Basic realm="RabbitMQ Management"'}
MANAGEMENT_TAGS = frozenset({"management", "policymaker", "monitoring", "administrator"})


@dataclass(frozen=True)
class Identity:
    """Somebody who has logged in. Without a name it is whoever may read the node's key."""

    name: str | None
    tags: tuple[str, ...]

    @property
    def is_administrator(self) -> bool:
        """May do everything."""
        return "administrator" in self.tags

    @property
    def is_monitor(self) -> bool:
        """May see everything about nodes, connections and channels."""
        return "monitoring" in self.tags or self.is_administrator

    @property
    def is_policymaker(self) -> bool:
        """May set policies and parameters."""
        return "policymaker" in self.tags or self.is_administrator


KEY_HOLDER = Identity(None, ("administrator",))


class Gate:
    """Finds out who asks and whether that is enough."""

    def __init__(self, process: Process, key: str) -> None:
        self._process = process
        self._key = key.encode()

    async def identify(self, request: web.Request) -> Identity:
        """Log the request in, or refuse it with 401."""
        scheme, _, rest = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == KEY_SCHEME:
            return self._by_key(request, rest.strip())
        if scheme.lower() == "basic":
            return await self._by_password(request, rest.strip())
        raise Fault(401, "not_authorized", "Log in with a user name and password", REALM)

    def _by_key(self, request: web.Request, given: str) -> Identity:
        peer = peer_of(request)
        is_here = is_loopback(peer.host) or peer.host == peer.local_host
        if is_here and self._key and hmac.compare_digest(given.encode(), self._key):
            return KEY_HOLDER
        raise Fault(401, "not_authorized", "Login failed", REALM)

    async def _by_password(self, request: web.Request, token: str) -> Identity:
        try:
            name, colon, password = base64.b64decode(token, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            name = colon = password = ""
        if not colon:
            raise Fault(401, "not_authorized", "Login failed", REALM)
        if self._process.state != RUNNING:
            # Who cannot be known yet learns nothing more.
            raise unavailable(f"this node's application is {self._process.state}; run start_app")
        wanted = AuthenticateUser(name=name, password=password, peer=peer_of(request))
        answer = await ask(self._process.driver, wanted)
        record = self._process.driver.node.state.users.get(name)
        if answer.problem is not None or record is None:
            raise Fault(401, "not_authorized", "Login failed", REALM)
        if not MANAGEMENT_TAGS.intersection(record.tags):
            raise not_authorised("Not management user")
        return Identity(name, record.tags)


async def ask(driver: Driver, request: Request) -> Answer:
    """Put a request to the node and wait for its answer."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[Answer] = loop.create_future()

    def done(answer: Answer) -> None:
        # The client may have given up meanwhile; the change is made all the same.
        if not answered.done():
            answered.set_result(answer)

    driver.admin(request, done)
    return await answered


def peer_of(request: web.Request) -> Peer:
    """The other end of the connection; unknown ends count as foreign.

    A proxy on this machine says in X-Forwarded-For for whom it asks; rules about loopback are about that
    client. Nobody comes closer by the header: it is read only of those who are here already, and its last
    word is the proxy's own.
    """
    transport = request.transport
    there = transport.get_extra_info("peername") if transport is not None else None
    here = transport.get_extra_info("sockname") if transport is not None else None
    host, port = (str(there[0]), int(there[1])) if there else ("", 0)
    local_host, local_port = (str(here[0]), int(here[1])) if here else ("?", 0)
    if is_loopback(host) or host == local_host:
        told = request.headers.getall("X-Forwarded-For", ())
        if told:
            host, port = told[-1].rpartition(",")[2].strip(), 0
    return Peer(host, port, local_host, local_port)
