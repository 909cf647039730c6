"""A body decoded in steps is what it would be if it were decoded at once."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrormq.base import limits
from mirrormq.http.answers import Fault
from mirrormq.http.jsonbody import LongText, decoded, decoded_message, octets_of
from mirrormq.http.payloads import shown_in_pieces

STEP = limits.http_json_step_bytes
TEXTS = st.sampled_from(["a", "ä", "€", "😀", '"', "\\", "\n", "/", "\x7f", "\u2028", "\0"])


async def is_not_taken(data: bytes, reason: str = "not_json") -> bool:
    with pytest.raises(Fault) as fault:
        await decoded_message(bytearray(data), reason)
    return fault.value.status in (400, 413)


def large(value: Any) -> bytes:
    data = json.dumps(value).encode()
    assert len(data) > STEP
    return data


@pytest.mark.parametrize(
    "value",
    [
        {"users": [f"user-{number}" for number in range(9_000)], "x": None},
        [[{"a": [1, 2, {"b": "c" * 40_000}]}] * 3, [], {}, "", 1.5, True],
        {"definitions": {"queues": [{"name": f"q{number}", "arguments": {}} for number in range(3_000)]}},
        "x" * 100_000,
        [[[[[[[[[["deep"] * 10_000]]]]]]]]],
    ],
)
async def test_what_is_large_is_decoded_as_a_whole(value: Any) -> None:
    assert await decoded(large(value), "not_json") == value


@pytest.mark.parametrize(
    "data",
    [b"{" * 40_000, b"[" + b"1," * 40_000, b'{"a":' + b"[" * 40_000, b" " * 40_000, b"[1]" + b" x" * 40_000],
)
async def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(Fault) as fault:
        await decoded(data, "not_json")
    assert (fault.value.status, fault.value.reason) == (400, "not_json")


@given(st.lists(TEXTS, min_size=1, max_size=6), st.booleans(), st.integers(0, 7))
@settings(max_examples=60, deadline=None)
async def test_a_long_payload_comes_in_pieces_that_make_it_up(
    chars: list[str], is_ascii: bool, shift: int
) -> None:
    unit = "".join(chars)
    payload = "x" * shift + unit * (2 * STEP // len(unit.encode()) + 1)
    message = {"routing_key": "k", "payload": payload, "properties": {"headers": {"payload": 'a"b'}}}
    data = json.dumps(message, ensure_ascii=is_ascii).encode()
    found = await decoded_message(bytearray(data), "not_json")
    text = found.pop("payload")
    assert isinstance(text, LongText)
    assert b"".join(text.pieces) == payload.encode()
    assert all(len(piece) <= STEP and piece.decode() for piece in text.pieces)
    assert found == {name: value for name, value in message.items() if name != "payload"}


async def test_a_long_text_elsewhere_than_in_the_payload_is_refused() -> None:
    long = "x" * (STEP + 1)
    assert await is_not_taken(json.dumps({"payload": "x", "routing_key": long}).encode())
    assert await is_not_taken(json.dumps({"payload": long, "routing_key": long}).encode())
    assert await is_not_taken(json.dumps({"properties": {"payload": long}}).encode())
    assert await is_not_taken(json.dumps([long]).encode())


@pytest.mark.parametrize(
    "tail", [b"", b"\\", b'\\q"}', b'\xff"}', b'\\ud83d"}', b'\\ud83dx"}', b'\n"}', b'\\u12"}', b'"', b'"}}']
)
async def test_a_broken_long_text_is_refused(tail: bytes) -> None:
    for at in (STEP * 2, STEP * 2 - len(b'{"payload":"'), STEP * 2 - 14, STEP * 3 - 1):
        assert await is_not_taken(b'{"payload":"' + b"x" * at + tail)


async def test_a_message_of_very_many_short_parts_is_bounded() -> None:
    assert await is_not_taken(b'{"payload":"x","a":[' + b'"",' * 500_000 + b'""]}')
    assert await is_not_taken(b'{"payload":"x","a":[' + b"1," * 900_000 + b"1]}")


@pytest.mark.parametrize("size", [STEP, STEP + 1, STEP + 2, 3 * STEP + 1])
async def test_base64_is_decoded_over_the_ends_of_pieces(size: int) -> None:
    body = bytes(number % 251 for number in range(size))
    text = base64.b64encode(body)
    for step in (STEP, 1_001, 999):
        pieces = [text[at : at + step] for at in range(0, len(text), step)]
        assert b"".join(await octets_of(LongText(pieces)) or ()) == body
    assert await octets_of(LongText([b"QQ==", b"QUJD"])) is None
    assert await octets_of(LongText([b"QUJD", b"QUJ"])) is None
    assert await octets_of(LongText([b"QU JD", b"QUJD"])) is None


@given(st.lists(TEXTS, min_size=1, max_size=5), st.integers(0, 3), st.integers(0, 8), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_long_message_is_shown_as_it_would_be_at_once(
    chars: list[str], shift: int, cut: int, is_binary: bool
) -> None:
    unit = "".join(chars)
    text = "x" * shift + unit * (2 * STEP // len(unit.encode()) + 1)
    body = text.encode() + (b"\xff" if is_binary else b"")
    shown = json.loads(b"".join(shown_in_pieces({"seq": 1}, b"\0\0", body, encoding="auto")))
    encoding = "base64" if is_binary else "string"
    assert (shown["payload_encoding"], list(shown)[:2]) == (encoding, ["seq", "payload"])
    assert shown["payload"] == (base64.b64encode(body).decode() if is_binary else text)
    limit = len(body) - cut
    shown = json.loads(b"".join(shown_in_pieces({"seq": 1}, b"\0\0", body, encoding="auto", limit=limit)))
    if shown["payload_encoding"] == "string":
        whole = body[:limit].decode("utf-8", "ignore")
        assert shown["payload"] == whole
    else:
        assert base64.b64decode(shown["payload"]) == body[:limit]
    shown = json.loads(b"".join(shown_in_pieces({"seq": 1}, b"\0\0", body, encoding="base64")))
    assert base64.b64decode(shown["payload"]) == body
