"""Promises about RabbitMQ's message extensions: CC and BCC, direct reply-to, validated user-id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pamqp import commands
from pika.exceptions import ChannelClosedByBroker

from tests.interop.talk import Inbox, publish, queue, take_all
from tests.interop.waiting import pump

REPLY_TO = "amq.rabbitmq.reply-to"


def test_cc_and_bcc_route_like_further_keys_and_bcc_is_hidden(channel: Any) -> None:
    for name in "abc":
        queue(channel, name)
    publish(channel, "a", "m", headers={"CC": ["b"], "BCC": ["c"], "mine": 1})
    for name in "abc":
        method, properties, body = channel.basic_get(name, auto_ack=True)
        assert (method.routing_key, body) == ("a", b"m")
        assert properties.headers == {"CC": ["b"], "mine": 1}


def test_a_queue_named_twice_by_key_and_cc_gets_one_copy(channel: Any) -> None:
    queue(channel, "a")
    publish(channel, "a", "m", headers={"CC": ["a", "a"], "BCC": ["a"]})
    assert take_all(channel, "a") == ["m"]


def test_cc_saves_a_mandatory_message_from_being_returned(channel: Any) -> None:
    queue(channel, "a")
    channel.basic_publish("", "missing", b"m", pika.BasicProperties(headers={"CC": ["a"]}), mandatory=True)
    assert take_all(channel, "a") == ["m"]


def test_cc_works_on_topic_exchanges(channel: Any) -> None:
    queue(channel, "a")
    channel.queue_bind("a", "amq.topic", "second.*")
    publish(channel, "first.key", "m", "amq.topic", headers={"CC": ["second.key"]})
    assert take_all(channel, "a") == ["m"]


@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_cc_that_is_no_array_of_strings_closes_the_channel(channel: Any, name: str) -> None:
    queue(channel, "a")
    with pytest.raises(ChannelClosedByBroker) as caught:
        publish(channel, "a", "m", headers={name: "a"})
    assert caught.value.reply_code == 406


def test_direct_reply_to_answers_without_a_reply_queue(channel: Any, clients: Any) -> None:
    queue(channel, "server")
    server = Inbox(channel, "server", auto_ack=True)
    client = clients.channel(confirm=False)
    answers = Inbox(client, REPLY_TO, auto_ack=True)
    publish(client, "server", "question", reply_to=REPLY_TO, correlation_id="7")
    server.wait(1)
    reply_to = server.items[0][1].reply_to
    assert reply_to.startswith(f"{REPLY_TO}.")
    publish(channel, reply_to, "answer", correlation_id="7")
    assert answers.wait(1) == ["answer"]
    method, properties, _ = answers.items[0]
    assert (method.exchange, method.routing_key, properties.correlation_id) == ("", reply_to, "7")


def test_a_reply_address_can_be_checked_with_a_passive_declare(channel: Any, clients: Any) -> None:
    queue(channel, "server")
    server = Inbox(channel, "server", auto_ack=True)
    client = clients.channel(confirm=False)
    Inbox(client, REPLY_TO, auto_ack=True)
    publish(client, "server", "question", reply_to=REPLY_TO)
    server.wait(1)
    reply_to = server.items[0][1].reply_to
    channel.queue_declare(reply_to, passive=True)
    client.connection.close()

    def gone() -> bool:
        probe = clients.channel(confirm=False)
        try:
            probe.queue_declare(reply_to, passive=True)
        except ChannelClosedByBroker as closed:
            return bool(closed.reply_code == 404)
        finally:
            if probe.connection.is_open:
                probe.connection.close()
        return False

    pump(channel.connection, gone, "the address of a closed channel is gone")


def test_a_reply_to_a_client_that_left_is_dropped_and_a_mandatory_one_returned(
    raw: Any, channel: Any
) -> None:
    queue(channel, "server")
    client = raw()
    client.channel()
    client.call(1, commands.Basic.Consume(queue=REPLY_TO, no_ack=True), commands.Basic.ConsumeOk)
    client.publish(1, "server", b"?", properties=commands.Basic.Properties(reply_to=REPLY_TO))
    server = Inbox(channel, "server", auto_ack=True)
    server.wait(1)
    reply_to = server.items[0][1].reply_to
    client.call(1, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
    publish(channel, reply_to, "too late")


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("acknowledged", "PRECONDITION_FAILED - reply consumer cannot acknowledge"),
        ("twice", "PRECONDITION_FAILED - reply consumer already set"),
        ("publish first", "PRECONDITION_FAILED - fast reply consumer does not exist"),
    ],
)
def test_misuse_of_direct_reply_to_is_a_precondition_error(clients: Any, case: str, text: str) -> None:
    channel = clients.channel()
    queue(channel, "server")
    if case == "twice":
        Inbox(channel, REPLY_TO, auto_ack=True)
    acts: dict[str, Callable[[], Any]] = {
        "acknowledged": lambda: Inbox(channel, REPLY_TO),
        "twice": lambda: Inbox(channel, REPLY_TO, auto_ack=True),
        "publish first": lambda: publish(channel, "server", "?", reply_to=REPLY_TO),
    }
    with pytest.raises(ChannelClosedByBroker) as caught:
        acts[case]()
    assert (caught.value.reply_code, caught.value.reply_text) == (406, text)


def test_the_pseudo_queue_of_direct_reply_to_can_be_cancelled_and_consumed_again(clients: Any) -> None:
    channel = clients.channel()
    queue(channel, "loop")
    first = Inbox(channel, REPLY_TO, auto_ack=True)
    first.cancel()
    second = Inbox(channel, REPLY_TO, auto_ack=True)
    loop = Inbox(channel, "loop", auto_ack=True)
    publish(channel, "loop", "?", reply_to=REPLY_TO)
    loop.wait(1)
    publish(channel, loop.items[0][1].reply_to, "!")
    assert second.wait(1) == ["!"]


def test_user_id_must_be_the_user_of_the_connection(channel: Any) -> None:
    queue(channel, "q")
    publish(channel, "q", "true", user_id="guest")
    assert channel.basic_get("q", auto_ack=True)[1].user_id == "guest"
    with pytest.raises(ChannelClosedByBroker) as caught:
        publish(channel, "q", "false", user_id="somebody")
    assert (caught.value.reply_code, caught.value.reply_text) == (
        406,
        "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'",
    )


def test_an_impersonator_may_set_any_user_id(channel: Any, user: Any, clients: Any) -> None:
    queue(channel, "q")
    other = clients.channel(user("actor", tags="impersonator"))
    publish(other, "q", "m", user_id="somebody")
    assert channel.basic_get("q", auto_ack=True)[1].user_id == "somebody"
