"""Two nodes that dial each other end up with one link, the same for both, in every order of events."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from mirrormq.peer.card import Card, PeerInfo
from mirrormq.peer.faults import Code, PeerFault
from mirrormq.peer.link import Down, Link, Loss, Opened, Refused
from mirrormq.peer.table import LinkTable
from tests.support.peerkit import SECRET, START, SeededRng, card, welcome_all


class Node:
    """A node as the runtime runs it: links by number, a table, and what its owner was told."""

    def __init__(self, name: str) -> None:
        self.me = card(name)
        self.table = LinkTable(self.me, welcome_all)
        self.links: dict[int, Link] = {}
        self.told: list[tuple[str, int]] = []

    def begin(self, number: int, *, is_dialler: bool) -> Link:
        rng = SeededRng(number * 2 + is_dialler)
        link = Link(number, self.me, START, is_dialler=is_dialler, secret=SECRET, judge=self.table, rng=rng)
        self.links[number] = link
        return link

    def hear(self, link: Link) -> None:
        for event in link.take_events():
            if isinstance(event, Opened):
                for number in self.table.rivals(event.peer):
                    other = self.links[number]
                    other.refuse(Code.DUPLICATE, "")
                    other.close("replaced")
                    self.hear(other)
                self.table.opened(event.peer)
                self.told.append(("opened", link.number))
            elif isinstance(event, Down):
                self.table.gone(link.number)
                self.told.append(("down", link.number))
            elif isinstance(event, Refused):
                self.table.gone(link.number)


class World:
    """Two nodes and several connections; each direction of each connection is a queue of its own."""

    def __init__(self) -> None:
        self.nodes = {"a@h": Node("a@h"), "b@h": Node("b@h")}
        self.queues: dict[tuple[int, str], list[bytes | None]] = {}
        self._closed: set[tuple[int, str]] = set()

    def connect(self, number: int, dialler: str) -> None:
        for name, node in self.nodes.items():
            node.begin(number, is_dialler=name == dialler)
            self.queues[number, name] = []
        self._collect()

    def choices(self) -> list[tuple[int, str]]:
        """Connections that have something under way from this node."""
        return sorted(key for key, queue in self.queues.items() if queue)

    def step(self, key: tuple[int, str]) -> None:
        """Deliver what was sent first on a connection: one turn's bytes, or its end."""
        number, sender = key
        receiver = self.nodes["b@h" if sender == "a@h" else "a@h"]
        link = receiver.links[number]
        data = self.queues[key].pop(0)
        if data is None:
            link.lost(Loss.EOF)
        else:
            link.receive(START, memoryview(data))
        receiver.hear(link)
        self._collect()

    def _collect(self) -> None:
        for name, node in self.nodes.items():
            for number, link in node.links.items():
                key = (number, name)
                said = b"".join(piece for pieces in iter(link.take_output, []) for piece in pieces)
                if said and key not in self._closed:
                    self.queues[key].append(said)
                if link.is_closed and key not in self._closed:
                    self._closed.add(key)
                    self.queues[key].append(None)

    def state(self) -> object:
        """All that the rest of the history depends on, and what the owners were told."""
        ends = [
            (name, number, link.state, link._handshake.step)
            for name, node in self.nodes.items()
            for number, link in node.links.items()
        ]
        told = [tuple(node.told) for node in self.nodes.values()]
        under_way = sorted((key, tuple(queue)) for key, queue in self.queues.items())
        return (*ends, *told, *under_way)

    def open_links(self) -> dict[str, list[int]]:
        return {
            name: [number for number, link in node.links.items() if link.is_open]
            for name, node in self.nodes.items()
        }


def histories(make: Callable[[], World]) -> Iterator[World]:
    """Every order in which what is under way can arrive; what was seen before is not followed again."""
    waiting: list[list[int]] = [[]]
    seen: set[object] = set()
    while waiting:
        taken = waiting.pop()
        world = make()
        for choice in taken:
            world.step(world.choices()[choice])
        while world.state() not in seen:
            seen.add(world.state())
            found = world.choices()
            if not found:
                yield world
                break
            waiting += [[*taken, other] for other in range(1, len(found))]
            world.step(found[0])
            taken = [*taken, 0]


def both_dial() -> World:
    world = World()
    world.connect(1, "a@h")
    world.connect(2, "b@h")
    return world


def test_two_nodes_that_dial_each_other_keep_one_link_and_never_change_their_mind() -> None:
    seen = set()
    for world in histories(both_dial):
        links = world.open_links()
        assert links["a@h"] == links["b@h"]
        assert len(links["a@h"]) == 1
        for name, node in world.nodes.items():
            assert node.told == [("opened", links[name][0])], node.told
        seen.add(links["a@h"][0])
    assert seen == {1, 2}, "the second wins only where it was open before the first was proved"


def test_in_lock_step_the_connection_of_the_smaller_name_stays() -> None:
    world = both_dial()
    while found := world.choices():
        for key in found:
            world.step(key)
    assert world.open_links() == {"a@h": [1], "b@h": [1]}


def test_a_node_that_dials_twice_by_two_addresses_keeps_one_link() -> None:
    def twice() -> World:
        world = World()
        world.connect(1, "a@h")
        world.connect(2, "a@h")
        return world

    for world in histories(twice):
        links = world.open_links()
        assert links["a@h"] == links["b@h"]
        assert len(links["a@h"]) == 1
        for node in world.nodes.values():
            assert [what for what, _ in node.told] == ["opened"]


def half_dead(*diallers: str) -> World:
    """Link 9 is open at b@h only: a@h has lost it, and its end is not going to arrive."""
    world = World()
    world.connect(9, "a@h")
    while found := world.choices():
        world.step(found[0])
    a = world.nodes["a@h"]
    a.links[9].lost(Loss.ERROR)
    a.hear(a.links[9])
    world._closed |= {(9, "a@h"), (9, "b@h")}
    assert world.open_links() == {"a@h": [], "b@h": [9]}
    for number, dialler in enumerate(diallers, 1):
        world.connect(number, dialler)
    return world


@pytest.mark.parametrize("diallers", [("a@h",), ("a@h", "a@h"), ("b@h", "a@h")])
def test_a_link_that_only_one_end_still_believes_in_is_replaced(diallers: tuple[str, ...]) -> None:
    for world in histories(lambda: half_dead(*diallers)):
        links = world.open_links()
        # With both dialling, both attempts may give way to each other once; the next attempt decides.
        if len(diallers) == 1 or "b@h" not in diallers:
            assert len(links["a@h"]) == 1
        if links["a@h"]:
            assert links["a@h"] == links["b@h"]
            assert world.nodes["b@h"].told[-2][0] == "down"
            assert world.nodes["b@h"].told[-1][0] == "opened"


def opened(table: LinkTable, peer: Card, number: int = 1) -> None:
    table.on_proof(number, peer)
    table.opened(PeerInfo(peer, number, 1, is_dialled=False))


def test_a_later_start_replaces_an_earlier_one_and_never_the_other_way_round() -> None:
    table = LinkTable(card("a@h"), welcome_all)
    opened(table, card("b@h", counter=5))
    assert table.on_proof(2, card("b@h", counter=6))
    assert table.rivals(PeerInfo(card("b@h", counter=6), 2, 1, is_dialled=False)) == [1]
    with pytest.raises(PeerFault, match="a later start of node b@h"):
        table.on_proof(3, card("b@h", counter=4))


def test_the_layer_above_decides_about_another_identity_under_a_known_name() -> None:
    asked = []

    def verdict(peer: Card, other: Card | None) -> str | None:
        asked.append((peer, other))
        return "forget b@h first" if other is not None and other.identity != peer.identity else None

    table = LinkTable(card("a@h"), verdict)
    known, new = card("b@h"), card("b@h", identity=b"n" * 16)
    opened(table, known)
    with pytest.raises(PeerFault, match="forget b@h first"):
        table.on_proof(2, new)
    assert asked == [(known, None), (new, known)]


def test_open_links_are_listed_by_name() -> None:
    table = LinkTable(card("a@h"), welcome_all)
    for number, name in enumerate(["d@h", "b@h", "c@h"]):
        opened(table, card(name), number)
    assert [peer.name for peer in table.open_links()] == ["b@h", "c@h", "d@h"]
    table.gone(1)
    table.gone(77)
    assert [peer.link for peer in table.open_links()] == [2, 0]
