"""The promises of `Coordination` as tests that any back end must pass.

A back end makes a class of `CoordinationContract` with a fixture `group` and gets all tests; nothing in here
knows how nodes come to agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mirrormq.cluster.coordination import Coordination, Leadership
from mirrormq.meta import commands as c
from mirrormq.meta import records as r
from mirrormq.meta.state import Outcome
from mirrormq.meta.tables import Change


class Group(Protocol):
    """Nodes that agree."""

    @property
    def names(self) -> list[str]:
        """All nodes."""
        ...

    def node(self, name: str) -> Coordination:
        """One node's access, the same object as long as it lives."""
        ...

    def until(self, is_so: Callable[[], bool]) -> None:
        """Let everybody go on until something is so; fails if it never is."""
        ...

    def settle(self) -> None:
        """Let everybody go on until nothing is on its way."""
        ...

    def change_leader(self) -> None:
        """Have another node lead, if there is one."""
        ...


class CoordinationContract:
    """The tests."""

    def put(self, group: Group, name: str, vhost: str, *, wait: bool = True) -> list[Outcome]:
        return self.propose(group, name, c.PutVHost(r.VHost(vhost)), wait=wait)

    def propose(self, group: Group, name: str, command: c.Command, *, wait: bool = True) -> list[Outcome]:
        heard: list[Outcome] = []
        group.node(name).propose(command, heard.append, wait)
        return heard

    def carry_out(self, group: Group, name: str, command: c.Command) -> Outcome:
        heard = self.propose(group, name, command)
        group.until(lambda: bool(heard))
        return heard[0]

    def vhosts(self, group: Group, name: str) -> list[str]:
        return list(group.node(name).state.vhosts)

    def is_everywhere(self, group: Group, vhost: str) -> bool:
        return all(vhost in group.node(name).state.vhosts for name in group.names)

    # --- commands ---

    def test_a_command_of_any_node_is_told_once_and_applied_on_all(self, group: Group) -> None:
        for name in group.names:
            heard = self.put(group, name, f"from {name}")
            group.until(lambda heard=heard: bool(heard))
            assert f"from {name}" in self.vhosts(group, name), "told before it was applied here"
            group.settle()
            assert [outcome.ok for outcome in heard] == [True]
            assert self.is_everywhere(group, f"from {name}")

    def test_commands_of_a_node_are_applied_in_the_order_it_made_them(self, group: Group) -> None:
        wanted = [f"v{number:02}" for number in range(30)]
        for number, vhost in enumerate(wanted):
            self.put(group, group.names[-1], vhost, wait=number % 2 == 0)
        group.settle()
        assert [self.vhosts(group, name) for name in group.names] == [wanted] * len(group.names)

    def test_all_nodes_apply_commands_in_one_order(self, group: Group) -> None:
        for number in range(10):
            for name in group.names:
                self.put(group, name, f"{name} {number}")
        group.settle()
        orders = [self.vhosts(group, name) for name in group.names]
        assert len(orders[0]) == 10 * len(group.names)
        assert all(order == orders[0] for order in orders)

    def test_a_refused_command_changes_nothing_and_says_why(self, group: Group) -> None:
        command = c.DeclareExchange(r.Exchange("missing", "x", type="direct"))
        outcome = self.carry_out(group, group.names[-1], command)
        assert (outcome.ok, outcome.error, outcome.changes) == (False, "no_vhost", [])

    def test_commands_that_were_under_way_when_the_leader_changed_are_told_once(self, group: Group) -> None:
        heard = [self.put(group, name, f"{name} {at}") for at in range(5) for name in group.names]
        group.change_leader()
        heard += [self.put(group, name, f"{name} late") for name in group.names]
        group.settle()
        assert [len(one) for one in heard] == [1] * len(heard)
        assert all(self.is_everywhere(group, f"{name} late") for name in group.names)

    # --- guarded transactions ---

    def test_a_transaction_whose_guards_hold_happens_as_a_whole(self, group: Group) -> None:
        self.carry_out(group, group.names[0], c.PutVHost(r.VHost("a")))
        guards = (c.Guard("vhost", ("a",)), c.Guard("vhost", ("b",), present=False))
        inner = (c.DeleteVHost("a"), c.PutVHost(r.VHost("b")))
        assert self.carry_out(group, group.names[-1], c.Transaction(guards, inner)).ok
        group.settle()
        assert [self.vhosts(group, name) for name in group.names] == [["b"]] * len(group.names)

    def test_a_transaction_with_one_guard_that_does_not_hold_changes_nothing(self, group: Group) -> None:
        guards = (c.Guard("vhost", ("a",), present=False), c.Guard("user", ("nobody",)))
        outcome = self.carry_out(group, group.names[-1], c.Transaction(guards, (c.PutVHost(r.VHost("a")),)))
        assert (outcome.ok, outcome.error) == (False, "guard")
        assert self.vhosts(group, group.names[-1]) == []

    def test_a_transaction_that_fails_half_way_changes_nothing(self, group: Group) -> None:
        inner = (c.PutVHost(r.VHost("a")), c.DeleteVHost("missing"))
        assert not self.carry_out(group, group.names[-1], c.Transaction((), inner)).ok
        group.settle()
        assert all(self.vhosts(group, name) == [] for name in group.names)

    def test_of_transactions_that_exclude_each_other_one_happens(self, group: Group) -> None:
        guard = c.Guard("global-parameter", ("owner",), present=False)
        heard = [
            self.propose(group, name, c.Transaction((guard,), (c.SetGlobalParameter("owner", name),)))
            for name in group.names
        ]
        group.until(lambda: all(heard))
        group.settle()
        winners = [name for name, one in zip(group.names, heard, strict=True) if one[0].ok]
        assert len(winners) == 1
        for name in group.names:
            assert group.node(name).state.global_parameters["owner"].value == winners[0]

    # --- bulk commands ---

    def test_a_bulk_command_is_one_command_with_the_same_effect_on_all(self, group: Group) -> None:
        first = group.names[0]
        self.carry_out(group, first, c.PutVHost(r.VHost("/")))
        for number in range(5):
            queue = r.Queue("/", f"q{number}", exclusive=True, owner=9, node=first)
            assert self.carry_out(group, first, c.DeclareQueue(queue)).ok
        group.settle()
        told: list[list[Change]] = []
        group.node(group.names[-1]).state.watch(told.append)
        assert self.carry_out(group, group.names[-1], c.ConnectionGone(9, first)).ok
        group.settle()
        assert all(not group.node(name).state.queues for name in group.names)
        assert len(told) == 1, "watchers hear of it as one"

    # --- reads ---

    def test_a_read_anywhere_sees_what_was_told_done_anywhere_before(self, group: Group) -> None:
        for number in range(6):
            writer = group.names[number % len(group.names)]
            assert self.carry_out(group, writer, c.PutVHost(r.VHost(f"v{number}"))).ok
            assert all(self.seen(group, name, f"v{number}") for name in group.names)

    def seen(self, group: Group, name: str, vhost: str) -> bool:
        """Does a read on that node see the vhost?"""
        found: list[bool] = []
        group.node(name).read(lambda: found.append(vhost in group.node(name).state.vhosts))
        group.until(lambda: bool(found))
        return found[0]

    def test_a_read_is_told_once_even_if_the_leader_changes_meanwhile(self, group: Group) -> None:
        told: list[str] = []
        for name in group.names:
            group.node(name).read(lambda name=name: told.append(name))
        group.change_leader()
        group.until(lambda: len(told) >= len(group.names))
        group.settle()
        assert sorted(told) == sorted(group.names)

    # --- watching ---

    def test_watchers_on_all_nodes_hear_the_same_changes_in_the_same_order(self, group: Group) -> None:
        heard: dict[str, list[str]] = {name: [] for name in group.names}
        for name in group.names:
            group.node(name).state.watch(
                lambda changes, name=name: heard[name].extend(
                    f"{change.kind} {change.record.identity}" for change in changes
                )
            )
        for number in range(5):
            for name in group.names:
                self.put(group, name, f"{name} {number}")
        self.propose(group, group.names[0], c.DeleteVHost(f"{group.names[0]} 0"))
        group.settle()
        assert heard[group.names[0]]
        assert all(one == heard[group.names[0]] for one in heard.values())

    # --- leadership ---

    def test_all_nodes_know_the_same_leader_and_term(self, group: Group) -> None:
        group.until(lambda: len({group.node(name).leadership for name in group.names}) == 1)
        assert group.node(group.names[0]).leadership.leader in group.names

    def test_a_change_of_leader_is_told_with_a_higher_term(self, group: Group) -> None:
        told: dict[str, list[Leadership]] = {name: [] for name in group.names}
        before = group.node(group.names[0]).leadership
        for name in group.names:
            group.node(name).on_leadership = told[name].append
        group.change_leader()
        group.settle()
        for name in group.names:
            terms = [one.term for one in told[name]]
            assert terms == sorted(terms)
            now = group.node(name).leadership
            assert now.leader
            assert now == before or (now.term > before.term and told[name][-1] == now)

    def test_a_term_has_one_leader(self, group: Group) -> None:
        told: list[Leadership] = []
        for name in group.names:
            group.node(name).on_leadership = told.append
        for _ in range(4):
            group.change_leader()
            group.settle()
        leaders = {(one.term, one.leader) for one in told if one.leader}
        assert len({term for term, _ in leaders}) == len(leaders)
