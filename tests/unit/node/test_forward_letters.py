"""Dead letters and transactions across nodes, and a master that moves."""

from typing import Any

import msgspec
import pytest

from mirrormq.meta.tables import Change
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.clusterkit import ClusterKit
from tests.support.kernelkit import PERSISTENT, publish, settle_method
from tests.support.nodekit import Client

LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def with_disks() -> ClusterKit:
    """Source queue on `home`, its dead-letter queue on `master`."""
    kit = ClusterKit(disks={"home": MemoryDisk(), "master": MemoryDisk()})
    kit["master"].client().declare("dead", durable=True)
    kit["home"].client().declare("source", durable=True, arguments=LETTERS)
    return kit


def queue(kit: ClusterKit, node: str, name: str) -> Any:
    return kit.node(node).vhosts["/"].queues[name]


def reject_all(client: Client, count: int) -> None:
    client.consume("source")
    client.take()
    client.feed(settle_method(120, count, 1))


def bodies(kit: ClusterKit, name: str, node: str = "master") -> list[bytes]:
    client = kit[node].client()
    client.consume(name, "all", no_ack=True)
    return client.deliveries()


def send(client: Client, count: int, key: bytes = b"source") -> list[bytes]:
    sent = [b"%d" % number for number in range(count)]
    client.feed(b"".join(publish(key, body, PERSISTENT) for body in sent))
    return sent


def test_a_dead_letter_leaves_its_queue_when_the_master_of_its_target_has_it():
    kit = with_disks()
    client = kit["home"].client()
    sent = send(client, 5)
    kit.hold("master", "home")
    reject_all(client, 5)
    assert queue(kit, "home", "source").letters.backlog == 5
    kit.release()
    assert queue(kit, "home", "source").letters.backlog == 0
    assert bodies(kit, "dead") == sent


@pytest.mark.parametrize("is_report_lost", [False, True])
def test_dead_letters_arrive_once_although_the_link_broke(is_report_lost: bool):
    kit = with_disks()
    client = kit["home"].client()
    sent = send(client, 5)
    kit.hold(*(("master", "home") if is_report_lost else ("home", "master")))
    reject_all(client, 5)
    kit.cut("home", "master")
    kit.heal("home", "master")
    assert queue(kit, "home", "source").letters.backlog == 0
    assert bodies(kit, "dead") == sent


@pytest.mark.parametrize("is_report_lost", [False, True])
def test_dead_letters_arrive_once_although_their_source_crashed(is_report_lost: bool):
    kit = with_disks()
    client = kit["home"].client()
    sent = send(client, 5)
    kit.hold(*(("master", "home") if is_report_lost else ("home", "master")))
    reject_all(client, 5)
    kit["home"].flush()
    kit.kill("home")
    kit.restart("home")
    kit.run()
    assert bodies(kit, "dead") == sent
    assert bodies(kit, "source", "home") == []


def test_a_letter_leaves_for_another_node_only_when_its_death_is_on_disk():
    kit = with_disks()
    client = kit["home"].client()
    sent = send(client, 3)
    client.consume("source")
    client.take()
    kit["home"].hold_flushes = True
    client.feed(settle_method(120, 3, 1))
    assert queue(kit, "master", "dead").message_count == 0
    kit.kill("home")
    kit.restart("home")
    # The crash took the deaths back. The message that dies now has the number one of them would have had.
    client = kit["home"].client()
    client.ask(methods.BasicQos(prefetch_count=3), methods.BasicQosOk)
    client.consume("source")
    client.take()
    client.feed(settle_method(120, 3, 0))
    assert bodies(kit, "dead") == sent[2:]


def test_dead_letters_given_up_while_the_master_was_away_are_sent_when_it_is_back():
    kit = with_disks()
    client = kit["home"].client()
    sent = send(client, 3)
    kit.cut("home", "master")
    reject_all(client, 3)
    kit.advance(40)
    kit.heal("home", "master")
    assert bodies(kit, "dead") == sent
    assert queue(kit, "home", "source").letters.backlog == 0


def test_letters_to_a_deleted_remote_queue_leave_their_source():
    kit = with_disks()
    client = kit["home"].client()
    send(client, 3)
    kit.cut("home", "master")
    reject_all(client, 3)
    kit["master"].client().ask(methods.QueueDelete(queue="dead"), methods.QueueDeleteOk)
    assert queue(kit, "home", "source").letters.backlog == 0


def test_a_commit_is_answered_when_the_remote_master_has_everything_on_disk():
    kit = with_disks()
    client = kit["home"].client()
    client.ask(methods.TxSelect(), methods.TxSelectOk)
    sent = send(client, 4, b"dead")
    kit["master"].hold_flushes = True
    client.send(methods.TxCommit())
    assert client.take() == []
    kit["master"].hold_flushes = False
    kit["master"].flush()
    kit.run()
    client.expect(methods.TxCommitOk)
    assert bodies(kit, "dead") == sent


def test_a_commit_that_a_remote_queue_refuses_in_part_fails():
    kit = ClusterKit()
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    kit["master"].client().declare("q", arguments=arguments)
    client = kit["home"].client()
    client.ask(methods.TxSelect(), methods.TxSelectOk)
    client.feed(publish(b"q", b"1") + publish(b"q", b"2"))
    client.send(methods.TxCommit())
    assert client.expect(methods.ChannelClose).reply_text.endswith("partial tx completion")


# --- a master that moves ---


def move(kit: ClusterKit, name: str, target: str) -> None:
    """All nodes learn that the queue has another master."""
    for member in kit.members.values():
        vhost = member.node.vhosts["/"]
        record = msgspec.structs.replace(vhost.queues[name].record, node=target)
        vhost.apply(Change("put", record))
    kit.run()


@pytest.mark.parametrize(("before", "after"), [("master", "home"), ("home", "master"), ("master", "other")])
def test_consumers_and_publishers_follow_a_master_that_moves(before: str, after: str):
    kit = ClusterKit("home", "master", "other")
    kit[before].client().declare("q")
    consumer, publisher = kit["home"].client(), kit["home"].client()
    consumer.consume("q")
    publisher.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    publisher.publish("q", b"1")
    assert consumer.deliveries() == [b"1"]
    move(kit, "q", after)
    assert queue(kit, "home", "q").is_local == (after == "home")
    publisher.publish("q", b"2")
    assert consumer.deliveries() == [b"2"]
    assert [item.delivery_tag for item in publisher.take()] == [1, 2]
    consumer.feed(settle_method(80, 0, 1))
    assert queue(kit, after, "q").core.unacked == 0


@pytest.mark.parametrize("after", ["home", "other"])
def test_publishes_on_their_way_when_the_master_moves_reach_the_new_one_once(after: str):
    kit = ClusterKit("home", "master", "other")
    kit["master"].client().declare("q")
    client = kit["home"].client()
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    kit.cut("home", "master")
    for number in range(10):
        client.publish("q", b"%d" % number)
    move(kit, "q", after)
    client.publish("q", b"10")
    acked = [item.delivery_tag for item in client.take() if isinstance(item, methods.BasicAck)]
    assert acked[-1] == 11
    assert bodies(kit, "q", after) == [b"%d" % number for number in range(11)]
