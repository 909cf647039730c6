"""Administrative operations that must wait, written as straight code.

An operation is a generator: it yields what it waits for (a metadata change, a password hash, a password
check, another node) and goes on with the result. `run` drives it; whatever happens, `done` is called exactly
once.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol

from mirrormq.base.errors import AmqpError
from mirrormq.base.types import Peer
from mirrormq.broker.queueport import Later
from mirrormq.meta.commands import Command
from mirrormq.meta.state import Outcome
from mirrormq.node.attempts import HTTP


class Problem(NamedTuple):
    """Why a request was not carried out: `kind` for programs, `text` for people."""

    kind: str
    text: str


class Answer(NamedTuple):
    """What became of a request."""

    value: Any = None
    problem: Problem | None = None


Done = Callable[[Answer], None]

UNSTORABLE = (OverflowError, UnicodeEncodeError, RecursionError)
"""What encoding raises for numbers beyond 64 bits, texts that are no Unicode, values nested too deeply."""


class Refusal(Exception):
    """The request cannot be carried out; ends the operation."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.problem = Problem(kind, text)


class Propose(NamedTuple):
    """Wait for a metadata change; gives its `Outcome`. Without `wait` not for the disk."""

    command: Command
    wait: bool = True


class Hash(NamedTuple):
    """Wait for a password's hash; gives (hash, algorithm)."""

    password: str


class Authenticate(NamedTuple):
    """Wait for a log-in to be checked; gives None or why it was refused."""

    user: str
    password: str
    peer: Peer


class Await(NamedTuple):
    """Wait for the master of a queue; gives its answer, or raises what it refused."""

    later: Later[Any]


Wait = Propose | Hash | Authenticate | Await
Steps = Generator[Wait, Any, Any]
Operation = Callable[[Any, Any], Steps | dict[str, Any]]
"""Carries out a request on a host: as steps, or at once if there is nothing to wait for."""


class Waiting(Protocol):
    """What the node can do for an operation that waits."""

    def propose(self, command: Command, done: Callable[[Outcome], None], wait: bool) -> None:
        """Change the metadata."""
        ...

    def hash_password(self, password: str, done: Callable[[str, str], None]) -> None:
        """Hash a new password off the loop; `done` gets the hash and its algorithm."""
        ...

    def authenticate(
        self,
        user: str,
        password: str | None,
        peer: Peer,
        done: Callable[[str | None], None],
        protocol: str,
    ) -> None:
        """Check a log-in; `done` gets None or why it was refused."""
        ...


def run(host: Waiting, operation: Operation, request: Any, done: Done) -> None:
    """Carry out a request to its end."""
    _Run(host, _steps(operation, host, request), done).resume(None)


def _steps(operation: Operation, host: Waiting, request: Any) -> Steps:
    """Every operation as steps, so that a refusal has one way out."""
    result = operation(host, request)
    return result if isinstance(result, dict) else (yield from result)


class _Run:
    """One operation under way. A wait that is over at once goes round a loop, not deeper into the stack."""

    def __init__(self, host: Waiting, steps: Steps, done: Done) -> None:
        self.host = host
        self.steps = steps
        self.done = done
        self._results: list[Any] = []
        self._active = False

    def resume(self, result: Any) -> None:
        """What was waited for is here."""
        self._results.append(result)
        if self._active:
            return
        self._active = True
        while self._results:
            answer = self._advance(self._results.pop())
            if answer is not None:
                self.done(answer)
        self._active = False

    def _advance(self, result: Any) -> Answer | None:
        try:
            wait = self.steps.throw(result) if isinstance(result, AmqpError) else self.steps.send(result)
        except StopIteration as end:
            return Answer(end.value)
        except Refusal as refusal:
            return Answer(problem=refusal.problem)
        except AmqpError as error:
            return Answer(problem=Problem(_KINDS.get(error.code, "bad_request"), error.text))
        try:
            self._begin(wait)
        except UNSTORABLE as error:
            # The store encodes a command before it applies it: nothing has changed.
            self.steps.close()
            return Answer(problem=Problem("bad_request", f"this cannot be stored: {error}"))
        return None

    def _begin(self, wait: Wait) -> None:
        if isinstance(wait, Propose):
            self.host.propose(wait.command, self.resume, wait.wait)
        elif isinstance(wait, Hash):
            self.host.hash_password(wait.password, lambda hashed, algorithm: self.resume((hashed, algorithm)))
        elif isinstance(wait, Await):
            wait.later.when(self.resume)
        else:
            self.host.authenticate(wait.user, wait.password, wait.peer, self.resume, HTTP)


_KINDS = {403: "access_refused", 404: "not_found", 405: "bad_request", 406: "bad_request"}
