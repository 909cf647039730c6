"""Queue, consumer and channel cores: each entry in one place, and in order."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mirrormq.kernel.cores import ChannelCore, ConsumerCore, QueueCore
from mirrormq.kernel.message import Message
from mirrormq.kernel.outbuffer import OutBuffer
from tests.support.kernelkit import NO_PROPERTIES, Kit, read_deliveries


def bodies(deliveries):
    return [body for _, _, body in deliveries]


def test_requeue_returns_messages_to_their_original_position():
    kit = Kit()
    queue = kit.fill([b"%d" % i for i in range(6)])
    queue.set_consumers([[kit.consumer(prefetch=4)]])
    queue.deliver(0, 0)
    kit.delivered()
    assert kit.channel.nack(3, False, True)
    assert kit.channel.nack(1, False, True)
    assert kit.channel.ack(2, False)
    queue.deliver(0, 0)
    assert kit.delivered() == [(5, True, b"0"), (6, True, b"2"), (7, False, b"4")]


def test_a_channel_that_goes_gives_everything_back_in_order():
    kit = Kit()
    queue = kit.fill([b"%d" % i for i in range(200)])
    queue.set_consumers([[kit.consumer()]])
    queue.deliver(0, 0)
    kit.channel.release()
    assert (queue.ready, queue.unacked, kit.channel.unacked) == (200, 0, 0)
    queue.set_consumers([[kit.consumer(no_ack=True)]])
    kit.out.take()
    queue.deliver(0, 0)
    assert bodies(kit.delivered()) == [b"%d" % i for i in range(200)]


def test_a_channel_knows_from_which_queues_an_acknowledgement_takes_something():
    kit = Kit()
    queues = [kit.queue(name) for name in (b"a", b"b", b"c")]
    for queue in (*queues, queues[0]):
        queue.push(Message(b"", b"", NO_PROPERTIES, b"x"))
        kit.admit(queue)
        assert queue.get(kit.channel, False, 0, 0)
    assert kit.channel.covered(4, True) == queues
    assert kit.channel.covered(2, True) == queues[:2]
    assert kit.channel.covered(4, False) == queues[:1]
    kit.channel.ack(1, False)
    assert kit.channel.covered(2, True) == queues[1:2]
    assert kit.channel.covered(1, False) == []
    assert kit.channel.covered(0, True) == []
    assert kit.channel.covered(99, False) == []
    assert kit.channel.covered(1 << 63, True) == [queues[1], queues[2], queues[0]]


def test_prefetch_limits_a_consumer_and_a_shared_one_limits_the_channel():
    kit = Kit()
    queue = kit.fill([b"x"] * 10)
    first, second = kit.consumer(prefetch=3, tag=b"a"), kit.consumer(prefetch=3, tag=b"b")
    queue.set_consumers([[first, second]])
    assert queue.deliver(0, 0) == 6
    kit.channel.ack(0, True)
    kit.channel.prefetch_limit = 2
    assert queue.deliver(0, 0) == 2


def test_consumers_of_equal_priority_take_turns_and_higher_ones_come_first():
    kit = Kit()
    queue = kit.fill([b"%d" % i for i in range(7)])
    low = [kit.consumer(tag=b"l", no_ack=True)]
    high = [kit.consumer(prefetch=2, tag=b"h1"), kit.consumer(prefetch=1, tag=b"h2")]
    queue.set_consumers([high, low])
    queue.deliver(0, 0)
    assert (high[0].delivered, high[1].delivered, low[0].delivered) == (2, 1, 4)
    assert bodies(kit.delivered()) == [b"%d" % i for i in range(7)]


def test_priorities_are_strict_and_fifo_within_one():
    kit = Kit(max_priority=5)
    queue = kit.queue()
    for priority, body in [(0, b"a"), (5, b"b"), (9, b"c"), (2, b"d"), (0, b"e")]:
        queue.push(Message(b"", b"q", bytes([0x08, 0x00, priority]), body))
    kit.admit(queue)
    queue.set_consumers([[kit.consumer(no_ack=True)]])
    queue.deliver(0, 0)
    assert bodies(kit.delivered()) == [b"b", b"c", b"d", b"a", b"e"]


def test_a_message_with_time_to_live_zero_is_delivered_only_if_somebody_waits():
    kit = Kit()
    queue = kit.queue()
    queue.ttl_us = 0
    kit.fill([b"x"], now=100)
    queue.set_consumers([[kit.consumer(no_ack=True)]])
    assert queue.deliver(100, 0) == 1
    queue.set_consumers([])
    kit.fill([b"y"], now=200)
    assert queue.expire(200) == 0
    assert queue.ready == 0


def test_expired_messages_are_never_delivered_and_the_next_expiry_is_told():
    kit = Kit()
    queue = kit.fill([b"short", b"long"], properties=b"\x01\x00\x015", now=1000)  # 5 ms
    queue.push(Message(b"", b"q", NO_PROPERTIES, b"forever"))
    kit.admit(queue, 1000)
    assert queue.expire(1000) == 6000
    queue.set_consumers([[kit.consumer(no_ack=True)]])
    assert queue.deliver(7000, 0) == 1
    assert bodies(kit.delivered()) == [b"forever"]
    assert queue.take_settled() == [(1, 2, 4), (3, 3, 2)]


def test_settled_positions_come_out_as_ranges():
    kit = Kit()
    queue = kit.fill([b"x"] * 10)
    queue.set_consumers([[kit.consumer()]])
    queue.deliver(0, 0)
    kit.channel.ack(4, True)
    kit.channel.ack(7, False)
    kit.channel.nack(8, False, False)
    assert queue.take_settled() == [(1, 4, 1), (7, 7, 1), (8, 8, 3)]
    assert queue.take_settled() == []


def test_rejected_messages_of_a_queue_with_a_dead_letter_exchange_are_kept_for_it():
    kit = Kit()
    queue = kit.fill([b"x", b"y"])
    queue.dead_letter = True
    queue.set_consumers([[kit.consumer()]])
    queue.deliver(0, 0)
    kit.channel.nack(2, True, False)
    assert [(m.body, seq, reason) for m, seq, reason in queue.take_dying()] == [(b"x", 1, 3), (b"y", 2, 3)]
    assert queue.take_settled() == [(1, 2, 3)]


def test_drop_head_keeps_the_newest():
    kit = Kit()
    queue = kit.fill([b"%d" % i for i in range(10)])
    assert queue.drop_head(3, 1 << 60) == 7
    queue.set_consumers([[kit.consumer(no_ack=True)]])
    queue.deliver(0, 0)
    assert bodies(kit.delivered()) == [b"7", b"8", b"9"]


def test_what_does_not_fit_is_refused_and_named():
    kit = Kit()
    queue = kit.queue()
    for number in range(1, 6):
        queue.push(Message(b"", b"q", NO_PROPERTIES, b"12345"), 77, number)
    assert queue.fitting(3, 1 << 60) == 3
    assert queue.fitting(10, 12) == 2
    queue.admit(2, 1, 0)
    queue.refuse(3, False)
    assert queue.take_refused() == [(77, 3), (77, 4), (77, 5)]
    assert (queue.ready, queue.pending) == (2, 0)


def test_no_ack_deliveries_between_tracked_ones_leave_gaps_that_cannot_be_acked():
    kit = Kit()
    tracked, free = kit.fill([b"1", b"2", b"3"]), kit.queue(b"other")
    free.push(Message(b"", b"q", NO_PROPERTIES, b"f"))
    free.admit(1, 1, 0)
    tracked.set_consumers([[kit.consumer(prefetch=1)]])
    free.set_consumers([[kit.consumer(no_ack=True)]])
    tracked.deliver(0, 0)
    free.deliver(0, 0)
    assert not kit.channel.ack(2, False)
    assert kit.channel.ack(1, False)
    tracked.deliver(0, 0)
    assert kit.channel.ack(3, True)
    assert kit.channel.unacked == 0


def test_acks_for_a_deleted_queue_change_nothing():
    kit = Kit()
    queue = kit.fill([b"x"] * 3)
    queue.set_consumers([[kit.consumer(prefetch=1)]])
    queue.deliver(0, 0)
    assert queue.destroy() == 2
    assert kit.channel.ack(1, False)
    assert queue.take_settled() == []
    queue.push(Message(b"", b"q", NO_PROPERTIES, b"late"))
    assert queue.pending == 0


def test_purge_is_immediate_and_frees_in_slices():
    kit = Kit()
    queue = kit.fill([b"x"] * 1000)
    assert queue.purge() == 1000
    assert (queue.ready, queue.ready_bytes) == (0, 0)
    assert kit.grave.free(400) == 600
    assert kit.grave.free(10_000) == 0


def test_delivery_stops_when_the_output_is_full_and_says_so():
    kit = Kit()
    queue = kit.fill([b"x" * 1000] * 100)
    kit.out.high = 5000
    queue.set_consumers([[kit.consumer(no_ack=True)]])
    sent = queue.deliver(0, 0)
    assert 4 <= sent <= 6
    assert kit.out.starved
    kit.out.take()
    assert queue.deliver(0, 0) == sent


def test_entries_beyond_the_head_window_leave_memory_and_come_back_in_order():
    kit = Kit()
    queue = kit.fill([b"%d" % i for i in range(1000)])
    gone = queue.spill(100)
    assert 0 < gone <= 900
    queue.push(Message(b"", b"q", NO_PROPERTIES, b"1000"))
    kit.admit(queue)
    assert queue.ready == 1001
    queue.set_consumers([[kit.consumer(no_ack=True)]])
    head = queue.deliver(0, 0)
    level, first, last, count = queue.wanted()
    assert (level, first, last, count) == (0, head + 1, 1001, gone + 1)
    middle = first + 49
    rows = [
        (Message(b"", b"q", NO_PROPERTIES, b"%d" % (seq - 1)), seq, 0, False, 0)
        for seq in range(first, middle + 1)
    ]
    queue.refill(0, rows, middle)
    assert queue.deliver(0, 0) == 50
    assert queue.wanted()[1:] == (middle + 1, 1001, 1001 - middle)
    assert bodies(kit.delivered()) == [b"%d" % i for i in range(head + 50)]


def test_a_returned_message_waits_for_earlier_ones_that_lie_only_in_the_log():
    kit = Kit()
    queue = kit.fill([b"%d" % i for i in range(600)])
    queue.set_consumers([[kit.consumer()]])
    queue.deliver(0, 0)
    queue.set_consumers([])
    kit.channel.nack(0, True, True)
    assert queue.wanted() is None
    assert queue.ready == 600


def test_every_count_of_a_counted_queue_passes_through_python():
    kit = Kit()
    queue = kit.fill([b"x"])
    queue.counted = True
    queue.set_consumers([[kit.consumer()]])
    queue.deliver(0, 0)
    kit.channel.nack(1, False, True)
    [(message, seq, expiry, deliveries)] = queue.take_coming_back()
    assert (message.body, seq, expiry, deliveries) == (b"x", 1, 0, 0)
    queue.put_back(message, seq, expiry, 1)
    queue.deliver(0, 0)
    kit.channel.nack(2, False, True)
    assert queue.take_coming_back()[0][3] == 1


STEP = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 5)),
    st.tuples(st.just("deliver"), st.just(0)),
    st.tuples(st.just("ack"), st.integers(0, 30)),
    st.tuples(st.just("acks"), st.integers(0, 30)),
    st.tuples(st.just("requeue"), st.integers(0, 30)),
    st.tuples(st.just("get"), st.integers(0, 1)),
    st.tuples(st.just("release"), st.just(0)),
)


@given(st.lists(STEP, max_size=60), st.integers(0, 6))
@settings(max_examples=150, deadline=None)
def test_a_queue_behaves_like_a_sorted_list(steps, prefetch):
    """Model: ready is a sorted list of numbers, unacked a dict by tag."""
    kit = Kit()
    queue = kit.queue()
    queue.set_consumers([[kit.consumer(prefetch=prefetch)]])
    ready, unacked, seen, published, consumed = [], {}, set(), 0, 0
    for step, number in steps:
        if step == "publish":
            kit.fill([b"%d" % (published + i) for i in range(number)])
            ready += range(published, published + number)
            published += number
        elif step == "deliver":
            queue.deliver(0, 0)
        elif step in ("ack", "acks", "requeue") and unacked:
            tag = sorted(unacked)[number % len(unacked)]
            if step == "requeue":
                assert kit.channel.nack(tag, False, True)
                ready.append(unacked.pop(tag)[0])
            else:
                assert kit.channel.ack(tag, step == "acks")
                for done in [t for t in unacked if t == tag or (step == "acks" and t < tag)]:
                    del unacked[done]
                    consumed += 1
        elif step == "get":
            queue.get(kit.channel, bool(number), 0, 0)
        elif step == "release":
            kit.channel.release()
            ready += [value for value, _ in unacked.values()]
            unacked.clear()
        ready.sort()
        for tag, again, body in kit.delivered():
            value = ready.pop(0)
            assert body == b"%d" % value
            assert again == (value in seen)
            seen.add(value)
            if step == "get" and number:
                consumed += 1
            else:
                unacked[tag] = (value, step)
        assert (queue.ready, queue.unacked) == (len(ready), len(unacked))
    assert consumed + queue.ready + queue.unacked == published


def test_delivery_reframes_bodies_for_the_consumers_frame_max():
    kit = Kit()
    queue = kit.fill([b"x" * 10_000])
    small = OutBuffer(kit.dirty, 2, 4096)
    channel = ChannelCore(3, 78, small)
    queue.set_consumers([[ConsumerCore(channel, b"c", True, 0)]])
    queue.deliver(0, 0)
    data = bytes(small.take())
    assert read_deliveries(data) == [(1, False, b"x" * 10_000)]
    assert len(data) > 10_000 + 3 * 8


def test_a_queue_is_in_the_worklist_once_however_often_it_is_touched():
    kit = Kit()
    queue = kit.queue()
    queue.touch()
    queue.touch()
    assert kit.work.take() == [queue]
    assert kit.work.take() == []
    assert isinstance(queue, QueueCore)
