"""Views of mirrored queues: how they begin, who may change them, and what is reported of them."""

import pytest

from mirrormq.meta import commands as c
from mirrormq.meta import views
from mirrormq.meta.records import Learner, Member, Node, Queue, VHost, View
from mirrormq.meta.state import MetaState
from tests.support.metakit import change, changed, cluster, declare_mirrored, declare_queue, must
from tests.support.viewkit import dead, learners, members, restarted, returned, view_of


@pytest.fixture
def state() -> MetaState:
    return cluster("a", "b", "c", "d")


# --- a queue is born -----------------------------------------------------------------------------


def test_a_queue_is_born_in_sync_on_all_placed_nodes_in_the_first_epoch(state: MetaState) -> None:
    view = declare_mirrored(state, "q", "b", "a", "c", log_id=77)
    queue = state.queues["/", "q"]
    assert view == View(
        *("/", "q", queue.id, 77, 1, "b"), members=(Member("b", 1), Member("a", 1), Member("c", 1)), since=1
    )


def test_who_hears_of_a_queue_has_heard_of_its_view(state: MetaState) -> None:
    outcome = must(state, c.DeclareQueue(Queue("/", "q", node="a"), members=(Member("a", 1),)))
    assert [type(entry.record) for entry in outcome.changes] == [View, Queue]
    outcome = must(state, c.DeleteQueue("/", "q"))
    assert [type(entry.record) for entry in outcome.changes] == [Queue, View]
    assert not state.views


def test_a_placed_node_that_was_restarted_or_died_meanwhile_is_left_out(state: MetaState) -> None:
    placed = tuple(Member(node, 1) for node in "abc")
    restarted(state, "b")
    dead(state, "c")
    must(state, c.DeclareQueue(Queue("/", "q", node="a"), members=placed))
    assert members(state) == ["a"]


def test_a_queue_is_not_born_without_its_master(state: MetaState) -> None:
    dead(state, "a")
    placed = tuple(Member(node, 1) for node in "abc")
    outcome = state.apply(c.DeclareQueue(Queue("/", "q", node="a"), members=placed))
    assert (outcome.error, outcome.changes) == ("guard", [])
    assert not state.queues
    assert not state.views


def test_an_exclusive_queue_is_never_mirrored(state: MetaState) -> None:
    queue = Queue("/", "q", node="a", exclusive=True, owner=1)
    assert state.apply(c.DeclareQueue(queue, members=(Member("a", 1),))).error == "guard"
    must(state, c.DeclareQueue(queue))
    assert change(state, "q", "begin", "a").error == "guard"


def test_a_witness_has_no_copies(state: MetaState) -> None:
    must(state, c.PutNode(Node("d", role="witness")))
    declare_mirrored(state, "q", "a", "d")
    assert members(state) == ["a"]
    assert change(state, "q", "add_learner", "d").error == "guard"


def test_views_go_with_their_vhost(state: MetaState) -> None:
    must(state, c.PutVHost(VHost("v")))
    must(state, c.DeclareQueue(Queue("v", "q", node="a"), members=(Member("a", 1),)))
    must(state, c.DeleteVHost("v"))
    assert not state.views
    assert not state.views_of("a")


# --- the master changes its view ------------------------------------------------------------------


def test_a_queue_that_was_not_mirrored_begins_in_the_second_epoch(state: MetaState) -> None:
    queue = declare_queue(state, "q", node="a", log_id=5)
    view = changed(state, "q", "begin", "a")
    assert view == View("/", "q", queue.id, 5, 2, "a", members=(Member("a", 1),), since=2)
    assert change(state, "q", "begin", "a").error == "exists"


@pytest.mark.parametrize("kind", ["begin", "add_learner", "remove", "transfer", "stop", "renew"])
def test_a_change_on_another_epoch_or_declaration_changes_nothing(
    state: MetaState, kind: c.ViewChange
) -> None:
    before = declare_mirrored(state, "q", "a", "b")
    assert change(state, "q", kind, "b", epoch=0).error == "guard"
    assert change(state, "q", kind, "b", epoch=2).error == "guard"
    assert change(state, "q", kind, "b", id=before.id + 1).error == "missing"
    assert view_of(state) is before


def test_a_learner_is_added_admitted_demoted_and_removed_one_epoch_at_a_time(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b")
    changed(state, "q", "add_learner", "c")
    assert (members(state), learners(state)) == (["a", "b"], ["c"])
    changed(state, "q", "admit", "c")
    assert (members(state), learners(state)) == (["a", "b", "c"], [])
    changed(state, "q", "demote", "b")
    assert (members(state), learners(state)) == (["a", "c"], ["b"])
    changed(state, "q", "remove_learner", "b")
    changed(state, "q", "remove", "c")
    assert (members(state), learners(state), view_of(state).epoch) == (["a"], [], 6)
    assert view_of(state).since == 1


@pytest.mark.parametrize("kind", ["add_learner", "admit"])
def test_an_entry_is_added_for_the_registered_start_of_a_live_node_only(
    state: MetaState, kind: c.ViewChange
) -> None:
    declare_mirrored(state, "q", "a")
    if kind == "admit":
        changed(state, "q", "add_learner", "b")
    assert change(state, "q", kind, "b", start=0).error == "guard"
    assert change(state, "q", kind, "b", start=2).error == "guard"
    dead(state, "b")
    assert change(state, "q", kind, "b").error == "guard"


def test_a_proposal_for_a_start_that_is_over_is_refused(state: MetaState) -> None:
    declare_mirrored(state, "q", "a")
    restarted(state, "b")
    assert change(state, "q", "add_learner", "b", start=1).error == "guard"
    changed(state, "q", "add_learner", "b")
    assert view_of(state).learners == (Learner("b", 2),)


def test_nobody_takes_the_master_or_the_last_member_away(state: MetaState) -> None:
    declare_mirrored(state, "q", "a")
    assert change(state, "q", "remove", "a").error == "in_use"
    assert change(state, "q", "demote", "a").error == "in_use"
    assert change(state, "q", "transfer", "a").error == "in_use"
    assert change(state, "q", "remove", "b").error == "missing"


def test_only_a_live_master_takes_members_away(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b")
    dead(state, "b")
    dead(state, "a")
    assert change(state, "q", "remove", "b").error == "guard"
    returned(state, "a")
    changed(state, "q", "remove", "b")


def test_a_transfer_makes_the_old_master_the_youngest_member(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b", "c")
    view = changed(state, "q", "transfer", "c")
    assert members(state) == ["c", "b", "a"]
    assert (view.since, view.drops_transient) == (2, False)


def test_a_queue_is_not_transferred_to_a_member_that_is_dead_or_restarted(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b", "c")
    dead(state, "b")
    restarted(state, "c")
    assert change(state, "q", "transfer", "b").error == "guard"
    assert change(state, "q", "transfer", "c").error == "guard"
    changed(state, "q", "admit", "c")
    changed(state, "q", "transfer", "c")


def test_in_a_batch_each_change_stands_for_itself(state: MetaState) -> None:
    first, second = declare_mirrored(state, "q", "a", "b"), declare_mirrored(state, "r", "a", "b")
    batch = (
        c.ChangeView("/", "q", first.id, 9, "remove", "b"),
        c.ChangeView("/", "r", second.id, 1, "remove", "b"),
        c.ChangeView("/", "gone", 99, 1, "remove", "b"),
    )
    must(state, c.ChangeViews(batch))
    assert (members(state, "q"), members(state, "r")) == (["a", "b"], ["a"])


# --- reports ----------------------------------------------------------------------------------------------


def test_columns_of_rabbitmq_tell_mirrors_synchronised_and_recoverable_ones(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b", "c")
    changed(state, "q", "add_learner", "d")
    restarted(state, "b")
    found = views.columns(view_of(state), state.nodes, lambda node: f"<{node}>")
    assert found["slave_pids"] == found["mirror_pids"] == ["<b>", "<c>", "<d>"]
    assert found["synchronised_slave_pids"] == found["synchronised_mirror_pids"] == ["<c>"]
    assert found["recoverable_slaves"] == ["b", "c"]
    dead(state, "c")
    found = views.columns(view_of(state), state.nodes, str)
    assert (found["slave_pids"], found["synchronised_slave_pids"]) == (["b", "d"], [])
    assert found["recoverable_slaves"] == ["b", "c"]


def test_a_node_is_critical_for_queues_that_no_other_could_take_over(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b")
    declare_mirrored(state, "r", "a", "c")
    assert views.sync_critical(state, "a") == []
    dead(state, "b")
    assert [view.name for view in views.sync_critical(state, "a")] == ["q"]
    restarted(state, "c")
    assert [view.name for view in views.sync_critical(state, "a")] == ["q", "r"]
