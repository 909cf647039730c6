"""Responses: JSON in RabbitMQ's form, errors as {"error", "reason"}, lists built in slices.

A list of 10,000 rows takes tens of milliseconds; it is built and encoded in pieces of
`limits.http_slice_ms`, between which the loop serves everybody else.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from mirrormq.base import limits
from mirrormq.node.steps import Problem

Item = TypeVar("Item")
Row = dict[str, Any]

_CHECK_EVERY = 8

NOT_FOUND = ("Object Not Found", "Not Found")


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


def of_problem(problem: Problem) -> Fault:
    """The response to a request the node refused."""
    kind, text = problem
    if kind == "access_refused":
        return Fault(401, "not_authorised", "Access refused.")
    if kind == "not_found":
        return Fault(404, "not_found", text)
    if kind in ("no_such_vhost", "no_such_user", "no_such_queue", "no_such_connection"):
        return not_found()
    if kind == "internal_error":
        return Fault(500, kind, text)
    return bad_request(text)


def response(value: Any, status: int = 200) -> web.Response:
    """A JSON response."""
    return _json(msgspec.json.encode(value, enc_hook=encodable), status)


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
    rows: Iterable[Row], shape: Callable[[Row], Any] = dict, status: int = 200
) -> web.Response:
    """A JSON array, built in slices."""
    encode = msgspec.json.Encoder(enc_hook=encodable).encode
    pieces = [b",".join(batch) async for batch in slices(encode(shape(row)) for row in rows)]
    return _json(b"[" + b",".join(pieces) + b"]", status)


async def collected(items: Iterable[Item]) -> list[Item]:
    """All items of an iterator that must not run in one go."""
    found: list[Item] = []
    async for batch in slices(items):
        found += batch
    return found


async def sorted_slices(items: Iterable[Item], key: Callable[[Item], Any], *, reverse: bool) -> list[Item]:
    """Sort without holding the loop: runs are sorted one by one, then merged as the result is taken."""
    iterator = iter(items)
    runs: list[list[Item]] = []
    while run := await collected(islice(iterator, limits.http_sort_run)):
        run.sort(key=key, reverse=reverse)
        runs.append(run)
        await next_turn()
    return await collected(merge(*runs, key=key, reverse=reverse))


async def slices(items: Iterable[Item]) -> AsyncIterator[list[Item]]:
    """Take items as long as the slice lasts, let the loop go on, take further ones."""
    loop = asyncio.get_running_loop()
    iterator: Iterator[Item] = iter(items)
    batch: list[Item] = []
    until = loop.time() + limits.http_slice_ms / 1000
    while True:
        few = list(islice(iterator, _CHECK_EVERY))
        if not few:
            break
        batch += few
        if loop.time() >= until:
            yield batch
            batch = []
            await next_turn()
            until = loop.time() + limits.http_slice_ms / 1000
    if batch:
        yield batch


async def next_turn() -> None:
    """Let everything that is ready run first."""
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[None] = loop.create_future()
    loop.call_soon(turn.set_result, None)
    await turn


def encodable(value: Any) -> Any:
    """What JSON has no form for: octets that are no text are shown in base64, anything else in words."""
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return base64.b64encode(data).decode()
    return str(value)


def _json(body: bytes, status: int) -> web.Response:
    return web.Response(
        body=body, status=status, content_type="application/json", headers={"cache-control": "no-cache"}
    )
