"""No pattern takes long for any name, whoever wrote it; none is refused that a bounded matcher can do."""

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mirrormq.base import limits
from mirrormq.meta.patterns import (
    PatternRefused,
    compile_pattern,
    complaint,
    doubt,
    filter_pattern,
    try_pattern,
)

NAMES_MOST = limits.short_string_bytes_max

ORDINARY = [
    "orders",
    "^orders$",
    ".*",
    "^amq\\.",
    "^(?!amq\\.).*",
    "^(?!amq\\.|celery@|.*\\.(pidbox|reply)).*$",
    "^(amq\\.gen.*|amq\\.default|orders)$",
    "^ha\\.",
    "^[a-z]+\\.[0-9]{1,5}$",
    "(eu|us)-.*",
    "^(.+)\\.\\1$",
    "^a++b$",
    "(?i)^ORDERS",
    "^(?:" + "|".join(f"queue-{number}" for number in range(300)) + ")$",
    "|".join(f"queue-{number}" for number in range(300)),
]
HOSTILE = [
    "(a+)+$",
    "(a|a)*b",
    "(a|ab|b)*c",
    "([a-z]+)*[0-9]",
    ".*.*.*.*x",
    "(a{1,9}){9}b",
    "(?:a?){200}b",
    "(a|b)*a(a|b){120}$",
    "^(?!.*\\.(dlq|retry)$)([a-z]+\\.?)+[0-9]$",
    "(?=(a+)+b)x",
    "(\\b|a)*x",
    "^[a-z0-9]{1,63}(\\.[a-z0-9]{1,63}){1,20}$",
]
REFUSED = ["(a+)+\\1x", "(?>a*)*(a*)*b", "((a++)*)*\\1b", "(a)?(?(1)b|(a*)*)x", "(a{1,999}b?){999}" * 9]
NAMES = [
    ("a" * NAMES_MOST)[:NAMES_MOST],
    ("ab" * NAMES_MOST)[:NAMES_MOST],
    ("a." * NAMES_MOST)[:NAMES_MOST],
    "abaabbabbbaaab" * 18,
    "a" * 40,
    "",
]


@pytest.mark.parametrize("pattern", ORDINARY)
def test_ordinary_patterns_are_accepted(pattern: str) -> None:
    assert complaint(pattern) is None
    assert doubt(pattern) is None


@pytest.mark.parametrize("pattern", HOSTILE)
def test_patterns_that_would_take_for_ever_are_matched_at_once(pattern: str) -> None:
    assert complaint(pattern) is None
    compiled = compile_pattern(pattern)
    began = time.process_time()
    for name in NAMES:
        compiled.matches(name)
    # A generous bound for a slow machine: without it some of them take longer than the universe has existed.
    assert time.process_time() - began < 0.1


@pytest.mark.parametrize("pattern", ORDINARY)
def test_ordinary_patterns_are_quick_at_worst(pattern: str) -> None:
    compiled = compile_pattern(pattern)
    began = time.process_time()
    for name in NAMES:
        compiled.matches(name)
    assert time.process_time() - began < 0.1


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_nobody_can_match_in_time_is_refused_with_cause_and_cure(pattern: str) -> None:
    said = complaint(pattern) or ""
    assert "could take for ever" in said
    assert "back reference" in said
    assert "write it without" in said


@pytest.mark.parametrize("pattern", REFUSED)
def test_a_stored_one_of_these_still_loads_and_holds_nobody_up(pattern: str) -> None:
    compiled = try_pattern(pattern)
    assert compiled is not None
    began = time.process_time()
    assert not any(compiled.matches(name) for name in NAMES if len(name) > compiled.quick_bytes)
    assert time.process_time() - began < 0.1
    assert "matches no name of more than" in (doubt(pattern) or "")


@pytest.mark.parametrize("pattern", [*REFUSED, "(?L)a", "(" * 60 + "a" + ")" * 60, "a|" * 3_000])
def test_what_is_in_a_file_is_loaded_if_it_can_be_understood(pattern: str) -> None:
    assert complaint(pattern) is not None
    assert complaint(pattern, is_stored=True) is None
    assert complaint("a(", is_stored=True) is not None


def test_an_accepted_pattern_matches_long_names_of_other_things_too() -> None:
    compiled = compile_pattern("(a+)+$")
    assert compiled.matches("b" * 700 + "a" * 100)
    assert not compiled.matches("a" * 100 + "b" * 700)


def test_what_is_too_long_too_deep_or_of_the_locale_is_refused() -> None:
    assert "too long" in (complaint("a" * (limits.pattern_bytes_max + 1)) or "")
    assert complaint("a" * limits.pattern_bytes_max) is None
    assert "brackets" in (complaint("(" * 60 + "a" + ")" * 60) or "")
    assert "locale" in (complaint("(?L)a") or "")
    assert "not a valid" in (complaint("\ud800") or "")


def test_a_stored_pattern_may_be_longer_than_one_that_is_set() -> None:
    stored = try_pattern("^(?:" + "|".join(f"queue-{number}" for number in range(900)) + ")$")
    assert stored is not None
    assert stored.matches("queue-777")


@pytest.mark.parametrize(
    ("pattern", "is_understood"),
    [("a" * 300, True), ("(a+)+\\1x", True), ("(", False), ("(" * 60 + ")" * 60, False)],
)
def test_a_filter_is_refused_with_a_reason(pattern: str, is_understood: bool) -> None:
    with pytest.raises(PatternRefused) as refused:
        filter_pattern(pattern)
    assert refused.value.is_understood == is_understood


def test_a_whole_pattern_has_to_match_all_of_the_name() -> None:
    pattern = filter_pattern("(?i)orders|invoices", is_whole=True)
    assert pattern.matches("ORDERS")
    assert pattern.matches("invoices")
    assert not pattern.matches("orders.eu")
    assert not pattern.matches("my-invoices")


PIECES = st.sampled_from(
    ["a", "b", ".", "[ab]", "\\.", "(a|b)", "(?:ab)", "^", "$", "(?!a)", "(?=b)", "(b*)"]
)
COUNTS = st.sampled_from(["", "", "", "*", "+", "?", "{1,3}", "{2,}", "*?"])
PATTERNS = st.lists(st.builds("{}{}".format, PIECES, COUNTS), min_size=1, max_size=6).map("".join)


@given(PATTERNS, st.lists(st.text("ab.", max_size=14), min_size=1, max_size=6))
@settings(max_examples=200, deadline=None)
@example("(b*)*", ["bbb"])
def test_whoever_matches_it_the_answer_is_that_of_re(pattern: str, names: list[str]) -> None:
    try:
        expected = re.compile(pattern.encode())
    except re.error:
        return
    compiled = compile_pattern(pattern)
    for name in names:
        assert compiled.matches(name) == (expected.search(name.encode()) is not None), (pattern, name)
