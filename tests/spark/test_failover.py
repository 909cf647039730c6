"""What a fail-over makes a node say for a moment ends no query; what it says for ever does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("pyspark")

from mirrormq.spark import reading
from mirrormq.spark.broker import Broker, SourceFailed
from mirrormq.spark.offsets import Facts
from mirrormq.spark.options import read_options
from mirrormq.wire import bulk
from mirrormq.wire.bulk import BulkError
from tests.spark.scripted import Scripted, Stream, in_turn, scripted

NAME = ("/", "q")
FACTS = Facts("/", "q", "a1", first=1, low=1, next=10)
LAGS = BulkError(bulk.UNAVAILABLE, "records are durable up to 5 by now")


def broker(node: Scripted, patience_s: float = 20.0) -> Broker:
    return Broker(read_options({"url": node.url, "queue": "q"}).contact, patience_s=patience_s)


ASKED: list[Callable[[Broker], object]] = [
    lambda made: made.advance_cursor(NAME, "c", to=10),
    lambda made: made.open_cursor(NAME, "c", 10),
    lambda made: made.drop_cursor(NAME, "c"),
    lambda made: made.seek(FACTS, 1_000_000),
    lambda made: made.records_in(FACTS, 1, 1000),
]


@pytest.mark.parametrize("ask", ASKED)
def test_everything_is_asked_again_while_a_new_master_catches_up(ask: Callable[[Broker], object]) -> None:
    last = Stream(b"data") if ask is ASKED[-1] else {"seq": 10}
    with scripted(in_turn(LAGS, LAGS, None, None, LAGS, last)) as node:
        made = broker(node)
        ask(made)
        made.close()
        assert len(node.asked) == 6


def test_a_master_that_never_catches_up_ends_the_query_after_a_while() -> None:
    with scripted(in_turn(LAGS)) as node:
        made = broker(node, patience_s=0.3)
        with pytest.raises(BulkError, match="durable up to 5"):
            made.advance_cursor(NAME, "c", to=10)
        assert len(node.asked) > 1
        with pytest.raises(SourceFailed, match="durable up to 5"):
            made.records_in(FACTS, 1, 1000)
        made.close()


def test_nodes_that_hang_up_for_ever_are_named() -> None:
    with scripted(in_turn(None)) as node:
        made = broker(node, patience_s=0.3)
        with pytest.raises(SourceFailed, match=f"no node answers at 127.0.0.1:{node.port}"):
            made.advance_cursor(NAME, "c", to=10)
        made.close()


def test_a_refusal_is_not_asked_again() -> None:
    with scripted(in_turn(BulkError(bulk.BUSY, "another live reader"))) as node:
        made = broker(node)
        with pytest.raises(BulkError, match="another live reader"):
            made.open_cursor(NAME, "c", 10)
        assert len(node.asked) == 1
        made.close()


def test_what_is_lost_is_left_to_the_task_that_reads_it() -> None:
    for code in (bulk.DATA_LOSS, bulk.GONE, bulk.NOT_FOUND):
        with scripted(in_turn(BulkError(code, "it is gone"))) as node:
            made = broker(node)
            assert made.records_in(FACTS, 1, 1000) == 1
            made.close()


def test_a_member_that_is_also_the_first_contact_does_not_stand_for_all_contacts() -> None:
    first, second = ("127.0.0.1", 1), ("127.0.0.1", 2)
    contact = read_options({"url": "amqp://127.0.0.1:1,127.0.0.1:2/", "queue": "q"}).contact
    member = reading._connection(contact, (first,))
    assert reading._connection(contact, (first, second)).target.hosts == (first, second)
    assert reading._connection(contact, (first,)) is member
