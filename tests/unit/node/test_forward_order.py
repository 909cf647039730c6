"""What one channel gets from a queue on another node comes in the order the master gave it out."""

from __future__ import annotations

from mirrormq.wire import methods
from tests.support.clusterkit import ClusterKit
from tests.support.kernelkit import publish


def test_a_fetched_message_does_not_overtake_deliveries_that_left_the_master_before_it():
    kit = ClusterKit("home", "master")
    owner = kit["master"].client()
    owner.declare("q")
    client = kit["home"].client()
    client.ask(methods.BasicQos(0, 2, False), methods.BasicQosOk)
    client.consume("q")
    kit.hold("master", "home")
    owner.feed(b"".join(publish(b"q", b"%d" % number) for number in range(3)))
    client.send(methods.BasicGet(queue="q"))
    kit.run()
    client.inbox.clear()
    kit.release()
    assert client.deliveries() == [b"0", b"1", b"2"]
