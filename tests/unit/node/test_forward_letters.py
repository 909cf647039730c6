"""Dead letters and transactions across nodes, and a master that moves."""

import random
from typing import Any

import msgspec
import pytest

from mirrormq.base import limits
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


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_dead_letters_arrive_once_although_their_target_crashed(
    is_checkpointed: bool, monkeypatch: pytest.MonkeyPatch
):
    kit = with_disks()
    client = kit["home"].client()
    sent = send(client, 5)
    kit.hold("master", "home")  # it is not heard of that they have arrived
    reject_all(client, 5)
    if is_checkpointed:
        monkeypatch.setattr(limits, "journal_file_bytes", 4000)
        monkeypatch.setattr(limits, "journal_files_max", 2)
        monkeypatch.setattr(limits, "recycle_slice_bytes", 1000)
        local = kit["master"].client()
        local.declare("busy", durable=True)
        for _ in range(200):
            local.publish("busy", bytes(90), properties=PERSISTENT)
        assert "log/checkpoint" in kit["master"].disk.list("")
    kit.kill("master")
    kit.restart("master")
    assert queue(kit, "home", "source").letters.backlog == 0
    assert bodies(kit, "dead") == sent


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


def test_letters_of_a_long_break_arrive_before_younger_ones_of_the_same_source():
    kit = with_disks()
    client = kit["home"].client()
    client.ask(methods.BasicQos(prefetch_count=3), methods.BasicQosOk)
    sent = send(client, 6)
    kit.cut("home", "master")
    reject_all(client, 3)
    kit.advance(20)
    client.take()
    client.feed(settle_method(120, 6, 1))
    kit.advance(15)  # the first three have waited for longer than publishes would
    kit.heal("home", "master")
    assert bodies(kit, "dead") == sent
    assert queue(kit, "home", "source").letters.backlog == 0


def test_letters_for_a_damaged_queue_of_another_node_stay_at_their_source_until_it_is_whole():
    kit = with_disks()
    client = kit["home"].client()
    client.ask(methods.BasicQos(prefetch_count=3), methods.BasicQosOk)
    sent = send(client, 6)
    queue(kit, "master", "dead").fail("tried")
    reject_all(client, 3)
    kit.cut("home", "master")
    kit.heal("home", "master")
    assert queue(kit, "home", "source").letters.backlog == 3
    kit.cut("home", "master")
    client.take()
    client.feed(settle_method(120, 6, 1))
    kit.kill("master")
    kit.restart("master")
    assert queue(kit, "home", "source").letters.backlog == 0
    assert bodies(kit, "dead") == sent


def test_letters_for_a_damaged_queue_of_another_node_outlive_their_source_node():
    kit = with_disks()
    sent = send(kit["home"].client(), 3)
    queue(kit, "master", "dead").fail("tried")
    reject_all(kit["home"].client(), 3)
    kit.kill("home")
    kit.kill("master")
    kit.restart("master")
    kit.restart("home")
    kit.run()
    assert bodies(kit, "dead") == sent
    assert bodies(kit, "source", "home") == []


def test_a_letter_sent_again_over_a_new_link_counts_as_arrived_only_when_it_is_on_disk():
    kit = with_disks()
    client = kit["home"].client()
    sent = send(client, 3)
    kit["master"].hold_flushes = True
    reject_all(client, 3)
    kit.cut("home", "master")
    kit.heal("home", "master")
    assert queue(kit, "home", "source").letters.backlog == 3
    kit.kill("master")
    kit.restart("master")
    assert queue(kit, "home", "source").letters.backlog == 0
    assert bodies(kit, "dead") == sent


def test_letters_to_another_node_leave_in_windows():
    kit = with_disks()
    client = kit["home"].client()
    size = limits.forward_window_bytes // 8
    sent = [b"%d" % number + bytes(size) for number in range(30)]
    for body in sent:
        client.publish("source", body, properties=PERSISTENT)
    kit.hold("master", "home")
    reject_all(client, 30)
    assert queue(kit, "master", "dead").message_count < 12
    kit.release()
    assert queue(kit, "home", "source").letters.backlog == 0
    assert bodies(kit, "dead") == sent


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


# --- at random ---


class LetterStorm:
    """Messages are rejected on one node and dead-lettered to another while links break and nodes crash."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kit = with_disks()
        self.sent = 0
        self.safe: set[bytes] = set()
        self.client: Client | None = None

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._step()
        self._calm()

    def _step(self) -> None:
        rng, kit = self.rng, self.kit
        chance = rng.random()
        if chance < 0.4:
            self._publish(rng.randrange(1, 6))
        elif chance < 0.6:
            self._reject(rng.randrange(1, 6))
        elif chance < 0.7:
            kit.hold(*rng.sample(("home", "master"), 2))
        elif chance < 0.75:
            kit.release()
        elif chance < 0.8:
            kit.cut("home", "master")
            kit.advance(rng.choice((0, 1, 35)))
            kit.heal("home", "master")
        elif chance < 0.9:
            node = rng.choice(("home", "master"))
            kit[node].hold_flushes = rng.random() < 0.5
            kit.run()
        elif chance < 0.95:
            self._crash(rng.choice(("home", "master")))

    def _publish(self, count: int) -> None:
        bodies = [b"%d" % (self.sent + at) for at in range(count)]
        self.sent += count
        client = self.kit["home"].client()
        client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
        client.feed(b"".join(publish(b"source", body, PERSISTENT) for body in bodies))
        if client.take():
            self.safe |= set(bodies)
        client.close_socket()

    def _reject(self, count: int) -> None:
        client = self.kit["home"].client()
        for _ in range(count):
            client.send(methods.BasicGet(queue="source"))
        client.take()
        client.feed(settle_method(120, 0, 1))

    def _crash(self, node: str) -> None:
        self.kit.kill(node, power=self.rng.random() < 0.5)
        self.kit.advance(self.rng.choice((0, 1, 35)))
        self.kit.restart(node)

    def _calm(self) -> None:
        kit = self.kit
        kit.release()
        for node in ("home", "master"):
            kit[node].hold_flushes = False
            kit[node].flush()
        kit.run()
        kit.advance(1)
        dead, alive = bodies(kit, "dead"), bodies(kit, "source", "home")
        assert len(set(dead)) == len(dead), "a letter arrived twice"
        assert not set(dead) & set(alive), "a message is dead and alive"
        gone = self.safe - set(dead) - set(alive)
        assert not gone, f"confirmed and gone: {sorted(gone)}"
        assert queue(kit, "home", "source").core.unacked == 0
        assert not kit.cuts


@pytest.mark.parametrize("seed", range(20))
def test_letters_between_nodes_that_crash_and_lose_each_other_arrive_exactly_once(seed: int):
    LetterStorm(seed).run(80)
