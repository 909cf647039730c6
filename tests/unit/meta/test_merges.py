"""Branches that are being brought back to their queues, as the definitions name them."""

from __future__ import annotations

from mirrormq.base import limits
from mirrormq.meta import codec, merges
from mirrormq.meta.commands import DeclareQueue, NoteMerge
from mirrormq.meta.records import Queue
from mirrormq.meta.state import MetaState, Outcome
from tests.support.metakit import cluster, must


def made() -> MetaState:
    state = cluster("a", "b")
    must(state, DeclareQueue(Queue("/", "q", log_id=7)))
    return state


def note(state: MetaState, node: str, *sources: int, is_over: bool = False, queue_id: int = 0) -> Outcome:
    found = queue_id or state.queues["/", "q"].id
    return state.apply(NoteMerge("/", "q", found, node, sources, is_over))


def shown(state: MetaState) -> list[tuple[str, int, bool]]:
    return [(one.node, one.sources[0], one.is_over) for one in merges.merges_of(state.queues["/", "q"])]


def test_the_record_of_a_queue_names_a_branch_and_says_when_it_is_merged() -> None:
    state = made()
    for _ in range(2):  # heard twice
        assert note(state, "a", 11, 13).ok
    assert note(state, "b", 15, 17).ok
    assert sorted(merges.sources(state)) == [11, 13, 15, 17]
    for _ in range(2):
        assert note(state, "a", 11, 13, is_over=True).ok
    assert shown(state) == [("b", 15, False), ("a", 11, True)]


def test_another_queue_of_the_same_name_has_no_part_in_it() -> None:
    state = made()
    assert note(state, "a", 11, 13, queue_id=99).error == "missing"
    assert not list(merges.sources(state))


def test_numbers_of_the_last_merged_branches_stay_and_those_of_others_always() -> None:
    state = made()
    note(state, "a", 1, 2)
    for number in range(limits.merges_kept + 5):
        note(state, "b", 100 + number, 200 + number)
        note(state, "b", 100 + number, 200 + number, is_over=True)
    assert shown(state)[0] == ("a", 1, False), "it is not through"
    kept = [number for _, number, is_over in shown(state) if is_over]
    assert kept == list(range(105, 105 + limits.merges_kept))


def test_branches_of_nodes_that_are_gone_count_as_merged() -> None:
    state = made()
    for number in range(limits.merges_kept + 5):
        note(state, "gone", 100 + number, 200 + number)
    assert len(shown(state)) == limits.merges_kept


def test_a_record_is_written_and_read_with_its_merges_and_without() -> None:
    state = made()
    plain = codec.encode_records([state.queues["/", "q"]])
    assert b"merges" not in plain, "older nodes can read it"
    note(state, "a", 11, 13)
    record = state.queues["/", "q"]
    assert codec.decode_records(codec.encode_records([record])) == [record]
    command = NoteMerge("/", "q", 1, "a", (11, 13), True)
    assert codec.decode_command(codec.encode_command(command)) == command
