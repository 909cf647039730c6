"""queue.declare, delete, purge, bind and unbind: results, errors and their order, rights, nowait."""

import pytest

from mirrormq.meta import commands, records
from mirrormq.wire import methods
from mirrormq.wire.properties import Properties
from tests.support.fakehost import Client, FakeHost, connected, content_frames, method_frame

LOCKED = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'. "
    "It could be originally declared on another connection or the exclusive property value "
    "does not match that of the original declaration."
)


def failed(client: Client, method) -> str:
    close = client.call(method, methods.ChannelClose)
    assert (close.class_id, close.method_id) == (method.class_id_of, method.method_id_of)
    return close.reply_text


def test_a_declaration_creates_a_queue_as_described():
    host = FakeHost()
    client = connected(host)
    client.declare("q", durable=True, auto_delete=True, arguments={"x-max-length": 5})
    record = host.state.queues["/", "q"]
    assert (record.durable, record.auto_delete, record.exclusive, record.owner) == (True, True, False, None)
    assert record.arguments == {"x-max-length": 5}


def test_an_exclusive_queue_is_not_durable_and_belongs_to_its_connection():
    host = FakeHost()
    client = connected(host)
    client.declare("mine", durable=True, exclusive=True)
    record = host.state.queues["/", "mine"]
    assert (record.durable, record.owner) == (False, client.connection.conn_id)


def test_redeclaring_answers_with_the_counts():
    client = connected()
    client.declare("q")
    client.publish("q", b"1")
    client.publish("q", b"2")
    again = client.call(methods.QueueDeclare(queue="q"), methods.QueueDeclareOk)
    assert (again.message_count, again.consumer_count) == (2, 0)


def test_messages_published_in_the_same_read_are_counted():
    client = connected()
    client.declare("q")
    client.raw(
        content_frames(1, methods.BasicPublish(routing_key="q"), Properties(), b"x")
        + method_frame(1, methods.QueueDeclare(queue="q", passive=True))
    )
    assert client.expect(methods.QueueDeclareOk).message_count == 1


def test_a_different_redeclaration_is_refused():
    client = connected()
    client.declare("q")
    assert failed(client, methods.QueueDeclare(queue="q", durable=True)) == (
        "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': "
        "received 'true' but current is 'false'"
    )


@pytest.mark.parametrize(
    "method",
    [
        methods.QueueDeclare(queue="mine"),
        methods.QueueDeclare(queue="mine", exclusive=True),
        methods.QueueDeclare(queue="mine", passive=True),
        methods.QueueDelete(queue="mine"),
        methods.QueuePurge(queue="mine"),
        methods.QueueBind(queue="mine", exchange="amq.direct"),
        methods.BasicGet(queue="mine"),
        methods.BasicConsume(queue="mine"),
    ],
)
def test_an_exclusive_queue_is_locked_for_others(method):
    host = FakeHost()
    connected(host).declare("mine", exclusive=True)
    assert failed(connected(host), method) == LOCKED


def test_a_shared_queue_cannot_be_redeclared_exclusive():
    client = connected()
    client.declare("mine")
    assert failed(client, methods.QueueDeclare(queue="mine", exclusive=True)).startswith("RESOURCE_LOCKED")


def test_reserved_names_are_refused():
    assert failed(connected(), methods.QueueDeclare(queue="amq.mine")) == (
        "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"
    )


def test_a_passive_declaration_needs_a_queue_and_no_rights():
    host = FakeHost()
    host.add_user("eve", "eve", rights=("^$", "^$", "^$"))
    connected(host).declare("q")
    eve = connected(host, user="eve", password="eve")
    eve.call(methods.QueueDeclare(queue="q", passive=True), methods.QueueDeclareOk)
    assert failed(eve, methods.QueueDeclare(queue="none", passive=True)) == (
        "NOT_FOUND - no queue 'none' in vhost '/'"
    )


def test_line_ends_are_removed_from_names():
    assert connected().declare("a\r\nb") == "ab"


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (methods.QueuePurge(), methods.QueuePurgeOk),
        (methods.BasicGet(), methods.BasicGetEmpty),
        (methods.BasicConsume(), methods.BasicConsumeOk),
        (methods.QueueBind(exchange="amq.direct"), methods.QueueBindOk),
        (methods.QueueUnbind(exchange="amq.direct"), methods.QueueUnbindOk),
        (methods.QueueDelete(), methods.QueueDeleteOk),
    ],
)
def test_an_empty_name_means_the_queue_declared_last(method, answer):
    client = connected()
    client.declare("last")
    client.call(method, answer)
    other = connected()
    assert failed(other, method) == "NOT_FOUND - no previously declared queue"


def test_an_empty_key_with_an_empty_name_is_the_queues_name():
    host = FakeHost()
    client = connected(host)
    client.declare("last")
    client.call(methods.QueueBind(exchange="amq.direct"), methods.QueueBindOk)
    (binding,) = host.state.bindings_from("/", "amq.direct")
    assert (binding.destination, binding.routing_key) == ("last", "last")
    client.call(methods.QueueBind(queue="last", exchange="amq.direct"), methods.QueueBindOk)
    assert {b.routing_key for b in host.state.bindings_from("/", "amq.direct")} == {"last", ""}


def test_nothing_is_answered_without_wait():
    client = connected()
    for method in (
        methods.QueueDeclare(queue="q", nowait=True),
        methods.QueueDeclare(queue="q", nowait=True),
        methods.QueueBind(queue="q", exchange="amq.direct", nowait=True),
        methods.QueuePurge(queue="q", nowait=True),
        methods.QueueDelete(queue="q", nowait=True),
    ):
        client.send(method)
    assert client.all() == []


def test_delete_answers_with_the_number_of_messages():
    client = connected()
    client.declare("q")
    client.publish("q", b"1")
    assert client.call(methods.QueueDelete(queue="q"), methods.QueueDeleteOk).message_count == 1
    assert client.call(methods.QueueDelete(queue="q"), methods.QueueDeleteOk).message_count == 0


def test_delete_if_empty_and_if_unused_are_conditions():
    client = connected()
    client.declare("q")
    client.publish("q", b"1")
    assert failed(client, methods.QueueDelete(queue="q", if_empty=True, if_unused=True)) == (
        "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty"
    )
    client.send(methods.ChannelCloseOk())
    client.open_channel()
    client.call(methods.BasicConsume(queue="q", no_ack=True), methods.BasicConsumeOk)
    client.next()
    assert failed(client, methods.QueueDelete(queue="q", if_unused=True)) == (
        "PRECONDITION_FAILED - queue 'q' in vhost '/' in use"
    )


def test_purge_removes_what_is_ready_and_counts_it():
    client = connected()
    client.declare("q")
    for _ in range(3):
        client.publish("q", b"x")
    client.call(methods.BasicGet(queue="q"), methods.BasicGetOk)
    assert client.call(methods.QueuePurge(queue="q"), methods.QueuePurgeOk).message_count == 2
    assert failed(client, methods.QueuePurge(queue="none")) == "NOT_FOUND - no queue 'none' in vhost '/'"


def test_a_full_vhost_takes_no_more_queues():
    host = FakeHost()
    host.apply(commands.SetVHostLimits("/", {"max-queues": 1}))
    client = connected(host)
    client.declare("one")
    client.declare("one")
    assert failed(client, methods.QueueDeclare(queue="two")) == (
        "PRECONDITION_FAILED - cannot declare queue 'two': queue limit in vhost '/' (1) is reached"
    )


def test_the_vhosts_default_type_is_part_of_the_declaration():
    host = FakeHost()
    host.apply(commands.PutVHost(records.VHost("/", default_queue_type="quorum")))
    client = connected(host)
    client.declare("durable", durable=True)
    client.declare("transient")
    assert host.state.queues["/", "durable"].arguments == {"x-queue-type": "quorum"}
    assert host.state.queues["/", "transient"].arguments == {}


@pytest.mark.parametrize(
    ("rights", "method", "resource"),
    [
        (("^$", ".*", ".*"), methods.QueueDeclare(queue="q"), "queue 'q'"),
        (("^$", ".*", ".*"), methods.QueueDelete(queue="q"), "queue 'q'"),
        ((".*", ".*", "^$"), methods.QueuePurge(queue="q"), "queue 'q'"),
        ((".*", "^$", ".*"), methods.QueueBind(queue="q", exchange="amq.direct"), "queue 'q'"),
        ((".*", ".*", "^$"), methods.QueueBind(queue="q", exchange="amq.direct"), "exchange 'amq.direct'"),
        ((".*", ".*", "^$"), methods.QueueUnbind(queue="q", exchange="amq.direct"), "exchange 'amq.direct'"),
        (
            (".*", "^q$", ".*"),
            methods.QueueDeclare(queue="q", arguments={"x-dead-letter-exchange": "dead"}),
            "exchange 'dead'",
        ),
        (
            (".*", ".*", "^$"),
            methods.QueueDeclare(queue="q", arguments={"x-dead-letter-exchange": "dead"}),
            "queue 'q'",
        ),
    ],
)
def test_each_method_needs_its_rights(rights, method, resource):
    host = FakeHost()
    host.add_user("eve", "eve", rights=rights)
    eve = connected(host, user="eve", password="eve")
    assert failed(eve, method) == f"ACCESS_REFUSED - access to {resource} in vhost '/' refused for user 'eve'"


def test_binding_needs_both_ends_and_names_the_missing_one():
    client = connected()
    client.declare("q")
    assert (
        failed(client, methods.QueueBind(queue="none", exchange="nor"))
        == "NOT_FOUND - no exchange 'nor' in vhost '/'"
    )
    client.send(methods.ChannelCloseOk())
    client.open_channel()
    assert failed(client, methods.QueueBind(queue="none", exchange="amq.direct")) == (
        "NOT_FOUND - no queue 'none' in vhost '/'"
    )


def test_the_default_exchange_cannot_be_bound():
    client = connected()
    client.declare("q")
    assert failed(client, methods.QueueBind(queue="q", exchange="")) == (
        "ACCESS_REFUSED - operation not permitted on the default exchange"
    )


@pytest.mark.parametrize(("queue", "exchange"), [("none", "amq.direct"), ("q", "none"), ("q", "amq.direct")])
def test_unbinding_what_is_not_bound_is_no_mistake(queue, exchange):
    client = connected()
    client.declare("q")
    client.call(methods.QueueUnbind(queue=queue, exchange=exchange, routing_key="k"), methods.QueueUnbindOk)


def test_unbinding_removes_exactly_that_binding():
    host = FakeHost()
    client = connected(host)
    client.declare("q")
    for key in ("a", "b"):
        client.call(methods.QueueBind(queue="q", exchange="amq.direct", routing_key=key), methods.QueueBindOk)
    client.call(methods.QueueUnbind(queue="q", exchange="amq.direct", routing_key="a"), methods.QueueUnbindOk)
    assert [b.routing_key for b in host.state.bindings_from("/", "amq.direct")] == ["b"]
    client.publish("a", exchange="amq.direct")
    client.publish("b", exchange="amq.direct")
    assert host.vhosts["/"].queues["q"].message_count == 1


@pytest.mark.parametrize("durable", [True, False])
def test_a_binding_waits_for_a_flush_only_if_both_ends_outlive_a_restart(durable):
    host = FakeHost()
    client = connected(host)
    client.declare("q", durable=durable)
    host.hold_flushes = True
    client.send(methods.QueueBind(queue="q", exchange="amq.direct"))
    assert bool(client.all()) is not durable


def test_an_auto_delete_queue_goes_with_its_last_consumer():
    host = FakeHost()
    client = connected(host)
    client.declare("q", auto_delete=True)
    client.open_channel(2)
    client.call(methods.BasicConsume(queue="q", consumer_tag="a"), methods.BasicConsumeOk)
    client.call(methods.BasicConsume(queue="q"), methods.BasicConsumeOk, 2)
    client.call(methods.BasicCancel("a"), methods.BasicCancelOk)
    assert "q" in host.vhosts["/"].queues
    client.call(methods.ChannelClose(), methods.ChannelCloseOk, 2)
    assert "q" not in host.vhosts["/"].queues
