"""A headers binding matches exactly the messages RabbitMQ would send along it."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrormq.base.errors import AmqpError
from mirrormq.broker.headers import HeadersPattern, check_x_match
from mirrormq.wire.table import Timestamp


def matches(arguments: dict[str, Any], headers: dict[str, Any]) -> bool:
    return HeadersPattern(arguments).matches(headers)


@pytest.mark.parametrize("x_match", [{}, {"x-match": "all"}])
def test_all_wants_every_argument_and_is_the_default(x_match: dict[str, Any]) -> None:
    arguments = x_match | {"a": 1, "b": "two"}
    assert matches(arguments, {"a": 1, "b": "two", "c": 3})
    assert not matches(arguments, {"a": 1})
    assert not matches(arguments, {"a": 1, "b": "three"})
    assert not matches(arguments, {})


def test_any_wants_one_argument() -> None:
    arguments = {"x-match": "any", "a": 1, "b": "two"}
    assert matches(arguments, {"b": "two"})
    assert matches(arguments, {"a": 2, "b": "two"})
    assert not matches(arguments, {"a": 2, "b": "three"})
    assert not matches(arguments, {})


def test_without_arguments_all_matches_everything_and_any_nothing() -> None:
    assert matches({}, {})
    assert matches({"x-match": "all"}, {"a": 1})
    assert not matches({"x-match": "any"}, {"a": 1})


def test_arguments_that_start_with_x_take_no_part_unless_asked_for() -> None:
    assert matches({"x-a": 1, "b": 2}, {"b": 2})
    assert not matches({"x-match": "any", "x-a": 1}, {"x-a": 1})
    assert not matches({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"b": 2})
    assert matches({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"b": 2, "x-a": 1})
    assert matches({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-a": 1})


def test_x_match_itself_is_never_compared() -> None:
    assert matches({"x-match": "all-with-x", "a": 1}, {"a": 1})
    assert not matches({"x-match": "any-with-x", "a": 1}, {"x-match": "any-with-x"})


def test_an_argument_without_value_asks_for_presence_only() -> None:
    assert matches({"a": None}, {"a": "anything"})
    assert matches({"a": None}, {"a": None})
    assert not matches({"a": None}, {"b": 1})
    assert not matches({"a": 1}, {"a": None})


@pytest.mark.parametrize(
    ("wanted", "given_", "equal"),
    [
        (1, 1.0, True),
        (1, Timestamp(1), True),
        ("a", b"a", True),
        (1, True, False),
        (True, True, True),
        (0, False, False),
        (1, "1", False),
        (Decimal(1), 1, False),
        (Decimal("1.0"), Decimal("1.0"), True),
        ([1, "a"], [1.0, b"a"], True),
        ([1], [True], False),
        ([1], [1, 2], False),
        ({"k": 1}, {"k": 1}, True),
        ({"k": 1}, {"k": True}, False),
        ({"k": 1}, {"k": 1, "l": 2}, False),
        ([], {}, False),
    ],
)
def test_values_are_equal_across_wire_types_but_booleans_are_no_numbers(
    wanted: Any, given_: Any, equal: bool
) -> None:
    assert matches({"a": wanted}, {"a": given_}) is equal


tables = st.dictionaries(
    st.sampled_from(["a", "b", "x-c"]), st.one_of(st.none(), st.booleans(), st.integers(0, 2))
)


@given(tables, tables, st.sampled_from(["all", "any", "all-with-x", "any-with-x"]))
def test_all_is_every_and_any_is_some_of_the_single_arguments(
    wanted: dict[str, Any], headers: dict[str, Any], kind: str
) -> None:
    single = [
        matches({"x-match": "all-with-x", name: value}, headers)
        for name, value in wanted.items()
        if kind.endswith("-with-x") or not name.startswith("x-")
    ]
    expected = any(single) if kind.startswith("any") else all(single)
    assert matches({"x-match": kind} | wanted, headers) == expected


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ("foo", 'Invalid x-match field value <<"foo">>; expected all, any, all-with-x, or any-with-x'),
        (1, "Invalid x-match field type signedint (value 1); expected longstr"),
        (True, "Invalid x-match field type bool (value true); expected longstr"),
    ],
)
def test_an_invalid_x_match_is_refused_in_rabbitmqs_words(value: Any, wrong: str) -> None:
    with pytest.raises(AmqpError) as caught:
        check_x_match({"x-match": value})
    assert (caught.value.code, caught.value.text) == (406, wrong)


def test_valid_x_match_is_accepted() -> None:
    for arguments in ({}, {"a": 1}, {"x-match": "all"}, {"x-match": "any-with-x"}):
        check_x_match(arguments)
