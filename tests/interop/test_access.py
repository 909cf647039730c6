"""Promises about access: configure, write and read per resource, topic permissions, users, guest, limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from tests.interop.brokers import Broker
from tests.interop.talk import publish, queue, take_all
from tests.interop.waiting import pump, until


def refusal(act: Callable[[], Any]) -> str:
    with pytest.raises(ChannelClosedByBroker) as caught:
        act()
    assert caught.value.reply_code == 403
    return str(caught.value.reply_text)


# what a user may not do -> (permissions that lack it, the act)
CASES: dict[str, tuple[dict[str, str], Callable[[Any], Any], str]] = {
    "declare a queue without configure": (
        {"configure": "^mine"},
        lambda ch: ch.queue_declare("theirs-new"),
        "queue 'theirs-new'",
    ),
    "delete a queue without configure": (
        {"configure": "^mine"},
        lambda ch: ch.queue_delete("theirs"),
        "queue 'theirs'",
    ),
    "declare an exchange without configure": (
        {"configure": "^mine"},
        lambda ch: ch.exchange_declare("x-new", "fanout"),
        "exchange 'x-new'",
    ),
    "delete an exchange without configure": (
        {"configure": "^mine"},
        lambda ch: ch.exchange_delete("ex"),
        "exchange 'ex'",
    ),
    "bind without write on the queue": (
        {"write": "^mine"},
        lambda ch: ch.queue_bind("theirs", "ex", ""),
        "queue 'theirs'",
    ),
    "bind without read on the exchange": (
        {"read": "^mine"},
        lambda ch: ch.queue_bind("theirs", "ex", ""),
        "exchange 'ex'",
    ),
    "unbind without read on the exchange": (
        {"read": "^mine"},
        lambda ch: ch.queue_unbind("theirs", "ex", ""),
        "exchange 'ex'",
    ),
    "bind exchanges without write on the destination": (
        {"write": "^mine"},
        lambda ch: ch.exchange_bind("ex", "ex2", ""),
        "exchange 'ex'",
    ),
    "bind exchanges without read on the source": (
        {"read": "^mine"},
        lambda ch: ch.exchange_bind("ex", "ex2", ""),
        "exchange 'ex2'",
    ),
    "publish without write on the exchange": (
        {"write": "^mine"},
        lambda ch: publish(ch, "", "m", "ex"),
        "exchange 'ex'",
    ),
    "publish to the default exchange without write on amq.default": (
        {"write": "^mine"},
        lambda ch: publish(ch, "theirs", "m"),
        "exchange 'amq.default'",
    ),
    "consume without read": (
        {"read": "^mine"},
        lambda ch: ch.basic_consume("theirs", lambda *_: None),
        "queue 'theirs'",
    ),
    "get without read": ({"read": "^mine"}, lambda ch: ch.basic_get("theirs"), "queue 'theirs'"),
    "purge without read": ({"read": "^mine"}, lambda ch: ch.queue_purge("theirs"), "queue 'theirs'"),
    "name a dead-letter exchange without write on it": (
        {"write": "^mine"},
        lambda ch: ch.queue_declare("fresh", arguments={"x-dead-letter-exchange": "ex"}),
        "exchange 'ex'",
    ),
    "name a dead-letter exchange without read on the queue": (
        {"read": "^ex"},
        lambda ch: ch.queue_declare("fresh", arguments={"x-dead-letter-exchange": "ex"}),
        "queue 'fresh'",
    ),
    "name an alternate exchange without write on it": (
        {"write": "^mine"},
        lambda ch: ch.exchange_declare("new", "fanout", arguments={"alternate-exchange": "ex"}),
        "exchange 'ex'",
    ),
}


@pytest.mark.parametrize("case", list(CASES))
def test_without_the_right_nobody_may(case: str, channel: Any, clients: Any, user: Any) -> None:
    permissions, act, resource = CASES[case]
    queue(channel, "theirs")
    for name in ("ex", "ex2"):
        channel.exchange_declare(name, "fanout")
    limited = user("limited", **permissions)
    text = refusal(lambda: act(clients.channel(limited)))
    kind = text.partition("ACCESS_REFUSED - ")[2]
    assert kind == f"access to {resource} in vhost '{limited.vhost}' refused for user '{limited.user}'"


def test_a_user_with_all_three_rights_on_a_name_works_within_it(clients: Any, user: Any) -> None:
    limited = user("limited", configure="^mine", write="^mine|amq.default", read="^mine")
    channel = clients.channel(limited)
    queue(channel, "mine")
    channel.exchange_declare("mine-too", "fanout")
    channel.queue_bind("mine", "mine-too", "")
    publish(channel, "", "1", "mine-too")
    publish(channel, "mine", "2")
    assert take_all(channel, "mine") == ["1", "2"]
    assert channel.queue_declare("mine", passive=True).method.message_count == 0


def test_a_passive_declare_needs_no_configure(channel: Any, clients: Any, user: Any) -> None:
    queue(channel, "theirs")
    limited = clients.channel(user("limited", configure="^$"))
    limited.queue_declare("theirs", passive=True)
    limited.exchange_declare("amq.direct", passive=True)


def test_a_server_named_queue_needs_configure_on_its_generated_name(clients: Any, user: Any) -> None:
    queue(clients.channel(user("named", configure="^amq\\.gen.*")))
    assert "queue 'amq.gen-" in refusal(lambda: queue(clients.channel(user("none", configure="^$"))))


def test_taken_rights_end_at_once_for_open_connections_or_after_the_channels_cache(
    clients: Any, user: Any, broker: Any
) -> None:
    limited = user("limited")
    queue(clients.channel(limited), "q")
    broker.admin.permit(limited.user, broker.vhost, configure="^$")
    refusal(lambda: queue(clients.channel(limited), "another"))


def test_topic_permissions_limit_the_keys_of_a_topic_exchange(
    channel: Any, clients: Any, user: Any, broker: Any
) -> None:
    queue(channel, "q")
    channel.exchange_declare("news", "topic")
    channel.queue_bind("q", "news", "#")
    limited = user("limited")
    broker.admin.permit_topic(limited.user, broker.vhost, "news", write="^sports\\.", read="^sports\\.")
    publish(clients.channel(limited), "sports.tennis", "allowed", "news")
    text = refusal(lambda: publish(clients.channel(limited), "weather", "refused", "news"))
    assert text == (
        f"ACCESS_REFUSED - access to topic 'weather' in exchange 'news' in vhost '{broker.vhost}' "
        f"refused for user '{limited.user}'"
    )
    clients.channel(limited).queue_bind("q", "news", "sports.#")
    assert "topic 'weather.#'" in refusal(
        lambda: clients.channel(limited).queue_bind("q", "news", "weather.#")
    )
    publish(clients.channel(limited), "anything", "other exchange", "amq.topic")
    assert take_all(channel, "q") == ["allowed"]


def test_topic_permissions_expand_user_and_vhost(channel: Any, clients: Any, user: Any, broker: Any) -> None:
    channel.exchange_declare("news", "topic")
    limited = user("limited")
    broker.admin.permit_topic(limited.user, broker.vhost, "news", write="^{username}\\.{vhost}\\.")
    publish(clients.channel(limited), f"{limited.user}.{broker.vhost}.x", "own", "news")
    refusal(lambda: publish(clients.channel(limited), f"other.{broker.vhost}.x", "foreign", "news"))


def test_topic_permissions_look_at_the_routing_key_and_not_at_cc(
    channel: Any, clients: Any, user: Any, broker: Any
) -> None:
    channel.exchange_declare("news", "topic")
    limited = user("limited")
    broker.admin.permit_topic(limited.user, broker.vhost, "news", write="^sports\\.")
    publish(clients.channel(limited), "sports.x", "m", "news", headers={"CC": ["weather"]})


@pytest.mark.parametrize("password", ["wrong", ""])
def test_a_wrong_password_is_refused_by_a_real_client(
    clients: Any, broker: Broker, user: Any, password: str
) -> None:
    known = user("known")
    with pytest.raises((ProbableAuthenticationError, ConnectionClosedByBroker, AMQPConnectionError)):
        clients.connect(broker.seen_by(known.user, password))


def test_a_changed_password_counts_at_once(clients: Any, broker: Broker, user: Any) -> None:
    known = user("known")
    clients.connect(known)
    broker.admin.add_user(known.user, "changed")
    with pytest.raises((ProbableAuthenticationError, ConnectionClosedByBroker, AMQPConnectionError)):
        clients.connect(known)
    clients.connect(broker.seen_by(known.user, "changed"))


def test_wrong_passwords_do_not_lock_the_right_one_out(clients: Any, broker: Broker, user: Any) -> None:
    known = user("known")
    clients.connect(known)
    for _ in range(2):
        with pytest.raises((ProbableAuthenticationError, ConnectionClosedByBroker, AMQPConnectionError)):
            clients.connect(broker.seen_by(known.user, "wrong"))
    clients.connect(known)


def test_a_new_password_is_kept_as_a_salted_hash(broker: Broker, user: Any) -> None:
    row = broker.admin.get("users", user("known").user)
    assert "password" not in row
    assert row["password_hash"]
    if not broker.is_rabbitmq:
        assert "argon2" in row["hashing_algorithm"]


def test_a_deleted_user_cannot_log_in(clients: Any, broker: Broker) -> None:
    name = f"brief-{broker.vhost}"
    broker.admin.add_user(name, "secret")
    broker.admin.permit(name, broker.vhost)
    clients.connect(broker.seen_by(name, "secret"))
    broker.admin.delete_user(name)
    with pytest.raises((ProbableAuthenticationError, ConnectionClosedByBroker, AMQPConnectionError)):
        clients.connect(broker.seen_by(name, "secret"))


def test_a_real_client_is_told_that_it_may_not_enter_a_vhost(clients: Any, broker: Broker, user: Any) -> None:
    known = user("known")
    with pytest.raises((ProbableAccessDeniedError, ConnectionClosedByBroker)) as caught:
        clients.connect(known.within("/"))
    assert "530" in str(caught.value)


def test_deleting_a_vhost_closes_its_connections(server: Broker, clients: Any) -> None:
    name = f"doomed-{clients.broker.vhost}"
    server.admin.add_vhost(name)
    server.admin.permit("guest", name)
    connection = clients.connect(server.within(name))
    server.admin.delete_vhost(name)
    with pytest.raises(ConnectionClosedByBroker) as caught:
        pump(connection, lambda: False, "the connection is closed")
    assert caught.value.reply_code == 320


# Limits


def set_vhost_limit(broker: Broker, name: str, value: int) -> None:
    broker.admin.put("vhost-limits", broker.vhost, name, body={"value": value})


def set_user_limit(broker: Broker, user_name: str, name: str, value: int) -> None:
    broker.admin.put("user-limits", user_name, name, body={"value": value})


def test_max_connections_of_a_vhost_refuses_the_next_one(broker: Broker, raw: Any) -> None:
    set_vhost_limit(broker, "max-connections", 1)
    first = raw()
    client = raw(log_in=False)
    client.log_in("guest", "guest")
    client.tune_ok(2047, 131072)
    client.send(0, commands.Connection.Open(virtual_host=broker.vhost))
    closed = client.expect(commands.Connection.Close, 0)
    assert closed.reply_code == 530
    assert closed.reply_text == (
        f"NOT_ALLOWED - access to vhost '{broker.vhost}' refused for user 'guest': "
        "connection limit (1) is reached"
    )
    first.call(0, commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)
    first.close()

    def admitted() -> bool:
        again = raw(log_in=False)
        again.log_in("guest", "guest")
        again.tune_ok(2047, 131072)
        again.send(0, commands.Connection.Open(virtual_host=broker.vhost))
        return isinstance(again.receive()[1], commands.Connection.OpenOk)

    until(admitted, "the place became free")


def test_max_queues_of_a_vhost_refuses_the_next_one(broker: Broker, channel: Any, clients: Any) -> None:
    set_vhost_limit(broker, "max-queues", 2)
    queue(channel, "one")
    queue(channel, "two")
    queue(channel, "two")
    with pytest.raises(ChannelClosedByBroker) as caught:
        queue(channel, "three")
    assert caught.value.reply_code == 406
    assert caught.value.reply_text == (
        f"PRECONDITION_FAILED - cannot declare queue 'three': queue limit in vhost "
        f"'{broker.vhost}' (2) is reached"
    )
    again = clients.channel()
    again.queue_delete("one")
    queue(again, "three")


def test_max_connections_of_a_user_refuses_the_next_one(broker: Broker, raw: Any, user: Any) -> None:
    limited = user("limited")
    set_user_limit(broker, limited.user, "max-connections", 1)
    raw(at=limited)
    client = raw(log_in=False)
    client.log_in(limited.user, "secret")
    client.tune_ok(2047, 131072)
    client.send(0, commands.Connection.Open(virtual_host=broker.vhost))
    closed = client.expect(commands.Connection.Close, 0)
    assert closed.reply_code == 530
    assert closed.reply_text == (
        f"NOT_ALLOWED - connection refused for user '{limited.user}': user connection limit (1) is reached"
    )


def test_max_channels_of_a_user_refuses_the_next_one(broker: Broker, raw: Any, user: Any) -> None:
    limited = user("limited")
    set_user_limit(broker, limited.user, "max-channels", 2)
    client = raw(at=limited)
    client.channel(1)
    client.channel(2)
    client.send(3, commands.Channel.Open())
    _, closed = client.receive()
    assert isinstance(closed, commands.Connection.Close | commands.Channel.Close)
    assert closed.reply_code == 530
    assert closed.reply_text == (
        f"NOT_ALLOWED - number of channels opened for user '{limited.user}' has reached the maximum allowed"
        f" user limit of (2)"
    )


@pytest.mark.parametrize("name", ["max-connections", "max-queues"])
def test_a_negative_vhost_limit_means_none(broker: Broker, clients: Any, name: str) -> None:
    set_vhost_limit(broker, name, 0)
    set_vhost_limit(broker, name, -1)
    channel = clients.channel()
    for number in range(3):
        queue(channel, f"q{number}")
