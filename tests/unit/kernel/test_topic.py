"""The topic matcher finds exactly the patterns that match, at a cost bounded by words times nodes."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrormq.kernel.topic import TopicMatcher


def words_of(key: bytes) -> list[bytes]:
    return key.split(b".") if key else []


def naive(pattern: list[bytes], words: list[bytes]) -> bool:
    """The definition, word by word; exponential and obviously right."""
    if not pattern:
        return not words
    head, rest = pattern[0], pattern[1:]
    if head == b"#":
        return any(naive(rest, words[i:]) for i in range(len(words) + 1))
    if not words:
        return False
    return head in (b"*", words[0]) and naive(rest, words[1:])


word = st.sampled_from([b"a", b"b", b"", b"stock"])
key = st.lists(word, max_size=6).map(b".".join)
pattern = st.lists(st.one_of(word, st.sampled_from([b"*", b"#"])), max_size=6).map(b".".join)


def matcher_of(*patterns: bytes) -> TopicMatcher:
    matcher = TopicMatcher()
    for p in patterns:
        matcher.add(p, p)
    return matcher


@settings(max_examples=400, deadline=None)
@given(st.lists(pattern, max_size=12), st.lists(key, min_size=1, max_size=6))
def test_match_agrees_with_the_definition(patterns: list[bytes], keys: list[bytes]) -> None:
    matcher = matcher_of(*patterns)
    for k in keys:
        expected = sorted({p for p in patterns if naive(words_of(p), words_of(k))})
        assert sorted(matcher.match(k)) == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), pattern, st.integers(0, 2)), max_size=40), key)
def test_any_sequence_of_adds_and_removes_leaves_what_was_not_removed(
    steps: list[tuple[bool, bytes, int]], k: bytes
) -> None:
    matcher = TopicMatcher()
    held: Counter[tuple[bytes, int]] = Counter()
    for is_add, p, value in steps:
        if is_add:
            matcher.add(p, value)
            held[p, value] += 1
        elif held[p, value]:
            matcher.remove(p, value)
            held[p, value] -= 1
        else:
            with pytest.raises(KeyError):
                matcher.remove(p, value)
    held = +held
    expected = sorted(value for (p, value) in held if naive(words_of(p), words_of(k)))
    assert sorted(matcher.match(k)) == expected
    assert len(matcher) == len(held)
    for (p, value), count in held.items():
        for _ in range(count):
            matcher.remove(p, value)
    assert matcher.node_count == 1
    assert matcher.match(k) == []


def test_star_stands_for_exactly_one_word() -> None:
    matcher = matcher_of(b"*.orange.*")
    assert matcher.match(b"quick.orange.rabbit") == [b"*.orange.*"]
    assert matcher.match(b"orange.rabbit") == []
    assert matcher.match(b"quick.orange.male.rabbit") == []


def test_hash_stands_for_zero_or_more_words() -> None:
    matcher = matcher_of(b"lazy.#")
    for k in (b"lazy", b"lazy.fox", b"lazy.orange.male.rabbit"):
        assert matcher.match(k) == [b"lazy.#"]
    assert matcher.match(b"lazybones") == []


def test_the_empty_key_has_no_words() -> None:
    matcher = matcher_of(b"", b"#", b"*", b"#.*")
    assert sorted(matcher.match(b"")) == [b"", b"#"]
    assert sorted(matcher.match(b".")) == [b"#", b"#.*"]


def test_a_value_is_found_once_per_pattern_that_matches() -> None:
    matcher = TopicMatcher()
    matcher.add(b"a.*", "q")
    matcher.add(b"*.b", "q")
    matcher.add(b"#.#", "q")
    matcher.add(b"#.#", "q")
    assert matcher.match(b"a.b") == ["q", "q", "q"]


def test_a_binding_made_twice_stays_until_removed_twice() -> None:
    matcher = TopicMatcher()
    matcher.add(b"a.#", "q")
    matcher.add(b"a.#", "q")
    matcher.remove(b"a.#", "q")
    assert matcher.match(b"a.b") == ["q"]
    matcher.remove(b"a.#", "q")
    assert matcher.match(b"a.b") == []


def test_wildcards_in_a_routing_key_are_plain_words() -> None:
    matcher = matcher_of(b"a", b"*", b"#")
    assert sorted(matcher.match(b"*")) == [b"#", b"*"]
    assert sorted(matcher.match(b"#")) == [b"#", b"*"]


@pytest.mark.timeout(10)
def test_many_hashes_against_a_long_key_do_not_explode() -> None:
    matcher = matcher_of(b".".join([b"#"] * 127), b".".join([b"#", b"a"] * 60), b".".join([b"#", b"*"] * 63))
    longest = b".".join([b"a"] * 128)
    for _ in range(50):
        assert len(matcher.match(longest)) == 3
        assert len(matcher.match(longest + b".b")) == 2


def test_removing_the_last_pattern_of_a_branch_frees_the_branch() -> None:
    matcher = matcher_of(b"a.b.c", b"a.b", b"a.*.#")
    matcher.remove(b"a.b.c", b"a.b.c")
    assert matcher.node_count == 5
    matcher.remove(b"a.*.#", b"a.*.#")
    assert matcher.node_count == 3
    matcher.remove(b"a.b", b"a.b")
    assert matcher.node_count == 1


def test_only_bytes_are_keys_and_patterns() -> None:
    matcher = TopicMatcher()
    with pytest.raises(TypeError):
        matcher.match("a.b")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        matcher.add(None, "q")  # type: ignore[arg-type]
