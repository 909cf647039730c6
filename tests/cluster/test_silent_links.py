"""Promises about a link of a ring that is cut without a word: publishers wait a moment, and nobody leaves."""

from __future__ import annotations

import time

import pytest

from mirrormq.wire import methods
from tests.cluster import kit
from tests.cluster.kit import Cluster, Node, until
from tests.cluster.mirrorrun import set_policy
from tests.cluster.test_salvage import PERSISTENT, row

pytestmark = pytest.mark.slow

QUEUE = "ring"
LONGEST_S = 3.0
"""For a confirm: the suspicion after 2 s, a hello, a flush, and what the machine does besides."""
PUBLISHING_S = 14.0
"""Longer than a link may be silent before it is given up, and than the timeout of mirrors."""


def waits(node: Node, seconds: float) -> list[float]:
    """Publish one message after the other, and tell how long each waited for its confirm."""
    client = node.raw()
    client.call(1, methods.ConfirmSelect(), methods.ConfirmSelectOk)
    found: list[float] = []
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        client.publish(1, methods.BasicPublish(routing_key=QUEUE), b"x" * 100, PERSISTENT)
        client.expect(1, methods.BasicAck)
        found.append(time.monotonic() - began)
    client.close()
    return found


def is_settled(leader: Node) -> bool:
    found = row(leader, QUEUE)
    return found["master"] == leader.name and len(found["in_sync"]) == 3 and not found["unsynchronised"]


def test_a_silent_cut_between_two_mirrors_holds_up_confirms_for_the_suspicion_and_removes_nobody(
    proxied: Cluster,
) -> None:
    # The master's node leads: neither of the mirrors loses its lease by the cut.
    leader = proxied.leader()
    one, other = proxied.others(leader)
    set_policy(leader, "ha", f"^{QUEUE}$", {"ha-mode": "all"})
    kit.declare(leader.channel(), QUEUE)
    until(lambda: len(row(leader, QUEUE).get("in_sync", ())) == 3, "three copies are in sync")
    if row(leader, QUEUE)["master"] != leader.name:
        leader.ctl("move_master", vhost="/", name=QUEUE, node=leader.name)
    until(lambda: is_settled(leader), "the leader is the master, and everybody in sync")
    waits(leader, 1)  # the ring is in use
    before = row(leader, QUEUE)
    proxied.net.cut(one.name, other.name)
    found = waits(leader, PUBLISHING_S)
    after = row(leader, QUEUE)
    proxied.net.heal()
    # Less than the suspicion where the neighbour had been slow to answer: then the master fed it already.
    assert max(found) <= LONGEST_S, sorted(found)[-5:]
    assert sorted(found)[int(0.99 * len(found))] < 1
    assert (after["epoch"], after["in_sync"]) == (before["epoch"], before["in_sync"])
