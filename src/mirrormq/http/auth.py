"""Who asks, and what that person may see: RabbitMQ's user tags, or the node's key from the machine itself.

Users prove themselves by their password, or by the token of a session they opened with it (`sessions.py`).

Guarantees: the key is accepted only from the node's own machine and compared in constant time; a wrong
password says nothing but "Login failed"; log-ins go through the node's own check with its limits on
failures, beyond which the answer is 429 and when to try again.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
from dataclasses import dataclass

from aiohttp import web

from mirrormq.base.types import Peer
from mirrormq.http.answers import Fault, not_authorised, unavailable
from mirrormq.http.ports import RUNNING, Driver, Process
from mirrormq.http.sessions import Sessions
from mirrormq.meta.authenticator import is_loopback
from mirrormq.node.requests import AuthenticateUser, Request
from mirrormq.node.steps import Answer

KEY_SCHEME = "mirrormq-key"
REALM = {"WWW-Authenticate": 'Basic realm="RabbitMQ Management"'}
BEARER = {"WWW-Authenticate": "Bearer"}
"""Asks for a new log-in of the web UI, in which a browser must not interfere with a dialogue of its own."""
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
NOBODY = Identity(None, ())
"""Who asks for what is open to all."""


class Gate:
    """Finds out who asks and whether that is enough."""

    def __init__(self, process: Process, key: str, sessions: Sessions | None = None) -> None:
        self._process = process
        self._key = key.encode()
        self._sessions = Sessions() if sessions is None else sessions

    async def identify(self, request: web.Request, *, is_use: bool = True) -> Identity:
        """Log the request in, or refuse it with 401. `is_use`: it keeps its session from idling."""
        scheme, _, rest = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == KEY_SCHEME:
            return self._by_key(request, rest.strip())
        if scheme.lower() == "basic":
            return await self._by_password(request, rest.strip())
        if scheme.lower() == "bearer":
            return self.by_token(rest.strip(), is_use=is_use)
        raise Fault(401, "not_authorized", "Log in with a user name and password", REALM)

    def _by_key(self, request: web.Request, given: str) -> Identity:
        peer = peer_of(request)
        is_here = is_loopback(peer.host) or peer.host == peer.local_host
        if is_here and self._key and hmac.compare_digest(given.encode("utf-8", "replace"), self._key):
            return KEY_HOLDER
        raise Fault(401, "not_authorized", "Login failed", REALM)

    def by_token(self, token: str, *, is_use: bool = True) -> Identity:
        """Whose session it is; 401 if it has ended, or if the user may not use the API any more."""
        state = self._process.driver.node.state
        name = self._sessions.user_of(state, token, is_use=is_use)
        if name is None:
            raise Fault(401, "not_authorized", "The session has ended; log in again", BEARER)
        return self.of_user(name)

    def of_user(self, name: str) -> Identity:
        """A user who has proved to be that, with the tags of now."""
        record = self._process.driver.node.state.users.get(name)
        if record is None or not MANAGEMENT_TAGS.intersection(record.tags):
            raise not_authorised("Not management user")
        return Identity(name, record.tags)

    def proof_of(self, who: Identity) -> str:
        """What a user has proved to know; it changes with the password. Empty for who has none."""
        record = self._process.driver.node.state.users.get(who.name or "")
        return "" if record is None else record.password_hash

    def stands(self, who: Identity, token: str, proof: str) -> bool:
        """May what was opened by somebody, maybe with the token of a session, stay open?"""
        if who.name is None:
            return True
        state = self._process.driver.node.state
        if token and not self._sessions.stands(state, token):
            return False
        record = state.users.get(who.name)
        return record is not None and (record.password_hash, record.tags) == (proof, who.tags)

    async def _by_password(self, request: web.Request, token: str) -> Identity:
        try:
            name, colon, password = base64.b64decode(token, validate=True).decode().partition(":")
        except ValueError:
            name = colon = password = ""
        if not colon:
            raise Fault(401, "not_authorized", "Login failed", REALM)
        return await self.by_password(request, name, password)

    async def by_password(self, request: web.Request, name: str, password: str) -> Identity:
        """Who has this name and password; 401 if nobody has."""
        if self._process.state != RUNNING:
            # Who cannot be known yet learns nothing more.
            raise unavailable(f"this node's application is {self._process.state}; run start_app")
        wanted = AuthenticateUser(name=name, password=password, peer=peer_of(request))
        answer = await ask(self._process.driver, wanted)
        if answer.problem is not None:
            self._refuse_if_too_many(name, wanted.peer)
        if answer.problem is not None or name not in self._process.driver.node.state.users:
            raise Fault(401, "not_authorized", "Login failed", REALM)
        return self.of_user(name)

    def _refuse_if_too_many(self, name: str, peer: Peer | None) -> None:
        """Say when to try again, once so many log-ins have failed that the password is not even looked at."""
        node = self._process.driver.node
        delay = 0 if peer is None else node.authenticator.delay(name, peer.host, node.now)
        if delay:
            raise _too_many(-(-delay // 1_000_000))


def _too_many(seconds: int) -> Fault:
    """429: neither this user nor this address may try again yet."""
    reason = f"too many log-ins have failed; try again in {seconds} s"
    return Fault(429, "too_many_requests", reason, {"Retry-After": str(seconds)})


def bearer_of(request: web.Request) -> str:
    """The token of a session that a request was sent with; empty if there is none."""
    scheme, _, rest = request.headers.get("Authorization", "").partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else ""


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
