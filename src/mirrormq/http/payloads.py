"""Messages as the API shows and takes them: payloads as text or base64, properties as JSON.

Guarantee: a payload that is shown as a string is that text in UTF-8; anything else is base64, and the answer
says which. Properties that are set keep their names and kinds both ways.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from mirrormq.base.errors import AmqpError
from mirrormq.http.answers import Row, bad_request
from mirrormq.wire.properties import Properties, decode_properties

STRING, BASE64, AUTO = "string", "base64", "auto"


def shown_message(raw: bytes, body: bytes, size: int, *, encoding: str, limit: int | None) -> Row:
    """Payload and properties of a message; `size` is that of the whole body."""
    if encoding not in (AUTO, BASE64):
        raise bad_request(f"unknown encoding {encoding}; there are auto and base64")
    shown = body if limit is None else body[:limit]
    text = _text(shown, is_cut=len(shown) < size) if encoding == AUTO else None
    return {
        "payload_bytes": size,
        "payload": base64.b64encode(shown).decode("ascii") if text is None else text,
        "payload_encoding": BASE64 if text is None else STRING,
        "properties": shown_properties(raw),
    }


def _text(data: bytes, *, is_cut: bool) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        # A character may have been cut in two; the rest is a text all the same.
        if is_cut and error.start >= len(data) - 3 and error.reason == "unexpected end of data":
            return data[: error.start].decode()
        return None


def shown_properties(raw: bytes) -> Row:
    """The properties that are set."""
    found = decode_properties(raw)
    return {name: value for name, value in msgspec.structs.asdict(found).items() if value is not None}


def taken_payload(payload: Any, encoding: Any) -> bytes:
    """The body that is meant by a payload."""
    if not isinstance(payload, str):
        raise bad_request("payload must be a text")
    if encoding == STRING:
        return payload.encode("utf-8", "surrogatepass")
    if encoding == BASE64:
        try:
            return base64.b64decode(payload, validate=True)
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
