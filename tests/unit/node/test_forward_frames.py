"""Frames between nodes: what is written can be read, and nothing else harms more than the link."""

import random

import pytest

from mirrormq.kernel import forward
from mirrormq.kernel.message import Message
from mirrormq.node import peerframes
from mirrormq.node.peerframes import BadFrame
from mirrormq.wire import methods
from tests.support.bulkkit import BulkUser
from tests.support.clusterkit import ClusterKit
from tests.support.kernelkit import PERSISTENT, Kit, publish, settle_method

BLOCK = forward.encode(Message(b"", b"q", PERSISTENT, b"hello"), False)

FRAMES = [
    peerframes.publish(7, 1, BLOCK, count=1, base=0, is_resent=False),
    peerframes.post(7, (11, 3), BLOCK, is_resent=True),
    peerframes.deliver(5, 1, 1, BLOCK),
    peerframes.got(9, 5, 2, 17, BLOCK),
    peerframes.settle(5, [(0, 1, 4), (3, 6, 6)]),
    peerframes.report(7, 5, [2, 4]),
    peerframes.credit(5, 1000),
    peerframes.encode(peerframes.Hello(1 << 62, 5, 1 << 62)),
    peerframes.encode(peerframes.Sync(6)),
    peerframes.encode(peerframes.Open(7, 0)),
    peerframes.encode(peerframes.Consume(1, 7, 5, 3, b"tag", 10, 0, False, True, -4, b"\0\0\0\0")),
    peerframes.encode(peerframes.Cancel(2, 5, 3)),
    peerframes.encode(peerframes.Limit(8, 5, 10, True)),
    peerframes.encode(peerframes.Get(3, 7, 5)),
    peerframes.encode(peerframes.Ask(4, 7, peerframes.COUNTS, 0)),
    peerframes.encode(peerframes.Answer(4, (1, 2))),
    peerframes.encode(peerframes.Answer(4, (), 404, "no queue")),
    peerframes.encode(peerframes.Cancelled(5, 3)),
    peerframes.encode(peerframes.Hold(7, True)),
    peerframes.encode(peerframes.Ready()),
    peerframes.encode(peerframes.Resume(5, 17, 3, 1000, 10, True)),
    peerframes.encode(peerframes.Settled(5, 32)),
    peerframes.encode(peerframes.Listen(5, b"amq.rabbitmq.reply-to.x.y")),
    peerframes.encode(peerframes.Arrived(7, 11, (3, 4))),
    peerframes.reply(b"amq.rabbitmq.reply-to.x.y", BLOCK),
]


@pytest.mark.parametrize("data", FRAMES, ids=lambda data: type(peerframes.decode(data)).__name__)
def test_a_frame_is_read_as_it_was_written(data: bytes):
    frame, again = peerframes.decode(data), peerframes.decode(memoryview(data))
    assert again == frame
    if isinstance(frame, peerframes.Publish):
        assert frame[:5] == (7, 1, 1, 0, False)
        assert data[frame.at :] == BLOCK


@pytest.mark.parametrize("data", FRAMES)
def test_a_frame_cut_short_is_refused_or_taken_for_what_it_says(data: bytes):
    for size in range(len(data)):
        try:
            peerframes.decode(data[:size])
        except BadFrame:
            continue


def test_numbers_below_zero_are_refused():
    with pytest.raises(BadFrame):
        peerframes.decode(peerframes.encode(peerframes.Open(7, -1)))


def test_a_malformed_block_is_refused_whole():
    kit = Kit()
    queue = kit.queue()
    two = BLOCK + BLOCK
    for at in range(1, len(two)):
        with pytest.raises(forward.Malformed):
            forward.take_publishes(queue, two[:at], 0, 1, 2, 0, 1, False)
    with pytest.raises(forward.Malformed, match="missing"):
        forward.take_publishes(queue, two, 0, 3, 2, 1, 1, False)
    with pytest.raises(forward.Malformed, match="longer"):
        forward.take_publishes(queue, two, 0, 1, 1, 0, 1, False)
    assert queue.pending == 0
    assert forward.take_publishes(queue, two, 0, 1, 2, 0, 1, False) == (2, 2)
    assert forward.take_publishes(queue, two, 0, 2, 2, 2, 1, False) == (3, 1)
    assert queue.pending == 3


def test_a_block_is_what_the_queue_held_and_nobody_waits_without_confirms():
    kit = Kit()
    queue = kit.queue()
    for number in range(5):
        queue.push(Message(b"e", b"k%d" % number, PERSISTENT, b"x" * number), 0, 0)
    block, count, owners = forward.take_waiting(queue, 1 << 20)
    assert (count, owners, queue.pending) == (5, None, 0)
    other = kit.queue(b"other")
    forward.take_publishes(other, block, 0, 1, 5, 0, 1 << 62, False)
    kit.admit(other)
    other.set_consumers([[kit.consumer(no_ack=True)]])
    other.deliver(0, 0)
    assert [body for _, _, body in kit.delivered()] == [b"x" * number for number in range(5)]


def test_blocks_are_cut_at_about_the_size_asked_for():
    kit = Kit()
    queue = kit.queue()
    for _ in range(10):
        queue.push(Message(b"", b"q", PERSISTENT, b"x" * 100), 9, 1)
    block, count, owners = forward.take_waiting(queue, 300)
    assert 300 <= len(block) < 450
    assert count == 3
    assert owners is not None
    assert len(owners) == 48
    assert queue.pending == 7


def recorded() -> tuple[list[bytes], list[bytes]]:
    """Frames of a whole conversation, from home and from master."""
    kit = ClusterKit()
    sent: dict[str, list[bytes]] = {"home": [], "master": []}
    carry = kit.carry

    def listen(source: str, target: str, payload: bytes) -> None:
        if payload[0] == peerframes.FAMILY:
            sent[source].append(payload)
        carry(source, target, payload)

    kit.carry = listen  # type: ignore[method-assign]
    kit.cut("home", "master")
    kit.heal("home", "master")
    talk(kit)
    return sent["home"], sent["master"]


def talk(kit: ClusterKit) -> None:
    kit["master"].client().declare("q")
    client = kit["home"].client()
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    client.feed(b"".join(publish(b"q", b"%d" % at) for at in range(6)))
    client.take()
    client.consume("q")
    client.feed(settle_method(80, 2, 1) + settle_method(120, 3, 2))
    client.send(methods.BasicGet(queue="q"))
    client.send(methods.QueueDeclare(queue="q", passive=True))


HOME, MASTER = recorded()


@pytest.mark.parametrize("seed", range(60))
def test_a_peer_gone_wrong_costs_its_link_and_the_node_goes_on(seed: int):
    rng = random.Random(seed)
    kit = ClusterKit()
    talk(kit)
    for _ in range(30):
        source, target = rng.choice((("home", "master"), ("master", "home")))
        frame = bytearray(rng.choice(HOME if source == "home" else MASTER))
        for _ in range(rng.randrange(4)):
            frame[rng.randrange(2 if rng.random() < 0.2 else 0, len(frame))] = rng.randrange(256)
        if rng.random() < 0.2:
            frame = frame[: rng.randrange(len(frame))]
        kit.node(target).peer_frame(kit.now, source, memoryview(bytes(frame)))
        kit.run()
        if ("home", "master") not in kit.wires:
            kit.heal("home", "master")
    # Both nodes still serve their own clients, and each other again.
    kit.cut("home", "master")
    kit.advance(40)
    kit.heal("home", "master")
    kit.catch_up("home")
    client = kit["home"].client()
    kit["master"].client().declare("later")
    client.publish("later", b"x")
    client.send(methods.BasicGet(queue="later", no_ack=True))
    client.expect(methods.BasicGetOk)


def test_a_get_whose_answer_cannot_be_taken_ends_with_the_link_and_not_never():
    kit = ClusterKit()
    kit["master"].client().declare("q")
    client = kit["home"].client()
    client.publish("q", b"x")
    kit.hold("master", "home")
    client.send(methods.BasicGet(queue="q"))
    wire = kit.wires["master", "home"]
    frames = [peerframes.decode(frame) for frame in wire]
    [(at, got)] = [(at, one) for at, one in enumerate(frames) if isinstance(one, peerframes.Got)]
    wire[at] = peerframes.got(got.request, got.outlet, got.tag + 1, got.left, bytes(got.data[got.at :]))
    kit.release()
    assert [(one, other) for one, other, _ in kit.cuts] == [("home", "master")]
    assert client.expect(methods.ChannelClose).reply_code == 404
    kit.heal("home", "master")
    client = kit["home"].client()
    client.send(methods.BasicGet(queue="q"))
    client.expect(methods.BasicGetOk)


def test_a_get_that_waited_is_refused_when_a_query_has_the_queue_for_itself_by_then():
    kit = ClusterKit()
    kit["master"].client().declare("q", durable=True)
    client = kit["home"].client()
    query = BulkUser.logged_in(kit["master"])
    client.publish("q", b"x", properties=PERSISTENT)
    kit["master"].hold_flushes = True
    client.send(methods.BasicGet(queue="q"))
    asked = query.send("cursor_open", queue="q", name="c", at="earliest", mode="consume", query="orders")
    kit["master"].hold_flushes = False
    kit.run()
    assert query.answer(asked)
    assert client.expect(methods.ChannelClose).reply_code == 403
