"""Promises about views that hold after any commands in any order, and what a command costs at most."""

import random
import sys
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrormq.meta import commands as c
from mirrormq.meta import mirroring, views
from mirrormq.meta.records import FORGOTTEN, Member, Node, Policy, Queue, View
from mirrormq.meta.state import MetaState, Outcome
from tests.support import metakit
from tests.support.metakit import must

NODES = ("a", "b", "c", "d")
QUEUES = ("q", "r", "t")
POLICIES: tuple[dict[str, Any], ...] = (
    {"ha-mode": "all"},
    {"ha-mode": "all", "ha-promote-on-failure": "always"},
    {"ha-mode": "all", "ha-promote-on-shutdown": "always"},
    {"ha-mode": "all", "ha-promote-on-shutdown": "always", "ha-promote-on-failure": "when-synced"},
)
CHANGES: tuple[c.ViewChange, ...] = (
    *("add_learner", "admit", "add_learner", "admit", "remove_learner"),
    *("demote", "remove", "transfer", "renew", "stop"),
)
EVENTS = ("dead", "returned", "restarted", "waited", "force", "forget", "join", "policy", "delete", "alone")


class Wish(NamedTuple):
    """What somebody wants to happen; `late` times it comes for a view, node or start that is over."""

    what: str
    queue: str
    node: str
    number: int
    late: int


WISHES = st.builds(
    Wish,
    st.sampled_from((*CHANGES, *CHANGES, *EVENTS[:5], *EVENTS, "declare", "declare", "begin", "batch")),
    st.sampled_from(QUEUES),
    st.sampled_from(NODES),
    st.integers(0, 11),
    st.sampled_from((0, 0, 0, 0, 0, 1)),
)


def command_of(state: MetaState, wish: Wish) -> c.Command | None:
    """The command that somebody would give who knows the state, or knew it a moment ago."""
    start = state.nodes[wish.node].start - wish.late if wish.node in state.nodes else 1
    defaults: c.HaDefaults = "safe" if wish.number % 3 else "rabbitmq"
    queue = state.queues.get(("/", wish.queue))
    node_commands: dict[str, c.Command] = {
        "dead": c.NodeDead(wish.node, start, defaults),
        "returned": c.NodeReturned(wish.node, start),
        "restarted": c.NodeRestarted(wish.node, alone=False, start=start + 1),
        "waited": c.PromoteRestarted(wish.node, start, defaults),
        "forget": c.ForgetNode(wish.node),
        "join": c.PutNode(Node(wish.node, start=wish.number, role="witness" if wish.late else "voter")),
        "policy": c.SetPolicy(Policy("/", "p", ".*", POLICIES[wish.number % len(POLICIES)])),
        "delete": c.DeleteQueue("/", wish.queue),
        "force": c.ForcePromote("/", wish.queue, node="" if wish.number % 2 else wish.node),
        "alone": c.NodeRestarted(wish.node, alone=True, start=start + 1),
    }
    if wish.what in node_commands:
        return node_commands[wish.what]
    if wish.what == "declare":
        names = [NODES[(NODES.index(wish.node) + step) % 4] for step in range(wish.number % 4 + 1)]
        placed = tuple(Member(name, state.nodes[name].start) for name in names if name in state.nodes)
        declared = Queue("/", wish.queue, node=wish.node, durable=wish.queue != "t")
        return c.DeclareQueue(declared, members=() if wish.late else placed)
    if queue is None:
        return None
    if wish.what == "batch":
        return c.ChangeViews(
            tuple(
                c.ChangeView("/", view.name, view.id, view.epoch - wish.late, "remove", wish.node)
                for view in state.views_of(wish.node)
            )
        )
    view = state.views.get(queue.identity)
    epoch = (view.epoch if view is not None else 1) - wish.late
    kind: Any = wish.what
    node = queue.node if kind == "begin" else wish.node
    start = state.nodes[node].start if node in state.nodes else 1
    return c.ChangeView("/", wish.queue, queue.id, epoch, kind, node, start, defaults)


class Watch:
    """Follows a state and remembers since which start each member has held everything that was received."""

    def __init__(self, state: MetaState) -> None:
        self.state = state
        self.whole: dict[tuple[int, str], int] = {}

    def apply(self, command: c.Command) -> Outcome:
        """Apply a command and check every promise."""
        before = dict(self.state.views)
        nodes = dict(self.state.nodes)
        queues = dict(self.state.queues)
        outcome = self.state.apply(command)
        for identity, view in self.state.views.items():
            old = before.get(identity)
            old = old if old is not None and old.id == view.id else None
            self.check_alone(view)
            self.check_change(command, old, view, nodes, queues)
            self.remember(old, view)
        for identity in before:
            if identity not in self.state.views:
                assert identity not in self.state.queues, "a view went without its queue"
        return outcome

    def check_alone(self, view: View) -> None:
        """What holds for every view at any time."""
        assert view.members, "nobody is in sync"
        assert view.master == view.members[0].node == self.state.queues[view.identity].node
        names = [entry.node for entry in view.members] + [entry.node for entry in view.learners]
        assert len(names) == len(set(names)), "a node is in the view twice"
        for entry in (*view.members, *view.learners):
            node = self.state.nodes.get(entry.node)
            if entry.start == FORGOTTEN:
                assert view.members == (entry,), "a forgotten node is kept beside others"
            else:
                assert node is not None
                assert entry.start <= node.start
        assert view.since <= view.epoch

    def check_change(
        self,
        command: c.Command,
        old: View | None,
        view: View,
        nodes: dict[str, Node],
        queues: dict[tuple[str, str], Queue],
    ) -> None:
        """What holds for every change."""
        if old is None:
            assert (view.epoch, view.losses) == ((1, 0) if view.identity not in queues else (2, 0))
            return
        assert view.epoch - old.epoch == (view != old), "one epoch per change"
        if isinstance(command, c.ChangeView) and view != old:
            assert (command.id, command.epoch) == (old.id, old.epoch), "a change on top of another epoch"
        if isinstance(command, c.NodeRestarted) and command.alone:
            return
        is_promotion = view.since != old.since
        assert is_promotion or view.master == old.master
        if is_promotion and not isinstance(command, c.ForgetNode):
            assert views.is_live(self.state.nodes, view.members[0]), "a dead node was promoted"
        if is_promotion and view.drops_transient and view.losses == old.losses:
            self.check_wait(command, old)
        if old.members[0].start == FORGOTTEN and view.losses == old.losses:
            assert view.members == old.members, "a new node is taken for a forgotten one"
        known = {(e.node, e.start) for e in old.members} | {(e.node, e.start) for e in old.learners}
        for entry in (*view.members, *view.learners):
            is_added = (entry.node, entry.start) not in known and entry.start != FORGOTTEN
            assert not is_added or views.is_live(self.state.nodes, entry), "added for a start that is over"
        if view.losses > old.losses:
            self.check_loss(command, old, view, nodes)
        else:
            added = {e.node for e in view.members} - {e.node for e in old.members}
            assert not added or (isinstance(command, c.ChangeView) and command.change == "admit")
            gone = {e.node for e in old.members} - {e.node for e in view.members}
            assert not gone or self.may_remove(command, old, nodes)

    def check_wait(self, command: c.Command, old: View) -> None:
        """A restarted member takes over if nobody better is live, or may come back and was not waited for."""
        for entry in old.members:
            node = self.state.nodes.get(entry.node)
            if entry.is_restarted or node is None or node.start != entry.start:
                continue
            assert not node.is_live, "a restarted member was preferred"
            assert isinstance(command, c.PromoteRestarted | c.ForcePromote), "nobody waited for a better one"

    def may_remove(self, command: c.Command, old: View, nodes: dict[str, Node]) -> bool:
        """Only a live master, an operator, or a restart of what only memory held."""
        if isinstance(command, c.NodeRestarted):
            return not self.state.queues[old.identity].durable
        if isinstance(command, c.ChangeView | c.ChangeViews):
            return views.has_master(nodes, old)
        return isinstance(command, c.ForgetNode)

    def check_loss(self, command: c.Command, old: View, view: View, nodes: dict[str, Node]) -> None:
        """A loss is allowed, unavoidable, counted once and remembered."""
        assert view.losses == old.losses + 1
        assert old.learner(view.master) is not None
        assert {e.node for e in old.members if e.start != FORGOTTEN} <= {e.node for e in view.last_in_sync}
        master = old.members[0]
        for entry in old.members:
            is_going = isinstance(command, c.ChangeView) and command.change == "stop" and entry == master
            assert is_going or not views.is_live(self.state.nodes, entry), "somebody in sync was passed over"
        if isinstance(command, c.ForcePromote):
            return
        assert isinstance(command, c.NodeDead | c.PromoteRestarted | c.ChangeView)
        queue = self.state.queues[view.identity]
        found = mirroring.mirroring_of(self.state, queue, command.ha_defaults)
        is_stopped = old.is_stopped or isinstance(command, c.ChangeView)
        assert mirroring.may_lose(found, is_stopped=is_stopped)

    def remember(self, old: View | None, view: View) -> None:
        """A member that is not marked as restarted has not been restarted since it was let in."""
        for entry in view.members:
            key = (view.id, entry.node)
            was = old.member(entry.node) if old is not None else None
            is_promotion = old is not None and view.since != old.since and entry is view.members[0]
            is_taken_back = was is not None and was.is_restarted and not entry.is_restarted
            if was is None or is_taken_back or (is_promotion and view.drops_transient):
                assert not is_taken_back or not is_promotion or view.drops_transient
                self.whole[key] = entry.start
            elif not entry.is_restarted and entry.start != FORGOTTEN:
                assert self.whole[key] == entry.start, "a restarted member passes for an unchanged one"


def check_all(wishes: list[Wish]) -> MetaState:
    watch = Watch(metakit.cluster(*NODES))
    for wish in wishes:
        command = command_of(watch.state, wish)
        if command is None:
            continue
        watch.apply(command)
        if isinstance(command, c.NodeDead):
            assert watch.apply(command).changes == []
    metakit.check_indexes(watch.state)
    metakit.check_references(watch.state)
    return watch.state


@given(st.lists(WISHES, max_size=60))
@settings(max_examples=50)
def test_views_keep_their_promises_after_any_commands(wishes: list[Wish]) -> None:
    state = check_all(wishes)
    restored = MetaState()
    restored.restore(state.snapshot())
    assert metakit.contents(restored) == metakit.contents(state)


def long_story(seed: int) -> list[Wish]:
    """Many wishes, seldom one that ends everything: evenly drawn ones go deeper than those that shrink."""
    draw = random.Random(seed)
    wishes = []
    for _ in range(120):
        what = draw.choice(
            (*CHANGES, *CHANGES, *EVENTS[:5], *EVENTS[:5], *EVENTS, "declare", "begin", "batch")
        )
        if what not in ("forget", "delete", "alone", "join") or draw.random() < 0.2:
            late = draw.random() < 0.1
            wishes.append(Wish(what, draw.choice(QUEUES), draw.choice(NODES), draw.randrange(12), int(late)))
    return wishes


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_views_keep_their_promises_through_long_stories(first: int) -> None:
    for seed in range(first, first + 100):
        check_all(long_story(seed))


@pytest.mark.slow
def test_every_queue_has_a_master_once_all_nodes_are_back_and_waiting_is_over() -> None:
    for seed in range(1_000, 1_100):
        state = check_all(long_story(seed))
        for node in list(state.nodes.values()):
            must(state, c.NodeRestarted(node.name, alone=False, start=node.start + 1))
        for name, start in views.waiting(state).items():
            must(state, c.PromoteRestarted(name, start))
        for view in state.views.values():
            assert views.has_master(state.nodes, view) or view.members[0].start == FORGOTTEN


# --- cost ---


def mirrored(count: int) -> MetaState:
    """So many queues with their master on node a, in sync on b and c; and some that node a has no part in."""
    state = metakit.cluster("a", "b", "c", "d")
    for number in range(count):
        metakit.declare_mirrored(state, f"q{number}", "a", "b", "c")
    for number in range(50):
        metakit.declare_mirrored(state, f"other{number}", "d", "b")
    return state


def calls_of(state: MetaState, command: c.Command) -> int:
    """How many functions a command calls: like its time, but the same on every machine."""
    calls = 0

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    earlier = sys.getprofile()
    sys.setprofile(count)
    try:
        state.execute(command)
    finally:
        sys.setprofile(earlier)
    return calls


@pytest.mark.parametrize(
    ("command", "most"),
    [
        (c.NodeDead("a", 1), 60),
        (c.NodeRestarted("a", alone=False, start=2), 70),
        (c.NodeRestarted("b", alone=False, start=2), 50),
        (c.NodeReturned("b", 1), 10),
        (c.ForgetNode("a"), 80),
    ],
)
def test_what_a_node_event_costs_per_queue_does_not_grow_with_their_number(
    command: c.Command, most: int
) -> None:
    few, many = calls_of(mirrored(100), command), calls_of(mirrored(300), command)
    per_queue = (many - few) / 200
    assert per_queue <= most
    assert few <= per_queue * 100 + 2_000, "there is more to it than the queues of the node"
