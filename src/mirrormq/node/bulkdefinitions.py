"""Definitions of a vhost over the bulk protocol, for jobs that mirror one cluster to another.

Guarantees: only administrators may, as over HTTP. An export is built in slices, so that ten thousand queues
hold nobody up; it is a snapshot of no single moment. An import is all or nothing.
"""

import json
from collections.abc import Iterator

from msgspec import Struct

from mirrormq.base import limits
from mirrormq.base.errors import access_refused, not_found
from mirrormq.meta.definitions import sections
from mirrormq.meta.state import MetaState
from mirrormq.node import requests
from mirrormq.node.bulkcall import Call, Handler, Output
from mirrormq.node.steps import Answer
from mirrormq.wire import bulk
from mirrormq.wire.bulk import BulkError


class _Asked(Struct, frozen=True):
    vhost: str


class _Given(Struct, frozen=True):
    vhost: str
    definitions: dict[str, object]


class _Export(Output):
    """An export under way."""

    def __init__(self, call: Call, state: MetaState, vhost: str) -> None:
        self._call = call
        self._pieces = exported(state, vhost)
        self._is_waiting = True

    def on_writable(self) -> None:
        """The client takes more."""
        if self._is_waiting:
            self._is_waiting = False
            self._call.node.bulk.go_on_with(self._step)

    def on_cancel(self) -> None:
        """Nobody wants the rest."""
        self._pieces = iter(())

    def _step(self) -> bool:
        """Build some; False when all is sent, or the client takes no more."""
        if self._call.is_over:
            return False
        if not self._call.session.is_taking:
            self._is_waiting = True
            return False
        data = b"".join(
            piece for piece, _ in zip(self._pieces, range(limits.bulk_rows_per_pass), strict=False)
        )
        if data:
            self._call.data(data)
            return True
        self._call.end({})
        return False


def export(call: Call) -> None:
    """Stream a definition file (JSON, as over HTTP) of a vhost."""
    asked = call.take(_Asked)
    _check(call, asked.vhost)
    call.stream = _Export(call, call.node.meta, asked.vhost)
    call.stream.on_writable()


def exported(state: MetaState, vhost: str) -> Iterator[bytes]:
    """The file in pieces of one row at most."""
    yield b"{"
    for number, (name, found) in enumerate(sections(state, vhost)):
        yield (b"," if number else b"") + _encoded(name) + b":"
        if isinstance(found, str):
            yield _encoded(found)
            continue
        yield b"["
        for place, row in enumerate(found):
            yield (b"," if place else b"") + _encoded(row)
        yield b"]"
    yield b"}"


def _encoded(value: object) -> bytes:
    return json.dumps(value, default=str).encode()


def define(call: Call) -> None:
    """Import definitions into a vhost."""
    given = call.take(_Given)
    _check(call, given.vhost)

    def done(answer: Answer) -> None:
        if answer.problem is not None:
            call.fail(BulkError(bulk.REFUSED, answer.problem.text))
        else:
            call.answer({})

    node = call.node
    node.admin(node.now, requests.ImportDefinitions(definitions=given.definitions, vhost=given.vhost), done)


def _check(call: Call, vhost: str) -> None:
    user = call.session.user
    if "administrator" not in call.node.access.tags(user):
        raise access_refused(f"user '{user}' is no administrator")
    if vhost not in call.node.meta.vhosts:
        raise not_found(f"no vhost '{vhost}'")


HANDLERS: dict[str, Handler] = {"definitions": export, "define": define}
