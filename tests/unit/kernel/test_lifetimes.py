"""Objects that are gone leave no trace: no stale mark, no lost message, no memory."""

import gc
import os
import resource
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrormq.kernel.cores import ChannelCore, ConsumerCore, QueueCore
from mirrormq.kernel.frames import FrameReader, Route, RouteMemo
from mirrormq.kernel.message import Message
from mirrormq.kernel.outbuffer import OutBuffer
from tests.support.kernelkit import PERSISTENT, Kit, publish, publish_method, read_deliveries


def message(body: bytes = b"x") -> Message:
    return Message(b"", b"q", PERSISTENT, body)


def test_a_barrier_names_its_queue_even_where_a_dead_channel_noted_it_before():
    """A new channel often gets the address of one just freed; its confirms must wait all the same."""
    kit = Kit()
    queue = kit.queue()
    queue.durable = True
    for number in range(20):
        ChannelCore(2, number, kit.out).enqueue(message(), [queue])
        heir = ChannelCore(2, number, kit.out)
        heir.enqueue(message(), [queue])
        assert heir.take_barrier()[1] == [queue]
        del heir


def test_a_reader_names_the_queues_it_fed_even_where_a_dead_reader_fed_them_before():
    kit = Kit()
    for turn in range(20):
        reader = FrameReader(131072)
        reader.memo = kit.reader.memo
        reader.add_channel(kit.channel)
        reader.feed(publish(b"q", b"x"))
        assert reader.next() is None
        reader.keep()
        if turn % 2:
            assert reader.take_fed() == [kit.queue()]
        del reader


def test_two_channels_that_publish_in_turn_both_wait_for_the_queue():
    kit = Kit()
    queue = kit.queue()
    queue.durable = True
    other = ChannelCore(2, 78, kit.out)
    for channel in (kit.channel, other, kit.channel):
        channel.enqueue(message(), [queue])
    assert set(kit.channel.take_barrier()[1]) == {queue}
    kit.channel.enqueue(message(), [queue])
    assert set(other.take_barrier()[1]) == {queue}
    assert set(kit.channel.take_barrier()[1]) == {queue}


def test_a_number_opened_again_belongs_to_the_new_channel():
    kit = Kit()
    kit.feed(publish(b"q", b"old"))
    new = ChannelCore(1, 78, kit.out)
    new.confirm = True
    kit.reader.add_channel(new)
    kit.feed(publish(b"q", b"new"))
    assert (kit.channel.publish_no, new.publish_no) == (0, 1)


def test_a_route_resolved_while_the_memo_is_cleared_is_used_once_and_forgotten():
    kit = Kit()
    asked = []

    def resolve(exchange: bytes, key: bytes) -> Route:
        asked.append(key)
        if len(asked) < 3:
            memo.clear()
        return Route(exchange, key, [kit.queue(key)], True)

    memo = kit.reader.memo = RouteMemo(resolve)
    kit.feed(publish(b"a", b"") * 5)
    assert asked == [b"a"] * 3
    assert kit.queue(b"a").pending == 5


def test_clearing_the_memo_between_a_publish_and_its_header_keeps_the_route_alive():
    kit = Kit()
    data, method = publish(b"q", b"body"), publish_method(b"q")
    kit.feed(data[: len(method)])
    kit.reader.memo.clear()
    gc.collect()
    kit.feed(data[len(method) :])
    assert kit.queue().pending == 1


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="its address space has no limit")
@pytest.mark.parametrize("no_ack", [False, True])
@pytest.mark.parametrize("how", ["deliver", "get"])
def test_a_message_that_cannot_be_written_for_lack_of_memory_stays_first_in_its_queue(no_ack, how):
    kit = Kit()
    kit.out.frame_max = 0  # one body frame, quick to read back
    queue = kit.fill([b"x" * (100 << 20), b"second"])
    queue.set_consumers([[kit.consumer(no_ack=no_ack)]])

    def act() -> object:
        return queue.deliver(0, 0) if how == "deliver" else queue.get(kit.channel, no_ack, 0, 0)

    with open("/proc/self/statm", encoding="ascii") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (32 << 20), before[1]))
    try:
        with pytest.raises(MemoryError):
            act()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert (queue.ready, queue.unacked, kit.channel.unacked) == (2, 0, 0)
    assert kit.delivered() == []
    for tag, body in [(1, b"x" * 5), (2, b"secon")]:
        assert act()
        assert [(found, text[:5]) for found, _, text in kit.delivered()] == [(tag, body)]
        assert kit.channel.ack(tag, False) != no_ack


@pytest.mark.parametrize("no_ack", [False, True])
def test_one_delivery_that_is_never_acked_does_not_hold_the_memory_of_those_after_it(no_ack):
    kit = Kit()
    queue, other = kit.queue(b"held"), kit.queue()
    queue.push(message(b"held"))
    queue.admit(1, 1, 0)
    assert queue.get(kit.channel, False, 0, 7)
    other.set_consumers([[kit.consumer(no_ack=no_ack, prefetch=1)]])
    for turn in range(20_000):
        other.push(message())
        other.admit(1, turn + 1, 0)
        assert other.deliver(0, 0) == 1
        assert kit.channel.ack(kit.channel.next_tag - 1, False) != no_ack
        if turn % 1000 == 0:
            kit.out.take()
            other.take_settled()
    assert kit.channel.memory < 20_000
    assert kit.channel.oldest_delivery() == 7
    assert not kit.channel.has(2, False)
    assert kit.channel.ack(1, False)
    assert kit.channel.oldest_delivery() == 0
    assert kit.channel.memory < 20_000


@given(
    st.lists(
        st.tuples(st.sampled_from(["tracked", "free", "ack", "acks", "requeue"]), st.integers(0, 400)),
        max_size=40,
    ),
    st.integers(1, 70),
)
@settings(max_examples=100, deadline=None)
def test_delivery_tags_are_known_exactly_while_they_are_outstanding(steps, burst):
    kit = Kit()
    queue = kit.queue()
    outstanding: set[int] = set()
    for step, number in steps:
        tag = kit.channel.next_tag
        if step in ("tracked", "free"):
            kit.fill([b""] * burst)
            for _ in range(burst):
                assert queue.get(kit.channel, step == "free", 0, tag)
                tag += 1
            if step == "tracked":
                outstanding |= set(range(tag - burst, tag))
        elif outstanding:
            tag = sorted(outstanding)[number % len(outstanding)]
            done = {t for t in outstanding if t <= tag} if step == "acks" else {tag}
            assert kit.channel.settle(tag, step == "acks", 1 if step == "requeue" else 0)
            outstanding -= done
        kit.out.take()
        last = kit.channel.next_tag
        for probe in (1, tag - 1, tag, tag + 1, last - 1, last, number):
            assert kit.channel.has(max(probe, 1), False) == (max(probe, 1) in outstanding)
        assert kit.channel.unacked == len(outstanding) == queue.unacked
    kit.channel.release()
    assert (kit.channel.unacked, kit.channel.oldest_delivery()) == (0, 0)


class Owner:
    """Something to watch die."""


def test_a_queue_with_consumers_and_a_released_channel_is_collected():
    kit = Kit()
    owner = Owner()
    queue = QueueCore(kit.work, kit.grave, owner, 3)
    owner.core = queue
    channel = ChannelCore(5, 5, OutBuffer(kit.dirty, 9))
    consumer = ConsumerCore(channel, b"c", False, 0)
    queue.set_consumers([[consumer]])
    for _ in range(5):
        channel.enqueue(message(b"x" * 50), [queue])
    queue.admit(4, 1, 0)
    queue.deliver(0, 0)
    channel.nack(1, False, True)
    channel.release()
    queue.dead_letter = True
    queue.deliver(0, 0)
    channel.nack(5, False, False)
    channel.release()
    kit.work.take()
    watch = weakref.ref(owner)
    del owner, queue, channel, consumer
    gc.collect()
    assert watch() is None
    assert kit.grave.free(100) == 0


def test_a_channel_dropped_without_release_gives_up_its_messages_and_queues():
    kit = Kit()
    queue = QueueCore(kit.work, kit.grave, owner := Owner(), 0)
    for _ in range(200):
        queue.push(message())
    queue.admit(200, 1, 0)
    channel = ChannelCore(5, 5, kit.out)
    for turn in range(200):
        assert queue.get(channel, turn % 3 == 1, 0, 0)
    kit.work.take()
    watch = weakref.ref(owner)
    del owner, queue
    gc.collect()
    assert watch() is not None
    del channel
    gc.collect()
    assert watch() is None


def test_a_queue_deleted_while_its_messages_are_unacked_frees_them_with_the_last_ack():
    kit = Kit()
    queue = kit.fill([b"x"] * 130)
    queue.set_consumers([[kit.consumer()]])
    queue.deliver(0, 0)
    queue.destroy()
    assert kit.channel.nack(64, True, True)
    assert kit.channel.ack(0, True)
    assert (queue.unacked, queue.unacked_bytes, queue.ready) == (0, 0, 0)


def test_what_was_taken_from_an_output_does_not_change_when_more_is_written():
    kit = Kit()
    taken = []
    for size in (1, 255, 256, 300, 3000, 200_000, 5):
        kit.out.write(b"a" * size)
        kit.out.write(b"b" * (size // 3))
        taken.append((size, kit.out.take()))
    kit.out.write(b"z" * 400_000)
    kit.out.take()
    assert all(bytes(data) == b"a" * size + b"b" * (size // 3) for size, data in taken)


def test_an_output_is_listed_as_dirty_once_per_take():
    kit = Kit()
    for _ in range(3):
        kit.out.write_heartbeat()
    kit.out.write(b"")
    assert kit.dirty.take() == [1]
    kit.out.take()
    assert kit.out.take() == b""
    kit.out.write_method(1, b"abcd")
    deliver = b"\x00\x3c\x00\x3c\x00" + (1).to_bytes(8, "big") + b"\x00\x00\x01q"
    kit.out.write_content(1, deliver, message(b"hi"))
    assert kit.dirty.take() == [1]
    assert read_deliveries(bytes(kit.out.take())[12:]) == [(1, False, b"hi")]
