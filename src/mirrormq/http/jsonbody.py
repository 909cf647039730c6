"""Bodies of requests: received up to a bound, and decoded from JSON without holding the loop.

Guarantee: no more than the allowed number of bytes is kept of a body. One of some size is decoded in steps:
an object by its fields, an array by its elements, the payload of a message piece by piece, so that it is
never whole in memory as text. What is decoded at once has `limits.http_json_step_bytes` at most, but for
other long texts, and for the look that finds the parts.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from mirrormq.base import limits
from mirrormq.http import answers
from mirrormq.http.answers import Fault, bad_request
from mirrormq.kernel.jsonrows import NoArray, elements

_NO_JSON = (msgspec.DecodeError, NoArray, UnicodeDecodeError, RecursionError)
_DEPTH_MAX = 6
"""Levels that are taken apart; deeper than a definition file has any."""

# Escapes of two surrogates are one character and stay together.
_UNITS = re.compile(
    rb'(?:[^"\\]++|\\(?:["\\/bfnrt]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    rb"|u(?![dD][89abAB])[0-9a-fA-F]{4}))*+"
)
_MARK = "\0long text"
_QUOTE = 0x22


class LongText(NamedTuple):
    """A long text in UTF-8, in pieces that end between characters."""

    pieces: list[bytes]


async def received(request: web.Request, most: int) -> bytearray:
    """The body as it was sent; 413 if it is longer."""
    if request.content_length is not None and request.content_length > most:
        raise too_large(most)
    data = bytearray()
    async for chunk in request.content.iter_any():
        data += chunk
        if len(data) > most:
            raise too_large(most)
    return data


def too_large(most: int) -> Fault:
    """413."""
    return Fault(413, "payload_too_large", f"the body is larger than {most} bytes")


async def decoded(data: bytes | bytearray, reason: str) -> Any:
    """Any JSON value; what is none is refused with this reason."""
    try:
        if len(data) <= limits.http_json_step_bytes:
            return msgspec.json.decode(data)
        await answers.next_turn()  # to receive it took some time
        return await answers.driven(_parts(memoryview(data), 0), every=1)
    except _NO_JSON:
        raise bad_request(reason) from None


async def decoded_message(data: bytearray, reason: str) -> Any:
    """A JSON object whose field `payload` may be very long: then it is a `LongText`."""
    if len(data) <= limits.http_json_step_bytes:
        return await decoded(data, reason)
    try:
        await answers.next_turn()
        rest, texts = await answers.driven(_without_long_texts(data), every=1)
    except _NO_JSON:
        raise bad_request(reason) from None
    found = await decoded(rest, reason)
    if len(texts) > 1 or (texts and (not isinstance(found, dict) or found.get("payload") != _MARK)):
        raise bad_request(f"only the payload may have more than {limits.http_json_step_bytes} bytes")
    if texts:
        found["payload"] = texts[0]
    return found


async def octets_of(text: LongText) -> list[bytes] | None:
    """What is meant by a text in base64; None if it is none."""
    return await answers.driven(_octets(text.pieces), every=1)


def _octets(pieces: list[bytes]) -> Generator[None, None, list[bytes] | None]:
    found = []
    rest = b""
    for number, piece in enumerate(pieces):
        rest += piece
        whole = len(rest) if number == len(pieces) - 1 else len(rest) // 4 * 4
        now, rest = rest[:whole], rest[whole:]
        if b"=" in now and (number < len(pieces) - 1):
            return None  # the padding stands at the end
        try:
            found.append(base64.b64decode(now, validate=True))
        except ValueError:
            return None
        yield
    return found


def _parts(data: memoryview | bytes, depth: int) -> Generator[None, None, Any]:
    """Decode field by field, element by element."""
    yield
    head = bytes(data[: limits.http_json_step_bytes]).lstrip()[:1]
    if len(data) <= limits.http_json_step_bytes or depth > _DEPTH_MAX or head not in (b"{", b"["):
        return msgspec.json.decode(data)
    if head == b"[":
        return (yield from _rows(elements(data), depth))
    found = {}
    for name, section in msgspec.json.decode(data, type=dict[str, msgspec.Raw]).items():
        found[name] = yield from _parts(memoryview(section), depth + 1)
    return found


def _rows(found: Iterator[bytes], depth: int) -> Generator[None, None, list[Any]]:
    rows = []
    for element in found:
        row = yield from _parts(element, depth + 1)
        rows.append(row)
    return rows


def _without_long_texts(data: bytearray) -> Generator[None, None, tuple[bytes, list[LongText]]]:
    """The same with a mark in place of every long text, and these texts."""
    step = limits.http_json_step_bytes
    rest = bytearray()
    texts: list[LongText] = []
    at = 0
    while at < len(data):
        yield
        if len(rest) > limits.http_json_bytes_max:
            raise too_large(limits.http_json_bytes_max)
        quote = data.find(b'"', at, at + step)
        if quote < 0:
            rest += data[at : at + step]
            at += step
            continue
        rest += data[at : quote + 1]
        pieces: list[bytes] = []
        at = quote + 1
        end = _end_of_piece(data, at)
        while data[end] != _QUOTE:
            pieces.append(_piece(data, at, end))
            yield
            at, end = end, _end_of_piece(data, end)
        if pieces:
            texts.append(LongText([*pieces, _piece(data, at, end)]))
            rest += answers.encoded(_MARK)[1:]
        else:
            rest += data[at : end + 1]
        at = end + 1
    return bytes(rest), texts


def _end_of_piece(data: bytearray, at: int) -> int:
    """Where the text that goes on at `at` ends, or a place between characters not far behind."""
    found = _UNITS.match(data, at, at + limits.http_json_step_bytes)
    assert found is not None
    end = found.end()
    if end < len(data) and data[end] == _QUOTE:
        return end
    while at < end < len(data) and data[end] & 0xC0 == 0x80:
        end -= 1
    if end == at or end >= len(data):
        raise msgspec.DecodeError("a text without an end")
    return end


def _piece(data: bytearray, at: int, end: int) -> bytes:
    text: str = msgspec.json.decode(b'"' + data[at:end] + b'"')
    return text.encode()
