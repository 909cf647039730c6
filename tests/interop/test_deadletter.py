"""Promises about dead-lettering: when, where to, with which history, and how cycles end."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from tests.interop.talk import Inbox, depth, publish, publish_all, queue, take_all, wait_depth
from tests.interop.waiting import pump, until


def with_grave(channel: Any, name: str = "q", **options: Any) -> None:
    """A queue whose dead letters go to the queue `dead` through the exchange `graves`."""
    channel.exchange_declare("graves", "fanout")
    queue(channel, "dead")
    channel.queue_bind("dead", "graves", "")
    queue(channel, name, x_dead_letter_exchange="graves", **options)


def dead_letter(channel: Any, name: str = "dead") -> tuple[Any, Any, bytes]:
    wait_depth(channel, name, 1)
    return channel.basic_get(name, auto_ack=True)


@pytest.mark.parametrize("how", ["reject", "nack"])
def test_a_rejected_message_is_dead_lettered_with_its_history(channel: Any, broker: Any, how: str) -> None:
    with_grave(channel)
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    channel.queue_bind("q", "amq.direct", "key")
    publish(channel, "key", "m", "amq.direct", headers={"mine": 1}, message_id="id")
    method, _, _ = channel.basic_get("q")
    if how == "reject":
        channel.basic_reject(method.delivery_tag, requeue=False)
    else:
        channel.basic_nack(method.delivery_tag, requeue=False)
    method, properties, body = dead_letter(channel)
    assert (method.exchange, method.routing_key, body) == ("graves", "key", b"m")
    headers = properties.headers
    (death,) = headers["x-death"]
    when = death.pop("time")
    assert death == {
        "count": 1,
        "exchange": "amq.direct",
        "queue": "q",
        "reason": "rejected",
        "routing-keys": ["key"],
    }
    assert before <= when <= datetime.datetime.now(datetime.UTC)
    assert headers["x-first-death-exchange"] == "amq.direct"
    assert headers["x-first-death-queue"] == "q"
    assert headers["x-first-death-reason"] == "rejected"
    assert (headers["mine"], properties.message_id) == (1, "id")


def test_an_expired_message_is_dead_lettered_without_its_expiration(channel: Any) -> None:
    with_grave(channel)
    publish(channel, "q", "m", expiration="50")
    method, properties, _ = dead_letter(channel)
    (death,) = properties.headers["x-death"]
    assert (death["reason"], death["original-expiration"]) == ("expired", "50")
    assert properties.expiration is None
    assert method.redelivered is False


def test_queue_ttl_dead_letters_without_original_expiration(channel: Any) -> None:
    with_grave(channel, x_message_ttl=50)
    publish(channel, "q", "m")
    _, properties, _ = dead_letter(channel)
    (death,) = properties.headers["x-death"]
    assert death["reason"] == "expired"
    assert "original-expiration" not in death


def test_an_unroutable_dead_letter_and_a_missing_exchange_drop_the_message(channel: Any) -> None:
    queue(channel, "nowhere", x_dead_letter_exchange="missing")
    queue(channel, "no-route", x_dead_letter_exchange="amq.direct")
    for name in ("nowhere", "no-route"):
        publish(channel, name, "m")
        method, _, _ = channel.basic_get(name)
        channel.basic_reject(method.delivery_tag, requeue=False)
        assert channel.queue_delete(name).method.message_count == 0


def test_the_dead_letter_key_replaces_the_messages_own(channel: Any) -> None:
    queue(channel, "dead")
    channel.queue_bind("dead", "amq.direct", "late")
    queue(
        channel, "q", x_dead_letter_exchange="amq.direct", x_dead_letter_routing_key="late", x_message_ttl=0
    )
    publish(channel, "q", "m")
    method, properties, _ = dead_letter(channel)
    assert method.routing_key == "late"
    assert properties.headers["x-death"][0]["routing-keys"] == ["q"]


def test_the_default_exchange_with_the_own_key_leads_to_the_queue_of_that_name(channel: Any) -> None:
    queue(channel, "target")
    queue(channel, "q", x_dead_letter_exchange="", x_dead_letter_routing_key="target", x_message_ttl=0)
    publish_all(channel, "q", "1", "2", "3")
    wait_depth(channel, "target", 3)
    assert take_all(channel, "target") == ["1", "2", "3"]


def test_multiple_nack_dead_letters_in_order(channel: Any) -> None:
    with_grave(channel)
    publish_all(channel, "q", *"12345")
    inbox = Inbox(channel, "q")
    inbox.wait(5)
    channel.basic_nack(inbox.items[3][0].delivery_tag, multiple=True, requeue=False)
    wait_depth(channel, "dead", 4)
    assert take_all(channel, "dead") == ["1", "2", "3", "4"]


def test_a_second_death_of_the_same_kind_counts_up(channel: Any) -> None:
    channel.exchange_declare("back", "fanout")
    queue(channel, "wait", x_dead_letter_exchange="back", x_message_ttl=30)
    queue(channel, "work", x_dead_letter_exchange="", x_dead_letter_routing_key="wait")
    channel.queue_bind("work", "back", "")
    publish(channel, "work", "m")
    for round_number in range(1, 4):
        wait_depth(channel, "work", 1)
        method, properties, _ = channel.basic_get("work")
        deaths = (properties.headers or {}).get("x-death", [])
        seen = [(death["queue"], death["reason"], death["count"]) for death in deaths]
        if round_number > 1:
            count = round_number - 1
            assert seen == [("wait", "expired", count), ("work", "rejected", count)], (
                "the newest stands first"
            )
            assert properties.headers["x-first-death-queue"] == "work"
        channel.basic_reject(method.delivery_tag, requeue=False)


def test_a_cycle_without_a_rejection_drops_the_message(channel: Any) -> None:
    queue(channel, "one", x_dead_letter_exchange="", x_dead_letter_routing_key="two", x_message_ttl=20)
    queue(channel, "two", x_dead_letter_exchange="", x_dead_letter_routing_key="one", x_message_ttl=20)
    publish(channel, "one", "m")
    # A node that was held up lets the first life end late: look for the end of both before timing anything.
    until(lambda: (depth(channel, "one"), depth(channel, "two")) == (0, 0), "both queues to be empty")
    queue(channel, "witness", x_message_ttl=250)
    publish(channel, "witness", "w")
    wait_depth(channel, "witness", 0)
    assert (depth(channel, "one"), depth(channel, "two")) == (0, 0)


def test_a_queue_that_dead_letters_to_itself_by_expiry_drops(channel: Any) -> None:
    queue(channel, "q", x_dead_letter_exchange="", x_message_ttl=20)
    publish(channel, "q", "m")
    wait_depth(channel, "q", 0)


def test_a_rejection_in_a_cycle_lets_the_message_go_round(channel: Any) -> None:
    queue(channel, "q", x_dead_letter_exchange="")
    publish(channel, "q", "m")
    inbox = Inbox(channel, "q")
    for count in range(1, 5):
        inbox.wait(count)
        channel.basic_reject(inbox.items[-1][0].delivery_tag, requeue=False)
    pump(channel.connection, lambda: len(inbox.items) >= 5, "it came back")
    assert inbox.items[4][1].headers["x-death"][0]["count"] == 4


def test_dead_letters_are_routed_to_every_bound_queue(channel: Any) -> None:
    with_grave(channel, x_message_ttl=0)
    queue(channel, "second")
    channel.queue_bind("second", "graves", "")
    publish(channel, "q", "m")
    wait_depth(channel, "dead", 1)
    wait_depth(channel, "second", 1)


def test_cc_headers_ride_along_in_routing_keys_and_are_followed_again(channel: Any) -> None:
    for name in ("dead-a", "dead-b"):
        queue(channel, name)
    channel.queue_bind("dead-a", "amq.direct", "q")
    channel.queue_bind("dead-b", "amq.direct", "extra")
    queue(channel, "q", x_dead_letter_exchange="amq.direct", x_message_ttl=0)
    publish(channel, "q", "m", headers={"CC": ["extra"]})
    wait_depth(channel, "dead-a", 1)
    wait_depth(channel, "dead-b", 1)
    _, properties, _ = channel.basic_get("dead-a", auto_ack=True)
    assert properties.headers["x-death"][0]["routing-keys"] == ["q", "extra"]


def test_a_dead_letter_key_removes_cc(channel: Any) -> None:
    queue(channel, "dead")
    queue(channel, "q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead", x_message_ttl=0)
    publish(channel, "q", "m", headers={"CC": ["somewhere"], "mine": "kept"})
    _, properties, _ = dead_letter(channel)
    assert "CC" not in properties.headers
    assert properties.headers["mine"] == "kept"


def test_purging_and_deleting_do_not_dead_letter(channel: Any) -> None:
    with_grave(channel)
    publish(channel, "q", "1")
    channel.queue_purge("q")
    publish(channel, "q", "2")
    channel.queue_delete("q")
    publish(channel, "dead", "end")
    assert take_all(channel, "dead") == ["end"]
