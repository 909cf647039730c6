"""A client sees the same answers on the home node as on the master.

Each conversation is held twice: with all clients connected to the queue's master, and with all of them
connected to another node. What they receive must be equal, byte for byte.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from mirrormq.wire import methods
from tests.support.clusterkit import ClusterKit
from tests.support.kernelkit import PERSISTENT, publish, settle_method
from tests.support.nodekit import Client

Talk = Callable[[Client, Client], None]

LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def hear(client: Client) -> list[list[Any]]:
    """Everything received, by channel: there is no order among channels."""
    items = list(client.inbox)
    client.inbox.clear()
    return [[what for where, what in items if where == channel] for channel in range(3)]


def held_on(
    node: str,
    talk: Callable[..., Any],
    *,
    second_node: str = "",
    queue: dict[str, Any] | None = None,
) -> list[Any]:
    """Let two clients of `node` (or the second on another) talk about queue q on `master`."""
    kit = ClusterKit("home", "master")
    owner = kit["master"].client()
    owner.declare("q", **(queue or {}))
    owner.declare("dead")
    first, second = kit[node].client(), kit[second_node or node].client()
    talk(first, second)
    heard = [hear(first), hear(second)]
    left = owner.ask(methods.QueueDeclare(queue="dead", passive=True), methods.QueueDeclareOk)
    assert not kit.cuts, kit.cuts
    return [*heard, left]


def is_same(talk: Callable[..., Any], **more: Any) -> list[Any]:
    here, there = (held_on(node, talk, **more) for node in ("master", "home"))
    assert here == there
    return here


def many(count: int, properties: bytes = b"\x00\x00") -> bytes:
    return b"".join(publish(b"q", b"%d" % number, properties) for number in range(count))


def test_publish_get_ack_and_counts():
    def talk(one: Client, two: Client) -> None:
        one.feed(many(5))
        one.send(methods.QueueDeclare(queue="q", passive=True))
        one.send(methods.BasicGet(queue="q"))
        one.send(methods.BasicGet(queue="q", no_ack=True))
        two.send(methods.QueueDeclare(queue="q", passive=True))
        one.send(methods.BasicAck(1))
        one.send(methods.BasicAck(1))

    assert len(is_same(talk)[0][1]) == 6


def test_getting_from_an_empty_queue():
    is_same(lambda one, two: one.send(methods.BasicGet(queue="q")))


def test_consumers_take_turns_and_prefetch_holds():
    def talk(one: Client, two: Client) -> None:
        one.ask(methods.BasicQos(prefetch_count=2), methods.BasicQosOk)
        one.consume("q", "a")
        two.consume("q", "b", no_ack=True)
        two.feed(many(9))
        one.send(methods.BasicAck(2, True))
        two.feed(many(4))

    is_same(talk)


def test_a_single_active_consumer_is_followed_by_the_next():
    def talk(one: Client, two: Client) -> None:
        one.consume("q", "a")
        two.consume("q", "b")
        two.feed(many(3))
        one.send(methods.BasicCancel("a"))
        two.feed(many(2))

    is_same(talk, queue={"arguments": {"x-single-active-consumer": True}})


def test_priorities_of_consumers_are_respected():
    def talk(one: Client, two: Client) -> None:
        one.ask(methods.BasicQos(prefetch_count=2), methods.BasicQosOk)
        one.consume("q", "low")
        two.ask(methods.BasicQos(prefetch_count=2), methods.BasicQosOk)
        two.consume("q", "high", arguments={"x-priority": 10})
        one.feed(many(6))

    is_same(talk)


def test_exclusive_use_is_refused_with_the_same_error():
    def talk(one: Client, two: Client) -> None:
        one.consume("q", "a", exclusive=True)
        two.send(methods.BasicConsume(queue="q", consumer_tag="b"))
        two.send(methods.ChannelCloseOk())
        one.send(methods.BasicCancel("a"))

    heard = is_same(talk)
    assert heard[1][1][0].reply_code == 403


def test_nack_reject_requeue_and_dead_letters():
    def talk(one: Client, two: Client) -> None:
        one.feed(many(6))
        one.ask(methods.BasicQos(prefetch_count=6), methods.BasicQosOk)
        one.consume("q", "a")
        one.send(methods.BasicNack(1, False, False))
        one.send(methods.BasicReject(2, requeue=True))
        one.send(methods.BasicNack(4, True, True))
        one.send(methods.BasicReject(5, requeue=False))

    heard = is_same(talk, queue={"arguments": LETTERS})
    assert heard[2].message_count == 2


def test_recover_and_channel_close_give_messages_back_in_order():
    def talk(one: Client, two: Client) -> None:
        one.feed(many(4))
        one.consume("q", "a")
        one.send(methods.BasicRecover(requeue=True))
        one.send(methods.ChannelClose(200, "", 0, 0))
        two.consume("q", "b")

    is_same(talk)


def test_a_cancelled_consumer_keeps_what_it_holds():
    def talk(one: Client, two: Client) -> None:
        one.feed(many(4))
        one.ask(methods.BasicQos(prefetch_count=2), methods.BasicQosOk)
        one.consume("q", "a")
        one.send(methods.BasicCancel("a"))
        two.consume("q", "b")
        one.send(methods.BasicAck(1))
        one.send(methods.BasicNack(2, False, True))

    is_same(talk)


def test_limits_of_length_refuse_with_nacks():
    def talk(one: Client, two: Client) -> None:
        one.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
        one.feed(many(5))
        one.send(methods.BasicGet(queue="q", no_ack=True))
        one.feed(many(3))

    arguments = {"x-max-length": 3, "x-overflow": "reject-publish"}
    heard = is_same(talk, queue={"arguments": arguments})
    assert methods.BasicNack(4, False, False) in heard[0][1]


def test_purge_and_delete_with_conditions():
    def talk(one: Client, two: Client) -> None:
        one.feed(many(3))
        one.send(methods.QueuePurge(queue="q"))
        one.feed(many(2))
        one.send(methods.QueueDelete(queue="q", if_empty=True))
        one.send(methods.ChannelCloseOk())
        two.consume("q", "b")
        one.send(methods.ChannelOpen())
        one.send(methods.QueueDelete(queue="q", if_unused=True))
        one.send(methods.ChannelCloseOk())
        one.send(methods.ChannelOpen())
        one.send(methods.QueueDelete(queue="q"))
        one.send(methods.QueueDeclare(queue="q", passive=True))

    heard = is_same(talk)
    assert [what.reply_code for what in heard[0][1] if isinstance(what, methods.ChannelClose)] == [
        406,
        406,
        404,
    ]


def test_an_auto_delete_queue_goes_with_its_last_consumer():
    def talk(one: Client, two: Client) -> None:
        one.consume("q", "a")
        two.consume("q", "b")
        one.send(methods.BasicCancel("a"))
        two.send(methods.BasicCancel("b"))
        one.send(methods.QueueDeclare(queue="q", passive=True))

    assert is_same(talk, queue={"auto_delete": True})[0][1][-1].reply_code == 404


def test_declaring_it_again_compares_and_counts():
    def talk(one: Client, two: Client) -> None:
        one.feed(many(3))
        one.send(methods.QueueDeclare(queue="q"))
        one.send(methods.QueueDeclare(queue="q", durable=True))
        two.send(methods.QueueDeclare(queue="q", exclusive=True))

    is_same(talk)


def test_a_transaction_commits_publishes_and_acks():
    def talk(one: Client, two: Client) -> None:
        two.feed(many(3))
        one.ask(methods.TxSelect(), methods.TxSelectOk)
        one.consume("q", "a")
        one.feed(many(2) + settle_method(80, 2, 1))
        two.send(methods.QueueDeclare(queue="q", passive=True))
        one.send(methods.TxCommit())
        one.send(methods.TxRollback())
        two.send(methods.QueueDeclare(queue="q", passive=True))

    is_same(talk)


def test_a_shared_prefetch_holds_across_consumers():
    def talk(one: Client, two: Client) -> None:
        one.ask(methods.BasicQos(prefetch_count=3, global_=True), methods.BasicQosOk)
        one.consume("q", "a")
        one.feed(many(8))
        one.send(methods.BasicAck(2, True))
        one.send(methods.BasicQos(prefetch_count=5, global_=True))

    is_same(talk)


def test_returned_messages_are_counted_and_dropped_at_the_limit():
    def talk(one: Client, two: Client) -> None:
        one.feed(many(2))
        one.ask(methods.BasicQos(prefetch_count=1), methods.BasicQosOk)
        one.consume("q", "a")
        for tag in range(1, 5):
            one.send(methods.BasicNack(tag, False, True))

    is_same(talk, queue={"durable": True, "arguments": {"x-queue-type": "quorum", "x-delivery-limit": 2}})


def test_messages_of_higher_priority_come_first():
    def talk(one: Client, two: Client) -> None:
        for level in (0, 3, 1, 2):
            one.feed(publish(b"q", b"%d" % level, b"\x08\x00" + bytes((level,))))
        one.consume("q", "a")

    is_same(talk, queue={"arguments": {"x-max-priority": 5}})


def test_large_bodies_are_cut_to_the_frame_max_of_the_client():
    def talk(one: Client, two: Client) -> None:
        one.feed(publish(b"q", b"x" * 300_000))
        one.consume("q", "a")

    assert len(is_same(talk)[0][1][1][1]) == 300_000


def test_an_unroutable_mandatory_message_is_returned_and_confirmed():
    def talk(one: Client, two: Client) -> None:
        one.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
        one.publish("nowhere", b"x", mandatory=True)
        one.publish("q", b"y", mandatory=True)

    is_same(talk)


# --- random conversations -------------------------------------------------------------------------

QUEUES: list[dict[str, Any]] = [
    {},
    {"arguments": {"x-max-length": 6, **LETTERS}},
    {"arguments": {"x-max-length": 5, "x-overflow": "reject-publish"}},
    {"arguments": {"x-max-priority": 3}},
    {"arguments": {"x-single-active-consumer": True}},
    {"durable": True, "arguments": {"x-queue-type": "quorum", "x-delivery-limit": 2, **LETTERS}},
    {"auto_delete": True},
]


class RandomTalk:
    """Random methods of two clients with two channels each, the same for each run of a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, one: Client, two: Client) -> None:
        rng = random.Random(self.seed)
        clients = [one, two]
        for client in clients:
            client.open(2)
            client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk, 2)
        for step in range(60):
            client = rng.choice(clients)
            channel = rng.choice((1, 2))
            if not client.kit.node.connections[client.conn].is_open:
                continue  # a mistake that cost the connection
            self._act(client, channel, rng, step)
            self._reopen(client)

    def _act(self, client: Client, channel: int, rng: random.Random, step: int) -> None:
        action = rng.randrange(14)
        tag = f"t{rng.randrange(3)}-{channel}"
        number = rng.randrange(1, 12)
        if action <= 3:
            properties = rng.choice((b"\x00\x00", PERSISTENT, b"\x08\x00" + bytes((rng.randrange(5),))))
            count = rng.randrange(1, 5)
            bodies = [b"%d.%d" % (step, at) for at in range(count)]
            client.feed(b"".join(publish(b"q", body, properties, channel=channel) for body in bodies))
        elif action == 4:
            client.send(
                methods.BasicQos(prefetch_count=rng.randrange(4), global_=rng.random() < 0.3), channel
            )
        elif action == 5:
            no_ack = rng.random() < 0.3
            if tag in client.kit.node.connections[client.conn].channels[channel].consumers:
                return
            client.send(methods.BasicConsume(queue="q", consumer_tag=tag, no_ack=no_ack), channel)
        elif action == 6:
            client.send(methods.BasicCancel(tag), channel)
        elif action in (7, 8):
            # An unknown tag would close the channel every time: that is left to one action in ten.
            core = self._core(client, channel)
            if core.has(number, False) or rng.random() < 0.1:
                client.feed(settle_method(80, number, rng.randrange(2), channel))
        elif action == 9:
            if self._core(client, channel).has(number, False):
                client.feed(settle_method(120, number, rng.randrange(4), channel))
        elif action == 10:
            client.send(methods.BasicGet(queue="q", no_ack=rng.random() < 0.5), channel)
        elif action == 11:
            client.send(methods.QueueDeclare(queue="q", passive=True), channel)
        elif action == 12:
            client.send(methods.BasicRecover(requeue=True), channel)
        elif rng.random() < 0.3:
            client.send(methods.QueuePurge(queue="q"), channel)
        else:
            client.send(methods.ChannelClose(200, "", 0, 0), channel)

    def _core(self, client: Client, channel: int) -> Any:
        return client.kit.node.connections[client.conn].channels[channel].core

    def _reopen(self, client: Client) -> None:
        """A channel that was closed by either side is opened again."""
        for channel in (1, 2):
            connection = client.kit.node.connections[client.conn]
            if not connection.is_open:
                return
            found = connection.channels.get(channel)
            if found is not None and found.closing:
                client.send(methods.ChannelCloseOk(), channel)
                found = connection.channels.get(channel)
            if found is None:
                client.send(methods.ChannelOpen(), channel)
                if channel == 2:
                    client.send(methods.ConfirmSelect(), channel)


@pytest.mark.parametrize("seed", range(40))
def test_random_conversations_are_answered_alike(seed: int):
    is_same(RandomTalk(seed), queue=QUEUES[seed % len(QUEUES)])


@pytest.mark.parametrize("seed", range(40, 60))
def test_random_conversations_of_clients_on_two_nodes_are_answered_alike(seed: int):
    talk, queue = RandomTalk(seed), QUEUES[seed % len(QUEUES)]
    here = held_on("master", talk, queue=queue)
    assert held_on("home", talk, second_node="master", queue=queue) == here
    assert held_on("master", talk, second_node="home", queue=queue) == here
