"""Regular expressions mean here what they mean in RabbitMQ."""

import pytest

from mirrormq.meta.patterns import compile_pattern, complaint, permission_pattern, try_pattern


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        ("orders", "my-orders-2", True),
        ("^orders", "my-orders", False),
        ("^orders$", "orders", True),
        ("^a.c$", "abc", True),
        (".*", "", True),
        ("", "anything", True),
        ("^(amq\\.gen.*|q)$", "amq.gen-x", True),
        ("^[[:alpha:]]+$", "abc", True),
        ("^[[:alpha:]]+$", "ab1", False),
        ("^[^[:digit:]]+$", "ab1", False),
        ("^[[:alnum:]_-]+$", "a-1_b", True),
        ("^[]x]+$", "]x", True),
        ("^[^]x]+$", "ab", True),
        ("^[a[b]+$", "a[b", True),
        ("^(?<who>a|b)x$", "bx", True),
        ("^(?<!a)b", "b", True),
        ("b(?<=ab)c", "abc", True),
        ("(?i)^ORDERS$", "orders", True),
        ("^a\\hb$", "a b", True),
        ("^\\Qa.b\\E$", "a.b", True),
        ("^\\Qa.b\\E$", "axb", False),
        ("a\\z", "a\n", False),
        ("a\\Z", "a\n", True),
        ("a$", "a\n", True),
        ("^a++b$", "aab", True),
        ("^\\w+$", "ü", False),
        ("^..$", "ü", True),
        ("^ü$", "ü", True),
    ],
)
def test_a_pattern_is_searched_for_as_erlang_does(pattern: str, name: str, found: bool) -> None:
    assert compile_pattern(pattern).matches(name) == found


@pytest.mark.parametrize("pattern", ["(", "[a", "*a", "a{2,1}", "\\"])
def test_what_is_no_pattern_is_complained_about_and_matches_nothing(pattern: str) -> None:
    assert "is not a valid regular expression" in (complaint(pattern) or "")
    assert try_pattern(pattern) is None
    assert permission_pattern(pattern) is None


def test_an_empty_permission_matches_the_empty_name_only() -> None:
    pattern = permission_pattern("")
    assert pattern is not None
    assert pattern.matches(b"")
    assert not pattern.matches(b"q")
