"""Removals of many short ranges cost about what one passage costs, and tell the same as one that sees all."""

import random
from itertools import pairwise
from typing import Any

import pytest

from mirrormq.base import limits
from mirrormq.kernel import records
from mirrormq.kernel.gather import removals
from mirrormq.kernel.ranges import RangeSet
from mirrormq.wire import methods
from tests.support.bulkkit import BulkUser, bodies, unpacked
from tests.support.kernelkit import PERSISTENT, frame, publish
from tests.support.mirroredkit import MirroredKit
from tests.support.nodekit import NodeKit

BODY = bytes(60)
PIECES = 10


class Work:
    """Counts what a node reads from its disk for clients."""

    def __init__(self, kit: NodeKit, monkeypatch: pytest.MonkeyPatch) -> None:
        self.octets = 0
        read = kit.node.read

        def counted(file: str, offset: int, length: int, done: Any) -> None:
            self.octets += length
            read(file, offset, length, done)

        monkeypatch.setattr(kit.node, "read", counted)


def used(kit: NodeKit, *, lag: int, messages: int = 800) -> BulkUser:
    """A queue whose consumer follows its publisher at some distance; a cursor keeps everything."""
    client = kit.client()
    client.declare("q", durable=True)
    user = BulkUser.logged_in(kit)
    user.call("cursor_open", queue="q", name="c", at="earliest")
    get = frame(1, 1, methods.encode(methods.BasicGet(queue="q", no_ack=True)))
    for done in range(0, messages, 20):
        client.feed(publish(b"q", BODY, PERSISTENT) * 20)
        kit.advance(0.1)
        if done >= lag:
            client.feed(get * 20)
            kit.advance(0.1)
    kit.advance(1)
    client.take()
    return user


def told(user: BulkUser, facts: dict[str, Any], span: tuple[int, int], **more: Any) -> list[int]:
    """The seqs of a range that are gone, by what is said about it."""
    start, end = span
    asked = {"queue": "q", "id": facts["id"], "start": start, "end": end, "upto": facts["next"], **more}
    data = user.read(**asked)
    assert bodies(data) == [] or "removals" not in more
    dead = RangeSet()
    removals(data, dead)
    return [seq for seq in range(start, end) if seq in dead]


def pieces(facts: dict[str, Any], count: int = PIECES) -> list[tuple[int, int]]:
    edges = [1 + (facts["next"] - 1) * at // count for at in range(count + 1)]
    return list(pairwise(edges))


@pytest.mark.slow
def test_the_removals_of_all_pieces_cost_little_more_than_one_passage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "bulk_slice_bytes", 4_096)
    monkeypatch.setattr(limits, "place_bytes_min", 4_096)
    kit = NodeKit()
    user = used(kit, lag=40)
    facts = user.facts("q")
    work = Work(kit, monkeypatch)
    told(user, facts, (1, facts["next"]))
    once, work.octets = work.octets, 0
    full = [told(user, facts, span) for span in pieces(facts)]
    before, work.octets = work.octets, 0
    found = [told(user, facts, span, removals=span[0]) for span in pieces(facts)]
    assert found == full
    assert sum(map(len, found)) == 760
    assert before > once * PIECES / 3  # what it would be otherwise
    assert work.octets < 2.5 * once


@pytest.mark.parametrize("seed", range(8))
def test_what_is_told_of_a_piece_is_what_a_whole_passage_tells(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(limits, "bulk_slice_bytes", rng.choice((400, 4_096)))
    monkeypatch.setattr(limits, "bulk_watched_spans_max", rng.choice((3, 65_536)))
    monkeypatch.setattr(limits, "bulk_watched_steps", rng.choice((1, 5_000)))
    kit = NodeKit()
    client = kit.client()
    client.declare("q", durable=True)
    user = BulkUser.logged_in(kit)
    user.call("cursor_open", queue="q", name="c", at="earliest")
    for _ in range(60):
        for _ in range(rng.randint(0, 6)):
            client.publish("q", BODY, properties=PERSISTENT)
        for _ in range(rng.randint(0, 6)):
            client.send(methods.BasicGet(queue="q"))
            found = [one for one in client.take() if isinstance(one, methods.BasicGetOk)]
            if found and rng.random() < 0.5:
                client.send(methods.BasicAck(found[0].delivery_tag, False))
        if rng.random() < 0.05:
            client.ask(methods.QueuePurge(queue="q"), methods.QueuePurgeOk)
        kit.advance(0.1)
    facts = user.facts("q")
    everything = user.read(queue="q", id=facts["id"], start=1, end=facts["next"])
    messages = {seq for seq, kind, _ in unpacked(everything) if kind == records.PUBLISH}
    for span in pieces(facts, 7):
        upto = rng.randint(span[1], facts["next"])
        whole, found = (
            set(told(user, {**facts, "next": upto}, span, **more)) for more in ({}, {"removals": span[0]})
        )
        assert found <= whole
        assert not (whole - found) & messages  # a purge names what never was a message, too


def test_a_read_that_goes_on_elsewhere_goes_through_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "bulk_slice_bytes", 4_096)
    user = used(NodeKit(), lag=300, messages=400)
    facts = user.facts("q")
    told(user, facts, (200, 300), removals=1)
    assert user.position == facts["next"]


def test_a_mirror_that_has_not_heard_what_counts_goes_on_to_the_end() -> None:
    kit = MirroredKit()
    kit.policy()
    client = kit.declare()
    kit.confirm(client, 20)
    user = BulkUser.logged_in(kit["a"])
    request = user.send("cursor_open", queue="q", name="c", at="earliest")
    kit.advance(0.2)
    user.answer(request)
    for _ in range(5):
        client.send(methods.BasicGet(queue="q", no_ack=True))
    kit.advance(0.5)
    request = user.send("queues", queue="q")
    kit.advance(0.2)
    facts = user.answer(request)["queues"][0]
    for name in "abc":
        assert told(BulkUser.logged_in(kit[name]), facts, (1, 10), removals=1) == [2, 3, 4, 5, 6]
    log = kit["b"].node.logs[next(iter(kit["b"].node.meta.queues.values())).log_id]
    log.copy.committed.end -= 1  # as if the news had not come yet
    assert told(BulkUser.logged_in(kit["b"]), facts, (1, 10), removals=1) == [2, 3, 4, 5, 6]
