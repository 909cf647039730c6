"""Responses: JSON in RabbitMQ's form, errors as {"error", "reason"}, lists built in slices.

A list of 10,000 rows takes tens of milliseconds; it is built and encoded in pieces of
`limits.http_slice_ms`, between which the loop serves everybody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
from contextvars import ContextVar
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from mirrormq.base import limits
from mirrormq.node.steps import Problem

Item = TypeVar("Item")
Row = dict[str, Any]

_CHECK_EVERY = 4

APP_STOPPED = "app_stopped"
"""The kind of refusal that `mirrormqctl` knows a stopped application by."""

WHOLE: ContextVar[bool] = ContextVar("whole", default=False)
"""True where answers are wanted in one piece, since they are not sent to the one who asked."""

_UNTIL: ContextVar[float] = ContextVar("until", default=0.0)
"""When the slice of this request ends, in the loop's time. Past where it has waited for something since."""

NOT_FOUND = ("Object Not Found", "Not Found")
JSON = "application/json"


class Fault(Exception):
    """Ends a request with an error status."""

    def __init__(self, status: int, error: str, reason: Any, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, error, reason)
        self.status = status
        self.error = error
        self.reason = reason
        self.headers = headers


def not_found() -> Fault:
    """404 as RabbitMQ words it."""
    return Fault(404, *NOT_FOUND)


def bad_request(reason: Any) -> Fault:
    """400."""
    return Fault(400, "bad_request", reason)


def not_authorised(reason: str) -> Fault:
    """401 for somebody who is known and may not."""
    return Fault(401, "not_authorised", reason)


def unavailable(reason: str) -> Fault:
    """503: the application that would have answered does not run."""
    return Fault(503, APP_STOPPED, reason)


def of_problem(problem: Problem) -> Fault:
    """The response to a request the node refused."""
    kind, text = problem
    if kind == "access_refused":
        return Fault(401, "not_authorised", "Access refused.")
    if kind == "not_found":
        return Fault(404, "not_found", text)
    if kind in ("no_such_vhost", "no_such_user", "no_such_queue", "no_such_cursor", "no_such_connection"):
        return not_found()
    if kind == APP_STOPPED:
        return unavailable(text)
    if kind in ("unavailable", "no_master"):
        return Fault(503, kind, text)
    if kind == "internal_error":
        return Fault(500, kind, text)
    return bad_request(text)


def response(value: Any, status: int = 200) -> web.Response:
    """A JSON response."""
    return json_response(encoded(value), status)


def error_response(fault: Fault) -> web.Response:
    """The response to a fault."""
    found = response({"error": fault.error, "reason": fault.reason}, fault.status)
    found.headers.update(fault.headers or {})
    return found


def created(was_created: bool) -> web.Response:
    """The answer to a PUT: 201 for something new, 204 for a change."""
    return web.Response(status=201 if was_created else 204)


def no_content() -> web.Response:
    """204."""
    return web.Response(status=204)


async def rows_response(
    request: web.Request,
    rows: Iterable[Row],
    shape: Callable[[Row], Any] = dict,
    headers: Mapping[str, str] | None = None,
) -> web.StreamResponse:
    """A JSON array, built in slices."""
    return await pieces_response(request, array(encoded(shape(row)) for row in rows), headers)


async def pieces_response(
    request: web.Request,
    pieces: Iterable[bytes],
    headers: Mapping[str, str] | None = None,
    *,
    every: int = _CHECK_EVERY,
) -> web.StreamResponse:
    """Pieces of JSON, or of what `headers` say, made in slices; `every` as for `slices`.

    A long answer is sent while it is made and never whole in memory.
    """
    batches = slices(pieces, every)
    held: list[bytes] = []
    size = 0
    sent = {"cache-control": "no-cache", "content-type": JSON, **(headers or {})}
    async for batch in batches:
        held.append(b"".join(batch))
        size += len(held[-1])
        if size > limits.http_held_bytes_max and not WHOLE.get():
            return await _streamed(request, held, batches, sent)
    return web.Response(body=b"".join(held), headers=sent)


async def _streamed(
    request: web.Request,
    held: list[bytes],
    batches: AsyncIterator[list[bytes]],
    headers: Mapping[str, str],
) -> web.StreamResponse:
    found = web.StreamResponse(headers=headers)
    await found.prepare(request)
    await found.write(b"".join(held))
    async for batch in batches:
        if piece := b"".join(batch):
            await found.write(piece)
    await found.write_eof()
    return found


def array(items: Iterable[bytes]) -> Iterator[bytes]:
    """A JSON array of pieces."""
    yield b"["
    for number, item in enumerate(items):
        yield b"," + item if number else item
    yield b"]"


def array_of(items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """The same of items that come in pieces themselves."""
    yield b"["
    for number, item in enumerate(items):
        if number:
            yield b","
        yield from item
    yield b"]"


async def collected(items: Iterable[Item]) -> list[Item]:
    """All items of an iterator that must not run in one go."""
    found: list[Item] = []
    async for batch in slices(items):
        found += batch
    return found


async def driven(steps: Generator[object, None, Item], every: int = _CHECK_EVERY) -> Item:
    """What a generator returns that gives something, whatever it is, after every short step."""
    result: list[Item] = []

    def watched() -> Iterator[object]:
        result.append((yield from steps))

    async for _ in slices(watched(), every):
        pass
    return result[0]


async def kept(
    items: Iterable[Item], is_wanted: Callable[[Item], object], every: int = _CHECK_EVERY
) -> list[Item]:
    """Those that are wanted. A filter between the items and `collected` would not do: one that lets little
    through runs for long before it gives anything.
    """
    found: list[Item] = []
    async for batch in slices(((bool(is_wanted(item)), item) for item in items), every):
        found += [item for is_one, item in batch if is_one]
    return found


async def sorted_slices(
    items: Iterable[Item], key: Callable[[Item], Any], *, reverse: bool, most: int | None = None
) -> list[Item]:
    """Sort without holding the loop: runs are sorted one by one, then merged as the result is taken.

    With `most` only so many of the first.
    """
    iterator = iter(items)
    runs: list[list[Item]] = []
    while run := await collected(islice(iterator, limits.http_sort_run)):
        run.sort(key=key, reverse=reverse)
        runs.append(run)
        await next_turn()
    return await collected(islice(merge(*runs, key=key, reverse=reverse), most))


async def slices(items: Iterable[Item], every: int = _CHECK_EVERY) -> AsyncIterator[list[Item]]:
    """Take items as long as the slice lasts, let the loop go on, take further ones.

    The time is looked at after `every` few: after each, where one may take longer than a slice.
    What one request does in slices one after the other, without a wait between, shares the slice.
    """
    loop = asyncio.get_running_loop()
    iterator: Iterator[Item] = iter(items)
    batch: list[Item] = []
    while True:
        few = list(islice(iterator, every))
        if not few:
            break
        batch += few
        if loop.time() >= _UNTIL.get():
            yield batch
            batch = []
            await next_turn()
    if batch:
        yield batch


async def next_turn() -> None:
    """Let everything that is ready run first; then a new slice begins."""
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[None] = loop.create_future()
    loop.call_soon(turn.set_result, None)
    await turn
    _UNTIL.set(loop.time() + limits.http_slice_ms / 1000)


def decoded(data: bytes, reason: str) -> Any:
    """A value sent as JSON; anything that is none is refused with this reason."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise bad_request(reason) from None


def whole_number(given: object) -> int | None:
    """A number of a request, given as one or written in ASCII digits; None if it is none.

    `isdigit` takes digits that `int` does not, and `int` itself fails with very many of them: longer than
    `limits.digits_max` is no number somebody means.
    """
    if isinstance(given, str):
        digits = given.removeprefix("-")
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= limits.digits_max
        return int(given) if is_number else None
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def encoded(value: Any) -> bytes:
    """A value as JSON. Names may hold octets that are no text; a client must not break lists by them."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return _ENCODER.encode(_readable(value))


def _readable(value: Any) -> Any:
    """The same value with every stray octet shown as an escape."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {_readable(name): _readable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    """What JSON has no form for: numbers of our own types as numbers, anything else in words."""
    return int(value) if isinstance(value, int) else str(value)


_ENCODER = msgspec.json.Encoder(enc_hook=_plain, decimal_format="number")


def json_response(body: bytes, status: int = 200) -> web.Response:
    """JSON that is encoded already."""
    return web.Response(body=body, status=status, content_type=JSON, headers={"cache-control": "no-cache"})
