"""The look at all logs goes on over many passes and finds what one look at once would find."""

from __future__ import annotations

from typing import Any

import pytest

from mirrormq.base import limits
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.kernelkit import PERSISTENT
from tests.support.nodekit import NodeKit

QUEUES = 7


@pytest.fixture(autouse=True)
def _few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "survey_logs": 2,
        "journal_file_bytes": 10_000,
        "recycle_slice_bytes": 4_000,
        "segment_bytes_min": 4_000,
        "segment_bytes_max": 16_000,
        "segment_dead_bytes_max": 8_000,
        "place_bytes_min": 1_000,
    }.items():
        monkeypatch.setattr(limits, name, value)


def furnished() -> tuple[NodeKit, Any]:
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    for number in range(QUEUES):
        client.declare(f"q{number}", durable=True)
    return kit, client


def fill(client: Any, rounds: int) -> None:
    for _ in range(rounds):
        for number in range(QUEUES):
            client.publish(f"q{number}", b"x" * 200, properties=PERSISTENT)


def segment_bytes(kit: NodeKit) -> int:
    return sum(segment.size for log in kit.node.logs.values() for segment in log.segments.all)


def test_a_tick_looks_at_nothing_itself_where_there_are_many_and_the_passes_look_at_few() -> None:
    kit, _ = furnished()
    seen: list[int] = []
    for log in kit.node.logs.values():
        log.cursors.open_cursor("c", None, kit.now)
        log.cursors.set_bounds(None, 1_000_000, None)
        log.cursors.on_lost = lambda _, log=log: seen.append(log.queue_id)  # type: ignore[misc]
    now = kit.now._replace(mono=kit.now.mono + 5_000_000, wall=kit.now.wall + 5_000_000)
    kit.node.recycler.tick(now)
    assert not seen
    steps = []
    while kit.node.recycler.needs_pass:
        before = len(seen)
        kit.node.recycler.step()
        steps.append(len(seen) - before)
    assert sorted(seen) == sorted(kit.node.logs)
    assert max(steps) == limits.survey_logs


def test_dead_segments_of_all_queues_are_given_back() -> None:
    kit, client = furnished()
    fill(client, 60)
    kit.advance(1)
    assert segment_bytes(kit) > 20_000
    for number in range(QUEUES):
        client.ask(methods.QueuePurge(queue=f"q{number}"), methods.QueuePurgeOk)
    for _ in range(4):
        kit.advance(1)
    assert segment_bytes(kit) < 8_000


def test_a_log_that_goes_while_others_are_looked_at_is_passed_over() -> None:
    kit, client = furnished()
    fill(client, 10)
    kit.node.recycler.tick(kit.now)
    kit.node.recycler.step()
    for number in range(QUEUES - 1):
        client.ask(methods.QueueDelete(queue=f"q{number}"), methods.QueueDeleteOk)
    kit.run()
    assert not kit.node.recycler.needs_pass
    assert len(kit.node.logs) == 1


def test_no_more_is_dead_in_the_journal_than_one_look_at_all_would_say() -> None:
    kit, client = furnished()
    fill(client, 5)
    survey = kit.node.recycler._survey
    survey.begin()
    while survey.is_under_way:
        survey.step(is_tight=True)
    assert not survey.is_mostly_dead
    for number in range(QUEUES):
        client.ask(methods.QueuePurge(queue=f"q{number}"), methods.QueuePurgeOk)
    survey.begin()
    while survey.is_under_way:
        survey.step(is_tight=True)
    assert survey.is_mostly_dead
