"""Promises about exchanges: which queues a message reaches, for every type and kind of binding."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from tests.interop.talk import depth, publish, queue, take, take_all


def exchange(channel: Any, name: str, kind: str, **options: Any) -> str:
    arguments = {key.replace("_", "-"): value for key, value in options.items() if key.startswith("x_")}
    flags = {key: value for key, value in options.items() if not key.startswith("x_")}
    arguments.update(flags.pop("arguments", {}))
    channel.exchange_declare(name, kind, arguments=arguments or None, **flags)
    return name


def test_default_exchange_routes_to_the_queue_named_by_the_key(channel: Any) -> None:
    queue(channel, "a")
    queue(channel, "b")
    publish(channel, "a", "for a")
    assert (take_all(channel, "a"), take_all(channel, "b")) == (["for a"], [])


def test_default_exchange_takes_no_explicit_bindings(channel: Any) -> None:
    queue(channel, "a")
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_bind("a", "", "key")
    assert caught.value.reply_code == 403


@pytest.mark.parametrize("name", ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"])
def test_predeclared_exchanges_exist_in_every_vhost(channel: Any, name: str) -> None:
    channel.exchange_declare(name, passive=True)


def test_direct_exchange_routes_by_the_exact_key_to_every_queue_bound_with_it(channel: Any) -> None:
    for name, key in (("a", "red"), ("b", "red"), ("c", "blue"), ("d", "*")):
        queue(channel, name)
        channel.queue_bind(name, "amq.direct", key)
    publish(channel, "red", "m", "amq.direct")
    assert [depth(channel, name) for name in "abcd"] == [1, 1, 0, 0]


def test_several_bindings_of_one_queue_deliver_one_copy(channel: Any) -> None:
    queue(channel, "a")
    for key in ("x.*", "x.y", "#"):
        channel.queue_bind("a", "amq.topic", key)
    channel.queue_bind("a", "amq.fanout", "")
    channel.queue_bind("a", "amq.fanout", "other")
    publish(channel, "x.y", "topic", "amq.topic")
    publish(channel, "", "fanout", "amq.fanout")
    assert take_all(channel, "a") == ["topic", "fanout"]


def test_fanout_exchange_ignores_the_key(channel: Any) -> None:
    for name in "ab":
        queue(channel, name)
        channel.queue_bind(name, "amq.fanout", name)
    publish(channel, "anything", "m", "amq.fanout")
    assert [take(channel, name) for name in "ab"] == ["m", "m"]


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*", ["a"], ["a.b", ".", ""]),  # "" has no words at all
        ("#", ["", "a", "a.b.c"], []),
        ("a.*", ["a.b", "a."], ["a", "a.b.c", "b.a"]),
        ("a.#", ["a", "a.b", "a.b.c"], ["b", "ab"]),
        ("#.a", ["a", "b.a", "a.a"], ["a.b"]),
        ("*.b.#", ["a.b", "a.b.c.d", ".b"], ["b", "a.c"]),
        ("#.b.#", ["b", "a.b", "b.c", "a.b.c"], ["a.c", ""]),
        ("a.*.#.c", ["a.b.c", "a.b.x.y.c"], ["a.c"]),
        ("#.#", ["", "a", "a.b"], []),
        ("a*", ["a*"], ["ab", "a"]),
    ],
)
def test_topic_patterns_match_whole_words(
    channel: Any, pattern: str, matching: list[str], other: list[str]
) -> None:
    queue(channel, "q")
    channel.queue_bind("q", "amq.topic", pattern)
    for key in matching + other:
        publish(channel, key, f"<{key}>", "amq.topic")
    assert take_all(channel, "q") == [f"<{key}>" for key in matching]


def test_unbinding_one_topic_pattern_leaves_the_others(channel: Any) -> None:
    queue(channel, "q")
    for pattern in ("a.#", "a.*"):
        channel.queue_bind("q", "amq.topic", pattern)
    channel.queue_unbind("q", "amq.topic", "a.#")
    publish(channel, "a.b", "1", "amq.topic")
    publish(channel, "a.b.c", "2", "amq.topic")
    assert take_all(channel, "q") == ["1"]


HEADERS = {"shape": "round", "size": 3, "x-kind": "secret"}


@pytest.mark.parametrize(
    ("match", "arguments", "reached"),
    [
        ("all", {"shape": "round", "size": 3}, True),
        ("all", {"shape": "round", "size": 4}, False),
        ("all", {"shape": "round", "missing": 1}, False),
        ("all", {}, True),
        ("any", {"shape": "square", "size": 3}, True),
        ("any", {"shape": "square"}, False),
        ("any", {}, False),
        ("all", {"shape": "round", "x-kind": "other"}, True),
        ("any", {"shape": "square", "x-kind": "secret"}, False),
        ("all-with-x", {"shape": "round", "x-kind": "secret"}, True),
        ("all-with-x", {"shape": "round", "x-kind": "other"}, False),
        ("any-with-x", {"shape": "square", "x-kind": "secret"}, True),
        ("any-with-x", {"shape": "square", "x-kind": "other"}, False),
        (None, {"shape": "round", "size": 3}, True),
        (None, {"shape": "round", "size": 4}, False),
    ],
)
def test_headers_exchange_follows_x_match(
    channel: Any, match: str | None, arguments: dict[str, Any], reached: bool
) -> None:
    queue(channel, "q")
    table = dict(arguments) if match is None else {"x-match": match, **arguments}
    channel.queue_bind("q", "amq.headers", "ignored", table)
    publish(channel, "whatever", "m", "amq.headers", headers=HEADERS)
    assert take_all(channel, "q") == (["m"] if reached else [])


def test_headers_binding_with_a_void_value_asks_only_for_presence(channel: Any) -> None:
    queue(channel, "q")
    channel.queue_bind("q", "amq.headers", "", {"x-match": "all", "shape": None})
    publish(channel, "", "with", "amq.headers", headers={"shape": "any"})
    publish(channel, "", "without", "amq.headers", headers={"size": 1})
    publish(channel, "", "no headers", "amq.headers")
    assert take_all(channel, "q") == ["with"]


def test_headers_binding_with_an_unknown_x_match_is_refused(channel: Any) -> None:
    queue(channel, "q")
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_bind("q", "amq.headers", "", {"x-match": "some"})
    assert caught.value.reply_code == 406


def test_exchange_to_exchange_bindings_are_followed_by_each_exchanges_own_rule(channel: Any) -> None:
    exchange(channel, "first", "topic")
    exchange(channel, "second", "direct")
    queue(channel, "q")
    channel.exchange_bind("second", "first", "order.#")
    channel.queue_bind("q", "second", "order.new")
    publish(channel, "order.new", "1", "first")
    publish(channel, "order.old", "2", "first")
    publish(channel, "order.new", "3", "second")
    channel.exchange_unbind("second", "first", "order.#")
    publish(channel, "order.new", "4", "first")
    assert take_all(channel, "q") == ["1", "3"]


def test_a_cycle_of_exchange_bindings_delivers_one_copy(channel: Any) -> None:
    for name in ("first", "second", "third"):
        exchange(channel, name, "fanout")
    for source, destination in (("first", "second"), ("second", "third"), ("third", "first")):
        channel.exchange_bind(destination, source, "")
    queue(channel, "q")
    channel.queue_bind("q", "first", "")
    channel.queue_bind("q", "third", "")
    publish(channel, "", "m", "second")
    assert take_all(channel, "q") == ["m"]


def test_alternate_exchange_takes_what_finds_no_queue(channel: Any) -> None:
    exchange(channel, "spare", "fanout")
    exchange(channel, "main", "direct", arguments={"alternate-exchange": "spare"})
    queue(channel, "q")
    queue(channel, "lost")
    channel.queue_bind("q", "main", "known")
    channel.queue_bind("lost", "spare", "")
    publish(channel, "known", "1", "main")
    publish(channel, "unknown", "2", "main")
    assert (take_all(channel, "q"), take_all(channel, "lost")) == (["1"], ["2"])


def test_a_message_saved_by_the_alternate_exchange_is_not_returned(channel: Any) -> None:
    exchange(channel, "spare", "fanout")
    exchange(channel, "main", "direct", arguments={"alternate-exchange": "spare"})
    queue(channel, "lost")
    channel.queue_bind("lost", "spare", "")
    channel.basic_publish("main", "unknown", b"saved", mandatory=True)
    channel.queue_unbind("lost", "spare", "")
    with pytest.raises(UnroutableError):
        channel.basic_publish("main", "unknown", b"returned", mandatory=True)
    assert take_all(channel, "lost") == ["saved"]


def test_alternate_exchanges_chain_and_a_cycle_or_a_missing_one_ends_the_search(channel: Any) -> None:
    exchange(channel, "one", "direct", arguments={"alternate-exchange": "two"})
    exchange(channel, "two", "direct", arguments={"alternate-exchange": "one"})
    exchange(channel, "three", "direct", arguments={"alternate-exchange": "missing"})
    for source in ("one", "three"):
        with pytest.raises(UnroutableError):
            channel.basic_publish(source, "nowhere", b"", mandatory=True)
    queue(channel, "q")
    channel.queue_bind("q", "two", "nowhere")
    channel.basic_publish("one", "nowhere", b"found", mandatory=True)
    assert take_all(channel, "q") == ["found"]


def test_the_chosen_alternate_message_keeps_its_exchange_and_key(channel: Any) -> None:
    exchange(channel, "spare", "fanout")
    exchange(channel, "main", "direct", arguments={"alternate-exchange": "spare"})
    queue(channel, "lost")
    channel.queue_bind("lost", "spare", "")
    publish(channel, "unknown", "m", "main")
    method, _, _ = channel.basic_get("lost", auto_ack=True)
    assert (method.exchange, method.routing_key) == ("main", "unknown")


def test_publishing_to_an_internal_exchange_is_refused_but_bindings_reach_it(
    channel: Any, clients: Any
) -> None:
    exchange(channel, "outer", "fanout")
    exchange(channel, "inner", "fanout", internal=True)
    channel.exchange_bind("inner", "outer", "")
    queue(channel, "q")
    channel.queue_bind("q", "inner", "")
    publish(channel, "", "through", "outer")
    assert take_all(channel, "q") == ["through"]
    with pytest.raises(ChannelClosedByBroker) as caught:
        publish(channel, "", "direct", "inner")
    assert caught.value.reply_code == 403


def test_auto_delete_exchange_goes_with_its_last_binding_and_not_before_the_first(
    channel: Any, clients: Any
) -> None:
    exchange(channel, "brief", "fanout", auto_delete=True)
    queue(channel, "a")
    queue(channel, "b")
    channel.exchange_declare("brief", passive=True)
    channel.queue_bind("a", "brief", "")
    channel.queue_bind("b", "brief", "")
    channel.queue_unbind("a", "brief", "")
    channel.exchange_declare("brief", passive=True)
    channel.queue_delete("b")
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.exchange_declare("brief", passive=True)
    assert caught.value.reply_code == 404


def test_delete_if_unused_refuses_an_exchange_with_bindings(channel: Any, clients: Any) -> None:
    exchange(channel, "busy", "direct")
    queue(channel, "q")
    channel.queue_bind("q", "busy", "k")
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.exchange_delete("busy", if_unused=True)
    assert caught.value.reply_code == 406
    again = clients.channel()
    again.queue_unbind("q", "busy", "k")
    again.exchange_delete("busy", if_unused=True)
    again.exchange_delete("busy")  # deleting what is gone is fine


def test_deleting_an_exchange_removes_its_bindings_for_good(channel: Any) -> None:
    exchange(channel, "brief", "fanout")
    queue(channel, "q")
    channel.queue_bind("q", "brief", "")
    channel.exchange_delete("brief")
    exchange(channel, "brief", "fanout")
    publish(channel, "", "m", "brief")
    assert take_all(channel, "q") == []


@pytest.mark.parametrize("different", [{"exchange_type": "fanout"}, {"durable": True}, {"auto_delete": True}])
def test_redeclaring_an_exchange_differently_is_a_precondition_error(
    channel: Any, different: dict[str, Any]
) -> None:
    channel.exchange_declare("fixed", "direct")
    channel.exchange_declare("fixed", "direct")
    options = {"exchange_type": "direct", **different}
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.exchange_declare("fixed", **options)
    assert caught.value.reply_code == 406
    assert caught.value.reply_text.startswith("PRECONDITION_FAILED - inequivalent arg ")


def test_publishing_to_a_missing_exchange_closes_the_channel_only(clients: Any) -> None:
    connection = clients.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(ChannelClosedByBroker) as caught:
        publish(channel, "k", "m", "missing")
    assert caught.value.reply_code == 404
    connection.channel().queue_declare("still-works", exclusive=True)


def test_consistent_hash_exchange_sends_a_key_always_to_the_same_queue(channel: Any) -> None:
    exchange(channel, "ring", "x-consistent-hash")
    names = [f"part-{number}" for number in range(3)]
    for name in names:
        queue(channel, name)
        channel.queue_bind(name, "ring", "10")
    for _ in range(3):
        for number in range(60):
            publish(channel, f"key-{number}", f"key-{number}", "ring")
    contents = [Counter(take_all(channel, name)) for name in names]
    assert sum(contents, Counter()) == Counter({f"key-{number}": 3 for number in range(60)})
    assert all(set(part.values()) <= {3} for part in contents), "each key went to one queue only"
    assert all(contents), "every queue got a share"


def test_consistent_hash_weights_move_the_share(channel: Any) -> None:
    exchange(channel, "ring", "x-consistent-hash")
    for name, weight in (("light", "1"), ("heavy", "9")):
        queue(channel, name)
        channel.queue_bind(name, "ring", weight)
    for number in range(400):
        publish(channel, f"some key {number}", "", "ring")
    light, heavy = depth(channel, "light"), depth(channel, "heavy")
    assert light + heavy == 400
    assert 5 <= light <= 100


@pytest.mark.parametrize(
    ("arguments", "properties"),
    [
        ({"hash-header": "customer"}, lambda number: {"headers": {"customer": f"c{number}"}}),
        ({"hash-property": "message_id"}, lambda number: {"message_id": f"c{number}"}),
        ({"hash-property": "correlation_id"}, lambda number: {"correlation_id": f"c{number}"}),
    ],
)
def test_consistent_hash_may_hash_a_header_or_a_property(
    channel: Any, arguments: dict[str, str], properties: Any
) -> None:
    exchange(channel, "ring", "x-consistent-hash", arguments=arguments)
    for name in ("a", "b"):
        queue(channel, name)
        channel.queue_bind(name, "ring", "50")
    for turn in range(2):
        for number in range(40):
            publish(channel, f"key {turn}", f"c{number}", "ring", **properties(number))
    parts = [Counter(take_all(channel, name)) for name in ("a", "b")]
    assert sum(parts, Counter()) == Counter({f"c{number}": 2 for number in range(40)})
    assert all(part and set(part.values()) == {2} for part in parts)


def test_consistent_hash_refuses_a_weight_that_is_no_number(channel: Any) -> None:
    exchange(channel, "ring", "x-consistent-hash")
    queue(channel, "q")
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_bind("q", "ring", "heavy")
    assert caught.value.reply_code == 406


def test_headers_of_a_message_pass_through_unchanged(channel: Any) -> None:
    queue(channel, "q")
    properties = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"a": 1, "b": {"c": [1, "two", None]}},
        delivery_mode=1,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        app_id="app",
        cluster_id="cl",
    )
    channel.basic_publish("", "q", b"body", properties)
    _, got, body = channel.basic_get("q", auto_ack=True)
    assert (got, body) == (properties, b"body")
