"""An open link: payloads in order in both lanes, keepalives, back-pressure, and an end that is told once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.peer.framing import HEAD_BYTES, Kind, Lane, frame
from mirrormq.peer.link import Down, Loss, Measured, Writable
from tests.support.peerkit import START, End, Wire, card, joined, later

sends = st.lists(
    st.tuples(st.booleans(), st.sampled_from([Lane.CONTROL, Lane.BULK]), st.binary(max_size=60)), max_size=30
)


@given(sends, st.lists(st.integers(1, 200), max_size=60))
@settings(max_examples=60)
def test_two_links_agree_whatever_the_pieces_the_bytes_come_in(
    sent: list[tuple[bool, Lane, bytes]], sizes: list[int]
) -> None:
    wire = Wire(End(card("a@h"), is_dialler=True), End(card("b@h"), is_dialler=False))
    steps = iter([*sizes, *[7] * 200])
    for _ in range(1000):
        wire.move(wire.dialler, next(steps, 1000))
        wire.move(wire.acceptor, next(steps, 1000))
        if wire.dialler.link.is_open and wire.acceptor.link.is_open:
            break
    for from_dialler, lane, payload in sent:
        end = wire.dialler if from_dialler else wire.acceptor
        assert end.link.send(lane, payload)
        end.collect()
        wire.move(end, next(steps, 1000))
    wire.settle()
    for from_dialler, target in ((True, wire.acceptor), (False, wire.dialler)):
        for lane in Lane:
            expected = [payload for who, kind, payload in sent if who is from_dialler and kind is lane]
            assert target.received(lane) == expected


def test_nothing_can_be_sent_before_both_ends_have_agreed() -> None:
    wire = Wire(End(card("a@h"), is_dialler=True), End(card("b@h"), is_dialler=False))
    assert not wire.dialler.link.send(Lane.CONTROL, b"early")
    wire.move(wire.dialler)
    assert not wire.acceptor.link.send(Lane.CONTROL, b"early")
    wire.settle()
    assert wire.dialler.received(Lane.CONTROL) == wire.acceptor.received(Lane.CONTROL) == []


def test_payloads_sent_right_after_ready_arrive_behind_it() -> None:
    wire = Wire(End(card("a@h"), is_dialler=True), End(card("b@h"), is_dialler=False))
    for _ in range(2):
        wire.move(wire.dialler)
        wire.move(wire.acceptor)
    assert not wire.acceptor.link.is_open
    wire.dialler.link.send(Lane.CONTROL, b"first")
    wire.dialler.collect()
    wire.settle()
    assert wire.acceptor.received(Lane.CONTROL) == [b"first"]


def test_a_payload_larger_than_the_window_arrives_whole() -> None:
    wire = joined()
    payload = bytes(range(256)) * (limits.peer_window_bytes // 256 * 3) + b"end"
    assert wire.dialler.link.send(Lane.BULK, memoryview(payload)[:1000], payload[1000:])
    wire.dialler.collect()
    wire.settle()
    assert wire.acceptor.received(Lane.BULK) == [payload]


def test_a_held_link_takes_at_most_the_window_and_control_goes_on() -> None:
    wire = joined()
    wire.acceptor.link.hold()
    piece = bytes(limits.peer_chunk_bytes)
    sent = 0
    while wire.dialler.link.send(Lane.BULK, piece):
        sent += 1
        assert sent < 1000, "nothing holds the sender back"
        wire.dialler.collect()
        wire.settle()
    wire.dialler.link.send(Lane.CONTROL, b"alive")
    wire.dialler.collect()
    wire.settle()
    assert sum(map(len, wire.acceptor.received(Lane.BULK))) == limits.peer_window_bytes
    assert wire.acceptor.received(Lane.CONTROL) == [b"alive"]
    assert wire.dialler.link.is_full
    wire.acceptor.link.unhold()
    wire.acceptor.collect()
    wire.settle()
    assert len(wire.acceptor.received(Lane.BULK)) == sent
    assert wire.dialler.events.count(Writable()) == 1


def test_keepalives_measure_the_round_trip_and_the_other_clock() -> None:
    wire = joined()
    at = later(START, limits.peer_keepalive_us)
    wire.dialler.events.clear()
    wire.dialler.tick(at)
    wire.acceptor.now = Now(555, at.wall + 3_000_000)
    wire.move(wire.dialler)
    wire.dialler.now = later(at, 40_000)
    wire.move(wire.acceptor)
    assert wire.dialler.events == [Measured(40_000, 3_000_000 - 20_000)]
    assert wire.dialler.link.round_trip == 40_000


def test_an_answer_to_a_keepalive_never_sent_is_passed_over() -> None:
    wire = joined()
    wire.dialler.events.clear()
    for echo in (2**64 - 1, 0):
        wire.dialler.now = Now(10 * limits.peer_silence_us, START.wall)
        wire.dialler.hear(frame(Kind.PONG, echo.to_bytes(8, "little") + bytes(8)))
    assert wire.dialler.events == []
    assert wire.dialler.link.is_open


def silence(end: End, total: int) -> None:
    for at in range(0, total, limits.peer_tick_us):
        end.tick(later(START, at))
        end.waiting.clear()


def test_a_link_that_stays_silent_is_given_up_after_its_owner_could_hear_of_it() -> None:
    wire = joined()
    silence(wire.dialler, limits.peer_silence_us)
    assert wire.dialler.link.is_open
    wire.dialler.tick(later(START, limits.peer_silence_us))
    assert wire.dialler.down == Down(eof=False, text="nothing was heard for 10 seconds")


def test_a_standstill_of_this_node_does_not_end_its_links() -> None:
    wire = joined()
    wire.dialler.tick(later(START, 3600 * 1_000_000))
    assert wire.dialler.link.is_open


@pytest.mark.parametrize(("loss", "eof"), [(Loss.EOF, True), (Loss.RESET, True), (Loss.ERROR, False)])
def test_only_what_the_peer_did_itself_counts_as_its_end(loss: Loss, eof: bool) -> None:
    wire = joined()
    wire.dialler.link.lost(loss)
    wire.dialler.link.lost(loss)
    wire.dialler.collect()
    assert [event for event in wire.dialler.events if isinstance(event, Down)] == [Down(eof, loss.value)]
    assert not wire.dialler.link.send(Lane.CONTROL, b"late")


def test_a_goodbye_comes_after_the_payloads_before_it_and_ends_both_ends() -> None:
    wire = joined()
    wire.dialler.link.send(Lane.CONTROL, b"last")
    wire.dialler.link.close("node a@h stops")
    wire.dialler.collect()
    wire.settle()
    assert wire.acceptor.received(Lane.CONTROL) == [b"last"]
    assert wire.acceptor.down == Down(eof=True, text="the other node said: node a@h stops")
    assert wire.dialler.down == Down(eof=False, text="node a@h stops")
    wire.acceptor.link.lost(Loss.EOF)
    wire.acceptor.collect()
    assert len([event for event in wire.acceptor.events if isinstance(event, Down)]) == 1


def test_a_damaged_frame_ends_the_link_after_the_frames_before_it() -> None:
    wire = joined()
    damaged = bytearray(frame(Kind.CONTROL, b"bad"))
    damaged[-1] ^= 1
    wire.acceptor.hear(frame(Kind.CONTROL, b"good") + damaged + frame(Kind.CONTROL, b"never"))
    assert wire.acceptor.received(Lane.CONTROL) == [b"good"]
    assert wire.acceptor.down == Down(eof=False, text="a frame arrived damaged")
    wire.settle()
    assert wire.dialler.down == Down(eof=True, text="the other node said: a frame arrived damaged")


@given(st.lists(st.binary(max_size=300), max_size=10))
def test_arbitrary_bytes_on_an_open_link_end_it_or_wait_for_more(parts: list[bytes]) -> None:
    wire = joined()
    for part in parts:
        wire.acceptor.hear(part)
    if sum(map(len, parts)) >= HEAD_BYTES + limits.peer_chunk_bytes:
        assert wire.acceptor.down
    assert wire.acceptor.received(Lane.CONTROL) == []
