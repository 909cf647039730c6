"""The frame reader: everything in order, whatever the boundaries of reads."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrormq.kernel.frames import EV_ACK, EV_ERROR, EV_HELD, EV_METHOD, EV_PUBLISH, Route, RouteMemo
from tests.support.kernelkit import PERSISTENT, Kit, frame, header, publish, publish_method, settle_method


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20), st.integers(1, 700), st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_messages_arrive_whole_and_in_order_however_the_bytes_are_cut(bodies, step, part):
    kit = Kit()
    data = b"".join(publish(b"q", body, part=part) for body in bodies)
    assert kit.feed(data, step) == []
    queue = kit.queue()
    kit.admit(queue)
    queue.set_consumers([[kit.consumer(no_ack=True)]])
    queue.deliver(0, 0)
    assert [body for _, _, body in kit.delivered()] == bodies


def test_a_plain_publish_never_enters_python():
    kit = Kit()
    assert kit.feed(publish(b"a", b"1") + publish(b"b", b"2") + publish(b"a", b"3")) == []
    assert (kit.queue(b"a").pending, kit.queue(b"b").pending) == (2, 1)


def test_the_reader_stops_at_any_other_method_so_that_order_is_kept():
    kit = Kit()
    other = frame(1, 1, bytes.fromhex("003c00460000") + b"rest")
    kit.reader.feed(publish(b"q", b"1") + other + publish(b"q", b"2"))
    event = kit.reader.next()
    assert event[0] == EV_METHOD
    assert kit.queue().pending == 1
    assert kit.reader.next() is None
    assert kit.queue().pending == 2
    kit.reader.keep()


def test_what_a_parked_connection_did_not_read_is_kept():
    kit = Kit()
    kit.reader.feed(frame(1, 1, b"\x00\x3c\x00\x46") + publish(b"q", b"later"))
    assert kit.reader.next()[0] == EV_METHOD
    kit.reader.keep()
    assert kit.queue().pending == 0
    kit.reader.feed(publish(b"q", b"even later"))
    assert kit.reader.next() is None
    kit.reader.keep()
    assert kit.queue().pending == 2


@pytest.mark.parametrize(
    "properties",
    [
        b"\x00\x10\x05guest",  # user-id
        b"\x02\x00\x15amq.rabbitmq.reply-to",  # direct reply-to
        b"\x20\x00\x00\x00\x00\x08\x02CCA\x00\x00\x00\x00",  # CC header
        b"\x20\x00\x00\x00\x00\x09\x03BCCA\x00\x00\x00\x00",
        b"\x01\x00\x03abc",  # an expiration that is not a number
    ],
)
def test_messages_that_need_judgement_take_the_python_lane(properties):
    kit = Kit()
    events = kit.feed(publish(b"q", b"body", properties))
    assert [event[0] for event in events] == [EV_PUBLISH]
    assert events[0][2].body == b"body"
    assert events[0][2].properties == properties
    assert kit.queue().pending == 0


def test_a_route_that_is_not_plain_hands_every_message_to_python():
    kit = Kit()
    kit.reader.memo = RouteMemo(lambda exchange, key: Route(exchange, key, [], False))
    events = kit.feed(publish(b"q", b"1", bits=1))
    assert [(e[0], e[1], e[3], e[4]) for e in events] == [(EV_PUBLISH, 1, True, False)]


def test_routes_are_asked_for_once_until_the_memo_is_cleared():
    kit = Kit()
    asked = []

    def resolve(exchange: bytes, key: bytes) -> Route:
        asked.append(key)
        return Route(exchange, key, [kit.queue(key)], True)

    kit.reader.memo = RouteMemo(resolve)
    kit.feed((publish(b"a", b"") + publish(b"b", b"")) * 3)
    assert asked == [b"a", b"b"]
    kit.reader.memo.clear()
    kit.feed(publish(b"a", b""))
    assert asked == [b"a", b"b", b"a"]


def test_a_message_whose_content_comes_after_a_change_of_the_topology_takes_the_new_route():
    kit = Kit()
    old, new = kit.queue(b"old"), kit.queue(b"new")
    targets = [old]
    kit.reader.memo = RouteMemo(lambda exchange, key: Route(exchange, key, targets[-1:], True))
    whole = publish(b"a", b"body")
    for cut in range(len(publish_method(b"a")), len(whole)):
        targets.append(old)
        kit.reader.memo.clear()
        kit.feed(whole[:cut])
        targets.append(new)
        kit.reader.memo.clear()
        kit.feed(whole[cut:] + whole)
    assert (old.pending, new.pending) == (0, 2 * (len(whole) - len(publish_method(b"a"))))


def test_confirm_numbers_count_in_both_lanes_and_barriers_name_the_queues():
    kit = Kit()
    kit.channel.confirm = True
    kit.queue(b"a").durable = kit.queue(b"b").durable = True
    kit.feed(b"".join(publish(key, b"x", PERSISTENT) for key in (b"a", b"b", b"a")))
    assert kit.reader.take_confirming() == [kit.channel]
    number, queues = kit.channel.take_barrier()
    assert number == 3
    assert set(queues) == {kit.queue(b"a"), kit.queue(b"b")}
    assert kit.channel.take_barrier() == (3, [])


def test_acks_are_settled_without_python_and_unknown_tags_are_handed_out():
    kit = Kit()
    queue = kit.fill([b"1", b"2", b"3"])
    queue.set_consumers([[kit.consumer()]])
    queue.deliver(0, 0)
    assert kit.feed(settle_method(80, 2, 1)) == []
    assert kit.channel.unacked == 1
    assert kit.feed(settle_method(80, 2, 0)) == [(EV_ACK, 1, "ack", 2, False, False)]
    assert kit.feed(settle_method(90, 3, 1)) == []
    assert queue.ready == 1


def test_acks_of_a_transaction_are_handed_out():
    kit = Kit()
    kit.channel.tx = True
    assert kit.feed(settle_method(120, 5, 3)) == [(EV_ACK, 1, "nack", 5, True, True)]
    assert [e[0] for e in kit.feed(publish(b"q", b"x"))] == [EV_PUBLISH]


def test_an_alarm_stops_the_reader_before_a_publish_and_only_there():
    kit = Kit()
    kit.reader.hold_publish = True
    kit.reader.feed(frame(8, 0, b"") + publish(b"q", b"x"))
    assert kit.reader.next() == (EV_HELD,)
    assert kit.reader.next() == (EV_HELD,)
    kit.reader.keep()
    kit.reader.hold_publish = False
    kit.reader.feed(b"")
    assert kit.reader.next() is None
    kit.reader.keep()
    assert kit.queue().pending == 1


BAD = {
    "unknown_type": b"\x05\x00\x01\x00\x00\x00\x00\xce",
    "too_large": b"\x01\x00\x01\x00\x02\x00\x01",
    "bad_weight": publish_method(b"q") + frame(2, 1, b"\x00\x3c\x00\x01" + bytes(8) + b"\x00\x00"),
    "frame_end": b"\x01\x00\x01\x00\x00\x00\x04abcd\x00",
    "unexpected_header": header(0),
    "unexpected_body": frame(3, 1, b"x"),
    "unexpected_method": publish_method(b"q") + publish_method(b"q"),
    "class_mismatch": publish_method(b"q") + frame(2, 1, b"\x00\x0a\x00\x00" + bytes(8) + b"\x00\x00"),
    "bad_header": publish_method(b"q") + frame(2, 1, b"\x00\x3c\x00\x00" + bytes(8) + b"\x80\x00\xff"),
    "message_too_big": publish_method(b"q") + header(1 << 40),
    "bad_publish": frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\xffab"),
    "not_open": frame(2, 9, b"\x00\x3c"),
    "bad_heartbeat": frame(8, 1, b""),
}


@pytest.mark.parametrize("code", BAD)
def test_malformed_input_is_named_and_nothing_is_enqueued(code):
    kit = Kit()
    events = kit.feed(BAD[code])
    assert [(e[0], e[2]) for e in events] == [(EV_ERROR, code)]
    assert kit.queue().pending == 0


def test_a_body_longer_than_announced_is_an_error():
    kit = Kit()
    events = kit.feed(publish_method(b"q") + header(2) + frame(3, 1, b"xyz"))
    assert [(e[0], e[2]) for e in events] == [(EV_ERROR, "unexpected_body")]


def test_a_closing_channel_hears_only_close_and_close_ok():
    kit = Kit()
    kit.channel.closing = True
    events = kit.feed(publish(b"q", b"x") + settle_method(80, 1, 0) + frame(1, 1, b"\x00\x14\x00\x29"))
    assert events == [(EV_METHOD, 1, b"\x00\x14\x00\x29")]
    assert kit.queue().pending == 0


def test_a_channel_that_fails_in_the_middle_of_a_body_publishes_nothing():
    kit = Kit()
    data = publish(b"q", b"x" * 100)
    kit.feed(data[:-40])
    kit.channel.closing = True
    kit.reader.remove_channel(1)
    assert kit.feed(data[-40:]) == []
    assert kit.queue().pending == 0


@given(st.binary(max_size=400), st.integers(1, 64))
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_never_break_the_reader(data, step):
    Kit().feed(data, step)


MIXED = (
    frame(8, 0, b"")
    + publish(b"q", b"one", b"\x10\x00\x02")
    + frame(1, 1, b"\x00\x3c\x00\x46\x00\x00\x01q\x00")
    + publish(b"q", b"")
    + publish(b"other", b"two" * 9, part=5)
    + settle_method(80, 99, 0)
    + publish(b"q", b"user", b"\x00\x10\x05guest")
    + frame(1, 1, b"\x00\x14")
    + publish(b"q", b"three", part=1)
)


def outcome(cuts: list[int], *, patient: bool) -> tuple[list[object], int, int]:
    """Events and queue lengths; a patient one takes at most one event per read, as if parked."""
    kit = Kit()
    events: list[tuple] = []
    edges = [0, *cuts, len(MIXED)]
    for start, end in pairwise(edges):
        kit.reader.feed(MIXED[start:end])
        while (event := kit.reader.next()) is not None:
            events.append(event)
            if patient:
                break
        kit.reader.keep()
    while (event := kit.reader.next()) is not None:
        events.append(event)
    seen = [(e[0], e[1], e[2].body if e[0] == EV_PUBLISH else e[2]) for e in events]
    assert kit.reader.buffered == 0
    return seen, kit.queue().pending, kit.queue(b"other").pending


@pytest.mark.parametrize("patient", [False, True])
def test_every_cut_of_the_stream_gives_the_same_events_in_the_same_order(patient):
    whole = outcome([], patient=False)
    assert [kind for kind, _, _ in whole[0]] == [EV_METHOD, EV_ACK, EV_PUBLISH, EV_METHOD]
    assert whole[1:] == (3, 1)
    for cut in range(1, len(MIXED)):
        assert outcome([cut], patient=patient) == whole
        assert outcome([cut, min(cut + 3, len(MIXED))], patient=patient) == whole
    assert outcome(list(range(1, len(MIXED))), patient=patient) == whole
