"""Columns become rows of a sink: the compiled writer against the codec that the broker uses."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructField, StructType

from mirrormq.spark.confirms import split_rows
from mirrormq.spark.options import OptionRefused, write_options
from mirrormq.spark.schema import CHANGES, MESSAGE
from mirrormq.spark.sinkrows import RowSource, table_of
from mirrormq.wire.properties import decode_properties
from mirrormq.wire.table import decode_fields, encode_table

TYPES = {
    "app_timestamp": pa.timestamp("us", "UTC"),
    "delivery_mode": pa.int32(),
    "priority": pa.int8(),
    "headers": pa.map_(pa.string(), pa.string()),
    "headers_raw": pa.binary(),
    "body": pa.binary(),
    "seq": pa.int64(),
}
texts = st.none() | st.text(max_size=20)
NAMES = [
    "message_id", "correlation_id", "content_type", "content_encoding", "reply_to", "type", "user_id",
    "app_id", "expiration",
]  # fmt: skip


def rows_of(columns: dict[str, list[Any]], options: dict[str, str], sliced: int = 0) -> bytes:
    kinds = MESSAGE | CHANGES
    schema = StructType([StructField(name, kinds[name]) for name in columns])
    arrays = [
        pa.array([None] * sliced + values, TYPES.get(name, pa.string())) for name, values in columns.items()
    ]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(columns)).slice(sliced)
    source = RowSource(schema, write_options(options), "sink:0:0")
    return b"".join(source.rows(iter([batch])))


message = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=30),
        "routing_key": st.text(max_size=20),
        "exchange": st.none() | st.text(max_size=20),
        "app_timestamp": st.none() | st.integers(0, 4_000_000_000_000_000),
        "delivery_mode": st.none() | st.integers(0, 127),
        "priority": st.none() | st.integers(0, 127),
        "headers_raw": st.none() | st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=3),
        **dict.fromkeys(NAMES, texts),
    }
)


@settings(max_examples=100, deadline=None)
@given(st.lists(message, min_size=1, max_size=6), st.integers(0, 9))
def test_any_columns_become_rows_that_the_codec_reads_back(
    given_rows: list[dict[str, Any]], sliced: int
) -> None:
    columns: dict[str, list[Any]] = {name: [row[name] for row in given_rows] for name in given_rows[0]}
    columns["headers_raw"] = [None if t is None else encode_table(t)[4:] for t in columns["headers_raw"]]
    found = list(split_rows(rows_of(columns, {}, sliced)))
    assert len(found) == len(given_rows)
    for (exchange, key, raw, body), row in zip(found, given_rows, strict=True):
        assert (exchange, key, body) == (row["exchange"] or "", row["routing_key"], row["body"])
        properties = decode_properties(raw)
        assert properties.delivery_mode == (2 if row["delivery_mode"] is None else row["delivery_mode"])
        assert properties.priority == row["priority"]
        assert properties.headers == row["headers_raw"]
        stamp = row["app_timestamp"]
        assert properties.timestamp == (None if stamp is None else stamp // 1_000_000)
        for name in NAMES:
            assert getattr(properties, name) == row[name]


def test_options_win_over_columns() -> None:
    columns = {"body": [b"x"], "routing_key": ["column"], "exchange": ["column"]}
    (row,) = split_rows(rows_of(columns, {"exchange": "e", "routingKey": "k"}))
    assert row[:2] == ("e", "k")


def test_headers_are_json_or_plain_text() -> None:
    fields = [("n", "1"), ("t", '"x"'), ("plain", "hello"), ("deep", '{"a": [true]}'), ("none", None)]
    assert decode_fields(table_of(fields)) == {
        "n": 1,
        "t": "x",
        "plain": "hello",
        "deep": {"a": [True]},
        "none": None,
    }
    with pytest.raises(OptionRefused, match="headers"):
        table_of([("n" * 300, "1")])


def test_rows_of_mirrors_carry_the_seq_of_their_origin() -> None:
    columns = {"body": [b"x", None], "op": ["publish", "remove"], "queue": ["q", "q"], "seq": [7, 7]}
    data = rows_of(columns, {"mirrorOf": "there"})
    (_, key, _, first), (_, _, _, second) = split_rows(data)
    assert (key, first, second) == ("q", (7).to_bytes(8, "little") + b"x", (7).to_bytes(8, "little"))
    last = (9).to_bytes(8, "little")
    ((_, _, _, run), *_) = split_rows(
        rows_of({**columns, "body": [last, None], "op": ["remove"] * 2}, {"mirrorOf": "x"})
    )
    assert run == (7).to_bytes(8, "little") + last
    with pytest.raises(ValueError, match="op is publish, remove or purge, not 'other'"):
        rows_of({**columns, "op": ["other", "remove"]}, {})


def test_copies_for_mirrors_say_how_they_were_published() -> None:
    columns = {"body": [b"x"], "op": ["publish"], "queue": ["q"], "seq": [7]}
    columns |= {"exchange": ["ex"], "routing_key": ["key"]}
    ((exchange, key, _, body),) = split_rows(rows_of(columns, {"mirrorOf": "there"}))
    assert (exchange, key, body) == ("", "q", (7).to_bytes(8, "little") + b"\x02ex\x03keyx")


@pytest.mark.parametrize(
    ("kept", "runs"),
    [("[]", [(1, 9)]), ("[1,4,5]", [(2, 3), (6, 9)]), ("[9,12]", [(1, 8)]), (None, [(1, 9)])],
)
def test_a_purge_becomes_removals_of_the_runs_it_took(kept: str | None, runs: list[tuple[int, int]]) -> None:
    body = None if kept is None else kept.encode()
    columns = {"body": [body], "op": ["purge"], "queue": ["q"], "seq": [9]}
    found = [
        (key, int.from_bytes(body[:8], "little"), int.from_bytes(body[8:], "little"))
        for _, key, _, body in split_rows(rows_of(columns, {"mirrorOf": "there"}))
    ]
    assert found == [("q", *run) for run in runs]


def test_rows_without_ids_get_the_same_ids_whenever_their_task_runs() -> None:
    columns = {"body": [b"a", b"b", b"c"], "message_id": [None, "own", None]}
    for _ in range(2):
        data = rows_of(columns, {"queue": "q", "delivery": "at-least-once"})
        ids = [decode_properties(raw).message_id for _, _, raw, _ in split_rows(data)]
        assert ids == ["sink:0:0:0", "own", "sink:0:0:2"]
