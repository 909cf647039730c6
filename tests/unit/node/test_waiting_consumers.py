"""A consumer that asks while its queue's master is out of reach is served when the master is back."""

from mirrormq.wire import methods
from tests.support.groupkit import Group
from tests.support.nodekit import Client
from tests.unit.node.test_mirrored import ALL, formed, mirror, publish_some, ready

FORGOTTEN_S = 6
"""After so long a master has given up what a node consumed over a link that broke."""


def parted() -> tuple[Group, str, str]:
    """A mirrored queue with its master on one node, clients on another; the third leads, and links both."""
    group = formed()
    mirror(group["a"])
    (leader,) = group.leaders
    master, home = [name for name in ALL if name != leader]
    ready(group, master, 10)
    return group, master, home


def part(group: Group, one: str, other: str) -> None:
    group.cuts.add(frozenset((one, other)))
    group.unlink(one, other, eof=False)


def ask_to_consume(client: Client, tag: str) -> None:
    client.send(methods.BasicConsume(queue="q", consumer_tag=tag))


def consuming(client: Client) -> set[str]:
    return {it.consumer_tag for _, it in client.inbox if isinstance(it, methods.BasicConsumeOk)}


def test_the_inlet_of_a_consumer_that_waits_for_its_master_is_kept():
    group, master, home = parted()
    client = group[home].client()
    part(group, master, home)
    group.advance(FORGOTTEN_S)
    ask_to_consume(client, "c")
    group.advance(0.2)
    assert consuming(client) == set()
    (waiting,) = group[home].node.vhosts["/"].queues["q"].subscriptions.inlets.values()
    group.heal()
    group.advance(1)
    # The master kept nothing of this node, and there was nothing of this inlet to be kept.
    (inlet,) = group[home].node.vhosts["/"].queues["q"].subscriptions.inlets.values()
    assert inlet is waiting
    assert not inlet.core.gone
    assert not inlet.awaited
    assert consuming(client) == {"c"}
    client.inbox.clear()
    client.send(methods.BasicAck(10, True))
    group.advance(0.2)
    publish_some(group[master].client(), 10, 5)
    group.advance(0.5)
    assert client.deliveries() == [b"%d" % at for at in range(10, 15)]


def test_a_consumer_that_waits_beside_one_whose_deliveries_were_given_up_gets_a_new_inlet():
    group, master, home = parted()
    client = group[home].client()
    client.ask(methods.BasicQos(prefetch_count=4), methods.BasicQosOk)
    ask_to_consume(client, "old")
    group.advance(0.3)
    assert consuming(client) == {"old"}
    client.inbox.clear()
    part(group, master, home)
    group.advance(FORGOTTEN_S)
    (before,) = group[home].node.vhosts["/"].queues["q"].subscriptions.inlets.values()
    ask_to_consume(client, "new")
    group.advance(0.2)
    group.heal()
    group.advance(1)
    (inlet,) = group[home].node.vhosts["/"].queues["q"].subscriptions.inlets.values()
    assert before.core.gone
    assert inlet is not before
    assert not inlet.awaited
    assert consuming(client) == {"new"}
    assert len(inlet.consumers) == 2
    # What the old one held was given back: both get their share of it again.
    found = {it.consumer_tag for _, it in client.inbox if isinstance(it, methods.BasicDeliver)}
    assert found == {"old", "new"}
