"""The sink: rows are staged, committed once, and reach their queues exactly once and in order."""

import pytest

from mirrormq.meta.commands import SetPolicy
from mirrormq.meta.definitions import export
from mirrormq.meta.records import Policy
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from mirrormq.wire.properties import Properties, decode_properties, encode_properties
from tests.support.nodekit import NodeKit
from tests.support.sinkkit import SinkClient, row


def begun(*queues, **arguments):
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    for name in queues or ("q",):
        client.declare(name, durable=True, arguments=arguments)
    sink = SinkClient(kit)
    sink.open()
    return kit, sink


def drained(kit, queue="q"):
    client = kit.client()
    client.consume(queue, no_ack=True)
    found = client.deliveries()
    client.close_socket()
    return found


def bodies(*numbers):
    return [b"%d" % number for number in numbers]


def rows(*numbers, key="q"):
    return [row(key, body) for body in bodies(*numbers)]


def test_rows_are_in_their_queue_after_the_commit_and_not_before():
    kit, sink = begun()
    tx = sink.stage(rows(1, 2, 3))
    assert drained(kit) == []
    assert sink.commit(0, tx) == {"state": "committed", "rows": 3, "forwarded": False}
    assert drained(kit) == bodies(1, 2, 3)


def test_a_new_sink_has_no_batch_and_an_old_one_tells_its_last():
    kit, sink = begun()
    assert sink.open()["last"] is None
    sink.commit(7, sink.stage(rows(1), batch=7))
    assert sink.open()["last"] == 7
    assert SinkClient(kit, "other").open()["last"] is None


def test_rows_stand_by_partition_and_then_in_the_order_they_were_sent():
    kit, sink = begun()
    last = sink.stage(rows(5, 6), partition=2)
    first = sink.stage(rows(1, 2), partition=0)
    middle = sink.stage(rows(3, 4), partition=1)
    sink.commit(0, last, first, middle)
    assert drained(kit) == bodies(1, 2, 3, 4, 5, 6)


def test_a_batch_is_committed_once_and_a_second_attempt_of_it_is_dropped():
    kit, sink = begun()
    first = sink.stage(rows(1))
    second = sink.stage(rows(1))
    assert sink.commit(0, first)["state"] == "committed"
    assert sink.commit(0, second)["state"] == "already"
    assert sink.commit(0, first)["state"] == "already"
    late = sink.send(rows(1, key="gone since"))
    kit.run()
    assert late.answers[-1]["already"]
    assert sink.commit(0, late.answers[-1]["tx"])["state"] == "already"
    assert drained(kit) == bodies(1)
    assert sink.ask("sink_state")["open"] == []


def test_rows_go_to_every_queue_their_key_leads_to():
    kit, sink = begun("a", "b", "c")
    client = kit.client()
    for queue, key in (("a", "x"), ("b", "x"), ("c", "y")):
        bind = methods.QueueBind(queue=queue, exchange="amq.direct", routing_key=key)
        client.ask(bind, methods.QueueBindOk)
    sent = [row(key, body, b"amq.direct") for key, body in (("x", b"1"), ("y", b"2"), ("x", b"3"))]
    answer = sink.commit(0, sink.stage(sent))
    assert answer["rows"] == 5
    assert [drained(kit, queue) for queue in "abc"] == [bodies(1, 3), bodies(1, 3), bodies(2)]


def test_an_unroutable_row_fails_the_transaction_and_names_exchange_and_key():
    kit, sink = begun()
    call = sink.send([*rows(1), row("nowhere", b"2", b"amq.topic")])
    assert call.error.code == "refused"
    assert "'nowhere'" in call.error.text
    assert "'amq.topic'" in call.error.text
    kit.run()
    assert sink.ask("sink_state")["open"] == []
    assert sink.staging.log.dead.missing_count(1, sink.staging.log.end) == 0


def test_rows_may_be_cut_anywhere_on_their_way():
    kit, sink = begun()
    data = b"".join(rows(*range(50)))
    call = sink.begin("stage", batch=0, partition=0)
    for at in range(0, len(data), 7):
        call.stream.on_data(data[at : at + 7])
    call.stream.on_end({})
    kit.run()
    sink.commit(0, call.answers[-1]["tx"])
    assert drained(kit) == bodies(*range(50))


def test_a_transaction_whose_client_goes_leaves_nothing():
    kit, sink = begun()
    call = sink.begin("stage", batch=0, partition=0)
    call.stream.on_data(row("q", bytes(400_000)))
    kit.run()
    assert sink.ask("sink_state")["open"] != []
    call.cancel()
    kit.run()
    assert sink.ask("sink_state")["open"] == []
    assert sink.staging.log.dead.missing_count(1, sink.staging.log.end) == 0


def test_an_aborted_transaction_cannot_be_committed():
    _, sink = begun()
    tx = sink.stage(rows(1))
    sink.ask("abort", txs=[tx])
    code, text = sink.refusal("commit_set", batch=0, txs=[tx])
    assert code == "gone"
    assert tx.lstrip("0") in text


def test_a_transaction_past_its_timeout_makes_the_commit_fail_and_is_dropped():
    kit, sink = begun()
    old = sink.stage(rows(1), partition=0, tx_timeout=2)
    new = sink.stage(rows(2), partition=1, tx_timeout=100)
    kit.advance(3)
    assert sink.refusal("commit_set", batch=0, txs=[old, new])[0] == "gone"
    assert sink.ask("sink_state")["open"] == [new]
    assert drained(kit) == []


def test_committed_rows_enter_a_queue_that_rejects_publishes():
    kit, sink = begun(**{"x-max-length": 2, "x-overflow": "reject-publish"})
    sink.commit(0, sink.stage(rows(1, 2, 3, 4)))
    assert drained(kit) == bodies(1, 2, 3, 4)


def test_rows_for_a_deleted_queue_are_skipped_and_counted():
    kit, sink = begun("q", "r")
    tx = sink.stage([*rows(1, 2), *rows(3, key="r")])
    client = kit.client()
    client.ask(methods.QueueDelete(queue="q"), methods.QueueDeleteOk)
    client.declare("q", durable=True)
    sink.commit(0, tx)
    state = sink.ask("sink_state")
    assert (state["committed"], state["forwarded"], state["skipped"], state["waiting"]) == (3, 1, 2, 0)
    assert drained(kit) == []
    assert drained(kit, "r") == bodies(3)


def test_properties_and_body_arrive_as_they_were_sent():
    kit, sink = begun()
    sent = Properties(delivery_mode=2, message_id="m", headers={"a": 1}, priority=3)
    sink.commit(0, sink.stage([row("q", b"x" * 70_000, properties=encode_properties(sent)), row("q", b"")]))
    client = kit.client()
    client.consume("q", no_ack=True)
    found = [item for item in client.take() if isinstance(item, tuple)]
    assert decode_properties(found[0][0]) == sent
    assert [item[1] for item in found] == [b"x" * 70_000, b""]


def test_a_row_is_persistent_whatever_it_says():
    kit, sink = begun()
    plain = encode_properties(Properties(message_id="m"))
    sink.commit(0, sink.stage([row("q", b"1", properties=plain), row("q", b"2")]))
    again = NodeKit(kit.disk.crash(lambda n: 0))
    assert drained(again) == bodies(1, 2)


def test_a_row_may_only_claim_to_be_from_its_own_user():
    _, sink = begun()
    stolen = encode_properties(Properties(delivery_mode=2, user_id="somebody"))
    call = sink.send([row("q", b"1", properties=stolen)])
    assert call.error.code == "refused"
    assert "user_id" in call.error.text


@pytest.mark.parametrize("cut", [b"\x05\0\0\0", b"\xff\xff\xff\xff\0", row("q", b"1")[:-1] + b"", b"\0"])
def test_what_is_no_row_is_refused(cut):
    _, sink = begun()
    call = sink.send([cut])
    assert call.error is not None
    assert call.error.code == "refused"


def test_nobody_else_can_use_a_sink():
    kit, _ = begun()
    other = SinkClient(kit, user="somebody")
    assert other.refusal("sink_open")[0] == 403
    assert other.refusal("stage", batch=0)[0] == 403
    assert SinkClient(kit, "unknown").refusal("sink_state")[0] == 404


def test_ordinary_clients_cannot_touch_a_staging_queue():
    kit, _ = begun()
    name = "mirrormq.sink.s1"
    for method in (
        methods.QueueDeclare(queue=name, passive=True),
        methods.QueueDeclare(queue=name, durable=True),
        methods.BasicConsume(queue=name),
        methods.BasicGet(queue=name),
        methods.QueuePurge(queue=name),
        methods.QueueDelete(queue=name),
        methods.QueueBind(queue=name, exchange="amq.direct", routing_key="x"),
    ):
        client = kit.client()
        client.send(method)
        kit.run()
        (closed,) = [item for item in client.take() if isinstance(item, methods.ChannelClose)]
        assert closed.reply_code == 403, method


def test_the_state_of_a_sink_outlives_a_restart():
    kit, sink = begun()
    tx = sink.stage(rows(1, 2), batch=3)
    again = NodeKit(kit.disk.crash(lambda n: 0))
    sink = SinkClient(again)
    assert sink.open()["open"] == [tx]
    assert sink.commit(3, tx)["state"] == "committed"
    third = NodeKit(again.disk.crash(lambda n: 0))
    sink = SinkClient(third)
    assert sink.open()["last"] == 3
    assert sink.commit(3, tx)["state"] == "already"
    assert drained(third) == bodies(1, 2)


def test_a_commit_may_wait_until_the_rows_are_where_they_belong():
    kit, sink = begun()
    answer = sink.commit(0, sink.stage(rows(1, 2)), wait=5)
    assert answer == {"state": "committed", "rows": 2, "forwarded": True}
    assert drained(kit) == bodies(1, 2)


def test_a_client_that_sends_faster_than_the_disk_is_not_read():
    kit, sink = begun()
    kit.hold_flushes = True
    call = sink.begin("stage", batch=0, partition=0)
    while not sink.session.parks:
        call.stream.on_data(row("q", bytes(300_000)))
        kit.run()
    kit.hold_flushes = False
    while (token := kit.disk.finish_next()) is not None:
        kit.node.disk_done(kit.now, token)
        kit.run()
    kit.advance(0.3)
    assert not sink.session.parks


def test_neither_policies_nor_exports_know_a_staging_queue():
    kit, sink = begun()
    outcomes = []
    policy = Policy("/", "all", ".*", {"max-length": 1, "message-ttl": 1}, "queues")
    kit.node.propose(SetPolicy(policy), outcomes.append, True)
    kit.run()
    assert outcomes[0].ok
    assert kit.node.vhosts["/"].queues["q"].settings.max_length == 1
    assert sink.staging.settings.max_length is None
    exported = export(kit.node.state, "/")
    assert [one["name"] for one in exported["queues"]] == ["q"]


def test_a_sink_that_is_not_used_for_thirty_days_is_forgotten():
    kit, sink = begun()
    sink.commit(0, sink.stage(rows(1)))
    day = 24 * 3600 * 1_000_000
    for _ in range(29):
        kit.now = kit.now._replace(mono=kit.now.mono + day, wall=kit.now.wall + day)
        kit.advance(1)
    assert sink.open()["last"] == 0
    for _ in range(31):
        kit.now = kit.now._replace(mono=kit.now.mono + day, wall=kit.now.wall + day)
        kit.advance(1)
    assert sink.refusal("sink_state")[0] == 404


def test_a_batch_is_told_to_be_committed_only_when_that_is_durable():
    kit, sink = begun()
    tx = sink.stage(rows(1))
    kit.hold_flushes = True
    sink.begin("commit_set", batch=0, txs=[tx])
    asked = [sink.begin(op) for op in ("sink_open", "sink_state")]
    again = sink.send(rows(1))
    kit.run()
    assert [call.answers for call in asked] == [[], []]
    assert len(again.answers) == 1
    kit.hold_flushes = False
    kit.flush()
    kit.advance(0.3)
    assert [call.answers[-1]["last"] for call in asked] == [0, 0]
    assert again.answers[-1]["already"]
