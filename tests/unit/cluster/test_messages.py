"""The messages between nodes: what is written is read, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrormq.base import limits
from mirrormq.cluster.raft import messages as ms

numbers = st.integers(0, (1 << 63) - 1)
short = st.binary(max_size=16)
entries = st.lists(st.tuples(numbers, st.binary(max_size=50)), max_size=5).map(tuple)
MESSAGES = st.one_of(
    st.builds(ms.Hello, short, numbers, st.lists(short, min_size=1, max_size=5).map(tuple)),
    st.builds(ms.Append, numbers, numbers, numbers, numbers, entries),
    st.builds(ms.AppendAnswer, numbers, st.booleans(), numbers, numbers),
    st.builds(ms.Heartbeat, numbers, numbers, numbers, numbers, numbers),
    st.builds(ms.HeartbeatAnswer, numbers, numbers, numbers),
    st.builds(ms.VoteRequest, numbers, numbers, numbers, st.booleans(), st.booleans()),
    st.builds(ms.VoteAnswer, numbers, st.booleans(), st.booleans(), st.text(max_size=20), numbers, numbers),
    st.builds(ms.SnapshotPart, numbers, numbers, numbers, numbers, numbers, numbers, st.binary(max_size=50)),
    st.builds(ms.SnapshotAnswer, numbers, numbers, numbers, numbers),
    st.builds(ms.TimeoutNow, numbers),
)


@given(MESSAGES)
def test_every_message_is_read_as_it_was_written(message: ms.Message) -> None:
    assert ms.decode(ms.encode(message)) == message


@given(MESSAGES, st.data())
def test_a_message_that_was_cut_or_changed_is_refused_or_another_message(
    message: ms.Message, data: st.DataObject
) -> None:
    frame = bytearray(ms.encode(message))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    for broken in (bytes(frame), bytes(frame[:at])):
        try:
            ms.decode(broken)
        except ms.BadMessage:
            continue


@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_refused(frame: bytes) -> None:
    try:
        ms.decode(frame)
    except ms.BadMessage:
        return


def test_another_version_of_the_protocol_is_refused_by_name() -> None:
    with pytest.raises(ms.BadMessage, match="version 02"):
        ms.decode(b"\x02" + ms.encode(ms.TimeoutNow(1))[1:])


def test_a_frame_that_is_too_long_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "raft_frame_bytes_max", 10)
    with pytest.raises(ms.BadMessage, match="bytes"):
        ms.decode(bytes(11))
