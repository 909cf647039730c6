"""Publishing in the Python lane: rights, properties, CC and BCC, returns, alternate exchanges."""

import pytest

from mirrormq.meta import commands, records
from mirrormq.wire import methods
from mirrormq.wire.properties import Properties, decode_properties
from tests.support.fakehost import Client, FakeHost, connected, content_frames


def refused(client: Client) -> str:
    close = client.expect(methods.ChannelClose)
    assert (close.class_id, close.method_id) == (60, 40)
    return close.reply_text


def get(client: Client, queue: str = "q"):
    client.send(methods.BasicGet(queue=queue, no_ack=True))
    return client.next()


def with_queue(host: FakeHost | None = None, name: str = "q", **open_) -> Client:
    client = connected(host, **open_)
    client.declare(name)
    return client


def test_a_missing_exchange_is_named():
    client = connected()
    client.publish("k", exchange="none")
    assert refused(client) == "NOT_FOUND - no exchange 'none' in vhost '/'"


def test_immediate_is_not_implemented():
    client = with_queue()
    client.raw(content_frames(1, methods.BasicPublish(routing_key="q", immediate=True), Properties(), b""))
    assert client.expect(methods.ConnectionClose, 0).reply_text == "NOT_IMPLEMENTED - immediate=true"


def test_internal_exchanges_take_no_publishes():
    client = connected()
    client.call(methods.ExchangeDeclare(exchange="x", internal=True), methods.ExchangeDeclareOk)
    client.publish("k", exchange="x")
    assert refused(client) == "ACCESS_REFUSED - cannot publish to internal exchange 'x' in vhost '/'"


@pytest.mark.parametrize(
    ("exchange", "name"), [("", "amq.default"), ("amq.direct", "amq.direct"), ("none", "none")]
)
def test_publishing_needs_the_right_to_write(exchange, name):
    host = FakeHost()
    host.add_user("eve", "eve", rights=(".*", "^$", ".*"))
    with_queue(host)
    eve = connected(host, user="eve", password="eve")
    eve.publish("q", exchange=exchange)
    assert refused(eve) == f"ACCESS_REFUSED - access to exchange '{name}' in vhost '/' refused for user 'eve'"


def test_topic_permissions_restrict_routing_keys():
    host = FakeHost()
    host.add_user("eve", "eve")
    permission = records.TopicPermission("eve", "/", "amq.topic", r"^{username}\.", r"^public\.")
    host.apply(commands.SetTopicPermission(permission))
    eve = connected(host, user="eve", password="eve")
    eve.declare("q")
    eve.call(methods.QueueBind(queue="q", exchange="amq.topic", routing_key="public.#"), methods.QueueBindOk)
    eve.publish("eve.news", exchange="amq.topic")
    assert eve.all() == []
    eve.publish("public.news", exchange="amq.topic")
    assert refused(eve) == (
        "ACCESS_REFUSED - access to topic 'public.news' in exchange 'amq.topic' "
        "in vhost '/' refused for user 'eve'"
    )


def test_binding_is_restricted_by_topic_permissions_too():
    host = FakeHost()
    host.add_user("eve", "eve")
    host.apply(commands.SetTopicPermission(records.TopicPermission("eve", "/", "amq.topic", ".*", "^public")))
    eve = with_queue(host, user="eve", password="eve")
    bind = methods.QueueBind(queue="q", exchange="amq.topic", routing_key="secret.#")
    assert eve.call(bind, methods.ChannelClose).reply_text == (
        "ACCESS_REFUSED - access to topic 'secret.#' in exchange 'amq.topic' "
        "in vhost '/' refused for user 'eve'"
    )


def test_a_user_id_must_be_the_publishers_own():
    client = with_queue()
    client.publish("q", b"mine", user_id="guest")
    assert get(client).properties.user_id == "guest"
    client.publish("q", b"forged", user_id="root")
    assert refused(client) == (
        "PRECONDITION_FAILED - user_id property set to 'root' but authenticated user was 'guest'"
    )


def test_an_impersonator_may_claim_any_user_id():
    host = FakeHost()
    host.add_user("agent", "agent", tags=("impersonator",))
    client = with_queue(host, user="agent", password="agent")
    client.publish("q", user_id="root")
    assert get(client).properties.user_id == "root"


@pytest.mark.parametrize(
    ("expiration", "reason"), [("soon", "no_integer"), ("", "no_integer"), ("1h", '{leftover_string,"h"}')]
)
def test_an_expiration_must_be_a_number(expiration, reason):
    client = with_queue()
    client.publish("q", expiration=expiration)
    assert refused(client) == f"PRECONDITION_FAILED - invalid expiration '{expiration}': {reason}"


def test_a_delivery_mode_must_be_known():
    client = connected()
    client.publish("nowhere", delivery_mode=9)
    assert refused(client) == "PRECONDITION_FAILED - invalid message: {delivery_mode_unknown,9}"


def test_of_two_mistakes_the_first_checked_is_told():
    client = connected()
    client.publish("k", exchange="none", user_id="root")
    assert refused(client).startswith("NOT_FOUND")
    other = with_queue()
    other.publish("q", user_id="root", expiration="soon")
    assert "user_id" in refused(other)


# --- CC and BCC ---------------------------------------------------------------------------------


def test_copies_go_to_every_key_and_only_bcc_is_hidden():
    client = connected()
    for name in ("to", "cc", "bcc"):
        client.declare(name)
    client.publish("to", b"x", headers={"CC": ["cc"], "BCC": ["bcc"], "kept": 1})
    for name in ("to", "cc", "bcc"):
        got = get(client, name)
        assert got.body == b"x"
        assert got.method.routing_key == "to"
        assert got.properties.headers == {"CC": ["cc"], "kept": 1}


def test_a_queue_named_twice_gets_one_copy():
    client = with_queue()
    client.publish("q", headers={"CC": ["q", "q"]})
    assert get(client).method.message_count == 0


@pytest.mark.parametrize(("name", "value", "tag"), [("CC", "q", "longstr"), ("BCC", 1, "signedint")])
def test_copies_must_be_listed(name, value, tag):
    client = with_queue()
    client.publish("q", headers={name: value})
    assert refused(client) == (
        f'PRECONDITION_FAILED - invalid message: {{unacceptable_type_in_header,"{name}",{tag}}}'
    )


def test_other_headers_keep_their_bytes_when_bcc_goes():
    host = FakeHost()
    client = with_queue(host)
    odd = b"\x03odd" + b"u\x12\x34"  # a type our own encoder never writes
    bcc = b"\x03BCC" + b"A\x00\x00\x00\x06S\x00\x00\x00\x01q"
    table = odd + bcc
    properties = b"\x20\x00" + len(table).to_bytes(4, "big") + table
    head = b"\x00\x3c\x00\x00" + (0).to_bytes(8, "big") + properties
    method = methods.encode(methods.BasicPublish(routing_key="nowhere"))
    client.raw(
        b"\x01\x00\x01" + len(method).to_bytes(4, "big") + method + b"\xce"
        b"\x02\x00\x01" + len(head).to_bytes(4, "big") + head + b"\xce"
    )
    client.send(methods.BasicGet(queue="q", no_ack=True))
    assert b"\x20\x00\x00\x00\x00\x07" + odd in bytes(client.connection.out.take())
    assert decode_properties(properties).headers["odd"] == 0x1234


# --- nowhere to go ------------------------------------------------------------------------------


def test_a_mandatory_message_without_a_route_comes_back():
    client = connected()
    client.publish("nowhere", b"lost", exchange="amq.direct", mandatory=True, message_id="7")
    returned = client.next()
    assert returned.method == methods.BasicReturn(312, "NO_ROUTE", "amq.direct", "nowhere")
    assert (returned.body, returned.properties.message_id) == (b"lost", "7")


def test_a_message_without_a_route_is_dropped_silently():
    client = connected()
    client.publish("nowhere", b"lost")
    assert client.all() == []


def test_an_alternate_exchange_gets_what_has_no_route():
    client = with_queue()
    client.call(
        methods.ExchangeDeclare(exchange="x", arguments={"alternate-exchange": "amq.fanout"}),
        methods.ExchangeDeclareOk,
    )
    client.call(methods.QueueBind(queue="q", exchange="amq.fanout"), methods.QueueBindOk)
    client.publish("k", b"x", exchange="x", mandatory=True)
    got = get(client)
    assert (got.method.exchange, got.body) == ("x", b"x")


def test_headers_decide_for_a_headers_exchange():
    client = with_queue()
    client.call(
        methods.QueueBind(queue="q", exchange="amq.headers", arguments={"x-match": "all", "colour": "red"}),
        methods.QueueBindOk,
    )
    client.publish("", b"blue", exchange="amq.headers", headers={"colour": "blue"})
    client.publish("", b"red", exchange="amq.headers", headers={"colour": "red"})
    assert get(client).body == b"red"
    client.call(methods.BasicGet(queue="q"), methods.BasicGetEmpty)


def test_both_lanes_keep_the_order_of_a_channel():
    client = with_queue()
    for number in range(6):
        extra = {"headers": {"CC": []}} if number % 2 else {}
        client.publish("q", b"%d" % number, **extra)
    assert [get(client).body for _ in range(6)] == [b"0", b"1", b"2", b"3", b"4", b"5"]
