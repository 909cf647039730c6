"""Vhosts that mirror another cluster: read-only until promoted, and fed by the mirror job alone."""

import struct

import pytest

from mirrormq.meta import commands
from mirrormq.meta.records import Permission, VHost
from mirrormq.node import requests
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import bulk, methods
from mirrormq.wire.bulk import BulkError
from mirrormq.wire.properties import Properties, encode_properties
from tests.support.bulkkit import BulkUser
from tests.support.kernelkit import PERSISTENT, publish
from tests.support.mirroredkit import MirroredKit
from tests.support.nodekit import NodeKit
from tests.support.sinkkit import SinkClient, row

_SEQ = struct.Struct("<Q")
COPY, REMOVE = 1, 2
WEST = "west"
OF = {"origin": WEST, "sources": {"q": "id-q"}}


def copy(seq, body=None, queue="q", properties=None):
    body = b"%d" % seq if body is None else body
    more = {} if properties is None else {"properties": properties}
    return row(queue, _SEQ.pack(seq) + body, op=COPY, **more)


def removal(seq, queue="q"):
    return row(queue, _SEQ.pack(seq), op=REMOVE)


def apply(kit, *wanted):
    outcomes = []
    for command in wanted:
        kit.node.propose(command, outcomes.append, True)
    kit.run()
    kit.advance(0.3)
    assert all(outcome.ok for outcome in outcomes), outcomes


def declare(kit, name="q", **arguments):
    from mirrormq.meta.records import Queue

    arguments = {"x-mirror-source": "id-" + name, **arguments}
    apply(kit, commands.DeclareQueue(Queue("mirror", name, node=kit.node.node_name, arguments=arguments)))


def begun(disk=None, **arguments):
    """A mirror of another cluster with one queue, and its job."""
    kit = NodeKit(disk or MemoryDisk())
    if disk is None:
        vhost = VHost("mirror", mirror_of=WEST)
        apply(kit, commands.PutVHost(vhost))
        apply(kit, commands.SetPermission(Permission("guest", "mirror", ".*", ".*", ".*")))
        declare(kit, **arguments)
    job = SinkClient(kit, "job", vhost="mirror")
    job.open()
    return kit, job


def synchronise(job, batch, rows):
    answer = job.commit(batch, job.stage(rows, batch=batch, **OF), wait=5)
    assert answer["forwarded"], answer


def promote(kit):
    apply(kit, commands.PromoteMirror("mirror"))


def drained(kit, queue="q"):
    client = kit.client(vhost="mirror")
    client.consume(queue, no_ack=True)
    kit.run()
    found = client.deliveries()
    client.close_socket()
    return found


def bodies(*numbers):
    return [b"%d" % number for number in numbers]


def live(kit, queue="q"):
    return kit.node.vhosts["mirror"].queues[queue].message_count


def test_a_query_reads_a_mirror_and_consumes_it_only_when_it_is_promoted():
    kit, job = begun()
    synchronise(job, 1, [copy(1), copy(2)])
    reader = BulkUser.logged_in(kit, vhost="mirror")
    reader.call("cursor_open", queue="q", name="reads", at="earliest")
    with pytest.raises(BulkError, match="promote_mirror mirror") as refused:
        reader.call("cursor_open", queue="q", name="takes", at="earliest", mode="consume")
    assert refused.value.code == bulk.ACCESS
    promote(kit)
    reader.call("cursor_open", queue="q", name="takes", at="earliest", mode="consume")


@pytest.mark.parametrize(
    "method",
    [
        methods.QueueDeclare(queue="new", durable=True),
        methods.QueueDeclare(queue="q", durable=True),
        methods.QueueDelete(queue="q"),
        methods.QueuePurge(queue="q"),
        methods.QueueBind(queue="q", exchange="amq.direct", routing_key="x"),
        methods.ExchangeDeclare(exchange="new", type="direct"),
        methods.BasicConsume(queue="q"),
        methods.BasicGet(queue="q"),
    ],
)
def test_clients_of_a_mirror_are_refused_by_name_of_what_promotes_it(method):
    kit, _ = begun()
    client = kit.client(vhost="mirror")
    client.send(method)
    kit.run()
    (closed,) = [item for item in client.take() if isinstance(item, methods.ChannelClose)]
    assert closed.reply_code == 403
    assert "promote_mirror mirror" in closed.reply_text


def test_a_publish_to_a_mirror_is_refused():
    kit, _ = begun()
    client = kit.client(vhost="mirror")
    client.feed(publish(b"q", b"1", PERSISTENT))
    kit.run()
    (closed,) = [item for item in client.take() if isinstance(item, methods.ChannelClose)]
    assert closed.reply_code == 403
    assert live(kit) == 0


def test_a_mirror_holds_what_was_published_and_not_removed_at_its_source():
    kit, job = begun()
    synchronise(job, 0, [copy(seq) for seq in (1, 2, 3, 7, 8, 9, 20)])
    assert live(kit) == 7
    synchronise(job, 1, [removal(2), copy(21), removal(8), removal(1)])
    assert live(kit) == 5
    promote(kit)
    assert drained(kit) == bodies(3, 7, 9, 20, 21)


def test_a_run_of_messages_is_removed_by_one_row_but_what_it_does_not_name_stays():
    kit, job = begun()
    synchronise(job, 0, [copy(seq) for seq in (1, 2, 3, 7, 8, 9, 20)])
    runs = [row("q", _SEQ.pack(first) + _SEQ.pack(last), op=REMOVE) for first, last in ((2, 7), (9, 19))]
    synchronise(job, 1, runs)
    promote(kit)
    assert drained(kit) == bodies(1, 8, 20)


def test_a_copy_goes_to_its_queue_alone_whatever_its_properties_say():
    kit, job = begun()
    declare(kit, "other")
    said = Properties(delivery_mode=2, user_id="somebody", expiration="5000", headers={"CC": ["other"]})
    as_published = _SEQ.pack(1) + b"\x0aamq.direct\x03key" + b"body"
    synchronise(job, 0, [row("q", as_published, op=3, properties=encode_properties(said))])
    assert (live(kit), live(kit, "other")) == (1, 0)
    promote(kit)
    client = kit.client(vhost="mirror")
    client.send(methods.BasicGet(queue="q", no_ack=True))
    kit.run()
    (found,) = [item for item in client.take() if isinstance(item, methods.BasicGetOk)]
    assert (found.exchange, found.routing_key) == ("amq.direct", "key")


def test_a_promoted_queue_with_priorities_delivers_the_highest_first():
    kit, job = begun(**{"x-max-priority": 5})
    levels = {1: 0, 2: 5, 3: 1, 4: 5}
    urgent = {seq: encode_properties(Properties(delivery_mode=2, priority=at)) for seq, at in levels.items()}
    synchronise(job, 0, [copy(seq, properties=raw) for seq, raw in urgent.items()])
    promote(kit)
    assert drained(kit) == bodies(2, 4, 3, 1)


def test_a_copy_is_taken_once_even_from_a_job_that_begins_again():
    kit, job = begun()
    synchronise(job, 0, [copy(seq) for seq in (1, 2, 5)])
    other = SinkClient(kit, "again", vhost="mirror")
    other.open()
    synchronise(other, 0, [copy(seq) for seq in (1, 2, 5, 6)])
    promote(kit)
    assert drained(kit) == bodies(1, 2, 5, 6)


def test_a_removed_message_does_not_come_back_with_a_job_that_begins_again():
    kit, job = begun()
    synchronise(job, 0, [copy(1), copy(2), removal(1)])
    other = SinkClient(kit, "again", vhost="mirror")
    other.open()
    synchronise(other, 0, [copy(1), copy(2)])
    promote(kit)
    assert drained(kit) == bodies(2)


def test_origins_outlive_restarts():
    kit, job = begun()
    synchronise(job, 0, [copy(seq) for seq in range(1, 50)])
    kit, job = begun(kit.disk.crash(lambda n: 0))
    assert live(kit) == 49
    synchronise(job, 1, [*(removal(seq) for seq in range(1, 40)), copy(50), copy(49)])
    kit, job = begun(kit.disk.crash(lambda n: 0))
    assert live(kit) == 11
    promote(kit)
    assert drained(kit) == bodies(*range(40, 51))
    again = NodeKit(kit.disk.crash(lambda n: n))
    assert again.node.vhosts["mirror"].mirror_of == ""


def test_nothing_expires_or_is_dropped_or_dead_lettered_before_the_promotion():
    arguments = {"x-max-length": 2, "x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-expires": 3000}
    kit, job = begun(**arguments, **{"x-dead-letter-routing-key": "dead"})
    declare(kit, "dead")
    short = encode_properties(Properties(delivery_mode=2, expiration="500"))
    synchronise(job, 0, [copy(seq, properties=short) for seq in range(1, 6)])
    kit.advance(10)
    assert (live(kit), live(kit, "dead")) == (5, 0)
    promote(kit)
    kit.advance(2)
    assert (live(kit), live(kit, "dead")) == (0, 5)


def test_a_promoted_vhost_takes_clients_and_refuses_the_job():
    kit, job = begun()
    staged = job.stage([copy(1)], batch=0, **OF)
    promote(kit)
    code, text = job.refusal("commit_set", batch=0, txs=[staged])
    assert (code, "promoted" in text) == ("access", True)
    code, text = job.refusal("stage", batch=1, origin=WEST)
    assert (code, "promoted" in text) == ("access", True)
    client = kit.client(vhost="mirror")
    client.feed(publish(b"q", b"mine", PERSISTENT))
    kit.run()
    assert drained(kit) == [b"mine"]


def test_only_rows_of_the_mirrored_cluster_enter_a_mirror():
    kit, job = begun()
    assert job.refusal("stage", batch=0)[0] == "access"
    assert job.refusal("stage", batch=0, origin="east")[0] == "access"
    call = job.begin("stage", batch=0, origin=WEST)
    call.stream.on_data(row("q", b"1"))
    assert call.error.code == "refused"
    plain = SinkClient(kit, "plain")
    plain.open()
    kit.client().declare("p", durable=True)
    assert plain.refusal("stage", batch=0, origin=WEST)[0] == "access"
    call = plain.begin("stage", batch=0)
    call.stream.on_data(copy(1, queue="p"))
    assert call.error.code == "refused"


def test_rows_of_a_queue_that_was_declared_anew_at_the_source_are_refused():
    kit, job = begun()
    for sources in ({}, {"q": "another"}):
        call = job.begin("stage", batch=0, origin=WEST, sources=sources)
        call.stream.on_data(copy(1))
        assert call.error.code == "refused"
        assert "declare it anew" in call.error.text
    assert live(kit) == 0


def ask(kit, request):
    answers = []
    kit.node.admin(kit.now, request, answers.append)
    kit.run()
    kit.advance(0.3)
    return answers[0]


def test_an_operator_makes_and_promotes_mirrors():
    kit = NodeKit(MemoryDisk())
    made = requests.AddVHost(name="m", mirror_of=WEST, actor="guest")
    assert ask(kit, made).problem is None
    assert kit.node.vhosts["m"].mirror_of == WEST
    assert ask(kit, requests.PromoteMirror(name="m")).problem is None
    assert kit.node.vhosts["m"].mirror_of == ""
    assert ask(kit, requests.PromoteMirror(name="m")).problem is not None
    assert ask(kit, requests.PromoteMirror(name="none")).problem is not None


def test_a_vhost_that_exists_cannot_become_a_mirror_nor_a_cluster_its_own():
    kit = NodeKit(MemoryDisk())
    assert ask(kit, requests.AddVHost(name="/", mirror_of=WEST)).problem is not None
    own = kit.node.membership.identity.cluster.hex()
    assert ask(kit, requests.AddVHost(name="m", mirror_of=own)).problem is not None
    assert ask(kit, requests.AddVHost(name="m", mirror_of=kit.node.cluster_name)).problem is not None


def test_an_import_of_definitions_does_not_promote_a_mirror():
    kit, _ = begun()
    apply(kit, commands.PutVHost(VHost("mirror", description="new")))
    assert kit.node.vhosts["mirror"].mirror_of == WEST


class Client(SinkClient):
    def settle(self):
        self.kit.group.advance(0.5)


def test_the_mirrors_of_a_mirror_know_the_origins():
    kit = MirroredKit()
    kit.policy()
    kit.apply(commands.PutVHost(VHost("mirror", mirror_of=WEST)))
    kit.apply(commands.SetPermission(Permission("guest", "mirror", ".*", ".*", ".*")))
    from mirrormq.meta.records import Policy, Queue

    kit.apply(commands.SetPolicy(Policy("mirror", "ha", "^q$", {"ha-mode": "all"}, "queues")))
    follows = {"x-mirror-source": "id-q"}
    kit.apply(commands.DeclareQueue(Queue("mirror", "q", node="b", arguments=follows)))
    job = Client(kit["a"], "job", vhost="mirror")
    job.open()
    synchronise(job, 0, [copy(seq) for seq in range(1, 30)])
    kit.kill("b")
    kit.advance(3)
    for _ in range(10):
        call = job.begin("sink_open")
        kit.advance(0.5)
        if call.error is None:
            break
    synchronise(job, 1, [*(removal(seq) for seq in range(1, 29)), copy(29), copy(30)])
    kit.apply(commands.PromoteMirror("mirror"))
    client = kit["c"].client(vhost="mirror")
    client.consume("q", no_ack=True)
    kit.advance(0.6)
    assert client.deliveries() == bodies(29, 30)
