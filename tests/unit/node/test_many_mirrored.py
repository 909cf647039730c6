"""A node dies that has copies of many queues: all are served again, in few steps and in slices."""

import pytest

from mirrormq.base import limits
from mirrormq.meta.commands import SetPolicy
from mirrormq.meta.records import Policy
from mirrormq.wire import methods
from mirrormq.wire.spec import FRAME_METHOD
from tests.support.groupkit import Group
from tests.support.kernelkit import PERSISTENT, publish
from tests.support.nodekit import Client
from tests.support.raw import encode_frame
from tests.unit.node.test_mirrored import ALL, confirmed, formed, mirror, ready, view

COUNT = 3 * limits.mirror_proposals_max
NAMES = [f"q{number}" for number in range(COUNT)]


def with_many() -> Group:
    """Three nodes with many queues, a third of them mastered by each."""
    group = formed()
    mirror(group["a"])
    for at, name in enumerate(ALL):
        client = group[name].client()
        declares = [methods.QueueDeclare(queue=queue, durable=True) for queue in NAMES[at :: len(ALL)]]
        client.feed(b"".join(encode_frame(FRAME_METHOD, 1, methods.encode(one)) for one in declares))
        group.advance(0.1)
    group.advance(0.3)
    return group


def publisher(group: Group, at: str) -> Client:
    client = group[at].client()
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    return client


def publish_to_all(client: Client) -> None:
    client.feed(b"".join(publish(queue.encode(), b"m", PERSISTENT) for queue in NAMES))


@pytest.mark.slow
def test_a_dead_node_leaves_all_views_in_few_commands_and_every_queue_is_served():
    group = with_many()
    client = publisher(group, "b")
    publish_to_all(client)
    group.advance(0.3)
    assert confirmed(client) == COUNT
    before = group["b"].node.membership.index
    group.kill("a")
    publish_to_all(client)
    group.advance(2)
    assert confirmed(client) == 2 * COUNT
    for queue in NAMES:
        found = view(group, queue, at="b")
        assert sorted(entry.node for entry in found.members) == ["b", "c"]
        # One epoch for a promotion, one for taking the dead node out.
        assert found.epoch == (3 if found.since > 1 else 2)
    # One command per slice of queues, besides what the death itself takes.
    assert group["b"].node.membership.index - before < COUNT // 10
    assert not group["b"].node.copies.mirrors.removing


def test_a_node_that_is_back_at_once_is_taken_in_again():
    group = formed()
    mirror(group["a"])
    client = ready(group, "b", 50)
    group.kill("a")
    group.advance(0.2)
    group.start("a", *ALL)
    group.settle()
    group.advance(4)
    found = view(group, at="b")
    assert {entry.node for entry in found.members if not entry.is_restarted} == set(ALL)
    client.feed(publish(b"q", b"more", PERSISTENT))
    group.advance(0.3)
    assert confirmed(client) == 51


def test_a_publisher_elsewhere_hears_of_it_when_fewer_copies_are_enough():
    group = formed()
    mirror(group["a"], ha_mode="all", ha_min_in_sync=3)
    group["a"].client().declare("q", durable=True)
    group.advance(0.3)
    client = publisher(group, "b")
    client.feed(publish(b"q", b"0", PERSISTENT))
    group.advance(0.3)
    assert confirmed(client) == 1
    # Taken by the master, and then there are too few to confirm it.
    group.cut("c")
    client.feed(publish(b"q", b"1", PERSISTENT))
    group.advance(6)
    assert [entry.node for entry in view(group, at="a").members] == ["a", "b"]
    assert confirmed(client) == 1
    policy = Policy("/", "ha", ".*", {"ha-mode": "all", "ha-min-in-sync": 2}, "queues")
    group["a"].node.propose(SetPolicy(policy), lambda _: None, False)
    group.advance(0.5)
    assert confirmed(client) == 2
