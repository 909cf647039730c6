"""Transactions over queues of several nodes: what is one batch, what waits, what a broken link leaves."""

from typing import Any

import pytest

from mirrormq.base import limits
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.clusterkit import ClusterKit
from tests.support.kernelkit import PERSISTENT, publish, settle_method
from tests.support.nodekit import Client

MASTERS = ("one", "two")


def cluster() -> ClusterKit:
    """Queue a on node one, b on node two, here on home."""
    names = ("home", *MASTERS)
    kit = ClusterKit(*names, disks={name: MemoryDisk() for name in names})
    for node, name in zip(names, ("here", "a", "b"), strict=True):
        kit[node].client().declare(name, durable=True)
    return kit


def transactional(kit: ClusterKit) -> Client:
    client = kit["home"].client()
    client.ask(methods.TxSelect(), methods.TxSelectOk)
    return client


def count(kit: ClusterKit, node: str, name: str) -> int:
    return kit.node(node).vhosts["/"].queues[name].message_count  # type: ignore[attr-defined]


def left(kit: ClusterKit, node: str, name: str) -> list[bytes]:
    client = kit[node].client()
    client.consume(name, "all", no_ack=True)
    return client.deliveries()


def holding(kit: ClusterKit, client: Client, name: str, bodies: list[bytes]) -> None:
    """Let the client hold these messages of a queue."""
    kit["home"].client().feed(b"".join(publish(name.encode(), body, PERSISTENT) for body in bodies))
    client.consume(name)
    client.take()


def state(kit: ClusterKit, name: str) -> Any:
    return next(iter(kit.node(name).switch.masters.values())).core


def test_a_commit_over_three_nodes_is_answered_when_all_of_them_have_their_part_on_disk():
    kit = cluster()
    client = transactional(kit)
    client.feed(b"".join(publish(key, b"x", PERSISTENT) for key in (b"a", b"b", b"here", b"a", b"b")))
    for name in ("home", *MASTERS):
        kit[name].hold_flushes = True
    client.send(methods.TxCommit())
    for name in ("home", *MASTERS):
        assert client.take() == []
        kit[name].hold_flushes = False
        kit[name].flush()
        kit.run()
    client.expect(methods.TxCommitOk)
    assert [count(kit, *where) for where in (("one", "a"), ("two", "b"), ("home", "here"))] == [2, 2, 1]


def test_each_queue_gets_its_part_of_a_transaction_in_one_frame_however_large():
    kit = cluster()
    client = transactional(kit)
    sent = [b"%d" % number + bytes(100_000) for number in range(10)]
    assert sum(map(len, sent)) > 3 * limits.forward_block_bytes
    for body in sent:
        client.publish("a", body, properties=PERSISTENT)
    kit.hold("home", "one")
    client.send(methods.TxCommit())
    assert [len(frame) > 1_000_000 for frame in kit.wires["home", "one"]].count(True) == 1
    kit.release()
    client.expect(methods.TxCommitOk)
    assert left(kit, "one", "a") == sent


@pytest.mark.parametrize("power", [True, False], ids=["power", "process"])
def test_a_master_that_crashes_at_any_step_of_a_commit_has_all_of_its_part_or_nothing(power: bool):
    seen = set()
    for steps in range(8):
        kit = cluster()
        client = transactional(kit)
        client.feed(b"".join(publish(b"a", b"%d" % at, PERSISTENT) for at in range(5)))
        kit["one"].hold_flushes = True
        kit.hold("home", "one")
        client.send(methods.TxCommit())
        for _ in range(steps):
            if kit.size("home", "one"):
                kit.deliver("home", "one")
                kit["one"].step()
            else:
                token = kit["one"].disk.finish_next()
                if token is not None:
                    kit.node("one").disk_done(kit.now, token)
        kit.kill("one", power=power)
        kit.kill("home")  # nobody sends it again
        kit.restart("one")
        seen.add(count(kit, "one", "a"))
    assert seen == {0, 5}


def test_a_link_that_breaks_in_a_commit_delays_it_and_every_message_arrives_once():
    kit = cluster()
    client = transactional(kit)
    client.feed(b"".join(publish(key, b"%d" % at, PERSISTENT) for at in range(4) for key in (b"a", b"b")))
    kit.hold("one", "home")
    client.send(methods.TxCommit())
    assert client.take() == []
    kit.cut("home", "one")
    kit.advance(1)
    assert client.take() == []
    kit.heal("home", "one")
    client.expect(methods.TxCommitOk)
    for node, name in (("one", "a"), ("two", "b")):
        assert left(kit, node, name) == [b"%d" % at for at in range(4)]


def test_a_commit_whose_master_stays_away_fails_and_leaves_what_it_held_unacknowledged():
    kit = cluster()
    client = transactional(kit)
    holding(kit, client, "b", [b"in"])
    client.feed(publish(b"a", b"out", PERSISTENT) + settle_method(80, 1, 0))
    kit.cut("home", "one")
    client.send(methods.TxCommit())
    kit.advance(limits.publish_timeout_us / 1_000_000)
    assert client.expect(methods.ChannelClose).reply_text == "PRECONDITION_FAILED - partial tx completion"
    kit.heal("home", "one")
    assert left(kit, "one", "a") == []
    assert left(kit, "two", "b") == [b"in"]


@pytest.mark.parametrize("target", ["a", "here"])
def test_acknowledgements_wait_until_what_was_published_is_safe(target: str):
    kit = cluster()
    client = transactional(kit)
    holding(kit, client, "b", [b"in"])
    client.feed(publish(target.encode(), b"out", PERSISTENT) + settle_method(80, 1, 0))
    node = "one" if target == "a" else "home"
    kit[node].hold_flushes = True
    client.send(methods.TxCommit())
    assert state(kit, "two").unacked == 1
    kit.kill("home")  # in the middle of it
    kit.restart("home")
    assert left(kit, "two", "b") == [b"in"]


def test_acknowledgements_of_a_commit_are_on_disk_before_it_is_answered():
    kit = cluster()
    client = transactional(kit)
    holding(kit, client, "b", [b"in"])
    client.feed(publish(b"a", b"out", PERSISTENT) + settle_method(80, 1, 0))
    kit["two"].hold_flushes = True
    client.send(methods.TxCommit())
    assert client.take() == []
    kit["two"].hold_flushes = False
    kit["two"].flush()
    kit.run()
    client.expect(methods.TxCommitOk)
    kit.kill("two")
    kit.restart("two")
    assert left(kit, "two", "b") == []
    assert left(kit, "one", "a") == [b"out"]


def test_a_link_that_breaks_for_a_moment_delays_a_commit_until_its_acknowledgements_are_safe():
    kit = cluster()
    client = transactional(kit)
    holding(kit, client, "b", [b"in"])
    client.feed(publish(b"a", b"out", PERSISTENT) + settle_method(80, 1, 0))
    kit.hold("home", "two")
    client.send(methods.TxCommit())
    kit.cut("home", "two")
    kit.advance(1)
    assert client.take() == []
    kit["two"].hold_flushes = True
    kit.heal("home", "two")
    assert client.take() == []
    kit["two"].hold_flushes = False
    kit["two"].flush()
    kit.run()
    client.expect(methods.TxCommitOk)
    kit.kill("two")
    kit.restart("two")
    assert left(kit, "one", "a") == [b"out"]
    assert left(kit, "two", "b") == []


def test_a_commit_is_not_answered_by_what_the_process_before_on_its_node_had_asked():
    kit = cluster()
    client = transactional(kit)
    holding(kit, client, "b", [b"before", b"in"])
    kit["two"].hold_flushes = True
    client.feed(settle_method(80, 1, 0))
    client.send(methods.TxCommit())  # asks two, which answers when it has flushed
    kit.kill("home")
    kit.restart("home")
    client = transactional(kit)
    holding(kit, client, "b", [])
    client.feed(settle_method(80, 1, 0))
    kit.hold("home", "two")
    client.send(methods.TxCommit())  # a question of the same number, since a process counts from 1
    kit["two"].hold_flushes = False
    kit["two"].flush()
    kit.run()
    assert client.take() == []
    assert state(kit, "two").unacked == 1
    kit.release()
    client.expect(methods.TxCommitOk)
    kit.kill("two")
    kit.restart("two")
    assert left(kit, "two", "b") == []


def test_a_commit_fails_if_a_link_stays_broken_before_its_acknowledgements_are_known_to_be_safe():
    kit = cluster()
    client = transactional(kit)
    holding(kit, client, "b", [b"in"])
    client.feed(publish(b"a", b"out", PERSISTENT) + settle_method(80, 1, 0))
    kit.hold("home", "two")
    client.send(methods.TxCommit())
    kit.cut("home", "two")
    kit.advance(limits.link_grace_us / 1_000_000)
    client.expect(methods.BasicCancel)
    assert client.expect(methods.ChannelClose).reply_text == "PRECONDITION_FAILED - partial tx completion"
    kit.heal("home", "two")
    assert left(kit, "one", "a") == [b"out"]
    assert left(kit, "two", "b") == [b"in"]


def test_a_commit_fails_if_a_master_crashes_before_its_acknowledgements_are_known_to_be_safe():
    kit = cluster()
    client = transactional(kit)
    holding(kit, client, "b", [b"in"])
    client.feed(publish(b"a", b"out", PERSISTENT) + settle_method(80, 1, 0))
    kit["two"].hold_flushes = True
    client.send(methods.TxCommit())
    kit.kill("two")
    assert client.take() == []
    kit.restart("two")
    assert client.expect(methods.ChannelClose).reply_text == "PRECONDITION_FAILED - partial tx completion"
    assert left(kit, "one", "a") == [b"out"]
    assert left(kit, "two", "b") == [b"in"]


def test_a_broken_link_that_a_commit_has_nothing_to_do_with_does_not_hurt_it():
    kit = cluster()
    other = kit["home"].client()
    holding(kit, other, "b", [b"in"])
    client = transactional(kit)
    holding(kit, client, "a", [b"in"])
    client.feed(publish(b"a", b"out", PERSISTENT) + settle_method(80, 1, 0))
    kit["one"].hold_flushes = True
    client.send(methods.TxCommit())
    kit.cut("home", "two")
    kit["one"].hold_flushes = False
    kit["one"].flush()
    kit.run()
    assert methods.TxCommitOk() in client.take()


def test_a_connection_lost_in_a_commit_leaves_its_publishes_and_gives_back_what_it_held():
    kit = cluster()
    client = transactional(kit)
    holding(kit, client, "b", [b"in"])
    client.feed(publish(b"a", b"out", PERSISTENT) + settle_method(80, 1, 0))
    kit.hold("one", "home")
    client.send(methods.TxCommit())
    client.close_socket()
    kit.release()
    assert left(kit, "one", "a") == [b"out"]
    assert left(kit, "two", "b") == [b"in"]
