"""A crash at any moment between staging, commit, forwarding and removal: each row once, in order."""

import random

import pytest

from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.mirroredkit import MirroredKit
from tests.support.nodekit import NodeKit
from tests.support.sinkkit import SinkClient, row

BATCH = {0: [b"a1", b"a2"], 1: [b"b1"], 2: [b"c1", b"c2"]}
ALL = [body for _, part in sorted(BATCH.items()) for body in part]


def drained(kit, queue):
    client = kit.client()
    client.consume(queue, no_ack=True)
    found = client.deliveries()
    client.close_socket()
    return found


def rows(bodies):
    """Each row goes to both queues."""
    return [row("x", body, b"amq.fanout") for body in bodies]


def bind_both(client):
    for queue in ("one", "two"):
        client.declare(queue, durable=True)
        client.ask(methods.QueueBind(queue=queue, exchange="amq.fanout"), methods.QueueBindOk)


def begun(disk=None):
    kit = NodeKit(disk or MemoryDisk())
    if disk is None:
        bind_both(kit.client())
    sink = SinkClient(kit)
    return kit, sink


def run_batch(sink):
    """What a driver does: ask for the last batch, stage every partition, commit; again from the start if it
    was restarted.
    """
    sink.open()
    txs = [sink.stage(rows(bodies), partition=partition) for partition, bodies in BATCH.items()]
    return sink.commit(0, *txs)


def points(steps):
    """The disk after every flush of these steps, with nothing, everything or a part of the rest."""
    kit, sink = begun()
    sink.open()
    rng = random.Random(1)
    for step in steps:
        kit.hold_flushes = True
        step(kit, sink)
        kit.run()
        while True:
            for survives in (lambda n: 0, lambda n: n, lambda n: rng.randint(0, n)):
                yield kit.disk.crash(survives)
            token = kit.disk.finish_next()
            if token is None:
                break
            kit.node.disk_done(kit.now, token)
            kit.run()
        kit.hold_flushes = False
        kit.flush()
        kit.advance(0.3)


def check(disk):
    """After a restart the driver runs the batch again: every row is there once, whatever had happened."""
    kit, sink = begun(disk)
    before = sink.open()["last"]
    answer = run_batch(sink)
    assert answer["state"] == ("committed" if before is None else "already")
    kit.advance(1)
    state = sink.ask("sink_state")
    assert (state["open"], state["waiting"], state["skipped"]) == ([], 0, 0)
    assert state["forwarded"] == 2 * len(ALL)
    for queue in ("one", "two"):
        assert drained(kit, queue) == ALL, queue
    log = sink.staging.log
    assert log.dead.missing_count(1, log.end) == 0
    kit.advance(1)
    again = NodeKit(kit.disk.crash(lambda n: 0))
    again.advance(1)
    assert drained(again, "one") + drained(again, "two") == []


def test_a_crash_at_any_flush_leaves_every_row_once_in_each_queue():
    txs = {}

    def staging(partition):
        def step(kit, sink):
            call = sink.send(rows(BATCH[partition]), 0, partition)
            txs[partition] = call

        return step

    def committing(kit, sink):
        sink.begin("commit_set", batch=0, txs=[call.answers[-1]["tx"] for call in txs.values()])

    def forwarding(kit, sink):
        kit.now = type(kit.now)(kit.now.mono + 300_000, kit.now.wall + 300_000)
        kit.node.tick(kit.now)

    count = 0
    for disk in points([staging(0), staging(1), staging(2), committing, forwarding]):
        check(disk)
        count += 1
    assert count >= 20


def test_no_row_leaves_before_its_commit_is_durable():
    kit, sink = begun()
    sink.open()
    tx = sink.stage(rows(ALL))
    targets = [kit.node.vhosts["/"].queues[name] for name in ("one", "two")]
    kit.hold_flushes = True
    call = sink.begin("commit_set", batch=0, txs=[tx])
    kit.run()
    assert [target.log.end for target in targets] == [0, 0]
    assert call.answers == []
    kit.hold_flushes = False
    kit.flush()
    kit.advance(0.3)
    assert [target.log.published for target in targets] == [len(ALL)] * 2
    assert call.answers[-1]["state"] == "committed"


def test_what_was_staged_without_its_end_is_gone_after_a_crash():
    kit, sink = begun()
    sink.open()
    call = sink.begin("stage", batch=0, partition=0)
    call.stream.on_data(row("x", bytes(500_000), b"amq.fanout"))
    kit.run()
    kit.advance(0.3)
    again, sink = begun(kit.disk.crash(lambda n: n))
    assert sink.open()["open"] == []
    again.advance(0.3)
    log = sink.staging.log
    assert log.dead.missing_count(1, log.end) == 0


def test_rows_that_do_not_fit_in_memory_are_read_back(monkeypatch):
    monkeypatch.setattr("mirrormq.base.limits.sink_cache_bytes", 1_000_000)
    kit, sink = begun()
    sink.open()
    bodies = [b"%05d" % at * 2000 for at in range(300)]
    txs = [sink.stage(rows(bodies[at::3]), partition=at) for at in range(3)]
    sink.commit(0, *txs, wait=5)
    kit.advance(1)
    assert drained(kit, "one") == [body for at in range(3) for body in bodies[at::3]]
    assert sink.staging.staging.sender.kept == 0


# --- mirrored -----------------------------------------------------------------------------------------------


class Client(SinkClient):
    """A client that lets the whole cluster go on."""

    def settle(self):
        self.kit.group.advance(0.5)


def cluster():
    kit = MirroredKit()
    kit.policy()
    client = kit["a"].client()
    for queue in ("one", "two"):
        client.declare(queue, durable=True)
        kit.advance(0.3)
        client.send(methods.QueueBind(queue=queue, exchange="amq.fanout"))
        kit.advance(0.3)
        client.take()
    return kit


def found(kit, node, queue):
    client = kit[node].client()
    client.consume(queue, no_ack=True)
    kit.advance(0.6)
    bodies = client.deliveries()
    client.close_socket()
    kit.advance(0.1)
    return bodies


def test_any_node_takes_rows_for_a_sink_whose_master_is_another():
    kit = cluster()
    sinks = [Client(kit[name]) for name in "abc"]
    sinks[0].open()
    assert kit.view("mirrormq.sink.s1").members[0].node in "abc"
    assert len(kit.view("mirrormq.sink.s1").members) == 3
    txs = [sink.stage(rows(BATCH[at]), partition=at) for at, sink in enumerate(sinks)]
    assert sinks[2].commit(0, *txs) == {"state": "committed", "rows": 2 * len(ALL), "forwarded": False}
    assert sinks[1].commit(0, *txs)["state"] == "already"
    assert [sink.open()["last"] for sink in sinks] == [0, 0, 0]
    for queue in ("one", "two"):
        assert found(kit, "b", queue) == ALL


def test_another_node_that_goes_takes_its_unfinished_transactions_with_it():
    kit = cluster()
    sink = Client(kit["a"])
    sink.open()
    master = kit.view("mirrormq.sink.s1").members[0].node
    other = next(name for name in "abc" if name != master)
    far = Client(kit[other])
    call = far.begin("stage", batch=0, partition=0)
    far.settle()
    call.stream.on_data(row("x", bytes(500_000), b"amq.fanout"))
    kit.advance(0.3)
    at_master = Client(kit[master])
    assert at_master.ask("sink_state")["open"] != []
    kit.kill(other)
    kit.advance(1)
    assert at_master.ask("sink_state")["open"] == []


def run_until_done(kit, node):
    """A driver and its tasks on this node, which try again while the sink has no master."""
    sink = Client(kit[node])
    for _ in range(40):
        call = sink.begin("sink_open")
        kit.advance(0.5)
        if call.error is not None:
            continue
        staged = []
        for partition, bodies in BATCH.items():
            try:
                staged.append(sink.send(rows(bodies), 0, partition))
            except AssertionError:
                break
            kit.advance(0.5)
        if len(staged) < len(BATCH) or any(one.error for one in staged):
            continue
        call = sink.begin("commit_set", batch=0, txs=[one.answers[-1]["tx"] for one in staged])
        kit.advance(0.5)
        if call.error is None and call.answers:
            return call.answers[-1]["state"]
    raise AssertionError("the sink did not come back")


def killed_after(steps, staging, killed):
    """A node dies after so many rounds of passes behind the commit. The targets' master is a."""
    kit = cluster()
    sink = Client(kit[staging])
    sink.open()
    assert [kit.view(name).master for name in ("mirrormq.sink.s1", "one", "two")] == [staging, "a", "a"]
    txs = [sink.stage(rows(bodies), partition=partition) for partition, bodies in BATCH.items()]
    sink.begin("commit_set", batch=0, txs=txs)
    for _ in range(steps):
        for member in list(kit.members.values()):
            member.now = kit.now
            member.step()
        for source, target in list(kit.wires):
            wire = kit.wires[source, target]
            for _ in range(len(wire)):
                kit.members[target].node.peer_frame(kit.now, source, memoryview(wire.popleft()))
    kit.kill(killed)
    kit.advance(3)
    survivor = next(name for name in "abc" if name != killed)
    run_until_done(kit, survivor)
    kit.advance(2)
    return kit, survivor


@pytest.mark.parametrize(("staging", "killed"), [("a", "a"), ("b", "b"), ("b", "a")])
def test_a_master_may_die_at_any_moment_of_a_commit(staging, killed):
    for steps in range(0, 14, 2 if staging == killed == "a" else 1):
        kit, survivor = killed_after(steps, staging, killed)
        for queue in ("one", "two"):
            assert found(kit, survivor, queue) == ALL, (steps, queue)
        state = Client(kit[survivor]).ask("sink_state")
        assert (state["last"], state["open"], state["waiting"]) == (0, [], 0)
