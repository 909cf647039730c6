"""Messages that a sink's rows take out of a queue: with the commit of what was made of them, exactly once."""

import struct

import pytest

from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.bulkkit import BulkUser
from tests.support.nodekit import NodeKit
from tests.support.sinkkit import SinkClient, row

PERSISTENT = b"\x10\x00\x02"
PUBLISH, REMOVE, TAKE = 0, 2, 4
COUNT = 8


def taken(first, last=None, key="dead", op=TAKE):
    return row(key, struct.pack("<Q", first) + (b"" if last is None else struct.pack("<Q", last)), op=op)


def begun(disk=None):
    """A queue with letters that a query consumes, and one they go to."""
    kit = NodeKit(disk or MemoryDisk())
    if disk is None:
        client = kit.client()
        client.declare("dead", durable=True)
        client.declare("work", durable=True)
        for number in range(COUNT):
            client.publish("dead", b"%d" % number, properties=PERSISTENT)
        client.close_socket()
    user = BulkUser.logged_in(kit)
    fields = {"queue": "dead", "name": "c", "at": "earliest", "mode": "consume", "query": "redrive"}
    user.call("cursor_open", **fields)
    sink = SinkClient(kit)
    sink.open()
    return kit, user, sink


def sources(kit):
    return {"dead": f"{kit.node.meta.queues['/', 'dead'].log_id:016x}"}


def drained(kit, queue):
    client = kit.client()
    client.consume(queue, no_ack=True)
    kit.advance(0.2)
    found = client.deliveries()
    client.close_socket()
    return found


def first_seq(kit):
    """The seq of the first letter."""
    log = kit.node.logs[kit.node.meta.queues["/", "dead"].log_id]
    return log.dead.first_missing(1)


def bodies(*numbers):
    return [b"%d" % number for number in numbers]


def moving(kit, *numbers):
    """Rows that publish letters elsewhere and take them out of their queue."""
    first = first_seq(kit)
    return [one for number in numbers for one in (row("work", b"%d" % number), taken(first + number))]


def test_what_is_taken_leaves_with_the_commit_and_the_others_stay_in_order():
    kit, user, sink = begun()
    tx = sink.stage(moving(kit, 1, 4, 6), sources=sources(kit))
    assert user.facts("dead")["messages"] == COUNT
    sink.commit(0, tx)
    kit.advance(0.3)
    assert user.facts("dead")["messages"] == COUNT - 3
    client = kit.client()
    client.publish("dead", b"new", properties=PERSISTENT)
    user.call("cursor_drop", queue="dead", name="c")
    assert drained(kit, "work") == bodies(1, 4, 6)
    assert drained(kit, "dead") == [*bodies(0, 2, 3, 5, 7), b"new"]


def test_runs_and_what_is_not_there_are_taken_in_one():
    kit, user, sink = begun()
    first = first_seq(kit)
    staged = [taken(first + 2, first + 4), taken(first + 4), taken(10_000), taken(first + 7, 1 << 60)]
    sink.commit(0, sink.stage(staged, sources=sources(kit)))
    kit.advance(0.3)
    user.call("cursor_drop", queue="dead", name="c")
    assert drained(kit, "dead") == bodies(0, 1, 5, 6)


def test_nothing_leaves_when_the_query_does_not_consume_any_more():
    kit, user, sink = begun()
    tx = sink.stage(moving(kit, 1), sources=sources(kit))
    user.call("cursor_drop", queue="dead", name="c")
    sink.commit(0, tx)
    kit.advance(0.3)
    assert sink.ask("sink_state")["waiting"] == 0
    assert drained(kit, "dead") == bodies(*range(COUNT))


@pytest.mark.parametrize("given", [{}, {"dead": "0" * 16}])
def test_another_incarnation_than_the_one_that_was_read_is_not_touched(given):
    kit, _, sink = begun()
    call = sink.send(moving(kit, 1), sources=given)
    assert call.error.code == "refused"
    assert "is not the one that was read" in call.error.text


def test_a_queue_that_is_not_there_or_keeps_no_log_is_refused():
    kit, _, sink = begun()
    client = kit.client()
    client.declare("brief")
    assert sink.send([taken(1, key="nowhere")]).error.code == "not-found"
    assert "keeps no log" in sink.send([taken(1, key="brief")]).error.text
    assert sink.send([taken(1, key="mirrormq.sink.s1")]).error.code == "access"


def test_rows_with_an_origin_do_not_enter_behind_others():
    kit, _, sink = begun()
    call = sink.send([row("dead", b"x"), taken(1, op=REMOVE)])
    assert call.error.code == "refused"
    assert "no rows with an origin" in call.error.text
    assert kit.node.meta.queues


def test_a_crash_at_any_flush_moves_every_letter_once():
    kit, _, sink = begun()
    rows = moving(kit, 1, 4, 6)
    tx = sink.stage(rows, sources=sources(kit))
    kit.hold_flushes = True
    sink.begin("commit_set", batch=0, txs=[tx])
    kit.run()
    disks = []
    for _ in range(40):
        disks += [kit.disk.crash(survives) for survives in (lambda most: 0, lambda most: most)]
        token = kit.disk.finish_next()
        if token is None:
            kit.now = type(kit.now)(kit.now.mono + 300_000, kit.now.wall + 300_000)
            kit.node.tick(kit.now)
            kit.run()
            continue
        kit.node.disk_done(kit.now, token)
        kit.run()
    assert len(disks) > 20
    states = set()
    for disk in disks:
        again, user, sink = begun(disk)
        states.add(sink.open()["last"])
        if states and sink.open()["last"] is None:
            sink.commit(0, sink.stage(rows, sources=sources(again)))
        again.advance(0.5)
        user.call("cursor_drop", queue="dead", name="c")
        assert drained(again, "work") == bodies(1, 4, 6)
        assert drained(again, "dead") == bodies(0, 2, 3, 5, 7)
    assert states == {None, 0}


def test_a_letter_that_came_meanwhile_is_behind_those_that_stay():
    kit, user, sink = begun()
    client = kit.client()
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    sink.begin("commit_set", batch=0, txs=[sink.stage(moving(kit, 0, 7), sources=sources(kit))])
    client.publish("dead", b"late", properties=PERSISTENT)
    kit.advance(0.3)
    user.call("cursor_drop", queue="dead", name="c")
    assert drained(kit, "dead") == [*bodies(1, 2, 3, 4, 5, 6), b"late"]
