"""Frames come out whole and in order wherever the stream is cut, and damage ends the link."""

from __future__ import annotations

import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from mirrormq.base import limits
from mirrormq.kernel.crc32c import crc32c
from mirrormq.peer.framing import HEAD, HEAD_BYTES, MORE, Frame, Incoming, Kind, frame, head_of
from mirrormq.peer.lanes import PIECES_MAX, Outgoing

CHUNK = limits.peer_chunk_bytes


def bulk_frame(payload: bytes, *, has_more: bool = False) -> bytes:
    return head_of([payload], len(payload), has_more=has_more) + payload


def read(stream: bytes, cuts: list[int], granted: int = 1 << 40) -> tuple[list[Frame], Incoming]:
    incoming = Incoming()
    incoming.granted = granted
    found: list[Frame] = []
    at = 0
    for cut in [*cuts, len(stream)]:
        found += incoming.receive(memoryview(stream)[at : at + cut])
        at += cut
    found += incoming.receive(memoryview(stream)[at:])
    return found, incoming


payloads = st.one_of(st.binary(max_size=100), st.integers(0, 3 * CHUNK).map(bytes))


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[Frame]]:
    stream, expected = b"", []
    for _ in range(draw(st.integers(0, 6))):
        if draw(st.booleans()):
            payload = draw(st.binary(max_size=300))
            stream += frame(Kind.CONTROL, payload)
            expected.append((Kind.CONTROL, payload))
        else:
            payload = draw(payloads)
            pieces = [payload[at : at + CHUNK] for at in range(0, len(payload), CHUNK)] or [b""]
            for number, piece in enumerate(pieces):
                stream += bulk_frame(piece, has_more=number < len(pieces) - 1)
            expected.append((Kind.BULK, payload))
    return stream, expected


@given(streams(), st.lists(st.integers(0, CHUNK), max_size=20))
def test_a_stream_cut_anywhere_gives_the_same_frames(
    made: tuple[bytes, list[Frame]], cuts: list[int]
) -> None:
    stream, expected = made
    found, incoming = read(stream, cuts)
    assert found == expected
    assert incoming.fault is None


@given(streams(), st.data())
def test_a_changed_byte_ends_the_stream_after_the_frames_before_it(
    made: tuple[bytes, list[Frame]], data: st.DataObject
) -> None:
    stream, expected = made
    if not stream:
        return
    place = data.draw(st.integers(0, len(stream) - 1))
    changed = bytearray(stream)
    changed[place] ^= data.draw(st.integers(1, 255))
    cuts = data.draw(st.lists(st.integers(0, 500), max_size=10))
    found, incoming = read(bytes(changed), cuts)
    # A length that grew may leave the end of the stream waiting for more; nothing wrong ever comes out.
    assert found == expected[: len(found)]
    assert incoming.fault is not None or len(found) < len(expected)


@given(st.lists(st.binary(max_size=400), max_size=30))
def test_arbitrary_bytes_never_raise_and_hold_little_memory(parts: list[bytes]) -> None:
    incoming = Incoming()
    incoming.granted = limits.peer_window_bytes
    for part in parts:
        incoming.receive(memoryview(part))
        assert len(incoming._stash) <= CHUNK + HEAD_BYTES
        assert len(incoming._bulk) <= limits.peer_window_bytes


def test_a_claimed_length_allocates_nothing() -> None:
    incoming = Incoming()
    tracemalloc.start()
    try:
        incoming.receive(memoryview(HEAD.pack(0, CHUNK, Kind.BULK, 0, 0)))
        assert incoming.fault is None
        incoming = Incoming()
        incoming.receive(memoryview(HEAD.pack(0, 0xFFFFFFFF, Kind.BULK, 0, 0)))
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()
    assert incoming.fault is not None
    assert "4294967295 bytes is too long" in incoming.fault.text


def test_more_bulk_than_was_granted_ends_the_stream() -> None:
    found, incoming = read(bulk_frame(b"12345") + bulk_frame(b"6"), [], granted=5)
    assert found == [(Kind.BULK, b"12345")]
    assert incoming.fault is not None
    assert "granted" in incoming.fault.text


@given(st.integers(0, 255), st.integers(0, 255), st.integers(0, 65535), st.binary(max_size=40))
def test_a_frame_with_a_right_checksum_is_understood_or_a_fault(
    kind: int, flags: int, spare: int, payload: bytes
) -> None:
    rest = HEAD.pack(0, len(payload), kind, flags, spare)[4:] + payload
    found, incoming = read(crc32c(rest).to_bytes(4, "little") + rest, [])
    may_wait = kind == Kind.BULK and flags == MORE and payload and not spare
    assert bool(found) + (incoming.fault is not None) == (0 if may_wait else 1)


def drain(outgoing: Outgoing) -> bytes:
    stream = b""
    while pieces := outgoing.take():
        stream += b"".join(pieces)
    return stream


@given(st.lists(st.lists(payloads, max_size=PIECES_MAX + 3), max_size=4), st.lists(st.binary(max_size=50)))
@settings(max_examples=50)
def test_what_both_lanes_send_is_what_arrives(bulk: list[list[bytes]], control: list[bytes]) -> None:
    outgoing = Outgoing()
    outgoing.granted(1 << 40)
    for parts in bulk:
        assert outgoing.bulk(tuple(parts))
    for payload in control:
        assert outgoing.control(payload)
    found, incoming = read(drain(outgoing), [])
    assert incoming.fault is None
    assert [payload for kind, payload in found if kind is Kind.BULK] == [b"".join(parts) for parts in bulk]
    assert [payload for kind, payload in found if kind is Kind.CONTROL] == control
    assert outgoing.bulk_bytes == outgoing.control_bytes == 0


def test_a_control_frame_overtakes_all_bulk_that_has_not_been_handed_out() -> None:
    outgoing = Outgoing()
    outgoing.granted(1 << 40)
    outgoing.bulk((bytes(10 * CHUNK),))
    first = b"".join(outgoing.take())
    assert len(first) <= limits.peer_write_bytes + CHUNK + 2 * HEAD_BYTES
    outgoing.control(b"urgent")
    second = b"".join(outgoing.take())
    assert second.startswith(frame(Kind.CONTROL, b"urgent"))
    found, _ = read(first + second + drain(outgoing), [])
    assert found == [(Kind.CONTROL, b"urgent"), (Kind.BULK, bytes(10 * CHUNK))]


def test_bulk_waits_for_a_grant_and_control_does_not() -> None:
    outgoing = Outgoing()
    outgoing.bulk((b"x" * 100,))
    assert outgoing.take() == []
    outgoing.control(b"now")
    assert drain(outgoing) == frame(Kind.CONTROL, b"now")
    outgoing.granted(30)
    outgoing.granted(10)
    assert len(drain(outgoing)) == HEAD_BYTES + 30
    outgoing.granted(100)
    assert len(drain(outgoing)) == HEAD_BYTES + 70


def test_a_full_bulk_lane_takes_nothing_and_says_once_when_there_is_room() -> None:
    outgoing = Outgoing()
    half = bytes(limits.peer_bulk_queue_bytes // 2)
    assert outgoing.bulk((half,))
    assert outgoing.bulk((half,))
    assert outgoing.is_full
    assert not outgoing.bulk((b"one more",))
    assert not outgoing.has_room_again()
    outgoing.granted(len(half) - CHUNK)
    drain(outgoing)
    assert not outgoing.has_room_again()
    outgoing.granted(len(half) + CHUNK)
    drain(outgoing)
    assert outgoing.has_room_again()
    assert not outgoing.has_room_again()


def test_one_payload_of_any_size_is_taken_when_the_lane_is_not_full() -> None:
    outgoing = Outgoing()
    large = bytes(limits.peer_bulk_queue_bytes * 2)
    assert outgoing.bulk((large,))
    assert not outgoing.bulk((b"",))


def test_empty_payloads_fill_the_lane_too() -> None:
    outgoing = Outgoing()
    for _ in range(1000):
        assert outgoing.bulk(())
    assert outgoing.bulk_bytes == 1000 * HEAD_BYTES
    assert len(drain(outgoing)) == 1000 * HEAD_BYTES


def test_a_peer_that_reads_nothing_fills_no_memory_with_control_frames() -> None:
    outgoing = Outgoing()
    while outgoing.control(bytes(CHUNK)):
        pass
    for number in range(1000):
        outgoing.pong(number, 0)
        outgoing.ping(number)
        outgoing.grant(number)
    assert len(drain(outgoing)) <= limits.peer_control_queue_bytes + 2 * CHUNK


def test_the_checksum_goes_on_over_pieces() -> None:
    assert crc32c(b"cd", crc32c(b"ab")) == crc32c(b"abcd")
