"""Who takes over a mirrored queue when nodes die, come back, are forgotten, or an operator decides."""

import pytest

from mirrormq.meta import commands as c
from mirrormq.meta import views
from mirrormq.meta.records import FORGOTTEN, Learner, Member, Node, Queue, View
from mirrormq.meta.state import MetaState
from tests.support.metakit import change, changed, cluster, declare_mirrored, declare_queue, must
from tests.support.viewkit import (
    dead,
    learners,
    members,
    policy,
    restarted,
    returned,
    view_of,
    waited,
    with_learners,
)


@pytest.fixture
def state() -> MetaState:
    return cluster("a", "b", "c", "d")


# --- nodes come and go ----------------------------------------------------------------------------


def test_the_oldest_live_member_takes_over_from_a_dead_master(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b", "c", "d")
    dead(state, "b")
    assert view_of(state).epoch == 1
    dead(state, "a")
    assert members(state) == ["c", "b", "d", "a"]
    assert (view_of(state).epoch, view_of(state).since) == (2, 2)


def test_the_death_of_a_mirror_leaves_the_view_to_its_master(state: MetaState) -> None:
    before = declare_mirrored(state, "q", "a", "b")
    outcome = dead(state, "b")
    assert view_of(state) is before
    assert len(outcome.changes) == 1


def test_a_death_that_is_told_twice_changes_nothing_the_second_time(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b")
    dead(state, "a")
    assert dead(state, "a").changes == []


def test_queues_are_in_other_hands_before_the_end_of_a_node_is_told(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b")
    assert [type(entry.record) for entry in dead(state, "a").changes] == [View, Queue, Node]


def test_without_a_live_member_a_queue_waits_for_one_that_held_everything(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b")
    dead(state, "b")
    dead(state, "a")
    assert (members(state), views.waiting(state)) == (["a", "b"], {"a": 1})
    returned(state, "b")
    assert (members(state), views.waiting(state)) == (["b", "a"], {})


def test_a_master_that_returns_unchanged_goes_on_in_its_epoch(state: MetaState) -> None:
    before = declare_mirrored(state, "q", "a")
    dead(state, "a")
    returned(state, "a")
    assert view_of(state) is before
    assert before.is_led_by("a", 1)


def test_a_restarted_mirror_stays_and_is_marked(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b")
    restarted(state, "b")
    assert view_of(state).members == (Member("a", 1), Member("b", 2, is_restarted=True))
    changed(state, "q", "admit", "b")
    assert view_of(state).members == (Member("a", 1), Member("b", 2))


def test_a_restarted_master_yields_to_a_member_that_was_not_restarted(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b")
    restarted(state, "a")
    view = view_of(state)
    assert (members(state), view.epoch, view.drops_transient) == (["b", "a*"], 2, False)


def test_the_only_member_is_the_master_again_after_a_restart_and_drops_what_was_not_flushed(
    state: MetaState,
) -> None:
    declare_mirrored(state, "q", "a")
    restarted(state, "a")
    view = view_of(state)
    assert view.members == (Member("a", 2),)
    assert (view.epoch, view.since, view.drops_transient) == (2, 2, True)
    assert view.is_led_by("a", 2)
    assert not view.is_led_by("a", 1)


def test_a_restarted_member_takes_over_only_after_the_wait_for_others(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b", "c")
    dead(state, "c")
    restarted(state, "b")
    dead(state, "a")
    assert (members(state), views.waiting(state)) == (["a", "b*", "c"], {"a": 1})
    waited(state, "a")
    assert (members(state), view_of(state).drops_transient) == (["b", "c", "a"], True)


def test_a_restarted_master_waits_for_others_without_acting(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b")
    dead(state, "b")
    restarted(state, "a")
    assert (members(state), views.waiting(state)) == (["a*", "b"], {"a": 2})
    assert not view_of(state).is_led_by("a", 2)
    assert change(state, "q", "remove", "b").error == "guard"
    waited(state, "a")
    assert view_of(state).is_led_by("a", 2)
    assert view_of(state).drops_transient


def test_one_that_returns_unchanged_in_the_wait_goes_before_restarted_ones(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b")
    dead(state, "b")
    restarted(state, "a")
    returned(state, "b")
    assert (members(state), view_of(state).drops_transient) == (["b", "a*"], False)


def test_when_all_members_were_restarted_nobody_is_waited_for(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b")
    dead(state, "b")
    dead(state, "a")
    restarted(state, "b")
    assert members(state) == ["a", "b*"]
    restarted(state, "a")
    assert (members(state), view_of(state).drops_transient) == (["a", "b*"], True)


def test_the_wait_is_for_one_start_of_the_master(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b")
    dead(state, "b")
    dead(state, "a")
    restarted(state, "b")
    assert state.apply(c.PromoteRestarted("a", 2)).error == "guard"
    assert members(state) == ["a", "b*"]


def test_waiting_is_over_for_nobody_who_has_a_master(state: MetaState) -> None:
    before = declare_mirrored(state, "q", "a", "b")
    assert waited(state, "a").changes == []
    assert view_of(state) is before


def test_a_restart_that_is_told_twice_marks_once_and_an_older_one_is_refused(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b")
    restarted(state, "b")
    assert must(state, c.NodeRestarted("b", alone=False, start=2)).changes == []
    assert state.apply(c.NodeRestarted("b", alone=False, start=1)).error == "guard"


def test_a_restart_that_is_told_again_after_a_death_ends_the_wait(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b")
    dead(state, "b")
    dead(state, "a")
    must(state, c.NodeRestarted("b", alone=False, start=1))
    assert members(state) == ["b", "a"]


def test_a_change_of_role_does_not_touch_the_start_of_a_node(state: MetaState) -> None:
    restarted(state, "b")
    must(state, c.PutNode(Node("b", "addr", role="non-voter")))
    assert state.nodes["b"] == Node("b", "addr", "non-voter", 2, is_live=True)


def test_a_restarted_learner_stays_one_in_its_new_start(state: MetaState) -> None:
    with_learners(state, "b")
    restarted(state, "b")
    assert view_of(state).learners == (Learner("b", 2, is_restarted=True),)
    changed(state, "q", "admit", "b")
    assert view_of(state).members == (Member("a", 1), Member("b", 2))


# --- queues that do not outlive a restart -----------------------------------------------------------


def test_a_transient_queue_lives_as_long_as_one_process_that_holds_it(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b", "c", durable=False)
    dead(state, "a")
    assert members(state)[0] == "b"
    restarted(state, "b")
    assert members(state) == ["c", "a"]
    dead(state, "c")
    assert not state.queues
    assert not state.views


def test_a_restart_takes_the_entry_of_a_transient_queue(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b", durable=False)
    restarted(state, "b")
    assert (members(state), view_of(state).epoch) == (["a"], 2)
    restarted(state, "a")
    assert not state.queues
    assert not state.views


# --- losses -----------------------------------------------------------------------------------------


def test_a_learner_never_takes_over_unless_a_loss_is_allowed(state: MetaState) -> None:
    policy(state)
    with_learners(state, "b")
    before = view_of(state)
    dead(state, "a")
    waited(state, "a")
    assert view_of(state) is before


def test_where_the_policy_prefers_service_the_oldest_learner_takes_over_and_it_is_counted(
    state: MetaState,
) -> None:
    policy(state, ha_promote_on_failure="always")
    with_learners(state, "b", "c")
    dead(state, "a")
    view = view_of(state)
    assert (members(state), learners(state)) == (["b"], ["c"])
    assert (view.losses, view.last_in_sync) == (1, (Member("a", 1),))
    returned(state, "a")
    refused = change(state, "q", "add_learner", "a")
    assert (refused.ok, refused.error) == (False, "guard"), "what only a has comes first"
    (parting,) = view.partings
    must(state, c.NoteSalvaged("/", "q", view.id, parting.id, "a", 0, 7, messages=3))
    changed(state, "q", "add_learner", "a")
    changed(state, "q", "admit", "a")
    assert (view_of(state).losses, view_of(state).last_in_sync) == (1, ())
    assert (view_of(state).partings, view_of(state).salvaged) == ((), 3)


def test_no_queue_goes_to_a_node_on_its_way_out(state: MetaState) -> None:
    policy(state, ha_promote_on_failure="always")
    with_learners(state, "b", "c")
    must(state, c.NodeDead("a", 1, departed=("b", "c")))
    assert view_of(state).losses == 0
    must(state, c.PromoteRestarted("a", 1, departed=("b",)))
    assert (members(state), view_of(state).losses) == (["c"], 1)


def test_the_defaults_travel_with_the_command(state: MetaState) -> None:
    policy(state)
    with_learners(state, "b")
    dead(state, "a", "rabbitmq")
    assert (members(state), view_of(state).losses) == (["b"], 1)


def test_nothing_is_lost_while_a_restarted_member_is_there(state: MetaState) -> None:
    policy(state, ha_promote_on_failure="always")
    declare_mirrored(state, "q", "a", "b", "d")
    changed(state, "q", "add_learner", "c")
    dead(state, "d")
    restarted(state, "b")
    dead(state, "a")
    assert members(state) == ["a", "b*", "d"]
    waited(state, "a")
    assert (members(state)[0], view_of(state).losses) == ("b", 0)


def test_after_a_restart_of_everything_a_learner_that_is_back_first_has_to_wait(state: MetaState) -> None:
    policy(state, ha_promote_on_failure="always")
    with_learners(state, "b")
    restarted(state, "b")
    dead(state, "a")
    assert (members(state), view_of(state).losses) == (["a"], 0)
    waited(state, "a")
    assert (members(state), view_of(state).losses, view_of(state).drops_transient) == (["b"], 1, True)


@pytest.mark.parametrize(
    ("keys", "master"),
    [
        ({}, "a"),
        ({"ha_promote_on_shutdown": "always"}, "b"),
        ({"ha_promote_on_shutdown": "always", "ha_promote_on_failure": "when-synced"}, "a"),
        ({"ha_promote_on_shutdown": "always", "ha_promote_on_failure": "always"}, "b"),
        ({"ha_promote_on_failure": "always"}, "a"),
    ],
)
def test_an_orderly_stop_without_a_mirror_in_sync_follows_the_policy(
    state: MetaState, keys: dict[str, object], master: str
) -> None:
    policy(state, **keys)
    with_learners(state, "b")
    changed(state, "q", "stop")
    assert (view_of(state).master, view_of(state).is_stopped) == (master, master == "a")
    dead(state, "a")
    assert view_of(state).master == master
    if master == "a":
        restarted(state, "a")
        assert view_of(state).is_led_by("a", 2)
        assert not view_of(state).is_stopped


def test_an_orderly_stop_with_a_mirror_in_sync_is_a_transfer(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b")
    assert change(state, "q", "stop").error == "in_use"
    changed(state, "q", "transfer", "b")


def test_a_stop_that_does_not_happen_is_taken_back_with_a_new_epoch(state: MetaState) -> None:
    declare_mirrored(state, "q", "a")
    assert changed(state, "q", "stop").is_stopped
    view = changed(state, "q", "renew")
    assert (view.is_stopped, view.epoch, view.since) == (False, 3, 1)


# --- the operator -----------------------------------------------------------------------------------


def test_an_operator_may_promote_a_learner_when_nobody_in_sync_is_live(state: MetaState) -> None:
    with_learners(state, "b", "c")
    assert state.apply(c.ForcePromote("/", "q", node="c")).error == "in_use"
    dead(state, "a")
    assert state.apply(c.ForcePromote("/", "q", node="d")).error == "missing"
    must(state, c.ForcePromote("/", "q", node="c"))
    assert (members(state), learners(state), view_of(state).losses) == (["c"], ["b"], 1)


def test_an_operator_loses_nothing_by_mistake(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b", "d")
    changed(state, "q", "add_learner", "c")
    restarted(state, "b")
    dead(state, "d")
    dead(state, "a")
    assert state.apply(c.ForcePromote("/", "q", node="c")).error == "in_use"
    must(state, c.ForcePromote("/", "q"))
    assert (members(state)[0], view_of(state).losses, view_of(state).drops_transient) == ("b", 0, True)


def test_a_queue_that_is_not_mirrored_cannot_be_promoted(state: MetaState) -> None:
    declare_queue(state, "q", node="a")
    assert state.apply(c.ForcePromote("/", "q")).error == "missing"
    assert state.apply(c.ForcePromote("/", "no")).error == "missing"


# --- a node is forgotten ------------------------------------------------------------------------------


def test_a_forgotten_node_leaves_all_views_and_its_queues_go_to_others(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b")
    declare_mirrored(state, "r", "b", "a")
    changed(state, "r", "demote", "a")
    dead(state, "a")
    must(state, c.ForgetNode("a"))
    assert (members(state, "q"), members(state, "r"), learners(state, "r")) == (["b"], ["b"], [])
    assert state.views_of("a") == []


def test_forgetting_a_dead_master_leaves_its_queue_to_a_dead_mirror_that_has_it(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "d")
    dead(state, "d")
    dead(state, "a")
    must(state, c.ForgetNode("a"))
    assert members(state) == ["d"]
    restarted(state, "d")
    assert view_of(state).is_led_by("d", 2)


def test_a_queue_whose_last_copy_in_sync_is_forgotten_waits_for_an_operator(state: MetaState) -> None:
    policy(state, ha_promote_on_failure="always")
    with_learners(state, "b")
    dead(state, "b")
    dead(state, "a")
    must(state, c.ForgetNode("a"))
    assert view_of(state).members == (Member("a", FORGOTTEN),)
    restarted(state, "b")
    must(state, c.ForcePromote("/", "q", node="b"))
    assert (members(state), view_of(state).losses) == (["b"], 1)


def test_a_new_node_under_the_name_of_a_forgotten_one_is_not_taken_for_it(state: MetaState) -> None:
    with_learners(state, "b")
    dead(state, "a")
    must(state, c.ForgetNode("a"))
    must(state, c.PutNode(Node("a")))
    must(state, c.NodeRestarted("a", alone=False, start=1))
    assert view_of(state).members == (Member("a", FORGOTTEN),)
    assert not view_of(state).is_led_by("a", 1)
    waited(state, "a")
    assert view_of(state).members == (Member("a", FORGOTTEN),)


def test_queues_without_any_copy_left_go_with_the_forgotten_node(state: MetaState) -> None:
    with_learners(state, "b")
    declare_mirrored(state, "r", "a")
    dead(state, "a")
    must(state, c.ForgetNode("a"))
    assert list(state.queues) == [("/", "q")]
    must(state, c.ForgetNode("b"))
    assert not state.queues
    assert not state.views


# --- a single node --------------------------------------------------------------------------------------


def test_a_node_that_starts_alone_has_its_mirrored_queues_to_itself() -> None:
    state = cluster("a")
    declare_mirrored(state, "q", "a")
    must(state, c.NodeRestarted("a", alone=True, start=2))
    view = view_of(state)
    assert view.members == (Member("a", 2),)
    assert (view.epoch, view.drops_transient, view.losses) == (2, True, 0)


def test_a_node_that_starts_alone_without_having_been_in_sync_counts_a_loss(state: MetaState) -> None:
    with_learners(state, "b")
    must(state, c.NodeRestarted("b", alone=True, start=2))
    assert (members(state), view_of(state).losses) == (["b"], 1)
    assert view_of(state).last_in_sync == (Member("a", 1),)


def test_a_single_node_under_a_new_name_loses_nothing() -> None:
    state = cluster("a")
    declare_mirrored(state, "q", "a")
    state.drop(state.nodes["a"])
    state.take_changes()
    must(state, c.NodeRestarted("b", alone=True, start=1))
    assert (members(state), view_of(state).losses) == (["b"], 0)


# --- copies that cannot be read, and asynchronous replication -----------------------------------------------


def test_a_master_that_cannot_read_its_copy_gives_way_to_a_restarted_member_and_is_a_learner(
    state: MetaState,
) -> None:
    declare_mirrored(state, "q", "a", "b")
    restarted(state, "b")
    changed(state, "q", "surrender", "b")
    assert (members(state), learners(state)) == (["b"], ["a"])
    assert (view_of(state).drops_transient, view_of(state).losses) == (True, 0)


def test_nobody_surrenders_to_a_dead_node(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b")
    dead(state, "b")
    assert change(state, "q", "surrender", "b").error == "guard"


def test_an_asynchronous_mirror_takes_over_with_a_loss_and_the_old_master_is_passed_over(
    state: MetaState,
) -> None:
    policy(state, ha_replication="async")
    declare_mirrored(state, "q", "a", "b", "c")
    dead(state, "a")
    view = view_of(state)
    assert members(state) == ["b", "c"]
    assert (view.losses, view.last_in_sync) == (1, (Member("a", 1),))
    assert [parting.nodes for parting in view.partings] == [("a",)]


def test_with_when_synced_it_waits_for_its_master(state: MetaState) -> None:
    policy(state, ha_replication="async", ha_promote_on_failure="when-synced")
    declare_mirrored(state, "q", "a", "b")
    dead(state, "a")
    assert (members(state), view_of(state).losses) == (["a", "b"], 0)


def test_an_asynchronous_master_that_is_started_again_goes_on(state: MetaState) -> None:
    policy(state, ha_replication="async")
    declare_mirrored(state, "q", "a", "b")
    restarted(state, "a")
    assert (members(state)[0], view_of(state).losses, view_of(state).drops_transient) == ("a", 0, True)
