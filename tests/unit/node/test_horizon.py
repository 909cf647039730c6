"""The delivery horizon runs ahead of delivery and never holds a willing consumer up for good."""

import pytest

from mirrormq.base import limits
from mirrormq.sim.disk import MemoryDisk
from tests.support.kernelkit import PERSISTENT, publish
from tests.support.nodekit import NodeKit


@pytest.mark.parametrize("extra", [0, 1, 2, 1000])
def test_a_consumer_without_acks_gets_everything_beyond_the_horizon(extra):
    count = limits.horizon_chunk_max + extra
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    client.declare("q", durable=True)
    client.feed(b"".join(publish(b"q", b"%d" % number, PERSISTENT) for number in range(count)))
    reader = kit.client()
    reader.consume("q", no_ack=True)
    assert reader.deliveries() == [b"%d" % number for number in range(count)]
