"""Frames of inquiries: what is written can be read, and nothing else harms more than the link."""

import random
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from mirrormq.base import limits
from mirrormq.node import inquiryframes as frames
from mirrormq.node.inquiryframes import Ask, Frame, Rows, Stop
from mirrormq.node.peerframes import BadFrame
from mirrormq.wire.table import Timestamp

ROWS = [frames.packed({"name": "a", "messages": 3, "arguments": {"x": [1, None]}}), frames.packed({})]
FRAMES: list[Frame] = [
    Ask(1, "queues"),
    Ask(2, "consumers", b"v\xff", b"name", b"owner", (1, 2, frames.NUMBER_MAX), b"why", 7),
    Rows(3, False, ROWS),
    Rows(3, True, [], "is starting"),
    Stop(4),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_an_inquiry_is_read_as_it_was_written(frame: Frame) -> None:
    data = frames.encode(frame)
    assert data[0] == 0xF7
    for payload in (data, memoryview(data)):
        again = frames.decode(payload)
        if isinstance(frame, Rows) and isinstance(again, Rows):
            assert [frames.row_of(row) for row in again.rows] == [frames.row_of(row) for row in frame.rows]
            assert (again.number, again.is_last, again.problem) == (
                frame.number,
                frame.is_last,
                frame.problem,
            )
        else:
            assert again == frame


def test_fields_of_a_later_version_are_passed_over() -> None:
    later = frames.FIRST + msgspec.msgpack.encode(["stop", 4, "and more"])
    assert frames.decode(later) == Stop(4)


def test_rows_are_kept_after_the_buffer_they_came_in_is_used_again() -> None:
    buffer = bytearray(frames.encode(Rows(3, True, ROWS)))
    found = frames.decode(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert isinstance(found, Rows)
    assert frames.row_of(found.rows[0])["messages"] == 3


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Timestamp(5), 5),
        (Decimal("1.5"), 1.5),
        (b"\xff", b"\xff"),
        ("caf\udce9", "caf\\xe9"),
        ({"k\udce9": ["\udce9"]}, {"k\\xe9": ["\\xe9"]}),
        ((1, 2), [1, 2]),
    ],
)
def test_whatever_a_client_may_have_said_fits_into_a_row(value: Any, shown: Any) -> None:
    assert frames.row_of(frames.packed({"value": value})) == {"value": shown}


@pytest.mark.parametrize("text", ["plain", "caf\udce9", "é"])
def test_texts_of_clients_come_back_as_they_were(text: str) -> None:
    assert frames.text_of(frames.octets(text)) == text


def test_a_text_that_names_nothing_can_still_be_asked_for() -> None:
    for text in ("x" * 5000, "\ud800"):
        assert frames.decode(frames.encode(Ask(1, "connections", name=frames.octets(text))))


def _of(*fields: Any) -> bytes:
    return frames.FIRST + msgspec.msgpack.encode(fields)


BAD = [
    b"",
    b"\xf7",
    b"\xf5" + frames.encode(Stop(4))[1:],
    _of("stop"),
    _of("stop", -1),
    _of("stop", 1 << 62),
    _of("unknown", 1),
    _of("ask", 1, "x" * 256),
    _of("ask", 1, "queues", None, b"x" * (limits.inquiry_text_bytes_max + 1)),
    _of("ask", 1, "queues", None, b"", b"", [0] * (limits.inquiry_ids_max + 1)),
    _of("rows", 1, False, [{}] * (limits.inquiry_rows_per_pass + 1)),
    _of("rows", 1, False, [1]),
    _of("rows", 1, False, [{1: 2}]),
    _of("rows", 1, False, [msgspec.Raw(b"\x81\xa1\xff\x00")]),
    _of("rows", 1, False, [msgspec.Raw(b"\x81\xa1a" + b"\x91" * 5000 + b"\xc0")]),
    frames.encode(Rows(1, False, [frames.packed({"x": b"x" * limits.inquiry_frame_bytes_max})])),
]


@pytest.mark.parametrize("payload", BAD, ids=range(len(BAD)))
def test_what_is_no_inquiry_is_a_bad_frame(payload: bytes) -> None:
    with pytest.raises(BadFrame):
        frames.decode(payload)


def test_a_damaged_inquiry_is_read_or_refused_and_nothing_else() -> None:
    rng = random.Random(7)
    samples = [frames.encode(frame) for frame in FRAMES]
    for _ in range(20_000):
        data = bytearray(rng.choice(samples))
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(1, len(data))
            if rng.random() < 0.3:
                del data[place:]
                data += b"\xc0"
            else:
                data[place] = rng.randrange(256)
        try:
            found = frames.decode(bytes(data))
        except BadFrame:
            continue
        if isinstance(found, Rows):
            for row in found.rows:
                assert isinstance(frames.row_of(row), dict)
