"""Logging in: is this the user's password, and may the user connect from there?

Guarantees: a password is checked against an expensive hash at most once per success and user, one hash at a
time and never on the loop; failures are never remembered as answers and are limited per user and per address;
a refusal for a user that does not exist takes as long as one for a wrong password; no password is kept.

`begin` answers at once or returns a `Pending` ticket. The caller then takes the next job with `next_work`,
has it done elsewhere, and gives the result to `finish`, which answers every ticket that waited for it. Equal
log-ins that arrive meanwhile (a fleet of clients after a restart) share one hash.
"""

import hashlib
import hmac
import ipaddress
import math
from collections import deque
from collections.abc import Callable, Collection
from itertools import count
from typing import Literal, NamedTuple

from mirrormq.base import limits
from mirrormq.base.rng import Rng
from mirrormq.base.types import Now, Peer
from mirrormq.meta.passwords import ARGON2ID, decoy_hash, is_salted_match
from mirrormq.meta.records import User
from mirrormq.meta.state import MetaState
from mirrormq.meta.tables import Change

BLANK_PASSWORD = (
    "user '{}' attempted to log in with a blank password, which is prohibited by the internal authN backend."
    " To use TLS/x509 certificate-based authentication, see the rabbitmq_auth_mechanism_ssl plugin and"
    " configure the client to use the EXTERNAL authentication mechanism."
    " Alternatively change the password for the user to be non-blank."
)
"""RabbitMQ's texts: they appear in logs that people search."""
INVALID = "user '{}' - invalid credentials"
NOT_LOCAL = "user '{}' can only connect via localhost"
TOO_MANY_FAILURES = "user '{}' - too many failed log-ins, try again later"
TOO_MANY_WAITING = "user '{}' - too many log-ins are waiting to be checked"


class Verdict(NamedTuple):
    """The answer to a log-in. `error` is for the log; clients are told no more than that it was refused."""

    user: str
    error: str | None

    @property
    def ok(self) -> bool:
        """Whether the user is in."""
        return self.error is None


class Pending(NamedTuple):
    """The answer will come from `finish` under this ticket."""

    ticket: int


class Work(NamedTuple):
    """A job for elsewhere: does `password` match the argon2id string `stored`? The result is a bool."""

    token: int
    kind: Literal["argon2_verify"]
    args: tuple[str, bytes]


class _Check(NamedTuple):
    """A password to be hashed, and who waits for it. `counts`: a match lets the user in."""

    user: str
    key: bytes
    stored: str
    password: bytes
    counts: bool
    address: str
    """Where the first of them came from."""
    tickets: list[tuple[int, str]]
    """Ticket and address of each log-in."""


class Authenticator:
    """Checks log-ins against one state.

    `argon2_cost` is memory in KiB, passes and lanes of new hashes: refusals must cost the same. `next_token`
    numbers jobs; pass the node's own if others have work done, too.
    """

    def __init__(
        self,
        state: MetaState,
        rng: Rng,
        loopback_users: Collection[str] = ("guest",),
        *,
        argon2_cost: tuple[int, int, int] = (19 * 1024, 2, 1),
        next_token: Callable[[], int] | None = None,
    ) -> None:
        """Draw the key under which passwords are remembered: it lives as long as the process."""
        memory_kib, passes, lanes = argon2_cost
        self._state = state
        self._key = rng.token(32)
        self._next_token = next_token or count(1).__next__
        self._loopback_users = frozenset(loopback_users)
        self._decoy = decoy_hash(memory_kib=memory_kib, passes=passes, lanes=lanes)
        self._known: dict[str, bytes] = {}
        """Keyed hash of the password a user has logged in with; one each, as a user has one password."""
        self._checks: dict[bytes, _Check] = {}
        self._queue: deque[_Check] = deque()
        self._running: tuple[int, _Check] | None = None
        self._tickets = count(1)
        self._user_failures = _Failures(limits.login_failures_per_user_max)
        self._address_failures = _Failures(limits.login_failures_per_address_max)
        state.watch(self._on_changes)

    def begin(self, user: str, password: str | bytes | None, peer: Peer, now: Now) -> Verdict | Pending:
        """Check a log-in. `password` is None when a client certificate has proved who it is."""
        if user in self._loopback_users and not is_loopback(peer.host):
            return Verdict(user, NOT_LOCAL.format(user))
        record = self._state.users.get(user)
        if password is None:
            return Verdict(user, None if record is not None else INVALID.format(user))
        if not password:
            return Verdict(user, BLANK_PASSWORD.format(user))
        if isinstance(password, str):
            password = password.encode("utf-8", "surrogatepass")
        key = self._keyed(user, password, record)
        known = self._known.get(user)
        if record is not None and known is not None and hmac.compare_digest(known, key):
            return Verdict(user, None)
        return self._check(user, password, peer.host, now, key=key)

    def delay(self, user: str, address: str, now: Now) -> int:
        """How long log-ins of a user from an address are refused unless the password is known (µs)."""
        return max(self._user_failures.delay(user, now), self._address_failures.delay(address, now))

    def next_work(self) -> Work | None:
        """The next job, unless one is under way: hashes take memory by intent, so they take turns."""
        if self._running is not None or not self._queue:
            return None
        check = self._queue.popleft()
        self._running = (self._next_token(), check)
        return Work(self._running[0], "argon2_verify", (check.stored, check.password))

    def finish(self, token: int, result: object, now: Now) -> list[tuple[int, Verdict]]:
        """Take the result of a job; returns the answers it decides, by ticket; none if it is not ours."""
        if self._running is None or token != self._running[0]:
            return []
        check = self._running[1]
        self._running = None
        del self._checks[check.key]
        self._user_failures.release(check.user)
        self._address_failures.release(check.address)
        record = self._state.users.get(check.user)
        # The user may have been changed or deleted while the hash was computed.
        is_current = record is not None and record.password_hash == check.stored
        if result is True and check.counts and is_current:
            self._known[check.user] = check.key
            return [(ticket, Verdict(check.user, None)) for ticket, _ in check.tickets]
        self._user_failures.add(check.user, now)
        for address in dict.fromkeys(address for _, address in check.tickets):
            self._address_failures.add(address, now)
        return [(ticket, Verdict(check.user, INVALID.format(check.user))) for ticket, _ in check.tickets]

    def _check(self, user: str, password: bytes, address: str, now: Now, *, key: bytes) -> Verdict | Pending:
        """Find out whether a password that is not known yet is right."""
        if self._user_failures.is_over(user, now) or self._address_failures.is_over(address, now):
            return Verdict(user, TOO_MANY_FAILURES.format(user))
        record = self._state.users.get(user)
        stored = self._decoy
        counts = False
        if record is not None and record.hashing_algorithm == ARGON2ID:
            stored, counts = record.password_hash, True
        elif record is not None and is_salted_match(password, record.password_hash, record.hashing_algorithm):
            self._known[user] = key
            return Verdict(user, None)
        check = self._checks.get(key)
        if check is None:
            if len(self._queue) >= limits.logins_waiting_max:
                return Verdict(user, TOO_MANY_WAITING.format(user))
            check = self._checks[key] = _Check(user, key, stored, password, counts, address, [])
            self._queue.append(check)
            self._user_failures.hold(user)
            self._address_failures.hold(address)
        ticket = next(self._tickets)
        check.tickets.append((ticket, address))
        return Pending(ticket)

    def _keyed(self, user: str, password: bytes, record: User | None) -> bytes:
        """A keyed hash of user, password and stored hash: it changes with each, and tells nothing of them."""
        stored = "" if record is None else record.password_hash
        fields = (user.encode("utf-8", "surrogatepass"), password, stored.encode())
        parts = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
        return hmac.new(self._key, parts, hashlib.sha256).digest()

    def _on_changes(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change.record, User):
                self._known.pop(change.record.name, None)


class _Failures:
    """Failed log-ins per user or address: each has an allowance that comes back evenly over time.

    Checks under way count as failures until they are done, or one address could fill the queue of checks
    before the first of its failures is known.
    """

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._held: dict[str, int] = {}
        self._spent: dict[str, tuple[float, int]] = {}
        """What is spent of the allowance, and when that was true; the longest unchanged first."""

    def is_over(self, name: str, now: Now) -> bool:
        return self._spent_now(name, now) + self._held.get(name, 0) > self._allowed - 1

    def delay(self, name: str, now: Now) -> int:
        """How long it takes until one more is allowed (µs); 0 if one is."""
        over = self._spent_now(name, now) + self._held.get(name, 0) - (self._allowed - 1)
        return max(0, math.ceil(over * limits.login_failures_window_us / self._allowed))

    def hold(self, name: str) -> None:
        self._held[name] = self._held.get(name, 0) + 1

    def release(self, name: str) -> None:
        self._held[name] -= 1
        if not self._held[name]:
            del self._held[name]

    def add(self, name: str, now: Now) -> None:
        spent = self._spent_now(name, now)
        self._spent.pop(name, None)
        # The oldest goes first: forgetting it early only forgives somebody who has been quiet for long.
        if len(self._spent) >= limits.login_failures_tracked_max:
            del self._spent[next(iter(self._spent))]
        self._spent[name] = (spent + 1, now.mono)

    def _spent_now(self, name: str, now: Now) -> float:
        spent, since = self._spent.get(name, (0.0, now.mono))
        returned = (now.mono - since) * self._allowed / limits.login_failures_window_us
        return max(0.0, spent - returned)


def is_loopback(host: str) -> bool:
    """Whether an address is this machine, written as IPv4, IPv6 or IPv4 within IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
