"""exchange.declare, delete, bind and unbind: results, errors and their order, rights, nowait."""

import pytest

from mirrormq.wire import methods
from tests.support.fakehost import Client, FakeHost, connected


def failed(client: Client, method) -> str:
    close = client.call(method, methods.ChannelClose)
    assert (close.class_id, close.method_id) == (method.class_id_of, method.method_id_of)
    return close.reply_text


def declare(client: Client, name: str, **arguments) -> None:
    client.call(methods.ExchangeDeclare(exchange=name, **arguments), methods.ExchangeDeclareOk)


def test_a_declaration_creates_an_exchange_as_described():
    host = FakeHost()
    declare(
        connected(host), "x", type="topic", durable=True, auto_delete=True, internal=True, arguments={"a": 1}
    )
    record = host.state.exchanges["/", "x"]
    assert (record.type, record.durable, record.auto_delete, record.internal) == ("topic", True, True, True)
    assert record.arguments == {"a": 1}


def test_a_different_redeclaration_is_refused():
    client = connected()
    declare(client, "x")
    declare(client, "x")
    assert failed(client, methods.ExchangeDeclare(exchange="x", type="fanout")) == (
        "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'x' in vhost '/': "
        "received 'fanout' but current is 'direct'"
    )


def test_an_unknown_type_costs_the_connection():
    client = connected()
    client.send(methods.ExchangeDeclare(exchange="", type="x-nonsense"))
    close = client.expect(methods.ConnectionClose, 0)
    assert close.reply_text == "COMMAND_INVALID - unknown exchange type 'x-nonsense'"


def test_a_passive_declaration_looks_only_at_the_name():
    client = connected()
    declare(client, "x")
    declare(client, "x", type="nonsense", durable=True, passive=True)
    assert failed(client, methods.ExchangeDeclare(exchange="none", passive=True)) == (
        "NOT_FOUND - no exchange 'none' in vhost '/'"
    )


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (methods.ExchangeDeclare(exchange=""), "operation not permitted on the default exchange"),
        (
            methods.ExchangeDeclare(exchange="", passive=True),
            "operation not permitted on the default exchange",
        ),
        (methods.ExchangeDelete(exchange=""), "operation not permitted on the default exchange"),
        (methods.ExchangeDeclare(exchange="amq.x"), "exchange name 'amq.x' contains reserved prefix 'amq.*'"),
        (
            methods.ExchangeDelete(exchange="amq.topic"),
            "deletion of system exchange 'amq.topic' in vhost '/' not allowed",
        ),
    ],
)
def test_exchanges_of_the_system_cannot_be_touched(method, text):
    assert failed(connected(), method) == f"ACCESS_REFUSED - {text}"


def test_a_predeclared_exchange_may_be_declared_as_it_is():
    declare(connected(), "amq.topic", type="topic", durable=True)


def test_delete_of_a_missing_exchange_is_no_mistake():
    connected().call(methods.ExchangeDelete(exchange="none"), methods.ExchangeDeleteOk)


def test_delete_if_unused_is_a_condition_on_its_bindings_as_a_source():
    client = connected()
    declare(client, "source")
    declare(client, "sink", type="fanout")
    bind = methods.ExchangeBind(source="source", destination="sink", routing_key="k")
    client.call(bind, methods.ExchangeBindOk)
    client.call(methods.ExchangeDelete(exchange="sink", if_unused=True), methods.ExchangeDeleteOk)
    declare(client, "sink", type="fanout")
    client.call(bind, methods.ExchangeBindOk)
    assert failed(client, methods.ExchangeDelete(exchange="source", if_unused=True)) == (
        "PRECONDITION_FAILED - exchange 'source' in vhost '/' in use"
    )


def test_messages_follow_bindings_between_exchanges():
    host = FakeHost()
    client = connected(host)
    declare(client, "first")
    declare(client, "second", type="fanout")
    client.declare("q")
    client.call(
        methods.ExchangeBind(source="first", destination="second", routing_key="k"), methods.ExchangeBindOk
    )
    client.call(methods.QueueBind(queue="q", exchange="second"), methods.QueueBindOk)
    client.publish("k", exchange="first")
    client.call(
        methods.ExchangeUnbind(source="first", destination="second", routing_key="k"),
        methods.ExchangeUnbindOk,
    )
    client.publish("k", exchange="first")
    assert host.vhosts["/"].queues["q"].message_count == 1


def test_binding_names_the_missing_end_source_first():
    client = connected()
    declare(client, "x")
    assert failed(client, methods.ExchangeBind(source="none", destination="nor")) == (
        "NOT_FOUND - no exchange 'none' in vhost '/'"
    )
    client.send(methods.ChannelCloseOk())
    client.open_channel()
    assert failed(client, methods.ExchangeBind(source="x", destination="nor")) == (
        "NOT_FOUND - no exchange 'nor' in vhost '/'"
    )


@pytest.mark.parametrize(("source", "destination"), [("", "x"), ("x", "")])
def test_the_default_exchange_cannot_be_bound(source, destination):
    client = connected()
    declare(client, "x")
    assert failed(client, methods.ExchangeBind(source=source, destination=destination)) == (
        "ACCESS_REFUSED - operation not permitted on the default exchange"
    )


def test_nothing_is_answered_without_wait():
    client = connected()
    for method in (
        methods.ExchangeDeclare(exchange="x", nowait=True),
        methods.ExchangeDeclare(exchange="y", nowait=True),
        methods.ExchangeDeclare(exchange="y", passive=True, nowait=True),
        methods.ExchangeBind(source="x", destination="y", nowait=True),
        methods.ExchangeUnbind(source="x", destination="y", nowait=True),
        methods.ExchangeDelete(exchange="x", nowait=True),
        methods.ExchangeDelete(exchange="x", nowait=True),
    ):
        client.send(method)
    assert client.all() == []


@pytest.mark.parametrize(
    ("rights", "method", "name"),
    [
        (("^$", ".*", ".*"), methods.ExchangeDeclare(exchange="x"), "x"),
        (("^$", ".*", ".*"), methods.ExchangeDelete(exchange="x"), "x"),
        ((".*", "^$", ".*"), methods.ExchangeBind(source="s", destination="d"), "d"),
        ((".*", ".*", "^$"), methods.ExchangeBind(source="s", destination="d"), "s"),
        (
            (".*", "^$", ".*"),
            methods.ExchangeDeclare(exchange="x", arguments={"alternate-exchange": "a"}),
            "a",
        ),
        (
            (".*", ".*", "^$"),
            methods.ExchangeDeclare(exchange="x", arguments={"alternate-exchange": "a"}),
            "x",
        ),
    ],
)
def test_each_method_needs_its_rights(rights, method, name):
    host = FakeHost()
    host.add_user("eve", "eve", rights=rights)
    eve = connected(host, user="eve", password="eve")
    assert (
        failed(eve, method)
        == f"ACCESS_REFUSED - access to exchange '{name}' in vhost '/' refused for user 'eve'"
    )


def test_a_durable_exchange_is_answered_when_it_is_flushed():
    host = FakeHost()
    client = connected(host)
    host.hold_flushes = True
    client.send(methods.ExchangeDeclare(exchange="x", durable=True))
    assert client.all() == []
    host.flush()
    client.expect(methods.ExchangeDeclareOk)
