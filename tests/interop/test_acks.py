"""Promises about settling: ack, nack, reject, recover, requeue position, redelivered, delivery limit."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands
from pika.exceptions import ChannelClosedByBroker

from tests.interop.talk import Inbox, depth, publish, publish_all, queue, take_all, wait_depth
from tests.interop.waiting import until


def test_an_unacknowledged_message_returns_when_its_channel_closes(channel: Any, clients: Any) -> None:
    queue(channel, "q")
    publish_all(channel, "q", "1", "2", "3")
    inbox = Inbox(clients.channel(), "q")
    inbox.wait(3)
    inbox.ack(1)
    inbox.channel.close()
    wait_depth(channel, "q", 2)
    assert take_all(channel, "q") == ["1", "3"]


def test_requeue_returns_a_message_to_its_original_position(channel: Any) -> None:
    queue(channel, "q")
    publish_all(channel, "q", *"12345")
    tags = [channel.basic_get("q")[0].delivery_tag for _ in range(3)]
    for tag in (tags[2], tags[0]):
        channel.basic_nack(tag, requeue=True)
    wait_depth(channel, "q", 4)
    assert take_all(channel, "q") == ["1", "3", "4", "5"]
    channel.basic_reject(tags[1], requeue=True)
    wait_depth(channel, "q", 1)
    assert take_all(channel, "q") == ["2"]


def test_nack_multiple_requeues_in_order(channel: Any) -> None:
    queue(channel, "q")
    publish_all(channel, "q", *"12345")
    inbox = Inbox(channel, "q")
    inbox.wait(5)
    inbox.cancel()
    channel.basic_nack(inbox.items[2][0].delivery_tag, multiple=True, requeue=True)
    wait_depth(channel, "q", 3)
    assert take_all(channel, "q") == ["1", "2", "3"]


def test_ack_multiple_settles_up_to_its_tag_and_zero_settles_all(channel: Any) -> None:
    queue(channel, "q")
    publish_all(channel, "q", *"12345")
    inbox = Inbox(channel, "q")
    inbox.wait(5)
    inbox.cancel()
    inbox.ack(1, multiple=True)
    channel.basic_ack(0, multiple=True)
    channel.basic_recover(requeue=True)
    assert depth(channel, "q") == 0


def test_redelivered_is_false_the_first_time_and_true_afterwards(channel: Any) -> None:
    queue(channel, "q")
    publish_all(channel, "q", "1", "2")
    method, _, _ = channel.basic_get("q")
    assert method.redelivered is False
    channel.basic_nack(method.delivery_tag)
    wait_depth(channel, "q", 2)
    first, second = channel.basic_get("q")[0], channel.basic_get("q")[0]
    assert (first.redelivered, second.redelivered) == (True, False)


def test_recover_redelivers_everything_unacknowledged_in_order(channel: Any) -> None:
    queue(channel, "q")
    publish_all(channel, "q", "1", "2", "3")
    inbox = Inbox(channel, "q")
    inbox.wait(3)
    inbox.ack(1)
    channel.basic_recover(requeue=True)
    assert inbox.wait(5)[3:] == ["1", "3"]
    assert [method.redelivered for method, _, _ in inbox.items[3:]] == [True, True]


def test_recover_async_works_without_an_answer(raw: Any) -> None:
    client = raw()
    client.channel(confirm=True)
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    client.publish(1, "q", b"m")
    client.expect(commands.Basic.Ack, 1)
    client.send(1, commands.Basic.Get(queue="q"))
    client.expect_content(commands.Basic.GetOk, 1)
    client.send(1, commands.Basic.RecoverAsync(requeue=True))
    client.send(1, commands.Basic.Get(queue="q"))
    assert client.expect_content(commands.Basic.GetOk, 1).method.redelivered is True


def test_recover_without_requeue_is_not_implemented(raw: Any) -> None:
    client = raw()
    client.channel()
    client.send(1, commands.Basic.Recover(requeue=False))
    closed = client.expect(commands.Connection.Close, 0)
    assert (closed.reply_code, closed.reply_text) == (540, "NOT_IMPLEMENTED - requeue=false")


@pytest.mark.parametrize("how", ["ack", "nack", "reject"])
def test_an_unknown_delivery_tag_closes_the_channel(channel: Any, how: str) -> None:
    act = {"ack": channel.basic_ack, "nack": channel.basic_nack, "reject": channel.basic_reject}[how]
    act(7)
    with pytest.raises(ChannelClosedByBroker) as caught:
        queue(channel, "q")
    assert (caught.value.reply_code, caught.value.reply_text) == (
        406,
        "PRECONDITION_FAILED - unknown delivery tag 7",
    )


def test_a_second_ack_of_the_same_tag_closes_the_channel(channel: Any) -> None:
    queue(channel, "q")
    publish(channel, "q", "m")
    method, _, _ = channel.basic_get("q")
    channel.basic_ack(method.delivery_tag)
    channel.basic_ack(method.delivery_tag)
    with pytest.raises(ChannelClosedByBroker) as caught:
        queue(channel, "q")
    assert caught.value.reply_code == 406


def test_get_tells_how_many_are_left(channel: Any) -> None:
    queue(channel, "q")
    publish_all(channel, "q", "1", "2", "3")
    counts = [channel.basic_get("q", auto_ack=True)[0].message_count for _ in range(3)]
    assert counts == [2, 1, 0]
    assert channel.basic_get("q", auto_ack=True) == (None, None, None)


def test_delivery_tags_count_gets_and_deliveries_of_a_channel_together(channel: Any) -> None:
    queue(channel, "q")
    publish_all(channel, "q", "1", "2", "3")
    assert channel.basic_get("q", auto_ack=True)[0].delivery_tag == 1
    assert channel.basic_get("q")[0].delivery_tag == 2
    inbox = Inbox(channel, "q")
    inbox.wait(1)
    assert inbox.items[0][0].delivery_tag == 3


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_the_delivery_limit_ends_endless_redelivery(channel: Any, broker: Any, kind: str) -> None:
    if kind == "classic" and broker.is_rabbitmq:
        pytest.skip("RabbitMQ has x-delivery-limit on quorum queues only; MirrorMQ on classic ones too")
    queue(channel, "dead")
    queue(
        channel,
        "q",
        durable=True,
        x_queue_type=kind,
        x_delivery_limit=2,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )
    publish(channel, "q", "m")
    inbox = Inbox(channel, "q")
    counts = []
    for delivery in range(1, 4):
        inbox.wait(delivery)
        method, properties, _ = inbox.items[-1]
        counts.append((properties.headers or {}).get("x-delivery-count"))
        channel.basic_nack(method.delivery_tag, requeue=True)
    wait_depth(channel, "dead", 1)
    assert counts == [None, 1, 2]
    assert len(inbox.items) == 3
    _, properties, _ = channel.basic_get("dead", auto_ack=True)
    assert properties.headers["x-death"][0]["reason"] == "delivery_limit"


def test_messages_of_a_dead_connection_are_redelivered_to_another_consumer(
    clients: Any, channel: Any, raw: Any
) -> None:
    queue(channel, "q")
    dying = raw()
    dying.channel()
    dying.call(1, commands.Basic.Qos(prefetch_count=3), commands.Basic.QosOk)
    dying.call(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
    publish_all(channel, "q", *"1234")
    assert [dying.expect_content(commands.Basic.Deliver, 1).body for _ in range(3)] == [b"1", b"2", b"3"]
    other = Inbox(clients.channel(), "q")
    assert other.wait(1) == ["4"]
    dying.close()
    assert other.wait(4)[1:] == ["1", "2", "3"]
    assert [method.redelivered for method, _, _ in other.items] == [False, True, True, True]
    until(lambda: depth(channel, "q") == 0, "nothing is left over")
