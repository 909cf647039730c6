"""Taking a JSON array apart."""

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrormq.kernel.jsonrows import NoArray, elements

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**50), 2**50) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
SPOILERS = b'[]{}",:\\ \n1'


def decoded(data: bytes) -> list[Any]:
    return [msgspec.json.decode(element) for element in elements(data)]


@given(st.lists(VALUES), st.sampled_from([None, 1, "\t"]))
def test_the_elements_of_an_array_are_what_a_decoder_makes_of_it(array: list[Any], indent: Any) -> None:
    assert decoded(json.dumps(array, indent=indent).encode()) == array


@given(st.lists(VALUES, max_size=4), st.integers(0, 2**32))
def test_what_a_decoder_refuses_is_refused(array: list[Any], seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(json.dumps(array).encode())
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.randrange(2)] = bytes([rng.choice(SPOILERS)])
    try:
        wanted = msgspec.json.decode(bytes(data))
    except msgspec.DecodeError:
        wanted = None
    try:
        found: Any = decoded(bytes(data))
    except (NoArray, msgspec.DecodeError):
        found = None
    assert found == (wanted if isinstance(wanted, list) else None)


@pytest.mark.parametrize(
    "text", ["", " ", "{}", "1", "[", "[1", "[1,", '["', '["\\', "[1]]", "[1] 2", "[]]", "[{]"]
)
def test_what_is_no_array_says_so(text: str) -> None:
    with pytest.raises(NoArray):
        list(elements(text.encode()))


def test_an_element_that_is_missing_is_left_to_the_decoder() -> None:
    assert list(elements(b"[1,]")) == [b"1", b""]
    assert list(elements(b"[,1]")) == [b"", b"1"]


def test_nothing_is_looked_at_before_it_is_wanted() -> None:
    found = elements(b'[1, {"a": [2, "]"]}, "never ends')
    assert next(found) == b"1"
    assert next(found) == b' {"a": [2, "]"]}'
    with pytest.raises(NoArray):
        next(found)
