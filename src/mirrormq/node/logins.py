"""Passwords, which are hashed off the loop: log-ins that wait for a check, hashes of new ones.

Guarantee: every log-in and every hash asked for is answered once, whatever the order in which the work ends.
"""

from collections.abc import Callable

from mirrormq.base.types import Now, Peer
from mirrormq.meta.authenticator import Authenticator, Verdict
from mirrormq.meta.passwords import ARGON2ID
from mirrormq.node.attempts import AMQP, Attempts
from mirrormq.node.effects import Effects, WorkKind

__all__ = ["AMQP", "LoginDone", "Logins"]

LoginDone = Callable[[str | None], None]
"""Gets None, or why a log-in was refused."""


class Logins:
    """Work under way, by token."""

    def __init__(
        self,
        authenticator: Authenticator,
        effects: Effects,
        next_token: Callable[[], int],
        cost: tuple[int, int, int],
    ) -> None:
        """`cost`: memory, passes and lanes of new hashes."""
        self._authenticator = authenticator
        self._effects = effects
        self._next_token = next_token
        self._cost = cost
        self.attempts = Attempts()
        self._waiting: dict[int, LoginDone] = {}
        """Log-ins whose password is being checked, by ticket."""
        self._works: dict[int, Callable[[object, Now], None]] = {}

    def check(
        self, user: str, password: str | None, peer: Peer, now: Now, *, done: LoginDone, protocol: str
    ) -> None:
        """Check a log-in; `done` gets None or why it was refused, maybe later."""

        def counted(refusal: str | None) -> None:
            if not peer.is_inside:
                self.attempts.count(protocol, peer.host, user, is_in=refusal is None)
            done(refusal)

        answer = self._authenticator.begin(user, password, peer, now)
        if isinstance(answer, Verdict):
            counted(answer.error)
        else:
            self._waiting[answer.ticket] = counted
            self._check_next()

    def hash(self, password: str, done: Callable[[str, str], None]) -> None:
        """Make a hash for a new password; `done` gets it and the name of its algorithm later."""
        self._compute("argon2_hash", (password, *self._cost), lambda made, _: done(str(made), ARGON2ID))

    def done(self, token: int, result: object, now: Now) -> None:
        """A computation off the loop is finished."""
        self._works.pop(token)(result, now)

    def _check_next(self) -> None:
        work = self._authenticator.next_work()
        if work is not None:
            token = work.token
            self._compute("argon2_verify", work.args, lambda matches, now: self._checked(token, matches, now))

    def _checked(self, token: int, matches: object, now: Now) -> None:
        for ticket, verdict in self._authenticator.finish(token, matches is True, now):
            self._waiting.pop(ticket)(verdict.error)
        self._check_next()

    def _compute(self, kind: WorkKind, args: tuple[object, ...], done: Callable[[object, Now], None]) -> None:
        token = self._next_token()
        self._works[token] = done
        self._effects.work(token, kind, args)
