"""Memory and time stay within bounds: what leaves memory, what expires behind a head, clocks that jump."""

import pytest

from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.kernelkit import PERSISTENT, frame, publish
from tests.support.nodekit import NodeKit

TEN_SECONDS = b"\x11\x00\x02\x0510000"


def core_of(kit, name):
    return kit.node.vhosts["/"].queues[name].core


def fill(client, queue, count, size=1000, **arguments):
    client.declare(queue, durable=True, arguments=arguments)
    for number in range(count):
        client.publish(queue, b"%d " % number + b"x" * size, properties=PERSISTENT)


def numbers(client):
    return [int(body.split()[0]) for body in client.deliveries()]


def jump(kit, seconds):
    """Somebody sets the wall clock."""
    kit.now = Now(kit.now.mono, kit.now.wall + int(seconds * 1_000_000))
    kit.run()


def test_many_queues_together_keep_no_more_in_memory_than_the_node_may(monkeypatch):
    monkeypatch.setattr(limits, "node_memory_bytes", 200_000)
    monkeypatch.setattr(limits, "share_memory_bytes_min", 2_000)
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    for at in range(20):
        fill(client, f"q{at}", 50)
    kit.advance(1)
    assert kit.node.work.resident <= 200_000
    for at in range(20):
        client.consume(f"q{at}", no_ack=True, tag=f"c{at}")
        assert numbers(client) == list(range(50))
    assert kit.node.work.resident == 0


def test_a_few_large_messages_leave_memory_as_well_as_many_small_ones(monkeypatch):
    monkeypatch.setattr(limits, "queue_memory_bytes", 100_000)
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    fill(client, "q", 30, size=40_000)
    assert core_of(kit, "q").resident <= 100_000
    client.consume("q", no_ack=True)
    assert numbers(client) == list(range(30))


def test_a_lazy_queue_keeps_little_in_memory_from_the_start(monkeypatch):
    monkeypatch.setattr(limits, "lazy_memory_bytes", 5_000)
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    fill(client, "q", 50, **{"x-queue-mode": "lazy"})
    assert core_of(kit, "q").resident <= 5_000
    client.consume("q", no_ack=True)
    assert numbers(client) == list(range(50))


@pytest.mark.parametrize("durable", [True, False])
def test_what_expires_behind_a_living_head_is_swept(durable):
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("q", durable=durable)
    client.publish("q", b"lives", properties=PERSISTENT)
    for number in range(300):
        client.publish("q", b"%d" % number, properties=TEN_SECONDS)
    client.publish("q", b"lives too", properties=PERSISTENT)
    kit.advance(9)
    assert core_of(kit, "q").ready == 302
    kit.advance(2)
    assert core_of(kit, "q").ready == 2
    client.consume("q", no_ack=True)
    assert client.deliveries() == [b"lives", b"lives too"]


def test_what_is_swept_is_dead_lettered():
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("dead", durable=True)
    client.declare(
        "q", durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    )
    client.publish("q", b"lives", properties=PERSISTENT)
    client.publish("q", b"dies", properties=TEN_SECONDS)
    kit.advance(11)
    client.consume("dead", no_ack=True)
    assert client.deliveries() == [b"dies"]
    assert core_of(kit, "q").ready == 1


def test_a_sweep_goes_on_in_the_next_pass_when_there_is_much_to_look_at(monkeypatch):
    monkeypatch.setattr(limits, "sweep_entries", 10)
    kit = NodeKit()
    client = kit.client()
    client.declare("q")
    client.publish("q", b"lives")
    for _ in range(1000):
        client.publish("q", b"dies", properties=TEN_SECONDS)
    kit.advance(11)
    assert core_of(kit, "q").ready == 1


def test_a_wall_clock_that_jumps_ahead_expires_nothing_for_a_minute():
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("q", durable=True)
    client.publish("q", b"young", properties=TEN_SECONDS)
    jump(kit, 3600)
    kit.advance(5)
    assert core_of(kit, "q").ready == 1
    assert any("the wall clock jumped ahead by 3600" in note.text for note in kit.notes)
    kit.advance(6)  # by now it is old in any time
    assert core_of(kit, "q").ready == 0


def test_after_a_minute_the_new_time_counts():
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("q", durable=True, arguments={"x-message-ttl": 600_000})
    client.publish("q", b"young", properties=PERSISTENT)
    jump(kit, 3600)
    kit.advance(0)
    kit.advance(59)
    assert core_of(kit, "q").ready == 1
    kit.advance(2)
    kit.advance(1)
    assert core_of(kit, "q").ready == 0


def test_a_clock_set_back_in_time_undoes_the_jump():
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("q", durable=True, arguments={"x-message-ttl": 600_000})
    client.publish("q", b"young", properties=PERSISTENT)
    jump(kit, 3600)
    kit.advance(30)
    jump(kit, -3600)
    kit.advance(300)
    assert core_of(kit, "q").ready == 1
    kit.advance(300)
    assert core_of(kit, "q").ready == 0


def test_a_clock_that_goes_back_expires_nothing_early():
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("q", durable=True, arguments={"x-message-ttl": 10_000})
    client.publish("q", b"first", properties=PERSISTENT)
    jump(kit, -3600)
    client.publish("q", b"second", properties=PERSISTENT)
    kit.advance(3609)
    assert core_of(kit, "q").ready == 2
    kit.advance(2)
    assert core_of(kit, "q").ready == 0


def test_consumers_of_a_queue_that_breaks_are_told():
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("q", durable=True)
    client.consume("q")
    client.take()
    kit.node.vhosts["/"].queues["q"].fail("a bit flipped")
    kit.run()
    [cancel] = client.take()
    assert isinstance(cancel, methods.BasicCancel)


def test_what_leaves_memory_in_the_pass_it_was_published_in_can_be_read_back_in_it(monkeypatch):
    """A read must not overtake the records it is for on their way to the disk."""
    monkeypatch.setattr(limits, "queue_memory_bytes", 2_000)
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("q", durable=True)
    client.consume("q", no_ack=True)
    client.publish("q", b"moves the horizon ahead")
    assert client.deliveries()
    client.ask(methods.BasicCancel("c"), methods.BasicCancelOk)
    frames = [publish(b"q", b"%d " % number + b"x" * 500, PERSISTENT) for number in range(20)]
    declare = methods.QueueDeclare(queue="q", passive=True)
    consume = methods.BasicConsume(queue="q", consumer_tag="c", no_ack=True)
    frames += [frame(1, 1, methods.encode(method)) for method in (declare, consume, declare, declare)]
    client.feed(b"".join(frames))
    assert numbers(client) == list(range(20))
    assert kit.node.vhosts["/"].queues["q"].damage is None
