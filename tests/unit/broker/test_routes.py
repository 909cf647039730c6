"""The router names every queue a message reaches once, in order, and always comes to an end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrormq.broker.exchange import Letter
from mirrormq.broker.routes import Router
from mirrormq.meta.records import Binding, DestinationType, Exchange
from mirrormq.wire.properties import Properties


class Topology:
    """A router with short ways to fill it."""

    def __init__(self, *queues: str) -> None:
        self.queues = dict.fromkeys(queues)
        self.router = Router(self.queues)
        self.router.add_exchange(Exchange("/", "", "direct"))

    def exchange(self, name: str, kind: str = "fanout", alternate: str | None = None) -> None:
        self.router.add_exchange(Exchange("/", name, kind), alternate)

    def bind(self, source: str, destination: str, key: str = "", to: DestinationType = "queue") -> Binding:
        binding = Binding("/", source, destination, to, key)
        self.router.bind(binding)
        return binding

    def route(self, exchange: str, *keys: bytes) -> list[str]:
        return self.router.route(exchange, Letter(keys or (b"",))).queues


def test_a_missing_exchange_is_told_from_one_without_bindings() -> None:
    topology = Topology("q")
    topology.exchange("x")
    assert topology.router.route("nope", Letter((b"",))) == ([], False, True)
    assert topology.router.route("x", Letter((b"",))) == ([], True, True)


def test_the_default_exchange_reaches_existing_queues_by_name() -> None:
    topology = Topology("q", "r")
    assert topology.route("", b"q") == ["q"]
    assert topology.route("", b"nope") == []
    assert topology.route("", b"r", b"q", b"r") == ["q", "r"]


def test_a_queue_reached_in_several_ways_is_named_once_and_in_order() -> None:
    topology = Topology("b", "a", "c")
    topology.exchange("x", "topic")
    topology.exchange("y")
    for pattern in ("#", "k.*"):
        topology.bind("x", "c", pattern)
        topology.bind("x", "b", pattern)
    topology.bind("x", "y", "#", "exchange")
    topology.bind("y", "a")
    topology.bind("y", "b")
    assert topology.route("x", b"k.1", b"k.2") == ["a", "b", "c"]


def test_the_order_does_not_depend_on_the_order_of_the_bindings() -> None:
    for order in (("q1", "q2", "q3"), ("q3", "q1", "q2")):
        topology = Topology(*order)
        topology.exchange("x", "topic")
        for queue in order:
            topology.bind("x", queue, "#")
        assert topology.route("x", b"k") == ["q1", "q2", "q3"]


def test_exchange_bindings_are_followed_through_cycles() -> None:
    topology = Topology("q")
    topology.exchange("x")
    topology.exchange("y", "direct")
    topology.exchange("z")
    topology.bind("x", "y", "", "exchange")
    topology.bind("y", "z", "k", "exchange")
    topology.bind("z", "x", "", "exchange")
    topology.bind("z", "z", "", "exchange")
    topology.bind("z", "q")
    assert topology.route("x", b"k") == ["q"]
    assert topology.route("x", b"other") == []
    assert topology.route("z", b"anything") == ["q"]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30))
def test_routing_reaches_exactly_what_is_connected(edges: list[tuple[int, int]]) -> None:
    topology = Topology(*(f"q{i}" for i in range(6)))
    for i in range(6):
        topology.exchange(f"x{i}")
        topology.bind(f"x{i}", f"q{i}")
    for source, destination in set(edges):
        topology.bind(f"x{source}", f"x{destination}", "", "exchange")
    reached = {0}
    while more := {b for a, b in edges if a in reached} - reached:
        reached |= more
    assert topology.route("x0") == sorted(f"q{i}" for i in reached)


@pytest.mark.timeout(10)
def test_a_long_chain_of_exchanges_needs_no_stack() -> None:
    topology = Topology("q")
    for i in range(5000):
        topology.exchange(f"x{i}")
    for i in range(4999):
        topology.bind(f"x{i}", f"x{i + 1}", "", "exchange")
    topology.bind("x4999", "q")
    assert topology.route("x0") == ["q"]


def test_an_alternate_exchange_gets_what_cannot_be_routed() -> None:
    topology = Topology("q", "lost")
    topology.exchange("x", "direct", alternate="ae")
    topology.exchange("ae")
    topology.bind("x", "q", "k")
    topology.bind("ae", "lost")
    assert topology.route("x", b"k") == ["q"]
    assert topology.route("x", b"other") == ["lost"]


def test_an_alternate_exchange_is_not_asked_if_a_binding_matched_but_leads_nowhere() -> None:
    topology = Topology("lost")
    topology.exchange("x", "direct", alternate="ae")
    topology.exchange("empty")
    topology.exchange("ae")
    topology.bind("x", "empty", "k", "exchange")
    topology.bind("ae", "lost")
    assert topology.route("x", b"k") == []


def test_alternate_exchanges_may_form_a_chain_a_cycle_or_be_missing() -> None:
    topology = Topology("q")
    topology.exchange("x", alternate="y")
    topology.exchange("y", alternate="x")
    topology.exchange("z", alternate="nope")
    assert topology.route("x") == []
    assert topology.route("z") == []
    topology.bind("y", "q")
    assert topology.route("x") == ["q"]


def test_an_alternate_exchange_can_be_changed_later() -> None:
    topology = Topology("q")
    topology.exchange("x")
    topology.exchange("ae")
    topology.bind("ae", "q")
    topology.router.set_alternate("x", "ae")
    assert topology.route("x") == ["q"]
    topology.router.set_alternate("x", None)
    assert topology.route("x") == []


def test_removed_bindings_queues_and_exchanges_are_out_at_once() -> None:
    topology = Topology("q", "r")
    topology.exchange("x", "direct")
    topology.exchange("y")
    first = topology.bind("x", "q", "k")
    topology.bind("x", "r", "k")
    onward = topology.bind("x", "y", "k", "exchange")
    topology.router.unbind(first)
    assert topology.route("x", b"k") == ["r"]
    del topology.queues["r"]
    assert topology.route("x", b"k") == []
    topology.router.unbind(onward)
    topology.router.remove_exchange("y")
    assert topology.router.place("y") is None
    assert topology.router.place("x") is not None


def test_a_walk_is_keyed_unless_it_met_headers_or_an_alternate_exchange() -> None:
    topology = Topology("q")
    topology.exchange("x", "direct", alternate="ae")
    topology.exchange("h", "headers")
    topology.exchange("ae")
    topology.bind("x", "q", "k")
    topology.bind("x", "h", "h", "exchange")

    def keyed(key: bytes) -> bool:
        return topology.router.route("x", Letter((key,), Properties())).keyed

    assert keyed(b"k")
    assert not keyed(b"h")
    assert not keyed(b"unrouted")


@pytest.mark.timeout(20)
def test_ten_thousand_bindings_of_each_kind_come_and_go_without_quadratic_cost() -> None:
    topology = Topology()
    topology.exchange("d", "direct")
    topology.exchange("t", "topic")
    topology.exchange("c", "x-consistent-hash")
    bindings = []
    for i in range(10_000):
        topology.queues[f"q{i}"] = None
        bindings += [
            topology.bind("d", f"q{i}", f"k{i}"),
            topology.bind("t", f"q{i}", f"*.{i}.#"),
            topology.bind("c", f"q{i}", "1"),
        ]
    assert topology.route("d", b"k77") == ["q77"]
    assert topology.route("t", b"a.77.b") == ["q77"]
    assert len(topology.route("c", b"k")) == 1
    for binding in bindings:
        topology.router.unbind(binding)
    assert topology.route("t", b"a.77.b") == []
