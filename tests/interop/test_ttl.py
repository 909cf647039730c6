"""Promises about expiry of messages: queue TTL, message TTL, their minimum, zero, and head-only expiry."""

from __future__ import annotations

from typing import Any

import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.interop.talk import Inbox, depth, publish, publish_all, queue, take, take_all, wait_depth
from tests.interop.waiting import pump, until


def test_queue_ttl_removes_messages_that_nobody_takes(channel: Any) -> None:
    queue(channel, "q", x_message_ttl=100)
    publish_all(channel, "q", "1", "2")
    wait_depth(channel, "q", 0)


def test_message_expiration_removes_that_message(channel: Any) -> None:
    queue(channel, "q")
    publish(channel, "q", "brief", expiration="50")
    publish(channel, "q", "lasting")
    until(lambda: depth(channel, "q") == 1, "the brief one expired")
    assert take_all(channel, "q") == ["lasting"]


@pytest.mark.parametrize(("queue_ttl", "expiration"), [(100, "600000"), (600000, "100")])
def test_the_smaller_of_both_ttls_counts(channel: Any, queue_ttl: int, expiration: str) -> None:
    queue(channel, "q", x_message_ttl=queue_ttl)
    publish(channel, "q", "m", expiration=expiration)
    wait_depth(channel, "q", 0, 5)


def test_what_expired_behind_a_living_head_is_never_given_out(channel: Any) -> None:
    """Until when it is counted differs: RabbitMQ counts it until it is the head, MirrorMQ sweeps."""
    queue(channel, "q")
    queue(channel, "witness")
    publish(channel, "q", "first", expiration="600000")
    publish(channel, "q", "second", expiration="50")
    publish(channel, "witness", "w", expiration="150")
    wait_depth(channel, "witness", 0)
    assert depth(channel, "q") in (1, 2)
    assert take_all(channel, "q") == ["first"], "an expired message is never given out"


def test_ttl_zero_delivers_at_once_or_never(channel: Any) -> None:
    queue(channel, "q", x_message_ttl=0)
    publish(channel, "q", "nobody there")
    assert take(channel, "q") is None
    inbox = Inbox(channel, "q", auto_ack=True)
    publish(channel, "q", "somebody there")
    assert inbox.wait(1) == ["somebody there"]


def test_expiration_zero_delivers_at_once_or_never(channel: Any) -> None:
    queue(channel, "q")
    publish(channel, "q", "gone", expiration="0")
    assert take(channel, "q") is None
    inbox = Inbox(channel, "q", auto_ack=True)
    publish(channel, "q", "quick", expiration="0")
    assert inbox.wait(1) == ["quick"]


def test_an_unacknowledged_message_does_not_expire_before_it_returns(channel: Any) -> None:
    queue(channel, "q", x_message_ttl=100)
    queue(channel, "witness", x_message_ttl=200)
    publish(channel, "q", "held")
    method, _, body = channel.basic_get("q")
    assert body == b"held"
    publish(channel, "witness", "w")
    wait_depth(channel, "witness", 0)
    channel.basic_nack(method.delivery_tag, requeue=True)
    until(lambda: depth(channel, "q") == 0, "its time was up when it returned")
    assert take(channel, "q") is None


def test_expiration_is_kept_in_the_delivered_properties(channel: Any) -> None:
    queue(channel, "q")
    publish(channel, "q", "m", expiration="60000")
    _, properties, _ = channel.basic_get("q", auto_ack=True)
    assert properties.expiration == "60000"


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", " 5", "5 ", "99999999999999999999"])
def test_an_expiration_that_is_no_number_of_milliseconds_closes_the_channel(channel: Any, text: str) -> None:
    queue(channel, "q")
    with pytest.raises(ChannelClosedByBroker) as caught:
        publish(channel, "q", "m", expiration=text)
    assert caught.value.reply_code == 406
    assert caught.value.reply_text.startswith("PRECONDITION_FAILED - invalid expiration ")


def test_a_consumer_sees_only_messages_that_still_live(channel: Any) -> None:
    queue(channel, "q", x_message_ttl=80)
    publish_all(channel, "q", "1", "2")
    wait_depth(channel, "q", 0)
    inbox = Inbox(channel, "q", auto_ack=True)
    publish(channel, "q", "3")
    pump(channel.connection, lambda: inbox.items, "the live one")
    assert inbox.bodies == ["3"]
