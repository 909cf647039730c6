"""Log-ins of the web UI: a random token instead of a password sent with every request.

Guarantees: a token is known to nobody but the browser that got it (the table keeps its digest); it ends at
log-out, after a time without use, after a time at all, and with the password or the user it was given for,
whichever node these were changed on; there are never more than `limits.http_sessions_max` of them, and one
user's can push out only that user's.

What a page shows by itself is no use: a stream neither keeps a session from idling nor ends with its idling.
So an unattended page goes on showing what it showed, and nothing can be done with it.

There is no cookie, so a foreign page cannot use a session by making the browser send a request.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from mirrormq.base import limits
from mirrormq.meta.state import MetaState

Clock = Callable[[], float]


@dataclass
class Session:
    """One log-in."""

    user: str
    proof: str
    """The stored hash of the password it was given for; another one means that the password was changed."""
    began: float
    used: float


class Sessions:
    """All log-ins at this node."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._found: dict[bytes, Session] = {}
        """By digest of the token, in the order of their last use."""

    def __len__(self) -> int:
        return len(self._found)

    def open(self, state: MetaState, user: str) -> str:
        """A new token for a user whose password was just checked."""
        now = self._clock()
        self._forget_old(now)
        own = [key for key, found in self._found.items() if found.user == user]
        if len(own) >= limits.http_sessions_of_user_max:
            del self._found[own[0]]
        elif len(self._found) >= limits.http_sessions_max:
            del self._found[next(iter(self._found))]
        token = secrets.token_urlsafe(32)
        self._found[_digest(token)] = Session(user, state.users[user].password_hash, now, now)
        return token

    def user_of(self, state: MetaState, token: str, *, is_use: bool = True) -> str | None:
        """Whose token it is; None if it is none, or none any more. `is_use`: somebody does something."""
        key = _digest(token)
        if not self._stands(state, key):
            self._found.pop(key, None)
            return None
        found, now = self._found[key], self._clock()
        if now - found.used > limits.http_session_idle_s:
            return None  # kept: a page that is still open may show what it shows
        if is_use:
            found.used = now
            self._found[key] = self._found.pop(key)
        return found.user

    def stands(self, state: MetaState, token: str) -> bool:
        """May what was opened with a token stay open, though nobody has done anything for long?"""
        return self._stands(state, _digest(token))

    def _stands(self, state: MetaState, key: bytes) -> bool:
        found = self._found.get(key)
        if found is None or self._is_over(found, self._clock()):
            return False
        record = state.users.get(found.user)
        return record is not None and record.password_hash == found.proof

    def close(self, token: str) -> None:
        """Log-out."""
        self._found.pop(_digest(token), None)

    def _forget_old(self, now: float) -> None:
        for key in [key for key, found in self._found.items() if self._is_over(found, now)]:
            del self._found[key]

    def _is_over(self, found: Session, now: float) -> bool:
        return now - found.began > limits.http_session_s


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
