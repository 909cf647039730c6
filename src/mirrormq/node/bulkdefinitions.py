"""Definitions of a vhost over the bulk protocol, for jobs that mirror one cluster to another.

Guarantees: only administrators may, as over HTTP. An export is built in slices, so that ten thousand queues
hold nobody up; it is a snapshot of no single moment. What is wrong in an import is found before anything of
it is done. With `origin` definitions are changed only while the vhost mirrors that cluster.
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
    origin: str | None = None


class _Mirror(Struct, frozen=True):
    vhost: str
    mirror_of: str
    via: tuple[str, ...] = ()


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
    given = _taken(call)
    _ask(call, requests.ImportDefinitions(definitions=given.definitions, vhost=given.vhost))


def undefine(call: Call) -> None:
    """Remove from a mirror what definitions name."""
    given = _taken(call)
    _ask(call, requests.RemoveDefinitions(definitions=given.definitions, vhost=given.vhost))


def vhost(call: Call) -> None:
    """Tell whether a vhost is there, and what it mirrors."""
    asked = call.take(_Asked)
    _check_user(call)
    found = call.node.meta.vhosts.get(asked.vhost)
    mirrors = {} if found is None else {"mirror_of": found.mirror_of, "via": list(found.via)}
    call.answer({"exists": found is not None, **mirrors})


def mirror_vhost(call: Call) -> None:
    """Make a vhost that mirrors another cluster; of one that does, note the clusters between."""
    given = call.take(_Mirror)
    _check_user(call)
    if not given.mirror_of:
        raise BulkError(bulk.REFUSED, "mirror_of is the cluster whose messages the vhost is to hold")
    actor = call.session.user
    _ask(call, requests.AddVHost(name=given.vhost, mirror_of=given.mirror_of, via=given.via, actor=actor))


def _ask(call: Call, request: requests.Request) -> None:
    def done(answer: Answer) -> None:
        if answer.problem is not None:
            call.fail(BulkError(bulk.REFUSED, answer.problem.text))
        else:
            call.answer({})

    call.node.admin(call.node.now, request, done)


def _taken(call: Call) -> _Given:
    given = call.take(_Given)
    _check(call, given.vhost)
    mirrors = call.node.meta.vhosts[given.vhost].mirror_of
    if given.origin is not None and given.origin != mirrors:
        now = f"mirrors '{mirrors}'" if mirrors else "is no mirror, or was promoted"
        raise access_refused(f"vhost '{given.vhost}' {now}: no definitions of '{given.origin}'")
    return given


def _check(call: Call, vhost: str) -> None:
    _check_user(call)
    if vhost not in call.node.meta.vhosts:
        raise not_found(f"no vhost '{vhost}'")


def _check_user(call: Call) -> None:
    user = call.session.user
    if "administrator" not in call.node.access.tags(user):
        raise access_refused(f"user '{user}' is no administrator")


HANDLERS: dict[str, Handler] = {
    "definitions": export,
    "define": define,
    "undefine": undefine,
    "vhost": vhost,
    "mirror_vhost": mirror_vhost,
}
