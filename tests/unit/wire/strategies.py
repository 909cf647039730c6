"""Hypothesis strategies for values of every AMQP field type, and `pamqp` as the independent opinion."""

import datetime
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from pamqp import commands

from mirrormq.base.errors import AmqpError
from mirrormq.wire.methods import METHOD_TYPES, Method
from mirrormq.wire.table import Timestamp

# A shared machine may stop a test for a while: no time limit per example.
thorough = settings(max_examples=200, deadline=None)
per_method = settings(max_examples=25, deadline=None)
"""For tests that run once for each of the 64 methods."""

# The same rules the codec states: valid Unicode, and at most 255 bytes.
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
short_strings = text.filter(lambda s: len(s.encode()) <= 255)
# pamqp cuts field names to 128 bytes.
field_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=32)

LAST_SECOND = 2**32 - 1
"""The last timestamp pamqp reads as seconds; larger ones it takes for milliseconds, RabbitMQ does not."""

timestamps = st.integers(0, LAST_SECOND).map(Timestamp)
decimals = st.builds(
    lambda value, scale: Decimal((0, tuple(map(int, str(value))), -scale)),
    st.integers(0, 2**31 - 1),
    st.integers(0, 20),
)

scalars = st.one_of(
    text,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    decimals,
    timestamps,
    st.binary(max_size=40),
    st.none(),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(field_names, inner, max_size=4),
    max_leaves=12,
)
tables = st.dictionaries(field_names, values, max_size=5)

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "bit": st.booleans(),
    "octet": st.integers(0, 2**8 - 1),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    # pamqp reads these as signed; the unsigned upper half is covered by round trips below.
    "longlong": st.integers(0, 2**63 - 1),
    "timestamp": timestamps,
    "shortstr": short_strings,
    "longstr": st.binary(max_size=80),
    "table": tables,
}


def methods_of(kind: type[Method]) -> st.SearchStrategy[Method]:
    return st.builds(kind, **{name: FIELDS[field] for name, field in kind.spec.fields})


any_method = st.sampled_from(sorted(METHOD_TYPES)).flatmap(lambda ids: methods_of(METHOD_TYPES[ids]))


def to_pamqp(value: Any) -> Any:
    """Turn one of our values into what pamqp takes for the same."""
    if isinstance(value, Timestamp):
        return datetime.datetime.fromtimestamp(value, datetime.UTC)
    if isinstance(value, bytes):
        return bytearray(value)
    if isinstance(value, dict):
        return {name: to_pamqp(item) for name, item in value.items()}
    if isinstance(value, list):
        return [to_pamqp(item) for item in value]
    return value


def from_pamqp(value: Any) -> Any:
    """Turn what pamqp decoded into what we decode."""
    if isinstance(value, datetime.datetime):
        return Timestamp(round(value.timestamp()))
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, dict):
        return {name: from_pamqp(item) for name, item in value.items()}
    if isinstance(value, list):
        return [from_pamqp(item) for item in value]
    return value


def with_single_floats(value: Any) -> Any:
    """Round floats the way pamqp does, which sends every float in 32 bits; too large ones become 0."""
    if isinstance(value, float):
        try:
            return float(struct.unpack(">f", struct.pack(">f", value))[0])
        except OverflowError:
            return 0.0
    if isinstance(value, dict):
        return {name: with_single_floats(item) for name, item in value.items()}
    if isinstance(value, list):
        return [with_single_floats(item) for item in value]
    return value


PAMQP: dict[tuple[int, int], Any] = {
    (index >> 16, index & 0xFFFF): cls for index, cls in commands.INDEX_MAPPING.items()
}
PAMQP_NAMES = {"type": "exchange_type"}


def pamqp_method(ids: tuple[int, int]) -> Any:
    """Return an empty pamqp method that packs any argument: its checks of names and tickets are off."""
    base = PAMQP[ids]
    unchecked: Any = type(base.__name__, (base,), {"validate": lambda self: None})
    return unchecked.__new__(unchecked)


def refusal(read: Callable[[bytes], object], raw: bytes) -> AmqpError | None:
    """Return the error `read` answers with, None if it accepts; any other exception fails the test."""
    try:
        read(raw)
    except AmqpError as error:
        return error
    return None
