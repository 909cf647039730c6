"""Whatever Python hands to the kernel, it answers with an exception and not with a crash."""

import pytest

from mirrormq.kernel.cores import ChannelCore, ConsumerCore, QueueCore
from mirrormq.kernel.frames import EV_ERROR, FrameReader, Route, RouteMemo
from mirrormq.kernel.message import Message
from mirrormq.kernel.outbuffer import OutBuffer
from tests.support.kernelkit import NO_PROPERTIES, Kit, frame, header, publish, publish_method


def message(body: bytes = b"x") -> Message:
    return Message(b"", b"q", NO_PROPERTIES, body)


@pytest.mark.parametrize("kind", [QueueCore, ChannelCore, ConsumerCore, OutBuffer, Route, RouteMemo])
def test_no_half_made_object_can_exist(kind):
    with pytest.raises(TypeError):
        kind.__new__(kind)


def test_a_message_handle_without_a_message_reads_as_an_empty_one():
    empty = Message.__new__(Message)
    assert (empty.exchange, empty.routing_key, empty.properties, empty.body) == (b"", b"", b"\x00\x00", b"")
    queue = Kit().queue()
    queue.push(empty)
    assert queue.pending == 1


def test_a_message_that_is_initialised_again_leaves_its_queues_as_they_were():
    kit = Kit()
    queue, handle = kit.queue(), message(b"first")
    queue.push(handle)
    handle.__init__(b"", b"q", NO_PROPERTIES, b"second")
    kit.admit(queue)
    assert queue.get(kit.channel, True, 0, 0)
    assert kit.delivered() == [(1, False, b"first")]


@pytest.mark.parametrize("method", ["admit", "refuse"])
def test_no_more_entries_are_admitted_or_refused_than_wait(method):
    queue = Kit().queue()
    queue.push(message())
    with pytest.raises(ValueError, match="fewer"):
        queue.admit(2, 1, 0) if method == "admit" else queue.refuse(2, False)
    assert (queue.pending, queue.ready) == (1, 0)


@pytest.mark.parametrize("wrong", [None, 5, "queue"])
def test_only_queues_are_published_to_and_only_consumers_are_served(wrong):
    kit = Kit()
    queue = kit.fill([b"x"])
    with pytest.raises(TypeError):
        kit.channel.enqueue(message(), [queue, wrong])
    with pytest.raises(TypeError):
        Route(b"", b"q", [wrong], True)
    with pytest.raises(TypeError):
        queue.set_consumers([[kit.consumer(), wrong]])
    assert queue.deliver(0, 0) == 0


def test_lists_given_to_the_kernel_may_change_afterwards():
    kit = Kit()
    queue = kit.fill([b"1", b"2"])
    members, targets = [kit.consumer(no_ack=True)], [queue]
    queue.set_consumers([members])
    route = Route(b"", b"q", targets, True)
    members.clear()
    targets.append(None)
    assert queue.deliver(0, 0) == 2
    assert route.targets == [queue]


def test_a_resolver_must_answer_with_a_route():
    kit = Kit()
    kit.reader.memo = RouteMemo(lambda exchange, key: None)
    with pytest.raises(TypeError):
        kit.feed(publish(b"q", b"x"))


@pytest.mark.parametrize("action", ["keep", "next", "feed", "read"])
def test_a_resolver_cannot_move_the_bytes_that_are_being_read(action):
    kit = Kit()
    reader = kit.reader
    calls = {
        "keep": reader.keep,
        "next": reader.next,
        "feed": lambda: reader.feed(b"xxx"),
        "read": lambda: reader.read(1),
    }

    def resolve(exchange: bytes, key: bytes) -> Route:
        with pytest.raises((RuntimeError, ValueError)):
            calls[action]()
        return Route(exchange, key, [kit.queue(key)], True)

    reader.memo = RouteMemo(resolve)
    assert kit.feed(publish(b"a", b"1") + publish(b"b", b"2"), 11) == []
    assert (kit.queue(b"a").pending, kit.queue(b"b").pending) == (1, 1)


def test_a_resolver_that_raises_leaves_the_frame_for_the_next_attempt():
    kit = Kit()
    attempts = []

    def resolve(exchange: bytes, key: bytes) -> Route:
        attempts.append(key)
        if len(attempts) == 1:
            raise LookupError
        return Route(exchange, key, [kit.queue(key)], True)

    kit.reader.memo = RouteMemo(resolve)
    kit.reader.feed(publish(b"a", b"1"))
    with pytest.raises(LookupError):
        kit.reader.next()
    assert kit.reader.next() is None
    kit.reader.keep()
    assert kit.queue(b"a").pending == 1


def test_names_and_levels_are_bounded():
    kit = Kit()
    with pytest.raises(ValueError, match="255"):
        kit.consumer(tag=b"c" * 256)
    with pytest.raises(ValueError, match="255"):
        QueueCore(kit.work, kit.grave, None, 256)
    with pytest.raises(ValueError, match="byte"):
        Route(b"x" * 256, b"", [], True)


def test_a_body_size_near_the_end_of_the_number_range_is_refused_not_wrapped():
    kit = Kit()
    kit.reader.max_message_size = (1 << 64) - 1
    for size in ((1 << 64) - 1, (1 << 64) - 40, 1 << 63):
        kit.channel = ChannelCore(1, 77, kit.out)
        kit.reader.add_channel(kit.channel)
        kit.reader.feed(publish_method(b"q") + header(size))
        with pytest.raises(MemoryError):
            kit.reader.next()
        kit.reader = FrameReader(131072, (1 << 64) - 1)
        kit.reader.memo = RouteMemo(lambda exchange, key: Route(exchange, key, [], True))


@pytest.mark.parametrize("frame_max", [0, 1, 7, 8, 9, 20])
def test_any_frame_max_gives_whole_frames(frame_max):
    kit = Kit()
    kit.out.frame_max = frame_max
    queue = kit.fill([b"0123456789" * 3, b""])
    queue.set_consumers([[kit.consumer(no_ack=True)]])
    queue.deliver(0, 0)
    assert kit.delivered() == [(1, False, b"0123456789" * 3), (2, False, b"")]


def test_a_tiny_frame_max_of_the_reader_refuses_and_does_not_wrap():
    kit = Kit()
    kit.reader.frame_max = 5
    assert [event[:3] for event in kit.feed(frame(1, 1, b"abcdef"))] == [(EV_ERROR, 1, "too_large")]


def test_an_error_repeats_and_nothing_after_it_is_read():
    for bad in (b"\x01\x00\x01\x00\x02\x00\x01", frame(1, 1, b"abcd")[:-1] + b"\x00"):
        kit = Kit()
        kit.reader.feed(bad + publish(b"q", b"x"))
        first, second = kit.reader.next(), kit.reader.next()
        kit.reader.keep()
        assert first == second == kit.reader.next()
        assert first[0] == EV_ERROR
        assert kit.queue().pending == 0


def test_a_body_frame_with_a_wrong_end_publishes_nothing_however_often_the_reader_is_asked():
    kit = Kit()
    data = bytearray(publish(b"q", b"body"))
    data[-1] = 0
    kit.reader.feed(bytes(data) + publish(b"q", b"x"))
    assert kit.reader.next() == kit.reader.next()
    kit.reader.keep()
    assert kit.reader.next()[2] == "frame_end"
    assert kit.queue().pending == 0


def test_rows_read_back_are_checked_before_anything_changes():
    kit = Kit()
    queue = kit.fill([b"%d" % i for i in range(600)])
    queue.spill(0)
    row = (message(), 1, 0, False, 0)
    for level, rows, upto in [
        (1, [row], 1),
        (0, [(None, 1, 0, False, 0)], 1),
        (0, [row, (message(), "seq", 0, False, 0)], 2),
        (0, [row] * 601, 600),
        (0, [row], 600),  # says that the run is read, but entries are missing
    ]:
        with pytest.raises((ValueError, TypeError)):
            queue.refill(level, rows, upto)
        assert queue.wanted() == (0, 1, 600, 600)
        assert queue.ready == 600
    kit.grave.free(1000)
    assert row[0].body == b"x"
