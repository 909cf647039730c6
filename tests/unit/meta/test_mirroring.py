"""What policies want of mirrored queues: how many copies, where, by which steps, and when to risk a loss."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrormq.base import limits
from mirrormq.meta import commands as c
from mirrormq.meta import mirroring
from mirrormq.meta.mirroring import Mirroring, Step
from mirrormq.meta.records import Learner, Member, Node, Policy, Queue, View
from mirrormq.meta.state import MetaState
from tests.support import metakit
from tests.support.metakit import changed, cluster, declare_mirrored, must

QUEUE = Queue("/", "q", node="a")
QUORUM = Queue("/", "q", node="a", arguments={"x-queue-type": "quorum"})
ALL = Mirroring("all")


def nodes(live: str, dead: str = "", witness: str = "") -> dict[str, Node]:
    """One letter per node."""
    found = {name: Node(name, start=1, is_live=True) for name in live}
    found |= {name: Node(name, start=1) for name in dead}
    return found | {name: Node(name, start=1, is_live=True, role="witness") for name in witness}


def view(members: str, learners: str = "", **fields: Any) -> View:
    """One letter per node, the master first."""
    entries = tuple(Member(name, 1) for name in members)
    return View(
        *("/", "q", 7, 7, 1, members[0]), entries, tuple(Learner(name, 1) for name in learners), **fields
    )


def exactly(copies: int) -> Mirroring:
    return Mirroring("exactly", copies=copies)


def on(*names: str) -> Mirroring:
    return Mirroring("nodes", nodes=names)


# --- settings ---


def test_a_queue_without_a_policy_is_not_mirrored() -> None:
    assert mirroring.settings(QUEUE, {}, "safe").mode == "none"


def test_an_exclusive_queue_is_not_mirrored_whatever_the_policy() -> None:
    queue = Queue("/", "q", exclusive=True, owner=1)
    assert mirroring.settings(queue, {"ha-mode": "all"}, "safe").mode == "none"


def test_every_setting_of_a_policy_arrives() -> None:
    definition = {
        "ha-mode": "nodes",
        "ha-params": ["b", "c"],
        "ha-sync-mode": "manual",
        "ha-sync-batch-size": 10,
        "ha-sync-max-throughput": "2MB",
        "ha-promote-on-shutdown": "always",
        "ha-promote-on-failure": "always",
        "ha-replace-delay": 5,
        "ha-mirror-timeout": 6,
        "ha-min-in-sync": 2,
    }
    assert mirroring.settings(QUEUE, definition, "safe") == Mirroring(
        mode="nodes",
        nodes=("b", "c"),
        sync_mode="manual",
        sync_batch_size=10,
        sync_bytes_per_second=2_000_000,
        on_shutdown="always",
        on_failure="always",
        is_failure_set=True,
        replace_delay_ms=5,
        mirror_timeout_ms=6,
        min_in_sync=2,
    )


def test_the_defaults_are_safe_or_those_of_rabbitmq() -> None:
    safe = mirroring.settings(QUEUE, {"ha-mode": "all"}, "safe")
    assert (safe.sync_mode, safe.on_failure, safe.on_shutdown) == ("automatic", "when-synced", "when-synced")
    theirs = mirroring.settings(QUEUE, {"ha-mode": "all"}, "rabbitmq")
    assert (theirs.sync_mode, theirs.on_failure, theirs.on_shutdown) == ("manual", "always", "when-synced")


def test_a_quorum_queue_has_three_copies_and_loses_nothing_whatever_the_defaults() -> None:
    found = mirroring.settings(QUORUM, {"ha-min-in-sync": 2}, "rabbitmq")
    assert (found.mode, found.copies, found.min_in_sync) == ("exactly", limits.quorum_group_size, 2)
    assert found.sync_mode == "automatic"
    assert not mirroring.may_lose(found, is_stopped=False)
    assert not mirroring.may_lose(found, is_stopped=True)
    five = Queue("/", "q", arguments={"x-queue-type": "quorum", "x-quorum-initial-group-size": 5})
    assert mirroring.settings(five, {}, "safe").copies == 5


def test_settings_come_from_the_policy_that_applies() -> None:
    state = cluster("a")
    must(state, c.SetPolicy(Policy("/", "p", "^q", {"ha-mode": "exactly", "ha-params": 2})))
    must(state, c.SetPolicy(Policy("/", "r", "^r", {"ha-mode": "all"})))
    assert mirroring.mirroring_of(state, QUEUE, "safe") == exactly(2)


@pytest.mark.parametrize(
    ("on_shutdown", "on_failure", "is_set", "after_stop", "after_crash"),
    [
        ("when-synced", "when-synced", False, False, False),
        ("when-synced", "always", True, False, True),
        ("always", "when-synced", False, True, False),
        ("always", "when-synced", True, False, False),
        ("always", "always", False, True, True),
    ],
)
def test_a_loss_is_allowed_by_the_table_of_promotion(
    on_shutdown: Any, on_failure: Any, is_set: bool, after_stop: bool, after_crash: bool
) -> None:
    found = Mirroring("all", on_shutdown=on_shutdown, on_failure=on_failure, is_failure_set=is_set)
    assert mirroring.may_lose(found, is_stopped=True) is after_stop
    assert mirroring.may_lose(found, is_stopped=False) is after_crash


# --- where a queue is born ---


@pytest.mark.parametrize(
    ("found", "live", "dead", "born"),
    [
        (Mirroring("none"), "abc", "", "b"),
        (ALL, "abc", "", "bac"),
        (ALL, "ab", "c", "ba"),
        (exactly(2), "abc", "", "ba"),
        (exactly(4), "abc", "", "bac"),
        (exactly(1), "abc", "", "b"),
        (on("c", "b"), "abc", "", "bc"),
        (on("c", "b"), "ab", "c", "b"),
        (on("x", "y"), "abc", "", "b"),
    ],
)
def test_a_queue_is_born_where_its_policy_wants_it(found: Mirroring, live: str, dead: str, born: str) -> None:
    assert mirroring.wanted_at_birth(found, "b", nodes(live, dead), {}, 0) == tuple(born)


def test_exactly_takes_the_least_loaded_and_equals_take_turns() -> None:
    loads = {"b": 5, "c": 1, "d": 1}
    born = [mirroring.wanted_at_birth(exactly(2), "a", nodes("abcd"), loads, turn) for turn in range(3)]
    assert born == [("a", "c"), ("a", "c"), ("a", "d")]


def test_a_witness_is_never_wanted() -> None:
    assert mirroring.wanted_at_birth(ALL, "a", nodes("ab", witness="w"), {}, 0) == ("a", "b")
    assert mirroring.target(ALL, nodes("ab", "c", witness="w")) == 3


# --- where it should be later ---


@pytest.mark.parametrize(
    ("found", "now", "live", "dead", "held", "wanted"),
    [
        (ALL, view("ab"), "abcd", "", "", "abcd"),
        (ALL, view("ab"), "ac", "b", "", "abc"),
        (exactly(2), view("ab"), "abc", "", "", "ab"),
        (exactly(3), view("ab", "c"), "abcd", "", "", "abc"),
        (exactly(2), view("ab"), "ac", "b", "b", "ab"),
        (exactly(2), view("ab"), "ac", "b", "", "ac"),
        (exactly(2), view("a"), "ac", "b", "b", "a"),
        (exactly(2), view("a"), "ac", "b", "", "ac"),
        (exactly(2), view("abc"), "abc", "", "", "ab"),
        (exactly(3), view("abd", "c"), "abcd", "", "", "abd"),
        (exactly(2), view("ab", "c"), "ac", "b", "", "ac"),
        (on("a", "c"), view("ab"), "abc", "", "", "ac"),
        (on("b", "c"), view("a"), "abc", "", "", "bc"),
        (on("b", "c"), view("a"), "ab", "c", "", "b"),
        (on("x"), view("ab"), "ab", "", "", "a"),
        (Mirroring("none"), view("ab", "c"), "abc", "", "", "a"),
    ],
)
def test_the_wanted_nodes_follow_the_policy_and_keep_what_is_there(
    found: Mirroring, now: View, live: str, dead: str, held: str, wanted: str
) -> None:
    assert mirroring.wanted(found, now, nodes(live, dead), dict.fromkeys(held, 0), {}) == tuple(wanted)


# --- steps ---


def step(found: Mirroring, now: View, live: str = "abcd", dead: str = "") -> Step | None:
    them = nodes(live, dead)
    return mirroring.next_step(
        now, mirroring.wanted(found, now, them, {}, {}), mirroring.target(found, them), them
    )


@pytest.mark.parametrize(
    ("found", "now", "wanted"),
    [
        (ALL, view("abcd"), None),
        (ALL, view("ab", "cd"), None),
        (ALL, view("abc"), Step("add_learner", "d", 1)),
        (exactly(2), view("abc"), Step("remove", "c")),
        (exactly(2), view("ab", "c"), Step("remove_learner", "c")),
        (on("a", "c"), view("ab"), Step("add_learner", "c", 1)),
        (on("a", "c"), view("ab", "c"), None),
        (on("a", "c"), view("abc"), Step("remove", "b")),
        (on("b", "c"), view("ab"), Step("add_learner", "c", 1)),
        (on("b", "c"), view("ab", "c"), Step("transfer", "b")),
        (on("b", "c"), view("ba", "c"), None),
        (on("b", "c"), view("bac"), Step("remove", "a")),
        (on("b", "c"), view("a", "bc"), None),
        (Mirroring("none"), view("ab", "c"), Step("remove_learner", "c")),
        (Mirroring("none"), view("ab"), Step("remove", "b")),
        (Mirroring("none"), view("a"), None),
    ],
)
def test_the_next_step_adds_before_it_takes_away(found: Mirroring, now: View, wanted: Step | None) -> None:
    assert step(found, now) == wanted


def test_a_copy_is_kept_while_the_one_that_is_to_replace_it_is_dead() -> None:
    assert step(on("a", "c"), view("ab"), live="ab", dead="c") is None
    assert step(on("a", "c"), view("abc"), live="ab", dead="c") is None


def test_a_restarted_member_does_not_count_as_a_copy_in_sync() -> None:
    now = View("/", "q", 7, 7, 1, "a", (Member("a", 1), Member("b", 1), Member("c", 1, is_restarted=True)))
    assert step(on("a", "c"), now) is None


def test_a_master_moves_by_a_copy_that_is_synchronised_first() -> None:
    them = nodes("abc", "d")
    assert mirroring.move_step(view("a"), "b", them) == Step("add_learner", "b", 1)
    assert mirroring.move_step(view("a", "b"), "b", them) is None
    assert mirroring.move_step(view("ab"), "b", them) == Step("transfer", "b")
    assert mirroring.move_step(view("ba"), "b", them) is None
    assert mirroring.move_step(view("a"), "d", them) is None


POLICIES = st.sampled_from([ALL, exactly(1), exactly(2), exactly(3), on("a", "b"), on("c"), on("d", "c")])


@given(st.lists(st.tuples(POLICIES, st.sampled_from("abcd"), st.integers(1, 12)), min_size=1, max_size=6))
def test_any_sequence_of_policies_converges_without_fewer_copies_on_the_way(
    phases: list[tuple[Mirroring, str, int]],
) -> None:
    state = cluster("a", "b", "c", "d")
    declare_mirrored(state, "q", "a")
    for number, (found, flaky, patience) in enumerate(phases):
        is_last = number == len(phases) - 1
        if not is_last and state.views["/", "q"].master != flaky:
            must(state, c.NodeDead(flaky, 1, returns=state.nodes[flaky].returns))
        for _ in range(40 if is_last else patience):
            converge(state, found)
        must(state, c.NodeReturned(flaky, 1))
    found = phases[-1][0]
    for _ in range(40):
        converge(state, found)
    now = state.views["/", "q"]
    assert not now.learners
    assert len(now.members) == mirroring.target(found, state.nodes)
    if found.mode == "nodes":
        assert {entry.node for entry in now.members} == set(found.nodes)
    metakit.check_indexes(state)


def converge(state: MetaState, found: Mirroring) -> None:
    """One step of the master, which admits learners as soon as it can."""
    now = state.views["/", "q"]
    for learner in now.learners:
        if state.nodes[learner.node].is_live:
            now = changed(state, "q", "admit", learner.node)
    goal = mirroring.target(found, state.nodes)
    wanted = mirroring.wanted(found, now, state.nodes, {}, {})
    taken = mirroring.next_step(now, wanted, goal, state.nodes)
    if taken is None:
        return
    after = changed(state, "q", taken.change, taken.node, start=taken.start)
    live = [entry for entry in after.members if state.nodes[entry.node].is_live]
    before = [entry for entry in now.members if state.nodes[entry.node].is_live]
    assert len(live) >= min(len(before), goal), "fewer copies than before"


@pytest.mark.parametrize(
    ("more", "may"),
    [
        ({}, True),
        ({"ha-promote-on-failure": "always"}, False),
        ({"ha-promote-on-shutdown": "always"}, False),
        ({"ha-replication": "async"}, False),
        ({"ha-replication": "async", "ha-promote-on-failure": "when-synced"}, False),
    ],
)
def test_a_master_may_act_without_a_lease_only_if_nobody_takes_over_with_a_loss(
    more: dict[str, str], may: bool
) -> None:
    assert mirroring.may_waive(mirroring.settings(QUEUE, {"ha-mode": "all", **more}, "safe")) == may
