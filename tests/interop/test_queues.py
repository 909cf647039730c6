"""Promises about the life of a queue: names, flags, who may use it, when it goes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pamqp import commands
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from tests.interop.talk import Inbox, depth, publish, publish_all, queue, take_all
from tests.interop.waiting import pump, until


def exists(clients: Any, name: str) -> bool:
    probe = clients.channel(confirm=False)
    try:
        probe.queue_declare(name, passive=True)
    except ChannelClosedByBroker as closed:
        if closed.reply_code not in (404, 405):
            raise
        # 405: another connection's, which is closing.
        return closed.reply_code == 405
    finally:
        if probe.connection.is_open:
            probe.connection.close()
    return True


def test_an_empty_name_asks_for_a_generated_one(channel: Any) -> None:
    first, second = queue(channel), queue(channel)
    assert re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", first)
    assert first != second


def test_an_empty_queue_name_means_the_channels_last_declared_queue(channel: Any) -> None:
    queue(channel, "first")
    name = queue(channel)
    publish(channel, name, "m")
    channel.queue_bind("", "amq.fanout", "")
    publish(channel, "", "n", "amq.fanout")
    assert take_all(channel, "") == ["m", "n"]


def test_names_that_begin_with_amq_are_reserved(channel: Any) -> None:
    with pytest.raises(ChannelClosedByBroker) as caught:
        queue(channel, "amq.mine")
    assert caught.value.reply_code == 403


def test_declare_tells_messages_and_consumers(channel: Any) -> None:
    queue(channel, "q")
    publish_all(channel, "q", "1", "2", "3")
    again = channel.queue_declare("q").method
    assert (again.message_count, again.consumer_count) == (3, 0)
    inbox = Inbox(channel, "q")
    inbox.wait(3)
    again = channel.queue_declare("q", passive=True).method
    assert (again.message_count, again.consumer_count) == (0, 1)


def test_passive_declare_of_a_missing_queue_is_not_found(channel: Any) -> None:
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_declare("missing", passive=True)
    assert caught.value.reply_code == 404
    assert caught.value.reply_text == f"NOT_FOUND - no queue 'missing' in vhost '{_vhost(channel)}'"


def _vhost(channel: Any) -> str:
    return str(channel.connection._impl.params.virtual_host)


def test_purge_removes_ready_messages_only_and_counts_them(channel: Any, clients: Any) -> None:
    queue(channel, "q")
    publish_all(channel, "q", "1", "2", "3")
    method, _, _ = channel.basic_get("q")
    assert channel.queue_purge("q").method.message_count == 2
    channel.basic_nack(method.delivery_tag)
    until(lambda: depth(channel, "q") == 1, "the unacknowledged message is back")


def test_delete_counts_messages_and_honours_if_empty_and_if_unused(channel: Any, clients: Any) -> None:
    queue(channel, "q")
    publish_all(channel, "q", "1", "2")
    refused = clients.channel()
    with pytest.raises(ChannelClosedByBroker) as caught:
        refused.queue_delete("q", if_empty=True)
    assert caught.value.reply_code == 406
    inbox = Inbox(channel, "q")
    inbox.wait(2)
    refused = clients.channel()
    with pytest.raises(ChannelClosedByBroker) as caught:
        refused.queue_delete("q", if_unused=True)
    assert caught.value.reply_code == 406
    inbox.cancel()
    channel.basic_nack(0, multiple=True)
    until(lambda: depth(channel, "q") == 2, "both are back")
    assert channel.queue_delete("q").method.message_count == 2
    assert channel.queue_delete("q").method.message_count == 0


def test_an_exclusive_queue_is_locked_for_other_connections_and_goes_with_its_own(clients: Any) -> None:
    owner = clients.connect()
    name = queue(owner.channel(), "mine", exclusive=True)
    owner.channel().queue_declare(name, passive=True)
    for act in (
        lambda other: other.queue_declare(name, passive=True),
        lambda other: other.queue_declare(name, exclusive=True),
        lambda other: other.basic_consume(name, lambda *_: None),
        lambda other: other.basic_get(name),
        lambda other: other.queue_purge(name),
        lambda other: other.queue_delete(name),
        lambda other: other.queue_bind(name, "amq.fanout", ""),
    ):
        other = clients.channel(confirm=False)
        with pytest.raises(ChannelClosedByBroker) as caught:
            act(other)
        assert caught.value.reply_code == 405
        assert caught.value.reply_text.startswith(
            "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue"
        )
    publisher = clients.channel()
    publish(publisher, name, "anyone may publish")
    owner.close()
    until(lambda: not exists(clients, name), "the exclusive queue is gone")


def test_an_auto_delete_queue_goes_with_its_last_consumer_and_not_before_the_first(
    channel: Any, clients: Any
) -> None:
    queue(channel, "brief", auto_delete=True)
    assert exists(clients, "brief")
    one, two = Inbox(channel, "brief"), Inbox(channel, "brief")
    one.cancel()
    assert exists(clients, "brief")
    two.cancel()
    until(lambda: not exists(clients, "brief"), "the auto-delete queue is gone")


def test_an_auto_delete_queue_goes_when_the_connection_of_its_consumer_dies(clients: Any) -> None:
    channel = clients.channel()
    queue(channel, "brief", auto_delete=True)
    Inbox(channel, "brief")
    channel.connection.close()
    until(lambda: not exists(clients, "brief"), "the auto-delete queue is gone")


@pytest.mark.parametrize(
    ("second", "what"),
    [
        ({"durable": True}, "durable"),
        ({"auto_delete": True}, "auto_delete"),
        ({"exclusive": True}, "exclusive"),
        ({"arguments": {"x-message-ttl": 5}}, "x-message-ttl"),
        ({"arguments": {"x-max-length": 7, "x-queue-mode": "default"}}, "x-max-length"),
        ({"arguments": {"x-dead-letter-exchange": "other"}}, "x-dead-letter-exchange"),
        ({"arguments": {"x-max-priority": 3}}, "x-max-priority"),
        ({"arguments": {"x-single-active-consumer": True}}, "x-single-active-consumer"),
    ],
)
def test_redeclaring_a_queue_differently_names_the_difference(
    channel: Any, second: dict[str, Any], what: str
) -> None:
    channel.queue_declare("fixed")
    channel.queue_declare("fixed")
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_declare("fixed", **second)
    code, text = caught.value.reply_code, caught.value.reply_text
    if what == "exclusive":  # RabbitMQ looks at the owner before it compares arguments
        assert (code, text[:15]) == (405, "RESOURCE_LOCKED")
    else:
        assert code == 406
        assert text.startswith(f"PRECONDITION_FAILED - inequivalent arg '{what}' for queue 'fixed' in vhost")


def test_foreign_arguments_are_accepted_and_not_compared(channel: Any) -> None:
    channel.queue_declare("q", arguments={"x-something-of-ours": 1})
    channel.queue_declare("q", arguments={"x-something-of-ours": 2})
    channel.queue_declare("q")


def test_the_same_number_in_another_integer_type_is_the_same_argument(channel: Any, raw: Any) -> None:
    channel.queue_declare("q", arguments={"x-max-length": 5})
    client = raw()
    client.channel()
    for kind, packed in ((b"b", b"\x05"), (b"s", b"\x00\x05"), (b"l", b"\0\0\0\0\0\0\0\x05")):
        table = b"\x0cx-max-length" + kind + packed
        arguments = b"\0\0" + b"\x01q" + b"\0" + len(table).to_bytes(4, "big") + table
        client.send_method(1, b"\x00\x32\x00\x0a" + arguments)
        assert client.expect(commands.Queue.DeclareOk, 1).queue == "q"


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": -1},
        {"x-message-ttl": "soon"},
        {"x-expires": 0},
        {"x-max-length": -1},
        {"x-max-priority": -1},
        {"x-max-priority": 256},
        {"x-overflow": "explode"},
        {"x-dead-letter-routing-key": "without an exchange"},
        {"x-queue-mode": "fast"},
        {"x-single-active-consumer": "yes"},
        {"x-queue-type": "unheard-of"},
    ],
)
def test_a_queue_with_an_impossible_argument_is_refused(channel: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_declare("q", arguments=arguments)
    assert caught.value.reply_code == 406


def test_lazy_mode_and_the_classic_type_may_be_asked_for(channel: Any) -> None:
    queue(channel, "q", durable=True, x_queue_mode="lazy", x_queue_type="classic")
    publish_all(channel, "q", "1", "2")
    assert take_all(channel, "q") == ["1", "2"]


def test_a_quorum_queue_is_durable_and_takes_its_own_arguments(channel: Any) -> None:
    queue(
        channel,
        "q",
        durable=True,
        x_queue_type="quorum",
        x_delivery_limit=5,
        x_queue_leader_locator="client-local",
        x_quorum_initial_group_size=3,
    )
    publish_all(channel, "q", "1", "2")
    until(lambda: depth(channel, "q") == 2, "both arrived")
    assert take_all(channel, "q") == ["1", "2"]


@pytest.mark.parametrize("flags", [{"durable": False}, {"durable": True, "exclusive": True}])
def test_a_quorum_queue_that_is_not_durable_or_is_exclusive_is_refused(
    channel: Any, flags: dict[str, Any]
) -> None:
    with pytest.raises(ChannelClosedByBroker) as caught:
        queue(channel, "q", x_queue_type="quorum", **flags)
    assert caught.value.reply_code == 406


def test_stream_queues_are_not_implemented_and_say_so(channel: Any, broker: Any) -> None:
    if broker.is_rabbitmq:
        pytest.skip("RabbitMQ has streams; MirrorMQ refuses them by name")
    with pytest.raises((ChannelClosedByBroker, ConnectionClosedByBroker)) as caught:
        queue(channel, "q", durable=True, x_queue_type="stream")
    assert caught.value.reply_code == 540
    assert "x-queue-type" in caught.value.reply_text


@pytest.mark.parametrize("argument", ["x-copy-from", "x-shards", "x-copy-tag"])
def test_reserved_arguments_are_not_implemented_and_named(channel: Any, broker: Any, argument: str) -> None:
    if broker.is_rabbitmq:
        pytest.skip("names that MirrorMQ reserves for itself")
    with pytest.raises((ChannelClosedByBroker, ConnectionClosedByBroker)) as caught:
        channel.queue_declare("q", arguments={argument: "other"})
    assert caught.value.reply_code == 540
    assert argument in caught.value.reply_text


def test_an_unused_queue_expires(channel: Any, clients: Any) -> None:
    queue(channel, "short", x_expires=100)
    publish(channel, "short", "even with a message")
    until(lambda: not exists_quietly(clients, "short"), "the queue expired")


def exists_quietly(clients: Any, name: str) -> bool:
    """Looks without using the queue: a passive declare would start its expiry anew."""
    admin, vhost = clients.broker.admin, clients.broker.vhost
    return any(row["name"] == name for row in admin.get("queues", vhost))


def test_a_queue_with_a_consumer_does_not_expire(channel: Any, clients: Any) -> None:
    queue(channel, "kept", x_expires=150)
    queue(channel, "witness", x_expires=300)
    inbox = Inbox(channel, "kept")
    pump(
        channel.connection,
        lambda: not exists_quietly(clients, "witness"),
        "a longer one has expired meanwhile",
    )
    assert exists_quietly(clients, "kept")
    inbox.cancel()
    pump(channel.connection, lambda: not exists_quietly(clients, "kept"), "without its consumer it expired")


@pytest.mark.parametrize("use", ["get", "declare"])
def test_using_a_queue_starts_its_expiry_anew(channel: Any, clients: Any, use: str) -> None:
    queue(channel, "used", x_expires=400)
    queue(channel, "witness", x_expires=700)

    def touch_and_look() -> bool:
        if use == "get":
            channel.basic_get("used", auto_ack=True)
        else:
            channel.queue_declare("used", arguments={"x-expires": 400})
        return not exists_quietly(clients, "witness")

    until(touch_and_look, "a longer one has expired meanwhile")
    assert exists_quietly(clients, "used")


def test_the_admin_api_tells_durable_from_transient_queues(broker: Any, channel: Any) -> None:
    queue(channel, "keep", durable=True)
    queue(channel, "drop")
    rows = {row["name"]: row["durable"] for row in broker.admin.get("queues", broker.vhost)}
    assert rows == {"keep": True, "drop": False}
