"""Frames between copies, as values and as bytes."""

from __future__ import annotations

import pytest

from mirrormq.mirror import frames
from mirrormq.mirror.frames import Again, BadFrame, Base, Frame, Hello, Mark, Part, Push, Report, Stop

FULL = Frame(
    (Hello(1, 2, 3, 40, ((1, 1), (2, 30)), 0, 0),),
    (Stop(4, 5),),
    (Report(1, 2, 40, 39, frames.COMPLETE),),
    (Mark(1, 2, 38),),
    (Push(1, 2, 3, 40, 2, True, 4), Base(6, 2, 1, 0, 3, 5), Part(6, 2, 1, 9, 2)),
    (Again(7, 2, 1),),
)
RAW = [b"abcd", b"bas", b"ek", b"pp"]


def test_a_frame_comes_back_as_it_was_and_its_bytes_are_not_copied() -> None:
    parts = frames.encode(FULL, RAW)
    assert list(parts[1:]) == RAW
    assert all(one is other for one, other in zip(parts[1:], RAW, strict=True))
    data = b"".join(parts)
    frame, at = frames.decode(data)
    assert frame == FULL
    assert data[at:] == b"".join(RAW)


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_frame_that_is_cut_off_is_refused(cut: int) -> None:
    data = b"".join(frames.encode(FULL, RAW))
    with pytest.raises(BadFrame):
        frames.decode(data[:-cut])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xf6",
        b"\xf5\x00\x00\x00\x00",
        b"\xf6\xff\xff\xff\xff",
        b"\xf6\x01\x00\x00\x00\xc0",
        b"\xf6\x03\x00\x00\x00\x91\x91\x01",
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadFrame):
        frames.decode(data)


def test_numbers_that_no_node_sends_are_refused() -> None:
    bad = Frame(marks=(Mark(1, 2, 1 << 63),))
    with pytest.raises(BadFrame):
        frames.decode(b"".join(frames.encode(bad, [])))
    negative = Frame(marks=(Mark(1, -2, 1),))
    with pytest.raises(BadFrame):
        frames.decode(b"".join(frames.encode(negative, [])))
