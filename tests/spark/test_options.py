"""Options, schemas, offsets and plans: everything that needs no broker and no JVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from mirrormq.spark.offsets import (
    BadOffsets,
    Facts,
    Member,
    Offsets,
    Position,
    loss_at,
    parse_given,
    read_offsets,
    wanted_seq,
)
from mirrormq.spark.options import OptionRefused, read_options, write_options
from mirrormq.spark.plan import Limits, Span, plan, shares
from mirrormq.spark.schema import SchemaRefused, check_schema, schema_of
from mirrormq.spark.sinkrows import check_columns


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIRRORMQ_URL", raising=False)
    monkeypatch.delenv("MIRRORMQ_PASSWORD", raising=False)


def test_one_option_is_enough_beside_a_node_on_this_machine() -> None:
    options = read_options({"queue": "orders"})
    contact = options.contact
    assert (contact.hosts, contact.vhost) == ((("127.0.0.1", 5672),), "/")
    assert (contact.user, contact.password) == ("guest", "guest")
    assert options.queues == ("orders",)


@pytest.mark.parametrize(
    ("given_options", "complaint"),
    [
        ({"queu": "a"}, "no option 'queu' for reading; did you mean 'queue'?"),
        ({"queue": "a", "startingOffset": "latest"}, "did you mean 'startingOffsets'?"),
        ({"queue": "a", "routingKey": "b"}, "no option 'routingkey' for reading"),
        ({}, "exactly one of the options queue, queues, queuePattern is needed; there is none"),
        ({"queue": "a", "queues": "b"}, "there are queue, queues"),
        ({"queues": "a,,b"}, "names no queue"),
        ({"queues": "a,a"}, "names a queue twice"),
        ({"queuePattern": "("}, "no regular expression"),
        ({"queue": "a", "mode": "cursors"}, "did you mean 'cursor'?"),
        ({"queue": "a", "mode": "browse", "cursor": "c"}, "no meaning in mode browse"),
        ({"queue": "a", "cursor": "c" * 256}, "1 to 255 bytes"),
        ({"queue": "a", "failOnDataLoss": "maybe"}, "true or false, not 'maybe'"),
        ({"queue": "a", "maxRecordsPerTrigger": "0"}, "a number from 1"),
        ({"queue": "a", "maxRecordsPerTrigger": "5", "maxBytesPerTrigger": "5"}, "exclude each other"),
        ({"queue": "a", "startingOffsets": "latest", "startingTimestamp": "5"}, "exclude each other"),
        ({"queue": "a", "startingOffsets": "yesterday"}, "earliest, latest or JSON"),
        ({"queue": "a", "startingOffsets": '{"a": "x"}'}, "is a seq, -2"),
        ({"queue": "a", "startingTimestamp": "yesterday"}, "a time in ISO 8601"),
        ({"queue": "a", "maxTriggerDelay": "soon"}, "a duration such as"),
        ({"queue": "a", "arrowBatchBytes": "9999999999"}, "from 1 to 1073741824"),
        ({"queue": "a", "readFrom": "mirror"}, "auto, master or node=NAME"),
        ({"queue": "a", "url": "http://x"}, "begins with amqp"),
        ({"queue": "a", "url": "amqp://x:99999/"}, "no host:port"),
        ({"queue": "a", "url": "amqp://x/v?heartbeat=1"}, "an option of its own"),
        ({"queue": "a", "url": "amqp://ann@x/"}, "user 'ann' needs a password"),
        ({"queue": "a", "url": "amqps://x/", "tls.ca": "/nowhere"}, "no file '/nowhere'"),
        ({"queue": "a", "tls.verify": "false"}, "needs a url that begins with amqps"),
        ({"queue": "a", "password": "x", "passwordFile": "y"}, "exclude each other"),
        ({"queue": "a", "passwordFile": "/nowhere"}, "cannot be read"),
        ({"queue": "a", "mode": "cursor", "remove": "false"}, "the other modes remove nothing"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said_in_one_sentence(given_options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionRefused) as refused:
        read_options(given_options)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("given_options", "complaint"),
    [
        ({"queue": "a", "exchange": "e"}, "give either"),
        ({"exchange": "e" * 256}, "at most 255 bytes"),
        ({"delivery": "twice"}, "cannot be 'twice'"),
        ({"sinkId": "a b"}, "letters, digits"),
        ({"startingOffsets": "latest"}, "no option 'startingoffsets' for writing"),
        ({"txTimeout": "long"}, "a duration such as"),
        ({"confirmTimeout": "0"}, "a duration such as"),
        ({"mirrorOf": "c", "mirrorSources": "[1]"}, "JSON with the source's queue id"),
        ({"takeFrom": "q", "delivery": "at-least-once"}, "needs delivery exactly-once"),
        ({"takeFrom": ""}, "is the name of a queue"),
    ],
)
def test_what_cannot_be_written_is_said_in_one_sentence(
    given_options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(OptionRefused) as refused:
        write_options(given_options)
    assert complaint in str(refused.value)


def test_options_that_spark_adds_itself_are_left_alone() -> None:
    assert write_options({"queue": "a", "checkpointlocation": "/x"}).routing_key == "a"


def test_a_url_has_several_hosts_a_user_and_a_virtual_host() -> None:
    contact = read_options(
        {"queue": "a", "url": "amqps://ann%40b@h1:1,[::1]:2,h3/eu%2Fwest", "password": "p:w@/"}
    ).contact
    assert contact.hosts == (("h1", 1), ("::1", 2), ("h3", 5671))
    assert (contact.user, contact.password, contact.vhost) == ("ann@b", "p:w@/", "eu/west")
    assert contact.tls is not None


def test_passwords_come_from_a_file_or_the_environment_and_never_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("hush-hush\n")
    given_options = {"queue": "a", "url": "amqp://ann@x/"}
    by_file = read_options({**given_options, "passwordFile": str(tmp_path / "secret")})
    monkeypatch.setenv("MIRRORMQ_PASSWORD", "hush-hush")
    by_environment = read_options(given_options)
    for options in (by_file, by_environment):
        assert options.contact.password == "hush-hush"
        assert "hush" not in repr(options)
    with pytest.raises(OptionRefused) as refused:
        read_options({"queue": "a", "url": "amqp://ann:hush-hush@x/"})
    assert "hush" not in str(refused.value)


# --- schemas ---


def test_a_given_schema_is_a_choice_of_columns_with_their_types() -> None:
    chosen = StructType([StructField("body", BinaryType()), StructField("seq", LongType())])
    check_schema(chosen, None)
    with pytest.raises(SchemaRefused, match="did you mean 'routing_key'"):
        check_schema(StructType([StructField("routingkey", StringType())]), None)
    with pytest.raises(SchemaRefused, match="'seq' is bigint, not int"):
        check_schema(StructType([StructField("seq", IntegerType())]), None)
    with pytest.raises(SchemaRefused, match="no column 'state'"):
        check_schema(schema_of("cursor"), None)


@pytest.mark.parametrize(
    ("names", "options", "complaint"),
    [
        (["bodies"], {"queue": "q"}, "did you mean 'body'"),
        (["seq"], {"queue": "q"}, "'body' (binary or string) is needed"),
        (["body"], {}, "where to?"),
        (["body", "op"], {"mirrorOf": "c"}, "'queue' and 'seq' are needed"),
        (["body", "op", "queue", "seq"], {}, "belong together"),
    ],
)
def test_a_frame_that_cannot_be_written_is_refused(
    names: list[str], options: dict[str, str], complaint: str
) -> None:
    known = {field.name: field for field in schema_of("changes").fields}
    schema = StructType([known.get(name, StructField(name, StringType())) for name in names])
    with pytest.raises(OptionRefused) as refused:
        check_columns(schema, write_options(options))
    assert complaint in str(refused.value)


# --- offsets ---

positions = st.builds(
    Position,
    st.text(max_size=20),
    st.integers(0, 1 << 31),
    st.integers(0, 1 << 62),
    st.none() | st.text(max_size=20),
    st.none() | st.integers(1, 1 << 62),
    st.none() | st.integers(1, 1 << 62),
    st.none() | st.integers(1, 1 << 62),
)
names = st.tuples(st.text(max_size=20), st.text(max_size=20))


@given(st.builds(Offsets, st.text(max_size=40), st.dictionaries(names, positions, max_size=4)))
def test_offsets_come_back_from_json_as_they_were(offsets: Offsets) -> None:
    assert read_offsets(json.loads(json.dumps(offsets.json()))) == offsets


def test_offsets_of_version_1_are_read_for_ever() -> None:
    kept = {"v": 1, "c": "cafe", "q": {"%2F/orders": {"id": "00ff", "e": 3, "s": 1001, "cur": "spark-1"}}}
    offsets = read_offsets(kept)
    assert offsets.queues["/", "orders"] == Position("00ff", 3, 1001, "spark-1")
    assert offsets.json() == kept


@pytest.mark.parametrize(
    "damaged",
    [{}, {"v": 2, "c": "", "q": {}}, {"v": 1}, {"v": 1, "c": "", "q": {"a": {}}},
     {"v": True, "c": "", "q": {}},
     {"v": 1, "c": "", "q": {"%2F/a": {"id": "", "e": 0, "s": -1}}}],
)  # fmt: skip
def test_what_are_no_offsets_is_refused(damaged: dict[str, Any]) -> None:
    with pytest.raises(BadOffsets):
        read_offsets(damaged)


FACTS = Facts("/", "orders", "00ff", first=5, low=10, next=100, epochs=((1, 1), (3, 50)))


def test_positions_that_are_not_kept_any_more_are_losses() -> None:
    assert loss_at(Position("00ff", 3, 10), FACTS) is None
    assert loss_at(Position("00ff", 3, 5, held=10), FACTS) is None
    assert loss_at(Position("00ff", 3, 500), FACTS) is None
    gone = loss_at(Position("00ff", 3, 7), FACTS)
    assert gone is not None
    assert "7 to 9 are gone (id 00ff, epoch 3)" in str(gone)
    assert gone.goes_on == Position("00ff", 0, 10)
    other = loss_at(Position("beef", 3, 50), FACTS)
    assert other is not None
    assert other.goes_on == Position("00ff", 1, 5, held=10)


def test_starting_positions_are_words_numbers_or_whole_offsets() -> None:
    assert wanted_seq(parse_given("LATEST"), FACTS, "earliest") == ("latest", "")
    assert wanted_seq(parse_given('{"orders": 77}'), FACTS, "earliest") == (77, "")
    assert wanted_seq(parse_given('{"%2F/orders": -1}'), FACTS, "earliest") == ("latest", "")
    assert wanted_seq(parse_given('{"others": 77}'), FACTS, "earliest") == ("earliest", "")
    whole = json.dumps(Offsets("c", {("/", "orders"): Position("beef", 1, 42)}).json())
    assert wanted_seq(parse_given(whole), FACTS, "earliest") == (42, "beef")


# --- plans ---


def member(node: str, *, master: bool = False, serves: bool = True) -> Member:
    return Member(node, "127.0.0.1", 1, master, serves)


@given(st.integers(0, 40), st.integers(1, 60), st.integers(0, 110), st.integers(1, 9), st.integers(1, 30))
def test_pieces_cover_a_range_once_in_order_and_never_cross_what_is_held(
    start: int, length: int, held: int, least: int, most: int
) -> None:
    end = start + length
    pieces = plan([Span(FACTS, start, end, 3, held)], Limits(min_partitions=least, max_records=most))
    assert [piece.start for piece in pieces] == [start, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end == end
    assert len(pieces) >= min(least, length)
    assert all(piece.end - piece.start <= most for piece in pieces)
    assert all(piece.end <= held if piece.is_live else piece.start >= held for piece in pieces)
    assert pieces == plan([Span(FACTS, start, end, 3, held)], Limits(min_partitions=least, max_records=most))


def test_neighbours_are_read_from_different_mirrors_and_the_master_is_asked_last() -> None:
    members = (member("a", master=True), member("c"), member("b"), member("d", serves=False))
    facts = Facts("/", "q", "1", 1, 1, 101, ((1, 1),), members)
    pieces = plan([Span(facts, 1, 101, 1, 0)], Limits(min_partitions=4))
    assert [[one.node for one in piece.members] for piece in pieces] == [["b", "c", "a"], ["c", "b", "a"]] * 2
    only = plan([Span(facts, 1, 101, 1, 0)], Limits(masters_only=True))
    assert [one.node for one in only[0].members] == ["a"]
    named = plan([Span(facts, 1, 101, 1, 0)], Limits(node="d"))
    assert [one.node for one in named[0].members] == ["d"]


@given(st.dictionaries(names, st.integers(0, 1000), max_size=5), st.integers(1, 2000))
def test_shares_stay_within_the_limit_and_somebody_always_moves(lengths: dict[Any, int], most: int) -> None:
    found = shares(lengths, most)
    assert sum(found.values()) <= max(most, 0)
    assert all(found[name] <= lengths[name] for name in lengths)
    assert sum(lengths.values()) == 0 or sum(found.values()) > 0
    busy = [name for name in lengths if lengths[name]]
    if len(busy) <= most:
        assert all(found[name] for name in busy)
    turns = [shares(lengths, most, turn) for turn in range(-(-len(busy) // most))]
    assert all(any(turn[name] for turn in turns) for name in busy)
