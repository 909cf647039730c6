"""Promises about consumers: prefetch, fairness, priorities, single active consumer, cancellation."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands
from pika.exceptions import ChannelClosedByBroker

from tests.interop.talk import Inbox, depth, publish, publish_all, queue, wait_depth
from tests.interop.waiting import pump, until


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


def test_prefetch_limits_unacknowledged_messages_of_one_consumer(channel: Any) -> None:
    queue(channel, "q")
    publish_all(channel, "q", *numbers(1, 6))
    channel.basic_qos(prefetch_count=2)
    inbox = Inbox(channel, "q")
    inbox.wait(2)
    assert depth(channel, "q") == 4, "only two were given out"
    inbox.ack(0)
    inbox.wait(3)
    assert depth(channel, "q") == 3
    channel.basic_ack(inbox.items[2][0].delivery_tag, multiple=True)
    inbox.wait(5)
    assert depth(channel, "q") == 1
    assert inbox.bodies == numbers(1, 5)


def test_prefetch_counts_each_consumer_of_a_channel_by_itself(channel: Any) -> None:
    queue(channel, "a")
    queue(channel, "b")
    for name in ("a", "b"):
        publish_all(channel, name, *numbers(1, 4))
    channel.basic_qos(prefetch_count=1)
    first = Inbox(channel, "a")
    channel.basic_qos(prefetch_count=3)
    second = Inbox(channel, "b")
    first.wait(1)
    second.wait(3)
    assert (depth(channel, "a"), depth(channel, "b")) == (3, 1)


def test_a_later_qos_does_not_change_a_consumer_that_already_runs(channel: Any) -> None:
    queue(channel, "q")
    channel.basic_qos(prefetch_count=1)
    inbox = Inbox(channel, "q")
    channel.basic_qos(prefetch_count=5)
    publish_all(channel, "q", *numbers(1, 3))
    inbox.wait(1)
    assert depth(channel, "q") == 2


def test_global_prefetch_limits_the_channel_as_a_whole(channel: Any) -> None:
    for name in ("a", "b"):
        queue(channel, name)
        publish_all(channel, name, *numbers(1, 4))
    channel.basic_qos(prefetch_count=3, global_qos=True)
    first, second = Inbox(channel, "a"), Inbox(channel, "b")
    pump(channel.connection, lambda: len(first.items) + len(second.items) >= 3, "three in all")
    assert depth(channel, "a") + depth(channel, "b") == 5
    inboxes = first if first.items else second
    inboxes.ack(0)
    pump(channel.connection, lambda: len(first.items) + len(second.items) >= 4, "one more for one ack")
    assert depth(channel, "a") + depth(channel, "b") == 4


def test_raising_the_global_prefetch_takes_effect_at_once(channel: Any) -> None:
    queue(channel, "q")
    publish_all(channel, "q", *numbers(1, 5))
    channel.basic_qos(prefetch_count=1, global_qos=True)
    inbox = Inbox(channel, "q")
    inbox.wait(1)
    assert depth(channel, "q") == 4
    channel.basic_qos(prefetch_count=3, global_qos=True)
    inbox.wait(3)
    assert depth(channel, "q") == 2
    channel.basic_qos(prefetch_count=0, global_qos=True)
    assert inbox.wait(5) == numbers(1, 5)


def test_both_limits_hold_together(channel: Any) -> None:
    for name in ("a", "b"):
        queue(channel, name)
        publish_all(channel, name, *numbers(1, 5))
    channel.basic_qos(prefetch_count=2)
    channel.basic_qos(prefetch_count=3, global_qos=True)
    first = Inbox(channel, "a")
    first.wait(2)
    second = Inbox(channel, "b")
    second.wait(1)
    assert (depth(channel, "a"), depth(channel, "b")) == (3, 4)


def test_a_later_prefetch_per_consumer_lifts_the_global_one(channel: Any) -> None:
    for name in ("a", "b"):
        queue(channel, name)
        publish_all(channel, name, *numbers(1, 5))
    channel.basic_qos(prefetch_count=3, global_qos=True)
    channel.basic_qos(prefetch_count=2)
    first = Inbox(channel, "a")
    second = Inbox(channel, "b")
    first.wait(2)
    second.wait(2)
    assert (depth(channel, "a"), depth(channel, "b")) == (3, 3)


def test_get_is_not_limited_by_prefetch_and_auto_ack_consumers_neither(channel: Any) -> None:
    queue(channel, "q")
    publish_all(channel, "q", *numbers(1, 6))
    channel.basic_qos(prefetch_count=1)
    for expected in ("1", "2", "3"):
        assert channel.basic_get("q")[2].decode() == expected
    inbox = Inbox(channel, "q", auto_ack=True)
    assert inbox.wait(3) == numbers(4, 6)


def test_prefetch_size_is_not_implemented(raw: Any) -> None:
    client = raw()
    client.channel()
    client.send(1, commands.Basic.Qos(prefetch_size=100, prefetch_count=0))
    closed = client.expect(commands.Connection.Close, 0)
    assert (closed.reply_code, closed.reply_text) == (540, "NOT_IMPLEMENTED - prefetch_size!=0 (100)")


def test_consumers_take_turns(channel: Any, clients: Any) -> None:
    queue(channel, "q")
    inboxes = [Inbox(channel, "q", auto_ack=True) for _ in range(3)]
    publish_all(channel, "q", *numbers(1, 9))
    pump(channel.connection, lambda: sum(len(inbox.items) for inbox in inboxes) == 9, "all nine")
    assert [len(inbox.items) for inbox in inboxes] == [3, 3, 3]


def test_a_consumer_with_higher_priority_gets_everything_it_can_take(channel: Any) -> None:
    queue(channel, "q")
    channel.basic_qos(prefetch_count=2)
    low = Inbox(channel, "q", arguments={"x-priority": -1})
    plain = Inbox(channel, "q")
    high = Inbox(channel, "q", arguments={"x-priority": 10})
    publish_all(channel, "q", *numbers(1, 7))
    for inbox in (high, plain, low):
        inbox.wait(2)
    assert (high.bodies, plain.bodies, low.bodies) == (["1", "2"], ["3", "4"], ["5", "6"])
    assert depth(channel, "q") == 1


def test_an_exclusive_consumer_shuts_others_out_and_is_refused_beside_others(
    channel: Any, clients: Any
) -> None:
    queue(channel, "q")
    inbox = Inbox(channel, "q", exclusive=True)
    other = clients.channel()
    with pytest.raises(ChannelClosedByBroker) as caught:
        Inbox(other, "q")
    assert caught.value.reply_code == 403
    assert "in exclusive use" in caught.value.reply_text
    inbox.cancel()
    Inbox(channel, "q")
    with pytest.raises(ChannelClosedByBroker) as caught:
        Inbox(clients.channel(), "q", exclusive=True)
    assert caught.value.reply_code == 403


def test_single_active_consumer_serves_one_and_hands_over_in_order(clients: Any, channel: Any) -> None:
    queue(channel, "q", x_single_active_consumer=True)
    channels = [clients.channel() for _ in range(3)]
    inboxes = [Inbox(each, "q") for each in channels]
    publish_all(channel, "q", *numbers(1, 3))
    inboxes[0].wait(3)
    for inbox in inboxes[1:]:
        inbox.channel.connection.process_data_events(time_limit=0)
        assert inbox.items == []
    inboxes[0].cancel()
    publish_all(channel, "q", "4")
    assert inboxes[1].wait(1) == ["4"]
    channels[1].connection.close()
    assert inboxes[2].wait(1) == ["4"], "the unacknowledged one moved on with the role"
    assert inboxes[2].items[0][0].redelivered


def test_single_active_consumer_returns_unacknowledged_messages_to_the_next(
    clients: Any, channel: Any
) -> None:
    queue(channel, "q", x_single_active_consumer=True)
    first = Inbox(clients.channel(), "q")
    second = Inbox(clients.channel(), "q")
    publish_all(channel, "q", *numbers(1, 3))
    first.wait(3)
    first.channel.connection.close()
    assert second.wait(3) == numbers(1, 3)
    assert all(method.redelivered for method, _, _ in second.items)


def test_an_exclusive_consumer_on_a_single_active_consumer_queue_is_refused(channel: Any) -> None:
    queue(channel, "q", x_single_active_consumer=True)
    with pytest.raises(ChannelClosedByBroker) as caught:
        Inbox(channel, "q", exclusive=True)
    assert caught.value.reply_code == 403


def test_consumer_tags_are_given_by_the_server_when_empty_and_unique_per_channel(raw: Any) -> None:
    client = raw()
    client.channel()
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    given = client.call(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk).consumer_tag
    assert given.startswith("amq.ctag-")
    client.call(1, commands.Basic.Consume(queue="q", consumer_tag="mine"), commands.Basic.ConsumeOk)
    client.channel(2)
    client.call(2, commands.Basic.Consume(queue="q", consumer_tag="mine"), commands.Basic.ConsumeOk)
    client.send(1, commands.Basic.Consume(queue="q", consumer_tag="mine"))
    closed = client.expect(commands.Connection.Close, 0)
    assert (closed.reply_code, closed.reply_text) == (
        530,
        "NOT_ALLOWED - attempt to reuse consumer tag 'mine'",
    )


def test_cancelling_keeps_unacknowledged_messages_with_the_channel(channel: Any) -> None:
    queue(channel, "q")
    publish_all(channel, "q", "1", "2")
    inbox = Inbox(channel, "q")
    inbox.wait(2)
    inbox.cancel()
    assert depth(channel, "q") == 0
    inbox.ack(0)
    channel.basic_nack(inbox.items[1][0].delivery_tag)
    wait_depth(channel, "q", 1)


def test_cancelling_an_unknown_consumer_is_answered(raw: Any) -> None:
    client = raw()
    client.channel()
    answer = client.call(1, commands.Basic.Cancel(consumer_tag="nobody"), commands.Basic.CancelOk)
    assert answer.consumer_tag == "nobody"


def test_deleting_the_queue_notifies_consumers_that_asked_for_it(channel: Any, clients: Any) -> None:
    queue(channel, "q")
    other = clients.channel()
    cancelled: list[str] = []
    other.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    inbox = Inbox(other, "q")
    channel.queue_delete("q")
    pump(other.connection, lambda: cancelled == [inbox.tag], "the cancel notice")


def test_without_the_capability_nobody_is_notified(raw: Any, channel: Any) -> None:
    queue(channel, "q")
    silent = raw(client_properties={})
    silent.channel()
    silent.call(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
    told = raw()
    told.channel()
    told.call(1, commands.Basic.Consume(queue="q", consumer_tag="mine"), commands.Basic.ConsumeOk)
    channel.queue_delete("q")
    notice = told.expect(commands.Basic.Cancel, 1)
    assert (notice.consumer_tag, notice.nowait) == ("mine", True)
    silent.call(1, commands.Basic.Qos(), commands.Basic.QosOk)


def test_no_local_is_accepted_and_does_nothing(raw: Any) -> None:
    client = raw()
    client.channel()
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    client.call(1, commands.Basic.Consume(queue="q", no_local=True), commands.Basic.ConsumeOk)
    client.publish(1, "q", b"own")
    assert client.expect_content(commands.Basic.Deliver, 1).body == b"own"


def test_consume_starts_with_what_is_already_there_in_order(channel: Any) -> None:
    queue(channel, "q")
    publish_all(channel, "q", *numbers(1, 50))
    inbox = Inbox(channel, "q", auto_ack=True)
    assert inbox.wait(50) == numbers(1, 50)
    tags = [method.delivery_tag for method, _, _ in inbox.items]
    assert tags == list(range(1, 51))


def test_a_slow_consumer_does_not_hold_back_another(channel: Any, clients: Any) -> None:
    queue(channel, "q")
    slow = clients.channel()
    slow.basic_qos(prefetch_count=1)
    held = Inbox(slow, "q")
    publish(channel, "q", "first")
    held.wait(1)
    quick = Inbox(channel, "q", auto_ack=True)
    publish_all(channel, "q", *numbers(1, 5))
    assert quick.wait(5) == numbers(1, 5)


def test_consumer_count_follows_consumers(channel: Any, clients: Any) -> None:
    queue(channel, "q")
    other = clients.channel()
    Inbox(other, "q")
    Inbox(other, "q")
    until(lambda: channel.queue_declare("q", passive=True).method.consumer_count == 2, "two consumers")
    other.connection.close()
    until(lambda: channel.queue_declare("q", passive=True).method.consumer_count == 0, "none is left")
