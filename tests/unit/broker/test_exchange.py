"""Each exchange type names the destinations RabbitMQ's would, and refuses what it refuses."""

import struct
from collections.abc import Callable
from typing import Any

import pytest

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError
from mirrormq.broker import exchange as x
from mirrormq.broker.exchange import Letter
from mirrormq.meta.records import Binding, Exchange
from mirrormq.wire.properties import Properties, encode_properties


def make(kind: str, arguments: dict[str, Any] | None = None) -> x.Exchange:
    return x.make_exchange(Exchange("/", "x", kind, arguments=arguments or {}))


def binding(queue: str, key: str = "", **arguments: Any) -> Binding:
    return Binding("/", "x", queue, "queue", key, arguments)


def names(exchange: x.Exchange, *keys: bytes, properties: Any = None) -> list[str]:
    return sorted({d.name for d in exchange.match(Letter(keys or (b"",), properties))})


def refusal(do: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(AmqpError) as caught:
        do()
    return caught.value.code, caught.value.text


def test_direct_matches_the_whole_key() -> None:
    exchange = make("direct")
    exchange.bind(binding("q1", "a"))
    exchange.bind(binding("q2", "a"))
    exchange.bind(binding("q3", "b"))
    assert names(exchange, b"a") == ["q1", "q2"]
    assert names(exchange, b"a.b") == []
    assert names(exchange, b"b", b"a") == ["q1", "q2", "q3"]
    exchange.unbind(binding("q1", "a"))
    assert names(exchange, b"a") == ["q2"]


def test_fanout_ignores_the_key() -> None:
    exchange = make("fanout")
    exchange.bind(binding("q1", "a"))
    exchange.bind(binding("q2"))
    assert names(exchange, b"zzz") == ["q1", "q2"]
    exchange.unbind(binding("q1", "a"))
    assert names(exchange, b"a") == ["q2"]


def test_topic_matches_patterns_for_every_key() -> None:
    exchange = make("topic")
    exchange.bind(binding("q1", "a.*"))
    exchange.bind(binding("q2", "#.z"))
    assert names(exchange, b"a.z") == ["q1", "q2"]
    assert names(exchange, b"a.b", b"z") == ["q1", "q2"]
    exchange.unbind(binding("q2", "#.z"))
    assert names(exchange, b"a.z") == ["q1"]


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_bindings_that_differ_in_arguments_only_go_one_by_one(kind: str) -> None:
    exchange = make(kind)
    exchange.bind(binding("q", "k"))
    exchange.bind(binding("q", "k", x=1))
    exchange.unbind(binding("q", "k"))
    assert names(exchange, b"k", properties=Properties(headers={"x": 1})) == ["q"]
    exchange.unbind(binding("q", "k", x=1))
    assert names(exchange, b"k", properties=Properties(headers={"x": 1})) == []


def test_a_queue_and_an_exchange_of_one_name_are_two_destinations() -> None:
    exchange = make("fanout")
    exchange.bind(binding("same"))
    exchange.bind(Binding("/", "x", "same", "exchange", ""))
    exchange.unbind(binding("same"))
    assert list(exchange.match(Letter((b"",)))) == [x.Destination("exchange", "same")]


def test_headers_looks_at_raw_properties_and_not_at_the_key() -> None:
    exchange = make("headers")
    exchange.bind(binding("q1", "k", a=1))
    exchange.bind(binding("q2", "k", a=2))
    raw = encode_properties(Properties(headers={"a": 2}))
    assert names(exchange, b"other", properties=raw) == ["q2"]
    assert names(exchange, b"k") == []


def test_the_default_exchange_names_the_queue_called_like_the_key() -> None:
    exchange = x.make_exchange(Exchange("/", "", "direct"))
    assert list(exchange.match(Letter((b"q", b"r")))) == [
        x.Destination("queue", "q"),
        x.Destination("queue", "r"),
    ]


def bound_hash(arguments: dict[str, Any] | None = None) -> x.Exchange:
    exchange = make("x-consistent-hash", arguments)
    for i in range(4):
        exchange.bind(binding(f"q{i}", "1"))
    return exchange


def test_consistent_hash_gives_each_key_one_queue_and_uses_all_of_them() -> None:
    exchange = bound_hash()
    chosen = [names(exchange, b"%d" % i) for i in range(200)]
    assert all(len(c) == 1 for c in chosen)
    assert len({c[0] for c in chosen}) == 4
    assert names(exchange, b"17", b"ignored CC key") == chosen[17]


def test_consistent_hash_can_hash_a_header_or_a_property_instead() -> None:
    by_header = bound_hash({"hash-header": "h"})
    by_property = bound_hash({"hash-property": "message_id"})
    by_time = bound_hash({"hash-property": "timestamp"})
    chosen = set()
    for i in range(50):
        properties = Properties(headers={"h": str(i)}, message_id=str(i), timestamp=i)
        raw = encode_properties(properties)
        one = names(by_header, b"same", properties=raw)
        assert one == names(by_header, b"different", properties=properties)
        assert one == names(by_property, b"x", properties=raw) == names(by_time, b"y", properties=raw)
        chosen.add(one[0])
    assert chosen == {"q0", "q1", "q2", "q3"}


def test_consistent_hash_sends_messages_without_the_value_to_one_place() -> None:
    exchange = bound_hash({"hash-header": "h"})
    assert len(names(exchange, b"a")) == 1
    assert names(exchange, b"a") == names(exchange, b"b", properties=Properties(headers={"other": 1}))


def test_only_exchanges_that_look_at_the_key_alone_are_keyed() -> None:
    assert all(make(kind).keyed for kind in ("direct", "fanout", "topic", "x-consistent-hash"))
    assert not make("headers").keyed
    assert not make("x-consistent-hash", {"hash-header": "h"}).keyed
    assert not make("x-consistent-hash", {"hash-property": "message_id"}).keyed


def test_properties_that_cannot_be_decoded_route_like_none() -> None:
    exchange = make("headers")
    exchange.bind(binding("all"))
    exchange.bind(binding("some", a=1))
    nan = b"\x01n" + b"d" + struct.pack(">d", float("nan"))
    raw = b"\x20\x00" + struct.pack(">I", len(nan)) + nan
    assert names(exchange, b"", properties=raw) == ["all"]


@pytest.mark.parametrize("kind", x.TYPES)
def test_known_types_are_accepted(kind: str) -> None:
    x.check_declare("/", "x", kind, {"x-foreign": 1, "alternate-exchange": "other"})


def test_unknown_types_are_refused_in_rabbitmqs_words() -> None:
    assert refusal(lambda: x.check_type("no-such-type")) == (503, "unknown exchange type 'no-such-type'")
    assert refusal(lambda: x.check_type("")) == (503, "invalid exchange type ''")


@pytest.mark.parametrize("kind", ["x-mirrored", "x-delayed-message"])
def test_reserved_types_are_not_implemented_and_named(kind: str) -> None:
    code, text = refusal(lambda: x.check_declare("/", "x", kind, {}))
    assert (code, f"'{kind}'" in text) == (540, True)


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (
            {"alternate-exchange": 1},
            "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'",
        ),
        (
            {"hash-header": "a", "hash-property": "message_id"},
            "hash-header and hash-property are mutually exclusive",
        ),
        ({"hash-property": "app_id"}, "Unsupported property: app_id"),
        ({"hash-header": 1}, "invalid type 'signedint' for arg 'hash-header'"),
    ],
)
def test_invalid_exchange_arguments_are_refused(arguments: dict[str, Any], wrong: str) -> None:
    assert refusal(lambda: x.check_declare("/", "x", "x-consistent-hash", arguments)) == (406, wrong)


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("0", "The binding key must be greater than 0"),
        ("-1", "The binding key must be greater than 0"),
        ("a", 'The binding key must be an integer: <<"a">>'),
        (" 2", 'The binding key must be an integer: <<" 2">>'),
        ("", "The binding key must be an integer: <<>>"),
        (str(limits.hash_weight_max + 1), f"The binding key must be at most {limits.hash_weight_max}"),
    ],
)
def test_a_weight_must_be_a_positive_number(key: str, wrong: str) -> None:
    assert refusal(lambda: x.check_binding("x-consistent-hash", key, {})) == (406, wrong)


def test_valid_bindings_are_accepted() -> None:
    x.check_binding("x-consistent-hash", "+2", {})
    x.check_binding("direct", "anything", {"x-match": "foo"})
    x.check_binding("headers", "", {"x-match": "any"})


def test_a_headers_binding_needs_a_valid_x_match() -> None:
    code, text = refusal(lambda: x.check_binding("headers", "", {"x-match": "foo"}))
    assert code == 406
    assert text.startswith("Invalid x-match field value")


def test_an_imported_exchange_of_an_unknown_type_keeps_bindings_and_routes_nothing() -> None:
    exchange = make("x-jms-topic")
    exchange.bind(binding("q", "k"))
    assert names(exchange, b"k") == []
    assert not exchange.keyed
    exchange.unbind(binding("q", "k"))


def test_an_imported_binding_without_a_valid_weight_has_the_smallest() -> None:
    exchange = make("x-consistent-hash", {"hash-header": 7, "hash-property": "app_id"})
    for key in ("heavy", "-5", "9" * 200):
        exchange.bind(binding(f"q{key}", key))
    assert len(names(exchange, b"k")) == 1
    for key in ("heavy", "-5", "9" * 200):
        exchange.unbind(binding(f"q{key}", key))
    assert names(exchange, b"k") == []
