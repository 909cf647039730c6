"""Connections are looked at once after every tick, few in one pass, however many there are."""

from __future__ import annotations

import pytest

from mirrormq.base import limits
from mirrormq.broker.connection import Connection
from tests.support.nodekit import NodeKit


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The connections that were looked at, in order."""
    found: list[int] = []
    look = Connection.on_tick

    def on_tick(connection: Connection) -> None:
        found.append(connection.conn_id)
        look(connection)

    monkeypatch.setattr(limits, "tick_connections", 2)
    monkeypatch.setattr(Connection, "on_tick", on_tick)
    return found


def test_a_pass_looks_at_few_of_many_connections_and_all_have_their_turn(looked: list[int]) -> None:
    kit = NodeKit()
    for _ in range(5):
        kit.client()
    kit.node.tick(kit.now)
    assert not looked
    counts = []
    while kit.node.beats.needs_pass:
        before = len(looked)
        kit.node.end_pass(kit.now)
        counts.append(len(looked) - before)
    assert max(counts) == limits.tick_connections
    assert sorted(looked) == sorted(kit.node.connections)


def test_a_single_connection_is_looked_at_by_the_tick_itself(looked: list[int]) -> None:
    kit = NodeKit()
    kit.client()
    kit.node.tick(kit.now)
    assert len(looked) == 1
    assert not kit.node.beats.needs_pass


def test_a_connection_that_closes_before_its_turn_is_passed_over(looked: list[int]) -> None:
    kit = NodeKit()
    clients = [kit.client() for _ in range(5)]
    kit.node.tick(kit.now)
    kit.node.end_pass(kit.now)
    clients[-1].close_socket()
    kit.run()
    assert len(looked) == 4


def test_a_tick_during_a_round_lets_it_end_and_asks_for_another(looked: list[int]) -> None:
    kit = NodeKit()
    for _ in range(5):
        kit.client()
    kit.node.tick(kit.now)
    kit.node.end_pass(kit.now)
    kit.node.tick(kit.now)
    kit.run()
    assert sorted(looked) == sorted(2 * list(kit.node.connections))
