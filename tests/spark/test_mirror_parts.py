"""The parts of the job `mirror` that need no broker and no Spark session."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from mirrormq.spark.jobs.mirrordefinitions import ROWS_MAX, SOURCE, Choice, pieces, plan
from mirrormq.spark.jobs.mirrormemory import Memory
from mirrormq.spark.jobs.mirrorplaces import has_diverged, split_urls
from mirrormq.spark.jobs.mirrorrows import absent, changed
from mirrormq.spark.offsets import Facts

SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("queue_id", "state", "op", "queue", "exchange", "routing_key")),
        ("seq", pa.int64()),
        *(
            (name, pa.string())
            for name in ("message_id", "correlation_id", "content_type", "content_encoding")
        ),
        *((name, pa.string()) for name in ("reply_to", "type", "user_id", "app_id", "expiration")),
        ("app_timestamp", pa.timestamp("us", "UTC")),
        ("delivery_mode", pa.int16()),
        ("priority", pa.int16()),
        ("headers_raw", pa.binary()),
        ("body", pa.binary()),
    ]
)


def rows(
    *given: tuple[str, int, str] | tuple[str, int, str, bytes], queue: str = "q", of: str = "id-q"
) -> Any:
    """(op, seq, state[, body]) as Spark gives them."""
    found = [
        {
            "op": op,
            "seq": seq,
            "state": state,
            "queue": queue,
            "queue_id": of,
            "body": more[0] if more else b"x",
        }
        for op, seq, state, *more in given
    ]
    return pa.RecordBatch.from_pylist(found, schema=SCHEMA)


def sent(batches: Any) -> list[tuple[str, str, int, bytes]]:
    return [
        (row["op"], row["queue"], row["seq"], row["body"]) for batch in batches for row in batch.to_pylist()
    ]


def last(seq: int) -> bytes:
    return seq.to_bytes(8, "little")


def test_what_came_and_went_within_a_batch_is_not_sent() -> None:
    given = [
        rows(("remove", 3, "ack"), ("publish", 10, "ack"), ("publish", 11, "live")),
        rows(("remove", 10, "ack"), ("remove", 5, "ack"), ("remove", 4, "ack"), ("publish", 12, "live")),
    ]
    assert sent(changed({"q": "id-q"}, follows=True)(given)) == [
        ("publish", "q", 11, b"x"),
        ("publish", "q", 12, b"x"),
        ("remove", "q", 3, last(5)),
    ]


def test_a_purge_is_passed_on_and_without_removals_everything_is_copied() -> None:
    given = [rows(("publish", 10, "purge"), ("purge", 10, "", b"[4]"), ("publish", 12, "live"))]
    assert sent(changed({"q": "id-q"}, follows=True)(given)) == [
        ("publish", "q", 12, b"x"),
        ("purge", "q", 10, b"[4]"),
    ]
    assert [row[2] for row in sent(changed({"q": "id-q"}, follows=False)(given))] == [10, 12]


def test_rows_of_another_queue_of_the_same_name_end_the_task() -> None:
    with pytest.raises(RuntimeError, match="declared anew"):
        sent(changed({"q": "id-q"}, follows=True)([rows(("publish", 1, "live"), of="another")]))


def test_the_gaps_between_live_messages_are_what_is_gone() -> None:
    def some(*pairs: tuple[str, int]) -> Any:
        names, seqs = zip(*pairs, strict=True)
        return pa.RecordBatch.from_arrays([pa.array(names), pa.array(seqs)], names=["queue", "seq"])

    # The last of each queue is its end, which stands for no message.
    given = [some(("a", 3), ("a", 4)), some(("a", 7), ("a", 10), ("b", 1), ("c", 5))]
    assert sent(absent(given)) == [
        ("remove", "a", 1, last(2)),
        ("remove", "a", 5, last(6)),
        ("remove", "a", 8, last(9)),
        ("remove", "c", 1, last(4)),
    ]


def facts(name: str, queue_id: str = "") -> Facts:
    return Facts("v", name, queue_id or f"id-{name}", 1, 1, 10)


def queue(name: str, source: str = "", **more: Any) -> dict[str, Any]:
    arguments = {SOURCE: source} if source else {}
    return {"name": name, "durable": True, "auto_delete": False, "arguments": arguments, **more}


def binding(to: str, key: str = "k") -> dict[str, Any]:
    return {
        "source": "x",
        "destination": to,
        "destination_type": "queue",
        "routing_key": key,
        "arguments": {},
    }


def test_definitions_are_brought_to_those_of_the_source() -> None:
    exchange = {"name": "x", "type": "direct", "durable": True}
    nodes = {"name": "n", "definition": {"ha-mode": "nodes", "ha-params": ["a"]}}
    source = {
        "exchanges": [exchange],
        "queues": [
            queue("new"),
            queue("same"),
            queue("anew"),
            queue("short", durable=False),
            queue("not.me"),
        ],
        "bindings": [binding("new"), binding("anew"), binding("not.me"), binding("short")],
        "policies": [{"name": "p", "definition": {"ha-mode": "all"}}, nodes],
    }
    target = {
        "exchanges": [{**exchange, "type": "fanout"}, {"name": "old", "type": "direct"}],
        "queues": [
            queue("same", "id-same"),
            queue("anew", "before"),
            queue("gone", "id"),
            queue("not.us", "id"),
        ],
        "bindings": [binding("anew"), binding("gone")],
        "policies": [{"name": "p", "definition": {"ha-mode": "exactly"}}],
    }
    known = {name: facts(name) for name in ("new", "same", "anew", "not.me")}
    choice = Choice(exclude=("not.*",))
    found = plan(source, target, known, choice, removes=True)
    assert found.left_out == ["short"]
    assert found.anew == ["anew"]
    assert [row["name"] for row in found.remove["queues"]] == ["gone", "anew"]
    assert found.add["queues"] == [queue("new", "id-new"), queue("anew", "id-anew")]
    assert [row["name"] for row in found.remove["exchanges"]] == ["x", "old"]
    assert found.add["exchanges"] == [exchange]
    assert found.add["bindings"] == [binding("new"), binding("anew")]
    assert (found.add["policies"], found.remove["policies"]) == (source["policies"][:1], [])
    kept = plan(source, target, known, choice, removes=False)
    assert [row["name"] for row in kept.remove["queues"]] == ["anew"]
    assert [row["name"] for row in kept.remove["exchanges"]] == ["x"]


def test_definitions_travel_in_pieces_that_find_what_they_need() -> None:
    many = {"bindings": [binding("q", str(n)) for n in range(ROWS_MAX + 1)], "queues": [queue("q")]}
    assert [(name, len(found)) for piece in pieces(many) for name, found in piece.items()] == [
        ("queues", 1),
        ("bindings", ROWS_MAX),
        ("bindings", 1),
    ]


def test_a_history_that_was_given_up_is_recognised() -> None:
    now = Facts("v", "q", "id", 1, 1, 20, ((1, 1), (2, 10)))
    assert not has_diverged(10, 1, now)
    assert not has_diverged(15, 2, now)
    assert has_diverged(15, 1, now)
    assert has_diverged(30, 1, now)
    assert not has_diverged(30, 2, now)


def test_urls_may_have_several_hosts() -> None:
    assert split_urls("amqp://u@a,b:1/v,amqps://c/w, amqp://d/") == [
        "amqp://u@a,b:1/v",
        "amqps://c/w",
        "amqp://d/",
    ]


def test_a_queue_is_remembered_with_the_one_it_follows(tmp_path: Any) -> None:
    memory = Memory(tmp_path)
    memory.expect({"q": "here"})
    memory.synchronised({"q": ("there", 5, 1)})
    assert (memory.next_batch(), memory.next_batch()) == (0, 1)
    memory.uses("sink")
    again = Memory(tmp_path)
    assert again.has("q", "there", "here")
    assert not again.has("q", "another", "here")
    assert again.position("q", "there") == (5, 1)
    assert (again.sinks, again.next_batch()) == (["sink"], 2)
    (tmp_path / "mirror.json").write_text("{", encoding="utf-8")
    assert not Memory(tmp_path).names()
