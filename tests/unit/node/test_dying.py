"""Dead letters of durable queues: in each durable target exactly once, whenever the machine dies."""

import random

import pytest

from mirrormq.base import limits
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from mirrormq.wire.properties import decode_properties
from tests.support.kernelkit import PERSISTENT, publish
from tests.support.nodekit import NodeKit

TO_TARGET = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "target"}


def begun(target=None, **source):
    """A node with a durable source whose letters go to a durable target."""
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("target", durable=True, arguments=target or {})
    client.declare("source", durable=True, arguments={**TO_TARGET, **source})
    return kit, client


def send(client, bodies, queue=b"source", properties=PERSISTENT):
    client.feed(b"".join(publish(queue, body, properties) for body in bodies))


def drained(kit, queue):
    """Everything in a queue, taken away."""
    client = kit.client()
    client.consume(queue, no_ack=True)
    found = client.deliveries()
    client.close_socket()
    return found


def queue_of(kit, name):
    return kit.node.vhosts["/"].queues[name]


def letter_headers(kit, queue="target"):
    client = kit.client()
    client.consume(queue, no_ack=True)
    return [decode_properties(item[0]).headers for item in client.take() if isinstance(item, tuple)]


def die_by_ttl(kit, client):
    kit.advance(1.1)


def die_by_rejection(kit, client):
    client.send(methods.BasicNack(0, True, False))


def die_by_length(kit, client):
    send(client, [b"last"])


BODIES = [b"1", b"2", b"3"]
DEATHS = {
    "ttl": ({"x-message-ttl": 1000}, die_by_ttl, "expired"),
    "rejected": ({}, die_by_rejection, "rejected"),
    "length": ({"x-max-length": 3}, die_by_length, "maxlen"),
}


def alive(death):
    """A node whose source holds the messages durably, about to die of this."""
    kit, client = begun(**DEATHS[death][0])
    send(client, BODIES)
    if death == "rejected":
        client.consume("source")
        assert client.deliveries() == BODIES
    kit.advance(0.11)
    return kit, client


def boundaries(death):
    """The disk at every point between death and settlement, one flush further each time."""
    kit, client = alive(death)
    kit.hold_flushes = True
    DEATHS[death][1](kit, client)
    kit.run()
    while True:
        yield kit
        token = kit.disk.finish_next()
        if token is not None:
            kit.node.disk_done(kit.now, token)
            kit.run()
        elif queue_of(kit, "source").log.dying or kit.node.journal.next_flush_at() is not None:
            kit.advance(0.11)
        else:
            return


def check_once(disk, death):
    """Restart from this disk: every message is in one of the two queues, once."""
    kit = NodeKit(disk)
    assert queue_of(kit, "source").damage is None
    kit.advance(2)
    assert queue_of(kit, "source").log.dying == {}
    source, target = drained(kit, "source"), drained(kit, "target")
    found = [body for body in source + target if body != b"last"]
    assert sorted(found) == BODIES, (source, target)
    assert target == sorted(target)
    if death == "ttl":
        assert target == BODIES
    # And what was settled stays settled.
    kit.advance(1)
    again = NodeKit(kit.disk.crash(lambda n: 0))
    again.advance(2)
    assert drained(again, "source") + drained(again, "target") == []


@pytest.mark.parametrize("death", DEATHS)
def test_a_crash_at_any_flush_leaves_each_letter_exactly_once(death):
    rng = random.Random(death)
    count = 0
    for kit in boundaries(death):
        count += 1
        check_once(kit.disk.crash(lambda n: 0), death)
        check_once(kit.disk.crash(lambda n: n), death)
        for _ in range(15):
            check_once(kit.disk.crash(lambda n: rng.randint(0, n)), death)
            check_once(kit.disk.crash(lambda n: rng.randint(0, n), lose_pages=True), death)
    assert count >= 3


class CutAt:
    """Of the first file that is not flushed so many bytes survive; of the others everything."""

    def __init__(self, size):
        self._left = [0, size]

    def __call__(self, n):
        return min(self._left.pop(0), n) if n and self._left else n


@pytest.mark.parametrize("death", DEATHS)
def test_a_tail_torn_at_any_byte_leaves_each_letter_exactly_once(death):
    kit = next(boundaries(death))
    [file] = kit.disk.list("journal/")
    size = len(kit.disk.read(file)) - kit.disk.durable_size(file)
    assert size > 300
    for cut in range(0, size + 1, 7):
        check_once(kit.disk.crash(CutAt(cut)), death)


@pytest.mark.parametrize("death", DEATHS)
def test_the_source_is_not_removed_before_the_letter_is_durable(death):
    kit, client = alive(death)
    kit.hold_flushes = True
    DEATHS[death][1](kit, client)
    log = queue_of(kit, "source").log
    died = set(log.dying)
    assert died
    assert not any(seq in log.dead for seq in died)
    kit.flush()
    kit.run()
    assert all(seq in log.dead for seq in died)
    assert log.dying == {}


@pytest.mark.parametrize("death", DEATHS)
def test_what_recovery_finds_dying_is_sent_again_as_the_same_letter(death):
    kit = next(boundaries(death))
    then = kit.now.wall
    source, target = queue_of(kit, "source"), queue_of(kit, "target")
    # Of the tail only what the source wrote survives: the letters are lost with the target's batch.
    [file] = kit.disk.list("journal/")
    start = kit.disk.durable_size(file)
    letters = target.log.places.at(1)
    disk = kit.disk.crash(CutAt(letters.offset - start))
    died = [death.seq for death in source.log.dying.values()]
    after = NodeKit(disk)
    headers = letter_headers(after)
    assert len(headers) == len(died)
    for header in headers:
        [entry] = header["x-death"]
        assert entry["reason"] == DEATHS[death][2]
        assert entry["time"] == then // 1_000_000
        assert entry["queue"] == "source"


def test_what_is_dying_is_neither_ready_nor_purged():
    kit = next(boundaries("rejected"))
    source = queue_of(kit, "source")
    assert source.message_count == 0
    next(iter(kit.clients.values())).send(methods.QueuePurge(queue="source"))
    assert len(source.log.dying) == 3
    assert not any(seq in source.log.dead for seq in source.log.dying)
    check_once(kit.disk.crash(lambda n: n), "rejected")


def test_a_consumed_letter_is_not_sent_again():
    kit = next(boundaries("ttl"))
    kit.disk.finish_next()  # the letters are on disk, but the node has not heard of it
    disk = kit.disk.crash(lambda n: 0)
    first = NodeKit(disk)
    assert drained(first, "target") == BODIES
    first.advance(1)
    second = NodeKit(first.disk.crash(lambda n: 0))
    second.advance(2)
    assert drained(second, "target") == []


def test_transient_letters_and_targets_are_not_waited_for():
    kit, client = begun(**{"x-message-ttl": 1000})
    client.declare("memory")
    client.declare("other", durable=True, arguments={**TO_TARGET, "x-dead-letter-routing-key": "memory"})
    kit.hold_flushes = True
    send(client, [b"transient"], properties=b"\x00\x00")
    client.consume("other", tag="o")
    kit.hold_flushes = False
    send(client, [b"persistent"], b"other")
    assert client.deliveries()[-1] == b"persistent"
    kit.hold_flushes = True
    client.send(methods.BasicNack(0, True, False))
    kit.advance(1.1)
    for name in ("source", "other"):
        assert queue_of(kit, name).log.dying == {}
        assert queue_of(kit, name).message_count == 0
    kit.hold_flushes = False
    assert drained(kit, "memory") == [b"persistent"]
    assert drained(kit, "target") == [b"transient"]


def test_without_a_route_the_message_is_dropped_and_counted():
    kit, client = begun(**{"x-max-length": 1, "x-dead-letter-routing-key": "nowhere"})
    send(client, BODIES)
    source = queue_of(kit, "source")
    assert source.dead_letters_dropped == 2
    assert source.log.dying == {}
    assert drained(kit, "source") == [b"3"]


def test_a_letter_whose_only_target_is_deleted_leaves_the_source():
    kit, client = alive("rejected")
    kit.hold_flushes = True
    die_by_rejection(kit, client)
    client.send(methods.QueueDelete(queue="target"))
    kit.hold_flushes = False
    kit.flush()
    kit.run()
    assert queue_of(kit, "source").log.dying == {}


def test_letters_to_send_again_whose_target_is_gone_are_dropped_and_counted():
    kit, client = alive("rejected")
    kit.hold_flushes = True
    die_by_rejection(kit, client)
    [file] = kit.disk.list("journal/")
    cut = queue_of(kit, "target").log.places.at(1).offset - kit.disk.durable_size(file)
    client.send(methods.QueueDelete(queue="target"))
    after = NodeKit(kit.disk.crash(CutAt(cut)))
    assert "target" not in after.node.vhosts["/"].queues
    source = queue_of(after, "source")
    assert source.dead_letters_dropped == 3
    assert source.log.dying == {}
    assert source.message_count == 0


def test_a_damaged_target_leaves_its_letters_where_they_died():
    kit, client = alive("rejected")
    queue_of(kit, "target").fail("for a test")
    die_by_rejection(kit, client)
    kit.advance(1)
    assert len(queue_of(kit, "source").log.dying) == 3
    check_once(kit.disk.crash(lambda n: 0), "rejected")
    client.ask(methods.QueueDelete(queue="target"), methods.QueueDeleteOk)
    assert queue_of(kit, "source").log.dying == {}


def test_a_cycle_of_durable_queues_ends():
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    for name, other in (("a", "b"), ("b", "a")):
        client.declare(
            name,
            durable=True,
            arguments={
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": other,
                "x-message-ttl": 1000,
            },
        )
    send(client, BODIES, b"a")
    kit.advance(1.1)
    assert queue_of(kit, "b").message_count == 3
    kit.advance(1.1)
    for name in ("a", "b"):
        assert queue_of(kit, name).message_count == 0
        assert queue_of(kit, name).log.dying == {}
    assert queue_of(kit, "b").dead_letters_dropped == 3


def test_a_queue_may_be_its_own_target():
    kit, client = begun(**{"x-dead-letter-routing-key": "source"})
    send(client, BODIES)
    client.consume("source")
    client.take()
    client.send(methods.BasicNack(0, True, False))
    assert client.deliveries() == BODIES
    assert queue_of(kit, "source").log.dying == {}
    after = NodeKit(kit.disk.crash(lambda n: 0))
    assert drained(after, "source") == BODIES


def test_over_the_backlog_bound_dropped_messages_are_sent_without_waiting_and_counted(monkeypatch):
    monkeypatch.setattr(limits, "dead_letter_backlog_max", 3)
    kit, client = begun(**{"x-max-length": 1})
    kit.hold_flushes = True
    send(client, [b"%d" % n for n in range(10)])
    source = queue_of(kit, "source")
    assert len(source.log.dying) == 3
    assert source.letters.unsafe == 6
    warnings = [note for note in kit.notes if "dead letters" in note.text]
    assert [note.level for note in warnings] == ["warning"]
    kit.hold_flushes = False
    kit.flush()
    kit.run()
    assert source.log.dying == {}
    assert drained(kit, "target") == [b"%d" % n for n in range(9)]


def test_the_bytes_of_the_backlog_are_bounded_too(monkeypatch):
    monkeypatch.setattr(limits, "dead_letter_backlog_bytes_max", 250)
    kit, client = begun(**{"x-max-length": 1})
    kit.hold_flushes = True
    send(client, [b"x" * 100] * 6)
    assert len(queue_of(kit, "source").log.dying) == 3


def test_rejections_are_waited_for_whatever_the_backlog(monkeypatch):
    monkeypatch.setattr(limits, "dead_letter_backlog_max", 1)
    kit, client = alive("rejected")
    kit.hold_flushes = True
    die_by_rejection(kit, client)
    assert len(queue_of(kit, "source").log.dying) == 3


def test_a_full_target_refuses_letters_and_counts_them():
    kit, client = begun({"x-max-length": 1, "x-overflow": "reject-publish"}, **{"x-max-length": 1})
    send(client, BODIES)
    assert queue_of(kit, "source").log.dying == {}
    assert queue_of(kit, "target").dead_letters_dropped == 1
    assert drained(kit, "target") == [b"1"]


@pytest.fixture
def tiny(monkeypatch):
    """Bounds so small that a few messages spill, rotate and recycle."""
    for name, value in {
        "queue_memory_bytes": 1000,
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


def test_the_rows_of_a_deleted_source_go_with_the_next_checkpoint(tiny):
    kit, client = begun(**{"x-max-length": 1})
    send(client, BODIES)
    target = queue_of(kit, "target").log
    assert target.letters == {queue_of(kit, "source").record.log_id: 2}
    client.ask(methods.QueueDelete(queue="source"), methods.QueueDeleteOk)
    client.declare("other", durable=True)
    for _ in range(100):
        send(client, [b"x" * 200], b"other")
    assert target.letters == {}


def test_old_messages_that_lie_in_segments_die_safely(tiny):
    """The dying entries are in a segment, among others that are still ready."""
    kit, client = begun()
    bodies = [b"%03d" % n + b"x" * 100 for n in range(60)]
    for body in bodies:
        send(client, [body])
    assert kit.disk.list("segments/")
    client.ask(methods.BasicQos(0, 6, False), methods.BasicQosOk)
    client.consume("source")
    client.take()
    kit.advance(0.11)
    kit.hold_flushes = True
    for tag in (2, 5, 3):
        client.send(methods.BasicNack(tag, False, False))
    died = [bodies[1], bodies[4], bodies[2]]
    rng = random.Random(1)
    picks = [lambda n: n, *[lambda n: rng.randint(0, n)] * 20]
    for pick in picks:
        after = NodeKit(kit.disk.crash(pick))
        source, target = drained(after, "source"), drained(after, "target")
        assert target == died[: len(target)]
        assert source == [body for body in bodies if body not in target]
        assert queue_of(after, "source").log.dying == {}


@pytest.mark.parametrize("seed", range(40))
def test_random_deaths_and_crashes_lose_and_double_nothing(tiny, seed):
    rng = random.Random(seed)
    disk = MemoryDisk()
    sure: list[int] = []
    maybe: set[int] = set()
    taken: list[int] = []
    number = 0
    for _ in range(6):
        kit = NodeKit(disk)
        client = kit.client()
        client.declare("target", durable=True)
        client.declare("late", durable=True, arguments={**TO_TARGET, "x-message-ttl": 500})
        arguments = {**TO_TARGET, "x-dead-letter-routing-key": "late", "x-max-length": 5}
        client.declare("source", durable=True, arguments=arguments)
        for _ in range(rng.randrange(5, 30)):
            count = rng.randrange(1, 6)
            bodies = range(number, number + count)
            number += count
            send(client, [b"%d " % n + b"y" * rng.randrange(200) for n in bodies])
            sure += bodies
            if rng.random() < 0.3:
                kit.advance(0.6)
            if rng.random() < 0.2:
                taken += [int(body.split()[0]) for body in drained(kit, "target")]
        kit.advance(0.2)  # what was taken stays away
        kit.hold_flushes = True
        for _ in range(rng.randrange(0, 8)):
            count = rng.randrange(1, 6)
            maybe.update(range(number, number + count))
            send(client, [b"%d " % n for n in range(number, number + count)])
            number += count
            for _ in range(rng.randrange(0, 3)):
                token = kit.disk.finish_next()
                if token is not None:
                    kit.node.disk_done(kit.now, token)
                    kit.run()
            if rng.random() < 0.3:
                kit.advance(0.6)
        crashed = kit.disk.crash(lambda n: rng.randint(0, n), lose_pages=rng.random() < 0.5)
        # What recovery removes is gone for good before the next crash.
        disk = NodeKit(crashed).disk.copy()
    kit = NodeKit(disk)
    kit.advance(100)  # the clock of a new kit begins anew, what expires was dated by the old one
    kit.advance(1)
    for name in ("target", "late", "source"):
        assert queue_of(kit, name).damage is None
        assert queue_of(kit, name).log.dying == {}
    found = taken + [int(body.split()[0]) for name in ("target", "source") for body in drained(kit, name)]
    assert len(found) == len(set(found)), sorted(n for n in found if found.count(n) > 1)
    assert set(sure) <= set(found), sorted(set(sure) - set(found))
    assert set(found) <= set(sure) | maybe
