"""A dead letter tells its whole history, keeps everything else as it was, and cannot circle for ever."""

import struct
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.broker.deadletter import DeadLetter, Reason, make_dead_letter
from mirrormq.kernel.message import Message
from mirrormq.wire.properties import (
    Properties,
    decode_properties,
    encode_properties,
    raw_headers,
    replace_headers,
)
from mirrormq.wire.table import Timestamp, join_table, split_table

NOW = Now(mono=5, wall=1_700_000_000_900_000)


def message(key: bytes = b"k", exchange: bytes = b"x", **properties: Any) -> Message:
    return Message(exchange, key, encode_properties(Properties(**properties)), b"body")


def kill(
    m: Message, reason: Reason = "rejected", queue: str = "q", exchange: str = "dlx", key: bytes | None = None
) -> DeadLetter:
    return make_dead_letter(m, reason, NOW, queue=queue, exchange=exchange, key=key)


def headers_of(letter: DeadLetter) -> dict[str, Any]:
    return decode_properties(letter.message.properties).headers or {}


def deaths_of(letter: DeadLetter) -> list[dict[str, Any]]:
    deaths: list[dict[str, Any]] = headers_of(letter)["x-death"]
    return deaths


def test_the_first_death_is_told_in_full() -> None:
    letter = kill(message(delivery_mode=2, expiration="5000"), "expired")
    assert headers_of(letter) == {
        "x-death": [
            {
                "count": 1,
                "reason": "expired",
                "queue": "q",
                "time": 1_700_000_000,
                "exchange": "x",
                "routing-keys": ["k"],
                "original-expiration": "5000",
            }
        ],
        "x-first-death-reason": "expired",
        "x-first-death-queue": "q",
        "x-first-death-exchange": "x",
    }
    assert isinstance(deaths_of(letter)[0]["time"], Timestamp)
    assert (letter.message.exchange, letter.message.routing_key) == (b"dlx", b"k")
    assert (letter.message.body, letter.message.persistent) == (b"body", True)


def test_expiration_is_removed_so_that_the_letter_does_not_expire_again() -> None:
    letter = kill(message(expiration="5000", message_id="m"), "expired")
    properties = decode_properties(letter.message.properties)
    assert (properties.expiration, properties.message_id) == (None, "m")
    assert letter.message.ttl_us == -1


def test_counts_are_64_bits_wide_on_the_wire() -> None:
    raw = raw_headers(kill(message()).message.properties)
    assert raw is not None
    assert b"\x05count" + b"l" + struct.pack(">q", 1) in raw


def test_the_latest_death_comes_first() -> None:
    letter = kill(message(), "rejected", "q1")
    letter = kill(letter.message, "expired", "q2")
    letter = kill(letter.message, "maxlen", "q3")
    assert [(d["queue"], d["reason"]) for d in deaths_of(letter)] == [
        ("q3", "maxlen"),
        ("q2", "expired"),
        ("q1", "rejected"),
    ]
    assert deaths_of(letter)[0]["exchange"] == "dlx"
    headers = headers_of(letter)
    assert [headers[f"x-first-death-{n}"] for n in ("queue", "reason", "exchange")] == ["q1", "rejected", "x"]


def test_a_repeated_death_is_counted_and_moves_to_the_front_with_its_first_circumstances() -> None:
    letter = kill(message(expiration="9"), "rejected", "q1")
    letter = kill(letter.message, "expired", "q2")
    letter = kill(letter.message, "rejected", "q1")
    first, second = deaths_of(letter)
    assert (first["queue"], first["count"], first["exchange"]) == ("q1", 2, "x")
    assert first["original-expiration"] == "9"
    assert (second["queue"], second["count"]) == ("q2", 1)


def test_one_queue_with_two_reasons_has_two_entries() -> None:
    letter = kill(kill(message(), "rejected").message, "expired")
    assert [(d["queue"], d["reason"], d["count"]) for d in deaths_of(letter)] == [
        ("q", "expired", 1),
        ("q", "rejected", 1),
    ]


def test_without_a_dead_letter_key_the_letter_keeps_all_its_keys() -> None:
    letter = kill(message(headers={"CC": ["c1", "c2"], "BCC": ["b"]}))
    assert letter.message.routing_key == b"k"
    assert letter.extra_keys == [b"c1", b"c2", b"b"]
    assert headers_of(letter)["CC"] == ["c1", "c2"]
    assert deaths_of(letter)[0]["routing-keys"] == ["k", "c1", "c2", "b"]


def test_a_dead_letter_key_replaces_all_keys_and_removes_cc() -> None:
    letter = kill(message(headers={"CC": ["c1"], "other": 1}), key=b"dead")
    assert (letter.message.routing_key, letter.extra_keys) == (b"dead", [])
    assert "CC" not in headers_of(letter)
    assert headers_of(letter)["other"] == 1
    assert deaths_of(letter)[0]["routing-keys"] == ["k", "c1"]


def test_untouched_headers_and_properties_keep_their_bytes() -> None:
    odd = [
        ("byte", b"b\x05"),
        ("unsigned", b"u\x00\x05"),
        ("float", b"f" + struct.pack(">f", 0.1)),
        ("nan", b"d" + struct.pack(">d", float("nan"))),
        ("not-utf8", b"S\x00\x00\x00\x02\xff\xfe"),
    ]
    plain = encode_properties(Properties(content_type="t", headers={}, priority=3, cluster_id="c"))
    raw = replace_headers(plain, join_table(odd))
    letter = kill(Message(b"x", b"k", raw, b""))
    kept = raw_headers(letter.message.properties)
    assert kept is not None
    assert split_table(kept)[: len(odd)] == odd
    assert letter.message.priority == 3


def test_names_that_are_not_utf8_survive_two_deaths() -> None:
    once = kill(Message(b"\xff", b"\xfe", encode_properties(Properties()), b""), "expired", "q1")
    twice = kill(once.message, "rejected", "q2")
    old = deaths_of(twice)[1]
    assert (old["exchange"], old["routing-keys"]) == (b"\xff", [b"\xfe"])
    raw = raw_headers(twice.message.properties)
    assert raw is not None
    assert raw.count(b"S\x00\x00\x00\x01\xfe") == 2


class Case(NamedTuple):
    history: Any
    expected: list[tuple[Any, Any, int]]


@pytest.mark.parametrize(
    "case",
    [
        Case("nonsense", [("q", "rejected", 1)]),
        Case([], [("q", "rejected", 1)]),
        Case([1, "two"], [("q", "rejected", 1)]),
        Case([{"queue": "q", "reason": "rejected"}] * 3, [("q", "rejected", 4)]),
        Case([{"queue": "q", "reason": "rejected", "count": "many"}], [("q", "rejected", 2)]),
        Case([{"queue": 1}], [("q", "rejected", 1), (1, None, 1)]),
        Case(
            [{"queue": "q", "reason": "rejected", "count": (1 << 63) - 1}],
            [("q", "rejected", (1 << 63) - 1)],
        ),
    ],
)
def test_a_history_made_up_by_the_publisher_does_no_harm(case: Case) -> None:
    letter = kill(message(headers={"x-death": case.history}))
    assert [(d.get("queue"), d.get("reason"), d["count"]) for d in deaths_of(letter)] == case.expected
    assert "x-first-death-queue" not in headers_of(letter)


def test_first_death_headers_of_the_publisher_are_replaced() -> None:
    letter = kill(message(headers={"x-first-death-queue": "forged"}))
    assert headers_of(letter)["x-first-death-queue"] == "q"


def test_names_longer_than_amqp_can_carry_do_no_harm() -> None:
    letter = kill(message(), exchange="x" * 300, key=b"k" * 300)
    assert (len(letter.message.exchange), len(letter.message.routing_key)) == (255, 255)


def test_the_history_is_bounded() -> None:
    history = [{"queue": f"q{i}", "reason": "expired", "count": 1} for i in range(2 * limits.deaths_max)]
    deaths = deaths_of(kill(message(headers={"x-death": history})))
    assert len(deaths) == limits.deaths_max
    assert [d["queue"] for d in deaths[:2]] == ["q", "q0"]


# --- cycles ---


def journey(*stops: tuple[str, Reason]) -> DeadLetter:
    letter = kill(message(), stops[0][1], stops[0][0])
    for queue, reason in stops[1:]:
        letter = kill(letter.message, reason, queue)
    return letter


def test_a_letter_may_not_return_to_a_queue_it_died_in_without_a_rejection() -> None:
    letter = journey(("a", "expired"), ("b", "maxlen"))
    assert not letter.may_enter("a")
    assert not letter.may_enter("b")
    assert letter.may_enter("c")


def test_a_rejection_since_then_lets_it_return() -> None:
    letter = journey(("a", "expired"), ("b", "rejected"), ("c", "expired"))
    assert letter.may_enter("a")
    assert letter.may_enter("b")
    assert not letter.may_enter("c")


def test_a_rejected_letter_may_go_anywhere() -> None:
    assert journey(("a", "expired"), ("a", "rejected")).may_enter("a")


def test_a_delivery_limit_is_no_rejection() -> None:
    assert not journey(("a", "delivery_limit")).may_enter("a")


reasons: st.SearchStrategy[Reason] = st.sampled_from(["rejected", "expired", "maxlen", "delivery_limit"])


@given(st.lists(st.tuples(st.sampled_from("abc"), reasons), min_size=1, max_size=12), st.sampled_from("abc"))
def test_the_cycle_rule_holds_for_every_journey(stops: list[tuple[str, Reason]], queue: str) -> None:
    latest: dict[tuple[str, Reason], int] = {stop: at for at, stop in enumerate(stops)}
    died = [at for (q, _), at in latest.items() if q == queue]
    rejected = [at for (_, reason), at in latest.items() if reason == "rejected"]
    is_cycle = bool(died) and max(died) > max(rejected, default=-1)
    assert journey(*stops).may_enter(queue) is not is_cycle
    deaths = deaths_of(journey(*stops))
    assert sum(d["count"] for d in deaths) == len(stops)
    assert [(d["queue"], d["reason"]) for d in deaths] == sorted(latest, key=lambda s: -latest[s])


# --- delivery counts ---


def test_the_delivery_count_of_the_queue_it_leaves_stays_behind() -> None:
    assert "x-delivery-count" not in headers_of(kill(message(headers={"x-delivery-count": 3})))
