"""Patterns by which clients choose queues must not hold the node's loop."""

import time

import pytest

from mirrormq.meta.patterns import try_pattern
from mirrormq.node.bulkpattern import costly


@pytest.mark.parametrize(
    "pattern", [".*", r"orders\..*", "(eu|us)-.*", "[a-z]+_[0-9]+", "a|b|c", "(ab)+", "x{2,3}"]
)
def test_ordinary_patterns_pass(pattern: str) -> None:
    assert costly(pattern) is None


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)*b", "(a*)*", "((a)|b)+c", ".*.*.*.*x", "(a{1,9}){9}", "([a-z]+)*", "a" * 300]
)
def test_patterns_that_may_take_for_ever_do_not(pattern: str) -> None:
    assert costly(pattern) is not None


@pytest.mark.parametrize("pattern", ["a*a*a*b", ".*.*.*b", "[ab]*a[ab]*a[ab]*c"])
def test_what_passes_is_fast_enough_at_worst(pattern: str) -> None:
    assert costly(pattern) is None
    compiled = try_pattern(f"^(?:{pattern})$")
    assert compiled is not None
    began = time.process_time()
    assert compiled.search(b"a" * 255) is None
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("pattern", ["[", "[]*+", "(", ")", "\\", "[^]]*", "*", "a{", "(?:a)*", "[\\]]+"])
def test_any_text_is_judged(pattern: str) -> None:
    costly(pattern)
