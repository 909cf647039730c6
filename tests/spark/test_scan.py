"""The compiled scanner against plain Python: any messages, any removals, any damage."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrormq.kernel.crc32c import crc32c
from mirrormq.spark.arrow import Assembler
from mirrormq.spark.reading import REASONS
from mirrormq.spark.scan import Removals, Scanner
from mirrormq.spark.schema import Mode, schema_of
from tests.spark import batches
from tests.spark.batches import Record, batch, publish, purge, remove, restarted

CONSTANTS = {"vhost": "/", "queue": "orders", "queue_id": "0007"}


def scanned(
    data: bytes,
    *,
    mode: Mode | None = None,
    start: int = 1,
    end: int = 1 << 40,
    upto: int = 1 << 40,
    rows_max: int = 1000,
    octets_max: int = 1 << 20,
) -> list[dict[str, Any]]:
    """The rows of some batches."""
    assembler = Assembler(schema_of(mode), CONSTANTS)
    removals = None
    if mode in {"cursor", "changes"}:
        removals = Removals(10_000)
        assert removals.feed(data, upto) == len(data)
        removals.seal()
    scanner = Scanner(
        assembler.scanned,
        start=start,
        end=end,
        rows_max=rows_max,
        octets_max=octets_max,
        reasons=REASONS,
        removals=removals,
        changes=mode == "changes",
    )
    rows: list[dict[str, Any]] = []
    at = 0
    while True:
        at = scanner.scan(data, at)
        made = assembler.batch(scanner)
        made.validate(full=True)
        found = zip(made.schema, made.columns, strict=True)
        assert not [field.name for field, column in found if column.null_count and not field.nullable]
        rows += made.to_pylist()
        if at == len(data) and made.num_rows == 0:
            return rows
        assert made.num_rows, "no progress"


octets = st.binary(max_size=40)
names = st.one_of(st.text(max_size=12).map(str.encode), st.binary(max_size=12)).filter(
    lambda raw: len(raw) < 256
)
scalars = st.one_of(
    st.tuples(st.just("S"), st.one_of(octets, st.text(max_size=10).map(str.encode))),
    st.tuples(st.just("x"), octets),
    st.tuples(st.just("t"), st.booleans()),
    st.tuples(st.just("b"), st.integers(-128, 127)),
    st.tuples(st.just("B"), st.integers(0, 255)),
    st.tuples(st.just("s"), st.integers(-(1 << 15), (1 << 15) - 1)),
    st.tuples(st.just("u"), st.integers(0, (1 << 16) - 1)),
    st.tuples(st.just("I"), st.integers(-(1 << 31), (1 << 31) - 1)),
    st.tuples(st.just("i"), st.integers(0, (1 << 32) - 1)),
    st.tuples(st.sampled_from("lL"), st.integers(-(1 << 63), (1 << 63) - 1)),
    st.tuples(st.just("f"), st.floats(width=32)),
    st.tuples(st.just("d"), st.floats()),
    st.tuples(st.just("T"), st.integers(0, (1 << 64) - 1)),
    st.tuples(st.just("D"), st.tuples(st.integers(0, 255), st.integers(0, (1 << 32) - 1))),
    st.tuples(st.just("V"), st.none()),
)
values: Any = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.tuples(st.just("A"), st.lists(inner, max_size=3)),
        st.tuples(st.just("F"), st.lists(st.tuples(names, inner), max_size=3)),
    ),
    max_leaves=6,
)
tables = st.lists(st.tuples(names, values), max_size=5)


@st.composite
def messages(draw: Any, seq: int) -> tuple[Record, dict[str, Any]]:
    """A message and the row it is."""
    row: dict[str, Any] = dict.fromkeys(schema_of(None).fieldNames()) | CONSTANTS
    fields: dict[int, bytes] = {}
    for bit, name in batches.TEXTS.items():
        if draw(st.booleans()):
            text = draw(names)
            fields[bit] = batches.short(text)
            if name in row:
                row[name] = batches.readable(text)
    if draw(st.booleans()):
        given_headers = draw(tables)
        fields[13] = batches.table(given_headers)
        row["headers"] = batches.headers(given_headers)
        row["headers_raw"] = fields[13][4:]
    for bit, name in ((12, "delivery_mode"), (11, "priority")):
        if draw(st.booleans()):
            row[name] = draw(st.integers(0, 255))
            fields[bit] = bytes([row[name]])
    if draw(st.booleans()):
        seconds = draw(st.integers(0, 253_402_300_799))
        fields[6] = struct.pack(">Q", seconds)
        row["app_timestamp"] = batches.moment(seconds * 1_000_000)
    exchange, key, body = draw(names), draw(names), draw(octets)
    received, deliveries = draw(st.integers(0, 4_000_000_000_000_000)), draw(st.integers(0, 3))
    flags = draw(st.sampled_from([0, 1, 2, 3]))
    record = publish(
        seq, body, exchange=exchange, key=key, properties=batches.properties(fields), received=received,
        deliveries=deliveries, flags=flags,
    )  # fmt: skip
    row |= {
        "epoch": 3,
        "seq": seq,
        "timestamp": batches.moment(received),
        "exchange": batches.readable(exchange),
        "routing_key": batches.readable(key),
        "redelivered": bool(flags & 2) or deliveries > 0,
        "body": body,
        "body_crc": batches.signed(crc32c(body)),
    }
    return record, row


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_message_becomes_the_row_that_plain_python_makes_of_it(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    made = [data.draw(messages(seq * 2)) for seq in range(1, count + 1)]
    rows_max = data.draw(st.integers(1, 5))
    cut = data.draw(st.integers(0, count))
    octets_of = b"".join(
        batch([record for record, _ in part], epoch=3) for part in (made[:cut], made[cut:]) if part
    )
    assert scanned(octets_of, rows_max=rows_max) == [row for _, row in made]


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 2100), st.integers(1, 2100), st.integers(0, 2100), st.integers(600, 2100))
def test_thousands_of_rows_keep_their_nulls_wherever_gaps_begin_and_end(
    every: int, first: int, gap: int, rows_max: int
) -> None:
    """Properties in every so manyth row, and in a run from `first` on: memory grows, bits shift."""
    count = 2100
    present = {seq: seq % every == 0 or first <= seq < first + gap for seq in range(1, count + 1)}
    sparse = batches.properties(
        {13: batches.table([(b"n", ("I", 7))]), 12: b"\x02", 7: batches.short(b"id"), 6: struct.pack(">Q", 9)}
    )
    nothing = batches.properties({})
    records = [
        publish(seq, b"b", properties=sparse if is_there else nothing, flags=seq & 2)
        for seq, is_there in present.items()
    ]
    rows = scanned(batch(records), rows_max=rows_max)
    names = ("headers", "delivery_mode", "message_id", "app_timestamp")
    expected = ([("n", "7")], 2, "id", batches.moment(9_000_000))
    assert [tuple(row[name] for name in names) for row in rows] == [
        expected if is_there else (None,) * 4 for is_there in present.values()
    ]
    assert [row["redelivered"] for row in rows] == [bool(seq & 2) for seq in present]


@st.composite
def histories(draw: Any) -> list[Record]:
    """Publishes and removals as a queue writes them: each message leaves once."""
    live: list[int] = []
    found: list[Record] = []
    for seq in range(1, draw(st.integers(2, 40))):
        kind = draw(st.sampled_from(["publish", "publish", "remove", "purge", "restart", "other"]))
        if kind == "publish" or (kind != "other" and not live):
            found.append(publish(seq, str(seq).encode()))
            live.append(seq)
        elif kind == "other":
            found.append(Record(seq, batches.HORIZON, 0, struct.pack("<Q", seq)))
        elif kind == "purge":
            kept = [s for s in live if draw(st.booleans())]
            found.append(purge(seq, seq - 1, *kept))
            live = kept
        else:
            gone = sorted(draw(st.sets(st.sampled_from(live), max_size=4)))
            live = [s for s in live if s not in gone]
            reason = draw(st.integers(1, 6))
            if kind == "restart":
                found.append(restarted(seq, *((s, s) for s in gone)))
            else:
                found.append(remove(seq, *((s, s, reason) for s in gone)))
    return found


@settings(max_examples=60, deadline=None)
@given(histories(), st.data())
def test_states_are_those_after_all_records_up_to_the_given_one(
    history: list[Record], data: st.DataObject
) -> None:
    start = data.draw(st.integers(1, len(history) + 1))
    end = data.draw(st.integers(start, len(history) + 1))
    upto = data.draw(st.integers(end, len(history) + 1))
    rows = scanned(batch(history), mode="cursor", start=start, end=end, upto=upto, rows_max=3)
    expected = batches.states([record for record in history if record.seq < upto])
    wanted = [r.seq for r in history if r.kind == batches.PUBLISH and start <= r.seq < end]
    assert [row["seq"] for row in rows] == wanted
    assert [row["state"] for row in rows] == [expected[seq] for seq in wanted]


@settings(max_examples=60, deadline=None)
@given(histories(), st.integers(1, 4))
def test_changes_retell_the_whole_history_in_order(history: list[Record], rows_max: int) -> None:
    rows = scanned(batch(history), mode="changes", rows_max=rows_max)
    live: set[int] = set()
    for row in rows:
        if row["op"] == "publish":
            assert row["body"] == str(row["seq"]).encode()
            live.add(row["seq"])
        elif row["op"] == "remove":
            live.remove(row["seq"])
            assert row["state"] == row["reason"]
        else:
            assert row["op"] == "purge"
            live &= {*eval(row["body"]), *range(row["seq"] + 1, 1 << 20)}
    expected = batches.states(history)
    assert live == {seq for seq, state in expected.items() if state == "live"}
    assert [row["state"] for row in rows if row["op"] == "publish"] == list(expected.values())


def test_a_removal_of_many_messages_is_given_out_in_pieces() -> None:
    history = [publish(seq) for seq in range(1, 101)] + [remove(101, (1, 100, 1))]
    rows = scanned(batch(history), mode="changes", rows_max=7)
    assert [row["seq"] for row in rows] == [*range(1, 101)] * 2
    assert {row["reason"] for row in rows[100:]} == {"ack"}
    assert rows[100]["changed_at"] == batches.moment(1_700_000_001_000_000)
    assert rows[100]["body"] is None
    assert rows[100]["timestamp"] is None


def test_only_the_asked_columns_are_made_in_the_asked_order() -> None:
    from pyspark.sql.types import BinaryType, LongType, StructField, StructType

    schema = StructType([StructField("body", BinaryType()), StructField("seq", LongType())])
    assembler = Assembler(schema, CONSTANTS)
    scanner = Scanner(assembler.scanned, start=1, end=9, rows_max=9, octets_max=1 << 20, reasons=REASONS)
    scanner.scan(batch([publish(1, b"x")]), 0)
    made = assembler.batch(scanner)
    assert made.schema.names == ["body", "seq"]
    assert made.to_pylist() == [{"body": b"x", "seq": 1}]
    assert made.schema.equals(pa.schema([("body", pa.binary()), ("seq", pa.int64())]))


@pytest.mark.parametrize("mode", [None, "cursor", "changes"])
def test_the_arrow_schema_is_to_the_letter_the_one_spark_makes(mode: Mode | None) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    assembler = Assembler(schema_of(mode), CONSTANTS)
    scanner = Scanner(
        assembler.scanned, start=1, end=9, rows_max=9, octets_max=1 << 20, reasons=REASONS,
        changes=mode == "changes", removals=Removals(1),
    )  # fmt: skip
    scanner.scan(
        batch([publish(1, properties=batches.properties({13: batches.table([(b"a", ("I", 1))])}))]), 0
    )
    assert to_arrow_schema(schema_of(mode), timezone="UTC").equals(assembler.batch(scanner).schema)


def test_a_table_that_cannot_be_read_gives_null_headers_and_its_octets() -> None:
    broken = struct.pack(">I", 4) + b"\x09abc"
    good = batches.table([(b"a", ("I", 1))])
    data = batch(
        [
            publish(i + 1, properties=batches.properties({13: raw}))
            for i, raw in enumerate([good, broken, good])
        ]
    )
    rows = scanned(data)
    assert [row["headers"] for row in rows] == [[("a", "1")], None, [("a", "1")]]
    assert rows[1]["headers_raw"] == b"\x09abc"


def test_hundreds_of_headers_with_one_name_are_one_header() -> None:
    fields = [(b"same", ("I", i)) for i in range(300)] + [(f"n{i}".encode(), ("I", i)) for i in range(200)]
    (row,) = scanned(batch([publish(1, properties=batches.properties({13: batches.table(fields)}))]))
    assert row["headers"] == batches.headers(fields)


def test_a_time_that_spark_cannot_hold_is_null() -> None:
    (row,) = scanned(batch([publish(1, properties=batches.properties({6: b"\xff" * 8}))]))
    assert row["app_timestamp"] is None


def test_a_clock_beyond_the_year_9999_gives_the_last_moment_that_spark_can_hold() -> None:
    (row,) = scanned(batch([publish(1, received=(1 << 64) - 1)]))
    assert row["timestamp"] == batches.moment(253_402_300_799_999_999)


def test_empty_and_large_bodies_come_through() -> None:
    large = bytes(range(256)) * 4096 * 64
    rows = scanned(batch([publish(1), publish(2, large), publish(3)]), octets_max=1000)
    assert [len(row["body"]) for row in rows] == [0, len(large), 0]
    assert rows[1]["body"] == large


GOOD = batch(
    [publish(5, b"abc", properties=batches.properties({15: b"\x01x"})), remove(6, (5, 5, 1)), publish(7)]
)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255), st.sampled_from([None, "cursor", "changes"]))
def test_a_flipped_octet_is_refused_or_changes_nothing(at: int, mask: int, mode: Mode | None) -> None:
    damaged = bytearray(GOOD)
    damaged[at] ^= mask
    try:
        rows = scanned(bytes(damaged), mode=mode)
    except (ValueError, AssertionError):
        return
    assert rows == scanned(GOOD, mode=mode)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_hostile_payloads_behind_good_checksums_are_refused_or_read_inside_their_bounds(
    data: st.DataObject,
) -> None:
    kind = data.draw(st.sampled_from([batches.PUBLISH, batches.REMOVE, batches.EPOCH, 12, 18, 19, 0]))
    payload = bytearray(
        publish(9, b"body", properties=batches.properties({13: batches.table([(b"a", ("S", b"x"))])})).payload
    )
    if kind != batches.PUBLISH or data.draw(st.booleans()):
        payload = bytearray(data.draw(st.binary(max_size=80)))
    for _ in range(data.draw(st.integers(0, 4))):
        if payload:
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    hostile = batch([publish(1), Record(9, kind, data.draw(st.integers(0, 3)), bytes(payload)), publish(10)])
    mode = data.draw(st.sampled_from([None, "cursor", "changes"]))
    try:
        rows = scanned(hostile, mode=mode)
    except ValueError:
        return
    assert rows[0]["seq"] == 1


def test_records_out_of_order_or_of_another_queue_are_refused() -> None:
    with pytest.raises(ValueError, match="record 4 where 6"):
        scanned(batch([publish(5)]) + batch([publish(4)]))
    with pytest.raises(ValueError, match="another queue"):
        scanned(batch([publish(5)]) + batch([publish(6)], queue_id=8))
    with pytest.raises(ValueError, match="kind 19"):
        scanned(batch([Record(5, 19, 0, b"")]))


def test_an_unfinished_batch_waits_for_its_rest() -> None:
    assembler = Assembler(schema_of(None), CONSTANTS)
    scanner = Scanner(assembler.scanned, start=1, end=99, rows_max=9, octets_max=1 << 20, reasons=REASONS)
    data = batch([publish(1)]) + GOOD
    first = len(batch([publish(1)]))
    for size in range(first, len(data)):
        assert (
            Scanner([], start=1, end=99, rows_max=9, octets_max=99, reasons=REASONS).scan(data[:size], 0)
            == first
        )
    assert scanner.scan(data, 0) == len(data)
    assert len(scanner) == 3
    assert scanner.position == 8
