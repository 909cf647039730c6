"""Promises about x-max-priority: strict order by priority, publication order within one."""

from __future__ import annotations

from typing import Any

from tests.interop.talk import Inbox, depth, publish, queue, take_all, wait_depth


def test_higher_priorities_come_first_and_equals_in_order(channel: Any) -> None:
    queue(channel, "q", x_max_priority=5)
    for number, priority in enumerate((1, 5, 3, 5, 1, 0)):
        publish(channel, "q", f"{priority}{'abcdef'[number]}", priority=priority)
    assert take_all(channel, "q") == ["5b", "5d", "3c", "1a", "1e", "0f"]


def test_no_priority_is_zero_and_more_than_the_maximum_is_the_maximum(channel: Any) -> None:
    queue(channel, "q", x_max_priority=3)
    publish(channel, "q", "none")
    publish(channel, "q", "three", priority=3)
    publish(channel, "q", "nine", priority=9)
    publish(channel, "q", "zero", priority=0)
    assert take_all(channel, "q") == ["three", "nine", "none", "zero"]
    publish(channel, "q", "kept", priority=9)
    assert channel.basic_get("q", auto_ack=True)[1].priority == 9, "the property itself is not touched"


def test_without_x_max_priority_priority_is_ignored(channel: Any) -> None:
    queue(channel, "q")
    publish(channel, "q", "low", priority=1)
    publish(channel, "q", "high", priority=9)
    assert take_all(channel, "q") == ["low", "high"]


def test_a_requeued_message_returns_to_its_place_within_its_priority(channel: Any) -> None:
    queue(channel, "q", x_max_priority=2)
    for body, priority in (("1a", 1), ("1b", 1), ("2a", 2), ("2b", 2)):
        publish(channel, "q", body, priority=priority)
    inbox = Inbox(channel, "q")
    inbox.wait(4)
    inbox.cancel()
    channel.basic_nack(0, multiple=True)
    wait_depth(channel, "q", 4)
    assert take_all(channel, "q") == ["2a", "2b", "1a", "1b"]


def test_a_full_priority_queue_drops_its_head_which_is_the_highest_priority(channel: Any) -> None:
    queue(channel, "q", x_max_priority=5, x_max_length=2)
    publish(channel, "q", "high", priority=5)
    publish(channel, "q", "low", priority=1)
    publish(channel, "q", "mid", priority=3)
    assert take_all(channel, "q") == ["mid", "low"], "as RabbitMQ documents it"


def test_a_lower_priority_message_expires_only_when_it_is_the_head(channel: Any) -> None:
    queue(channel, "q", x_max_priority=2)
    queue(channel, "witness")
    publish(channel, "q", "lasting", priority=2)
    publish(channel, "q", "brief", priority=1, expiration="50")
    publish(channel, "witness", "w", expiration="150")
    wait_depth(channel, "witness", 0)
    assert depth(channel, "q") == 2
    assert take_all(channel, "q") == ["lasting"]


def test_a_waiting_consumer_gets_a_higher_priority_message_next(channel: Any) -> None:
    queue(channel, "q", x_max_priority=9)
    channel.basic_qos(prefetch_count=1)
    inbox = Inbox(channel, "q")
    publish(channel, "q", "first", priority=0)
    inbox.wait(1)
    publish(channel, "q", "low", priority=1)
    publish(channel, "q", "high", priority=8)
    assert depth(channel, "q") == 2
    inbox.ack()
    inbox.wait(2)
    inbox.ack()
    assert inbox.wait(3) == ["first", "high", "low"]
