"""What was confirmed is there after a crash, once, in order; what was settled is not."""

import random

import pytest

from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from mirrormq.wire.properties import decode_properties
from tests.support.kernelkit import PERSISTENT, publish
from tests.support.nodekit import NodeKit


def restarted(kit, pick=lambda n: 0):
    return NodeKit(kit.disk.crash(pick))


def test_a_persistent_publish_is_confirmed_only_after_the_flush():
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("q", durable=True)
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    kit.hold_flushes = True
    client.publish("q", b"x", properties=PERSISTENT)
    assert client.take() == []
    kit.flush()
    kit.run()
    assert client.take() == [methods.BasicAck(1, False)]


def test_transient_publishes_ask_for_no_flush():
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("q", durable=True)
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    kit.hold_flushes = True
    client.publish("q", b"x")
    assert client.take() == [methods.BasicAck(1, False)]
    assert kit.disk.owed == 0


def test_confirmed_messages_survive_a_crash_in_order_with_their_properties():
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("q", durable=True)
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    for number in range(20):
        client.publish("q", b"%d" % number, properties=b"\x18\x00\x02\x07")
    assert client.take()[-1] == methods.BasicAck(20, False)
    after = restarted(kit)
    reader = after.client()
    reader.consume("q", no_ack=True)
    contents = [what for what in reader.take() if isinstance(what, tuple)]
    assert contents == [(b"\x18\x00\x02\x07", b"%d" % number) for number in range(20)]


def test_transient_messages_do_not_survive_a_restart():
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("q", durable=True)
    client.publish("q", b"gone")
    client.publish("q", b"kept", properties=PERSISTENT)
    after = restarted(kit)
    reader = after.client()
    reader.consume("q", no_ack=True)
    assert reader.deliveries() == [b"kept"]


def test_a_delivered_message_comes_back_marked_as_redelivered():
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("q", durable=True)
    client.publish("q", b"x", properties=PERSISTENT)
    client.consume("q")
    assert client.deliveries() == [b"x"]
    after = restarted(kit)
    reader = after.client()
    reader.consume("q")
    assert reader.expect(methods.BasicDeliver).redelivered


def test_a_message_that_was_never_delivered_comes_back_as_new():
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("q", durable=True)
    client.publish("q", b"x", properties=PERSISTENT)
    after = restarted(kit)
    reader = after.client()
    reader.consume("q")
    assert not reader.expect(methods.BasicDeliver).redelivered


def test_an_ack_is_flushed_within_a_tenth_of_a_second():
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("q", durable=True)
    client.publish("q", b"x", properties=PERSISTENT)
    client.consume("q")
    client.send(methods.BasicAck(1, False))
    kit.advance(0.11)
    after = restarted(kit)
    reader = after.client()
    reader.consume("q")
    assert reader.deliveries() == []


def test_a_purge_survives_and_spares_what_consumers_hold():
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("q", durable=True)
    client.ask(methods.BasicQos(0, 1, False), methods.BasicQosOk)
    for number in range(5):
        client.publish("q", b"%d" % number, properties=PERSISTENT)
    client.consume("q")
    client.take()
    assert client.ask(methods.QueuePurge(queue="q"), methods.QueuePurgeOk).message_count == 4
    after = restarted(kit)
    reader = after.client()
    reader.consume("q")
    assert reader.deliveries() == [b"0"]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_torn_off_the_end_nothing_confirmed_is_lost_and_nothing_settled_returns(seed):
    rng = random.Random(seed)
    kit = NodeKit(MemoryDisk())
    confirmed, acked, published = 0, 0, 0
    for _ in range(4):
        client = kit.client()
        client.declare("q", durable=True)
        client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
        base = published
        client.consume("q")
        for _ in range(rng.randrange(1, 15)):
            kit.hold_flushes = rng.random() < 0.6
            count = rng.randrange(1, 6)
            client.feed(b"".join(publish(b"q", b"%d" % (published + i), PERSISTENT) for i in range(count)))
            published += count
            for what in client.take():
                if isinstance(what, methods.BasicAck):
                    confirmed = max(confirmed, base + what.delivery_tag)
        kit = NodeKit(kit.disk.crash(lambda n: rng.randint(0, n)))
        reader = kit.client()
        reader.declare("q", durable=True)
        reader.consume("q", tag="check")
        found = [int(body) for body in reader.deliveries()]
        assert found == sorted(set(found))
        assert set(found) >= set(range(acked, confirmed)), (found, acked, confirmed)
        # acknowledge everything and make sure by a persistent publish that is confirmed
        reader.send(methods.BasicAck(0, True))
        reader.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
        reader.publish("q", b"%d" % published, properties=PERSISTENT)
        reader.take()
        published += 1
        acked, confirmed = published - 1, published
        reader.close_socket()


@pytest.fixture
def tiny(monkeypatch):
    """Bounds so small that a few messages spill, rotate and recycle."""
    from mirrormq.base import limits

    for name, value in {
        "queue_memory_bytes": 2000,
        "window_entries": 8,
        "read_back_bytes": 1500,
        "place_bytes_min": 300,
        "journal_file_bytes": 4000,
        "journal_files_max": 2,
        "recycle_slice_bytes": 1000,
        "segment_bytes_min": 1500,
        "segment_bytes_max": 6000,
    }.items():
        monkeypatch.setattr(limits, name, value)


def filled(kit, count, queue="q", size=100, **arguments):
    client = kit.client()
    client.declare(queue, durable=True, arguments=arguments)
    for number in range(count):
        client.publish(queue, b"%d " % number + b"x" * size, properties=PERSISTENT)
    return client


def numbers(bodies):
    return [int(body.split()[0]) for body in bodies]


def test_bodies_beyond_the_budget_leave_memory_and_come_back_in_order(tiny):
    kit = NodeKit(MemoryDisk())
    client = filled(kit, 200)
    core = kit.node.vhosts["/"].queues["q"].core
    assert core.ready == 200
    assert core.resident < 4000
    client.consume("q", no_ack=True)
    items = client.take()
    assert numbers(item[1] for item in items if isinstance(item, tuple)) == list(range(200))
    assert not any(item.redelivered for item in items if isinstance(item, methods.BasicDeliver))


def test_the_journal_is_recycled_into_segments_and_nothing_is_lost(tiny):
    kit = NodeKit(MemoryDisk())
    client = filled(kit, 200)
    assert len(kit.disk.list("journal/")) <= 4
    assert kit.disk.list("segments/")
    client.consume("q", no_ack=True)
    assert numbers(client.deliveries()) == list(range(200))


def test_a_long_queue_survives_a_crash_with_its_segments(tiny):
    kit = NodeKit(MemoryDisk())
    filled(kit, 200)
    after = restarted(kit)
    assert after.node.vhosts["/"].queues["q"].message_count == 200
    reader = after.client()
    reader.consume("q", no_ack=True)
    assert numbers(reader.deliveries()) == list(range(200))


def test_what_was_acked_stays_away_after_recycling_and_a_crash(tiny):
    kit = NodeKit(MemoryDisk())
    client = filled(kit, 60)
    client.ask(methods.BasicQos(0, 30, False), methods.BasicQosOk)
    client.consume("q")
    client.take()
    for tag in range(1, 30, 2):
        client.send(methods.BasicAck(tag, False))
    client.take()
    filled(kit, 100, queue="other")
    kit.advance(1)
    after = restarted(kit)
    reader = after.client()
    reader.consume("q", no_ack=True)
    assert numbers(reader.deliveries()) == sorted(set(range(60)) - set(range(0, 30, 2)))


def test_priorities_survive_recycling_and_a_crash(tiny):
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("q", durable=True, arguments={"x-max-priority": 3})
    for number in range(90):
        client.publish("q", b"%d " % number + b"x" * 100, properties=b"\x18\x00\x02" + bytes([number % 3]))
    after = restarted(kit)
    reader = after.client()
    reader.consume("q", no_ack=True)
    expected = [n for p in (2, 1, 0) for n in range(90) if n % 3 == p]
    assert numbers(reader.deliveries()) == expected


def test_basic_get_reads_back_what_lies_only_in_the_log(tiny):
    kit = NodeKit(MemoryDisk())
    client = filled(kit, 100)
    found = []
    for _ in range(100):
        client.send(methods.BasicGet(queue="q", no_ack=True))
        client.expect(methods.BasicGetOk)
        found += numbers(client.deliveries())
    assert found == list(range(100))
    client.ask(methods.BasicGet(queue="q", no_ack=True), methods.BasicGetEmpty)


def test_a_drained_queue_leaves_no_segments_behind(tiny):
    kit = NodeKit(MemoryDisk())
    client = filled(kit, 100)
    client.consume("q", no_ack=True)
    client.take()
    filled(kit, 300, queue="other")
    queue_id = kit.node.vhosts["/"].queues["q"].record.log_id
    assert len(kit.disk.list(f"segments/{queue_id:020d}/")) <= 1


@pytest.mark.parametrize("seed", range(30))
def test_random_work_with_crashes_agrees_with_a_model(tiny, seed):
    """Publishes, acks and purges on two queues; after each crash what must be there is there, once and in
    order.
    """
    rng = random.Random(seed)
    kit = NodeKit(MemoryDisk())
    must: dict[str, dict[int, None]] = {"a": {}, "b": {}}
    number = 0
    for _ in range(5):
        client = kit.client()
        client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
        for name in must:
            client.declare(name, durable=True)
        for _ in range(rng.randrange(5, 40)):
            name = rng.choice(["a", "b"])
            roll = rng.random()
            if roll < 0.7:
                batch = rng.randrange(1, 8)
                data = b"".join(
                    publish(name.encode(), b"%d " % (number + i) + b"y" * rng.randrange(300), PERSISTENT)
                    for i in range(batch)
                )
                client.feed(data)
                must[name].update(dict.fromkeys(range(number, number + batch)))
                number += batch
            elif roll < 0.9:
                for _ in range(rng.randrange(1, 10)):
                    client.take()
                    client.send(methods.BasicGet(queue=name, no_ack=True))
                    got = numbers(client.deliveries())
                    assert got == list(must[name])[:1]
                    for value in got:
                        del must[name][value]
            elif roll < 0.93:
                client.take()
                client.ask(methods.QueuePurge(queue=name), methods.QueuePurgeOk)
                must[name].clear()
        kit.advance(1)
        kit = restarted(kit, lambda n: rng.randint(0, n))
        reader = kit.client()
        for name, expected in must.items():
            assert kit.node.vhosts["/"].queues[name].damage is None
            assert kit.node.vhosts["/"].queues[name].message_count == len(expected)
        reader.close_socket()
    reader = kit.client()
    for name, expected in must.items():
        reader.consume(name, tag=name, no_ack=True)
        assert numbers(reader.deliveries()) == list(expected)


def test_a_damaged_queue_is_named_and_refused_while_the_others_serve():
    kit = NodeKit(MemoryDisk())
    client = filled(kit, 5, queue="hurt")
    filled(kit, 5, queue="fine")
    client.take()
    [journal] = kit.disk.list("journal/")
    at = kit.disk.read(journal).index(b"2 xxx")
    kit.disk.damage(journal, at)
    after = restarted(kit)
    reader = after.client()
    reader.send(methods.BasicConsume(queue="hurt", consumer_tag="c"))
    closed = reader.expect(methods.ChannelClose)
    assert closed.reply_code == 404
    assert "is damaged and not served" in closed.reply_text
    other = after.client()
    other.consume("fine", no_ack=True)
    assert numbers(other.deliveries()) == list(range(5))
    other.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    other.publish("hurt", b"x", properties=PERSISTENT)
    assert other.take() == [methods.BasicNack(1, False, False)]
    other.ask(methods.QueueDelete(queue="hurt"), methods.QueueDeleteOk)


def test_what_a_killed_process_left_unflushed_is_flushed_before_it_is_delivered():
    """Simulator seed 1547: a horizon read from the page cache is lost with the power, a delivery is not."""
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("q", durable=True)
    kit.hold_flushes = True
    client.publish("q", b"x", properties=PERSISTENT)
    client.consume("q")  # the horizon is written now, and not flushed
    after = NodeKit(kit.disk.restart(), hold_flushes=True)
    reader = after.client()
    reader.consume("q")
    assert reader.deliveries() == []
    after.flush()
    after.run()
    assert reader.deliveries() == [b"x"]


LIMITED = {"x-queue-type": "quorum", "x-delivery-limit": 3}


def delivered(client):
    """(body, times it came back) of each delivery."""
    found = []
    for item in client.take():
        if isinstance(item, tuple):
            headers = decode_properties(item[0]).headers or {}
            found.append((item[1], headers.get("x-delivery-count", 0)))
    return found


@pytest.mark.parametrize("count", [3, 200], ids=["in the journal", "in segments"])
def test_how_often_a_message_came_back_survives_a_crash(tiny, count):
    kit = NodeKit(MemoryDisk())
    client = filled(kit, count, size=10, **LIMITED)
    for _ in range(2):
        client.send(methods.BasicGet(queue="q"))
        tag = next(item.delivery_tag for item in client.take() if isinstance(item, methods.BasicGetOk))
        client.send(methods.BasicNack(tag, False, True))
    client.publish("q", b"%d flushes it" % count, properties=PERSISTENT)
    kit.advance(1)
    after = restarted(kit)
    reader = after.client()
    reader.consume("q")
    found = delivered(reader)
    assert numbers(body for body, _ in found) == list(range(count + 1))
    assert [times for _, times in found] == [2] + [0] * count
    reader.send(methods.BasicNack(1, False, True))
    assert delivered(reader)[-1][1] == 3
    reader.send(methods.BasicNack(count + 2, False, True))
    assert delivered(reader) == [], "the limit counts what came back before the crash"
