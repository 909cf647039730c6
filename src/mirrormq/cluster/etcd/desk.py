"""Requests to etcd on their way, each with whoever waits for its answer."""

from collections.abc import Callable
from itertools import count

from mirrormq.cluster.etcd import api

Done = Callable[[int, api.Answer], None]


class Desk:
    """Numbers requests and hands answers back. Every part asks one thing at a time, so there are few."""

    def __init__(self) -> None:
        self.requests: list[api.Request] = []
        """What was not handed out yet."""
        self.problem = ""
        """Why the last request failed; empty since one succeeded."""
        self._tokens = count(1)
        self._open: dict[int, Done] = {}

    def txn(
        self,
        guards: tuple[api.Guard, ...],
        then: tuple[api.Operation, ...],
        done: Done,
        otherwise: tuple[api.Operation, ...] = (),
    ) -> None:
        """Ask for a transaction."""
        self.requests.append(api.Txn(self._begin(done), guards, then, otherwise))

    def grant(self, seconds: int, done: Done) -> None:
        """Ask for a lease."""
        self.requests.append(api.Grant(self._begin(done), seconds))

    def renew(self, lease: int, done: Done) -> None:
        """Have a lease run on."""
        self.requests.append(api.Renew(self._begin(done), lease))

    def revoke(self, lease: int, done: Done) -> None:
        """Have a lease end."""
        self.requests.append(api.Revoke(self._begin(done), lease))

    def watch(self, key: bytes, end: bytes, revision: int) -> int:
        """Be told changes; returns the token they come under."""
        token = next(self._tokens)
        self.requests.append(api.Watch(token, key, end, revision))
        return token

    def answer(self, now: int, answer: api.Answer) -> None:
        """Hand an answer to whoever waits for it."""
        self.problem = answer.reason if isinstance(answer, api.Failed) else ""
        done = self._open.pop(answer.token, None)
        if done is not None:
            done(now, answer)

    def _begin(self, done: Done) -> int:
        token = next(self._tokens)
        self._open[token] = done
        return token
