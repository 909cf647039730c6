"""Messages as the API shows and takes them: payloads as text or base64, properties as JSON.

Guarantee: a payload that is shown as a string is that text in UTF-8; anything else is base64, and the answer
says which. Properties that are set keep their names and kinds both ways.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import msgspec

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError
from mirrormq.http import answers
from mirrormq.http.answers import Row, bad_request
from mirrormq.http.jsonbody import LongText, octets_of
from mirrormq.wire.properties import Properties, decode_properties

STRING, BASE64, AUTO = "string", "base64", "auto"
ENCODINGS = (AUTO, BASE64)


def shown_in_pieces(
    head: Row, raw: bytes, body: bytes, size: int | None = None, *, encoding: str, limit: int | None = None
) -> Iterator[bytes]:
    """What `head` says of a message, its payload and its properties, as JSON made piece by piece.

    `size` is that of the whole body, where `body` is only its beginning.
    """
    shown = memoryview(body if limit is None else body[:limit])
    most = limits.http_json_step_bytes
    ends: list[int] | None = None
    if encoding == AUTO:
        ends = []
        for end in _ends(shown, most, is_cut=len(shown) < (len(body) if size is None else size)):
            if end is None:
                ends = None
                break
            ends.append(end)
            yield b""
    yield answers.encoded(head)[:-1] + b',"payload":"'
    at = 0
    if ends is None:
        for at in range(0, len(shown), most // 3 * 3):
            yield base64.b64encode(shown[at : at + most // 3 * 3])
    else:
        for end in ends:
            yield answers.encoded(str(shown[at:end], "utf-8"))[1:-1]
            at = end
    tail = {"payload_encoding": BASE64 if ends is None else STRING, "properties": shown_properties(raw)}
    yield b'",' + answers.encoded(tail)[1:]


def _ends(data: memoryview, most: int, *, is_cut: bool) -> Iterator[int | None]:
    """Where pieces of a text end, between characters; None when it turns out to be none."""
    at = 0
    while at < len(data):
        piece = data[at : at + most]
        end = at + len(piece)
        try:
            str(piece, "utf-8")
        except UnicodeDecodeError as error:
            # A character may have been cut in two: by us, or where the payload was cut.
            is_ours = end < len(data) or is_cut
            if not is_ours or error.start < len(piece) - 3 or error.reason != "unexpected end of data":
                yield None
                return
            end, is_last = at + error.start, end == len(data)
            if is_last:
                yield end
                return
        yield end
        at = end


def shown_properties(raw: bytes) -> Row:
    """The properties that are set."""
    found = decode_properties(raw)
    return {name: value for name, value in msgspec.structs.asdict(found).items() if value is not None}


async def taken_payload(payload: Any, encoding: Any) -> list[bytes]:
    """The body that is meant by a payload, in pieces."""
    if isinstance(payload, LongText) and encoding == STRING:
        return payload.pieces
    if isinstance(payload, LongText) and encoding == BASE64:
        found = await octets_of(payload)
        if found is None:
            raise bad_request(["not_base64", payload.pieces[0][:80].decode("utf-8", "replace")])
        return found
    if isinstance(payload, LongText):
        raise bad_request(["unsupported_encoding", encoding])
    if not isinstance(payload, str):
        raise bad_request("payload must be a text")
    if encoding == STRING:
        return [payload.encode("utf-8", "surrogatepass")]
    if encoding == BASE64:
        try:
            return [base64.b64decode(payload, validate=True)]
        except ValueError:
            raise bad_request(["not_base64", payload[:80]]) from None
    raise bad_request(["unsupported_encoding", encoding])


_KINDS: dict[str, type] = {
    "headers": dict,
    "delivery_mode": int,
    "priority": int,
    "timestamp": int,
}


def taken_properties(given: Any) -> Properties:
    """The properties that are meant by an object."""
    if given == []:  # an empty object, as some clients write it
        given = {}
    if not isinstance(given, dict):
        raise bad_request("properties must be an object")
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in Properties.__struct_fields__:
            raise bad_request(f"unknown property {name}")
        kind = _KINDS.get(name, str)
        if value == [] and kind is dict:
            value = {}
        if kind is int and (not isinstance(value, int) or isinstance(value, bool)):
            raise bad_request(["not_int", name])
        if not isinstance(value, kind):
            raise bad_request(f"property {name} must be {_NAMES[kind]}")
        if isinstance(value, int) and not 0 <= value < (1 << 63 if name == "timestamp" else 256):
            raise bad_request(f"property {name} is out of range")
        values[name] = value
    return Properties(**values)


_NAMES = {dict: "an object", int: "a whole number", str: "a text"}


def encoded_properties(found: Properties) -> bytes:
    """As they travel."""
    from mirrormq.wire.properties import encode_properties

    try:
        return encode_properties(found)
    except (AmqpError, OverflowError, ValueError, UnicodeEncodeError) as error:
        raise bad_request(f"properties cannot be sent: {error}") from None
