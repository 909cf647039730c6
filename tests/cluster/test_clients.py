"""Promises to clients: a queue is used through any node, and the death of another node is not noticed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.cluster import kit
from tests.cluster.kit import Cluster, Node, until
from tests.interop import celery_app as tasks
from tests.interop.brokers import Broker
from tests.interop.test_celery import Bench, result

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def roles(cluster: Cluster, *, leader_dies: bool) -> tuple[Node, Node, Node]:
    """Master of the queues, node of the clients, and the one that is going to die."""
    leader = cluster.leader()
    one, other = cluster.others(leader)
    return (one, other, leader) if leader_dies else (leader, one, other)


def mastered(cluster: Cluster, master: Node, name: str) -> str:
    """A durable queue whose master is this node."""
    channel = master.channel()
    kit.declare(channel, name)
    channel.connection.close()
    for node in cluster.others():
        (row,) = until(lambda node=node: rows(node, name), f"{node} knows {name}")
        assert row["node"] == master.name
    return name


def rows(node: Node, name: str) -> list[dict[str, Any]]:
    return [row for row in node.get("queues") if row["name"] == name]


class Publisher:
    """Publishes persistent messages with confirms, one after the other."""

    def __init__(self, node: Node, queue: str) -> None:
        self.confirmed: list[bytes] = []
        self._channel = node.channel()
        self._queue = queue
        self._is_over = threading.Event()
        self._thread = Work(self._run)

    def stop(self) -> list[bytes]:
        self._is_over.set()
        self._thread.join()
        return self.confirmed

    def _run(self) -> None:
        while not self._is_over.is_set():
            body = b"%d" % len(self.confirmed)
            self._channel.basic_publish("", self._queue, body, PERSISTENT, mandatory=True)
            self.confirmed.append(body)


class Consumer:
    """Takes and acknowledges messages, and remembers them."""

    def __init__(self, node: Node, queue: str) -> None:
        self.taken: list[bytes] = []
        self.redelivered = 0
        self._channel = node.channel(confirms=False)
        self._queue = queue
        self._is_over = threading.Event()
        self._thread = Work(self._run)

    def stop(self) -> list[bytes]:
        self._is_over.set()
        self._thread.join()
        return self.taken

    def _run(self) -> None:
        self._channel.basic_qos(prefetch_count=20)
        for method, _, body in self._channel.consume(self._queue, inactivity_timeout=0.05):
            if method is not None:
                self._channel.basic_ack(method.delivery_tag)
                self.taken.append(body)
                self.redelivered += method.redelivered
            elif self._is_over.is_set():
                self._channel.cancel()
                return


class Work:
    """A thread whose failure is its joiner's."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._failure: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(kit.DEADLINE_S)
        assert not self._thread.is_alive(), f"{self._work} does not end"
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  (told to whoever joins)
            self._failure = error


@pytest.mark.parametrize("leader_dies", [False, True], ids=["another node dies", "the leader dies"])
def test_clients_on_one_node_use_queues_of_another_while_a_third_dies(
    three: Cluster, leader_dies: bool
) -> None:
    master, home, doomed = roles(three, leader_dies=leader_dies)
    queue = mastered(three, master, "work")
    publisher, consumer = Publisher(home, queue), Consumer(home, queue)
    until(lambda: len(consumer.taken) > 50, "messages flow")
    doomed.kill()
    killed_at = time.monotonic()
    for share in (1, 2):
        before = len(consumer.taken)
        until(lambda before=before: len(consumer.taken) > before + 100, f"they flow on, {share}")
    assert time.monotonic() - killed_at < 10
    # Definitions can still be changed.
    channel = home.channel()
    kit.declare(channel, "later")
    confirmed = publisher.stop()
    until(lambda: len(consumer.taken) >= len(confirmed), "everything confirmed was delivered")
    assert consumer.stop() == confirmed, "each once, in order"
    assert not consumer.redelivered
    three.start(doomed)
    three.wait_whole()


def test_everything_a_channel_can_do_works_on_a_queue_of_another_node(three: Cluster) -> None:
    master, home, _ = roles(three, leader_dies=True)
    queue = mastered(three, master, "things")
    channel = home.channel()
    channel.exchange_declare("topics", "topic", durable=True)
    channel.queue_bind(queue, "topics", "a.*")
    channel.basic_publish("topics", "a.b", b"1", PERSISTENT, mandatory=True)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("topics", "b.a", b"lost", PERSISTENT, mandatory=True)
    method, _, body = channel.basic_get(queue)
    assert (body, method.redelivered, method.message_count) == (b"1", False, 0)
    channel.basic_nack(method.delivery_tag, requeue=True)
    method, _, body = until(lambda: some(channel.basic_get(queue)), "it is back")
    assert (body, method.redelivered) == (b"1", True)
    channel.basic_ack(method.delivery_tag)
    for number in range(5):
        channel.basic_publish("", queue, b"%d" % number, PERSISTENT)
    assert channel.queue_declare(queue, passive=True).method.message_count == 5
    assert channel.queue_purge(queue).method.message_count == 5
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare(queue, durable=False)
    assert caught.value.reply_code == 406
    other = home.channel(confirms=False)
    other.tx_select()
    other.basic_publish("", queue, b"in a transaction", PERSISTENT)
    other.tx_commit()
    assert (
        until(lambda: some(other.basic_get(queue, auto_ack=True)), "it was committed")[2]
        == b"in a transaction"
    )
    assert other.queue_delete(queue).method.message_count == 0
    for node in three:
        until(lambda node=node: queue not in node.queues(), f"{node} knows that it is gone")


def some(got: tuple[Any, Any, Any]) -> tuple[Any, Any, Any] | None:
    """What basic.get brought, if anything."""
    return got if got[0] is not None else None


def test_messages_published_everywhere_are_consumed_everywhere(three: Cluster) -> None:
    master, *_ = roles(three, leader_dies=False)
    queue = mastered(three, master, "shared")
    consumers = [Consumer(node, queue) for node in three]
    publishers = [Publisher(node, queue) for node in three]
    until(lambda: all(len(publisher.confirmed) > 50 for publisher in publishers), "all publish")
    sent = sorted(body for publisher in publishers for body in publisher.stop())
    until(lambda: sum(len(consumer.taken) for consumer in consumers) >= len(sent), "all is delivered")
    assert sorted(body for consumer in consumers for body in consumer.stop()) == sent
    assert all(consumer.taken for consumer in consumers)


def test_a_celery_worker_does_not_notice_the_death_of_another_node(three: Cluster, tmp_path: Path) -> None:
    master, home, doomed = roles(three, leader_dies=True)
    mastered(three, master, "celery")
    broker = Broker("mirrormq", home.host, kit.AMQP, kit.ADMIN)
    folder = tmp_path / "celery"
    folder.mkdir()
    bench = Bench(broker, folder)
    try:
        with bench.worker("celery"):
            until(lambda: rows(master, "celery")[0]["consumers"], "the worker consumes from the other node")
            assert result(bench.signature(tasks.add, 1, 2).apply_async()) == 3
            answers = [bench.signature(tasks.add, number, 1).apply_async() for number in range(20)]
            doomed.kill()
            answers += [bench.signature(tasks.add, number, 1).apply_async() for number in range(20, 40)]
            assert [result(answer) for answer in answers] == [number + 1 for number in range(40)]
        (log,) = folder.glob("*.log")
        text = log.read_text()
        assert "onnection" not in text.partition(" ready.")[2], text
    finally:
        bench.app.close()


def test_a_queue_whose_node_is_dead_is_refused_and_comes_back_with_its_node(three: Cluster) -> None:
    master, home, _ = roles(three, leader_dies=True)
    queue = mastered(three, master, "gone")
    channel = home.channel()
    channel.basic_publish("", queue, b"kept", PERSISTENT, mandatory=True)
    master.kill()
    until(lambda: master.name not in home.status().get("running_nodes", [master.name]), "it is missed")
    other = channel.connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        other.basic_get(queue)
    assert caught.value.reply_code == 404
    assert channel.is_open, "the connection and its other channels live on"
    three.start(master)
    three.wait_whole()
    assert until(lambda: some(home.channel().basic_get(queue, auto_ack=True)), "it is back")[2] == b"kept"
