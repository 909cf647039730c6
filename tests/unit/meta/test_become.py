"""A node that was behind becomes what the others are, as if it had seen everything."""

from __future__ import annotations

from mirrormq.meta import commands
from mirrormq.meta.records import Binding, Exchange, Queue, Record, VHost
from mirrormq.meta.state import MetaState

BINDING = Binding("/", "x", "q", "queue", "k")


def made() -> MetaState:
    state = MetaState()
    state.apply(commands.PutVHost(VHost("/")))
    for command in (
        commands.DeclareExchange(Exchange("/", "x")),
        commands.DeclareQueue(Queue("/", "q")),
        commands.DeclareQueue(Queue("/", "r")),
        commands.Bind(BINDING),
    ):
        assert state.apply(command).ok
    return state


def behind(ahead: MetaState) -> tuple[MetaState, list[tuple[str, Record]]]:
    """A state that has missed the last changes, and what its watchers were told."""
    state = made()
    told = [(change.kind, change.record) for change in state.become(ahead.last_id, list(ahead.records()))]
    return state, told


def test_a_queue_that_was_declared_again_meanwhile_is_another_one() -> None:
    ahead = made()
    old = ahead.queues["/", "q"]
    ahead.apply(commands.DeleteQueue("/", "q"))
    ahead.apply(commands.DeclareQueue(Queue("/", "q")))
    ahead.apply(commands.Bind(BINDING))
    state, told = behind(ahead)
    new = ahead.queues["/", "q"]
    assert told == [("delete", BINDING), ("delete", old), ("put", new), ("put", BINDING)]
    assert state.queues["/", "q"] == new


def test_an_exchange_that_was_declared_again_meanwhile_is_another_one() -> None:
    ahead = made()
    old = ahead.exchanges["/", "x"]
    ahead.apply(commands.DeleteExchange("/", "x"))
    ahead.apply(commands.DeclareExchange(Exchange("/", "x")))
    _, told = behind(ahead)
    assert told == [("delete", BINDING), ("delete", old), ("put", ahead.exchanges["/", "x"])]


def test_the_order_of_definitions_is_that_of_the_others() -> None:
    ahead = made()
    ahead.apply(commands.DeleteQueue("/", "q"))
    ahead.apply(commands.DeclareQueue(Queue("/", "q")))
    state, _ = behind(ahead)
    assert list(state.records()) == list(ahead.records())
    assert list(state.queues_in("/")) == list(ahead.queues_in("/"))
