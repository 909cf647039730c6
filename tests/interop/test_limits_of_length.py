"""Promises about full queues: x-max-length, x-max-length-bytes and every x-overflow."""

from __future__ import annotations

from typing import Any

import pytest
from pika.exceptions import NackError

from tests.interop.talk import depth, publish, publish_all, queue, take_all, wait_depth


def test_drop_head_keeps_the_newest(channel: Any) -> None:
    queue(channel, "q", x_max_length=3)
    publish_all(channel, "q", *"12345")
    assert take_all(channel, "q") == ["3", "4", "5"]


def test_drop_head_may_be_asked_for_by_name(channel: Any) -> None:
    queue(channel, "q", x_max_length=2, x_overflow="drop-head")
    publish_all(channel, "q", *"123")
    assert take_all(channel, "q") == ["2", "3"]


def test_max_length_bytes_counts_bodies(channel: Any) -> None:
    queue(channel, "q", x_max_length_bytes=10)
    publish_all(channel, "q", "aaaa", "bbbb", "cccc")
    assert take_all(channel, "q") == ["bbbb", "cccc"]
    publish(channel, "q", "more than ten bytes")
    assert take_all(channel, "q") == []
    publish_all(channel, "q", "ten bytes!")
    assert take_all(channel, "q") == ["ten bytes!"]


def test_whichever_limit_is_reached_first_counts(channel: Any) -> None:
    queue(channel, "q", x_max_length=2, x_max_length_bytes=6)
    publish_all(channel, "q", "a", "b", "c")
    assert take_all(channel, "q") == ["b", "c"]
    publish_all(channel, "q", "aaaa", "bbbb")
    assert take_all(channel, "q") == ["bbbb"]


def test_max_length_zero_keeps_nothing(channel: Any) -> None:
    queue(channel, "q", x_max_length=0)
    publish(channel, "q", "m")
    assert take_all(channel, "q") == []


def test_unacknowledged_messages_do_not_count_as_length(channel: Any) -> None:
    queue(channel, "q", x_max_length=1)
    publish(channel, "q", "1")
    method, _, _ = channel.basic_get("q")
    publish(channel, "q", "2")
    assert depth(channel, "q") == 1
    channel.basic_nack(method.delivery_tag)
    wait_depth(channel, "q", 1)
    assert take_all(channel, "q") == ["2"], "the returned head is the one to go"


def test_reject_publish_refuses_the_newest_with_a_nack(channel: Any) -> None:
    queue(channel, "q", x_max_length=2, x_overflow="reject-publish")
    publish_all(channel, "q", "1", "2")
    with pytest.raises(NackError):
        publish(channel, "q", "3")
    assert take_all(channel, "q") == ["1", "2"]
    publish(channel, "q", "4")
    assert take_all(channel, "q") == ["4"]


def test_reject_publish_by_bytes(channel: Any) -> None:
    queue(channel, "q", x_max_length_bytes=5, x_overflow="reject-publish")
    publish(channel, "q", "aaaaa")
    with pytest.raises(NackError):
        publish(channel, "q", "b")
    assert take_all(channel, "q") == ["aaaaa"]


def test_reject_publish_without_confirms_drops_silently(clients: Any) -> None:
    channel = clients.channel(confirm=False)
    queue(channel, "q", x_max_length=1, x_overflow="reject-publish")
    publish_all(channel, "q", "1", "2")
    assert take_all(channel, "q") == ["1"]


def test_a_fanout_is_nacked_when_one_of_its_queues_refuses(channel: Any) -> None:
    queue(channel, "full", x_max_length=1, x_overflow="reject-publish")
    queue(channel, "open")
    for name in ("full", "open"):
        channel.queue_bind(name, "amq.fanout", "")
    publish(channel, "", "1", "amq.fanout")
    with pytest.raises(NackError):
        publish(channel, "", "2", "amq.fanout")
    assert (take_all(channel, "full"), take_all(channel, "open")) == (["1"], ["1", "2"])


def test_reject_publish_dlx_sends_the_refused_one_to_the_dead_letter_exchange(channel: Any) -> None:
    queue(channel, "dead")
    queue(
        channel,
        "q",
        x_max_length=1,
        x_overflow="reject-publish-dlx",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )
    publish(channel, "q", "1")
    with pytest.raises(NackError):
        publish(channel, "q", "2")
    wait_depth(channel, "dead", 1)
    _, properties, body = channel.basic_get("dead", auto_ack=True)
    assert body == b"2"
    assert properties.headers["x-death"][0]["reason"] == "maxlen"
    assert take_all(channel, "q") == ["1"]


def test_plain_reject_publish_does_not_dead_letter(channel: Any) -> None:
    queue(channel, "dead")
    queue(
        channel,
        "q",
        x_max_length=1,
        x_overflow="reject-publish",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )
    publish(channel, "q", "1")
    with pytest.raises(NackError):
        publish(channel, "q", "2")
    assert depth(channel, "dead") == 0


def test_dropped_heads_go_to_the_dead_letter_exchange_in_order(channel: Any) -> None:
    queue(channel, "dead")
    queue(channel, "q", x_max_length=2, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    publish_all(channel, "q", *"12345")
    wait_depth(channel, "dead", 3)
    assert (take_all(channel, "dead"), take_all(channel, "q")) == (["1", "2", "3"], ["4", "5"])
