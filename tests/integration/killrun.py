"""kill -9 under load, again and again on the same data folder, checked message by message.

In each round a node is started, everything in the queue is taken and compared with what clients were
promised, then three clients work until the node is killed at a random time: one publishes with confirms, one
in transactions, one consumes, acknowledges and publishes on the same channel, so that its confirms commit its
acknowledgements. The page cache survives a kill: what a power failure takes is the simulator's business.

    python -m tests.integration.killrun --rounds 50
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mirrormq.wire import methods
from mirrormq.wire.properties import Properties, encode_properties
from tests.integration.process import running
from tests.support.raw import Closed, RawClient, connect

QUEUE = "kill"
CHANNEL = 1
BURST = 20


class Name(NamedTuple):
    """Who sent a message, and as which of his."""

    sender: str
    number: int

    @property
    def body(self) -> bytes:
        word = b"%s:%d/" % (self.sender.encode(), self.number)
        return word * (1 + self.number * 7919 % 60)

    @property
    def properties(self) -> bytes:
        headers = {"n": self.number}
        return encode_properties(Properties(delivery_mode=2, message_id=self.sender, headers=headers))


def name_of(body: bytes) -> Name:
    sender, number = body.split(b"/", 1)[0].split(b":")
    return Name(sender.decode(), int(number))


class Promises:
    """What clients were told, over all rounds. Each set is written by one thread only."""

    def __init__(self) -> None:
        self.confirmed: dict[str, set[Name]] = {"confirm": set(), "tx": set(), "worker": set()}
        self.sent = {"confirm": 0, "tx": 0, "worker": 0}
        self.delivered: set[Name] = set()
        self.acked: set[Name] = set()
        """Acknowledgements sent: the message may come back."""
        self.committed: set[Name] = set()
        """Acknowledgements a later confirm on the same channel covers: it may not."""
        self.broken: list[str] = []

    def next(self, sender: str) -> Name:
        self.sent[sender] += 1
        return Name(sender, self.sent[sender])

    def check_delivery(self, method: methods.BasicDeliver, name: Name, last: dict[str, int]) -> None:
        """One delivery; `last` is the last number per sender on this connection."""
        if name in self.committed:
            self.broken.append(f"{name} came back after its acknowledgement was committed")
        if name in self.delivered and not method.redelivered:
            self.broken.append(f"{name} was delivered before, but says it was not")
        if name.number <= last.get(name.sender, 0):
            self.broken.append(f"{name} came after {last[name.sender]}")
        last[name.sender] = name.number
        self.delivered.add(name)

    def must_be_there(self) -> set[Name]:
        return set().union(*self.confirmed.values()) - self.acked - self.committed


class Worker:
    """Consumes, acknowledges and publishes on one channel."""

    def __init__(self, client: RawClient, promises: Promises, *, keeps: random.Random | None) -> None:
        """`keeps`: leave some messages unacknowledged, as it says."""
        self.client = client
        self.promises = promises
        self.keeps = keeps
        self.taken: list[Name] = []
        self._last: dict[str, int] = {}
        self._unacked: list[tuple[int, Name]] = []
        self._published = 0
        client.open_channel(CHANNEL)
        client.call(CHANNEL, methods.ConfirmSelect(), methods.ConfirmSelectOk)
        self.count = declare(client)
        client.call(CHANNEL, methods.BasicQos(0, 200, False), methods.BasicQosOk)
        client.call(CHANNEL, methods.BasicConsume(queue=QUEUE, consumer_tag="w"), methods.BasicConsumeOk)

    def take(self, count: int) -> None:
        """Take and acknowledge this many messages, then commit the acknowledgements."""
        while len(self.taken) < count:
            # Before waiting: with as many unacknowledged as the prefetch allows nothing more would come.
            if len(self._unacked) >= 100:
                self._ack_and_publish()
            else:
                self._hear()
        self._ack_and_publish()

    def work(self) -> None:
        """Go on until the node is gone."""
        while True:
            self._ack_and_publish()

    def _ack_and_publish(self) -> None:
        acked = []
        for tag, name in self._unacked:
            if self.keeps is None or self.keeps.random() < 0.7:
                self.promises.acked.add(name)
                acked.append(name)
                self.client.send_method(CHANNEL, methods.BasicAck(tag, False))
        self._unacked.clear()
        name = self.promises.next("worker")
        self._published += 1
        self.client.publish(CHANNEL, methods.BasicPublish(routing_key=QUEUE), name.body, name.properties)
        while not self._hear():
            pass
        self.promises.confirmed["worker"].add(name)
        self.promises.committed.update(acked)

    def _hear(self) -> bool:
        """Take one frame or message; True if it was the confirm of the last publish."""
        method = self.client.next_frame().method
        if isinstance(method, methods.BasicAck):
            return method.delivery_tag == self._published
        assert isinstance(method, methods.BasicDeliver), method
        content = self.client.expect_content(CHANNEL)
        name = name_of(content.body)
        if content.body != name.body or content.raw_properties != name.properties:
            self.promises.broken.append(f"{name} changed")
        self.promises.check_delivery(method, name, self._last)
        self._unacked.append((method.delivery_tag, name))
        self.taken.append(name)
        return False


def declare(client: RawClient) -> int:
    method = methods.QueueDeclare(queue=QUEUE, durable=True)
    return client.call(CHANNEL, method, methods.QueueDeclareOk).message_count


def publish_with_confirms(client: RawClient, promises: Promises) -> None:
    """Bursts of persistent messages; each burst waits for its confirms."""
    client.open_channel(CHANNEL)
    client.call(CHANNEL, methods.ConfirmSelect(), methods.ConfirmSelectOk)
    sent: list[Name] = []
    answered = 0
    while True:
        for _ in range(BURST):
            name = promises.next("confirm")
            sent.append(name)
            client.publish(CHANNEL, methods.BasicPublish(routing_key=QUEUE), name.body, name.properties)
        while answered < len(sent):
            ack = client.expect(CHANNEL, methods.BasicAck)
            first = answered if ack.multiple else ack.delivery_tag - 1
            promises.confirmed["confirm"].update(sent[first : ack.delivery_tag])
            answered = max(answered, ack.delivery_tag)


def publish_in_transactions(client: RawClient, promises: Promises) -> None:
    """A few persistent messages per transaction."""
    client.open_channel(CHANNEL)
    client.call(CHANNEL, methods.TxSelect(), methods.TxSelectOk)
    while True:
        names = [promises.next("tx") for _ in range(5)]
        for name in names:
            client.publish(CHANNEL, methods.BasicPublish(routing_key=QUEUE), name.body, name.properties)
        client.call(CHANNEL, methods.TxCommit(), methods.TxCommitOk)
        promises.confirmed["tx"].update(names)


def check_what_is_there(port: int, promises: Promises) -> int:
    """Take everything; nothing confirmed may be missing. Returns how many messages there were."""
    with connect("127.0.0.1", port) as client:
        client.handshake()
        worker = Worker(client, promises, keeps=None)
        wanted = promises.must_be_there()
        worker.take(worker.count)
        missing = wanted - set(worker.taken[: worker.count])
        if missing:
            promises.broken.append(f"{len(missing)} confirmed messages are lost, first {min(missing)}")
        client.close_cleanly()
        return worker.count


def work_until_killed(port: int, promises: Promises, kill: Callable[[], None], rng: random.Random) -> None:
    """Three clients at work, and a kill at a random time."""

    def guarded(work: Callable[[RawClient], None]) -> None:
        try:
            with connect("127.0.0.1", port) as client:
                client.handshake()
                work(client)
        except (Closed, ConnectionError):
            return  # the node is gone
        except Exception as error:
            promises.broken.append(f"a client failed: {error!r}")
            raise

    keeps = random.Random(rng.random())
    jobs: list[Callable[[RawClient], None]] = [
        lambda client: publish_with_confirms(client, promises),
        lambda client: publish_in_transactions(client, promises),
        lambda client: Worker(client, promises, keeps=keeps).work(),
    ]
    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    killer = threading.Timer(rng.uniform(0.02, 0.8), kill)
    for thread in (*threads, killer):
        thread.start()
    for thread in (*threads, killer):
        thread.join()


def run(folder: Path, rounds: int, seed: int, tell: Callable[[str], object]) -> Promises:
    """Rounds of load and kill on one data folder; ends with a last look."""
    rng = random.Random(seed)
    promises = Promises()
    for number in range(rounds + 1):
        with running(folder, "--no-admin") as node:
            found = check_what_is_there(node.port, promises)
            if promises.broken:
                break
            if number < rounds:
                work_until_killed(node.port, promises, node.popen.kill, rng)
        confirmed = sum(map(len, promises.confirmed.values()))
        tell(
            f"round {number}: {found} messages found, so far {confirmed} confirmed and"
            f" {len(promises.committed)} removals committed\n"
        )
        if promises.broken:
            break
    return promises


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mirrormq-kill-") as folder:
        promises = run(Path(folder), options.rounds, options.seed, sys.stdout.write)
    for line in promises.broken[:20]:
        sys.stdout.write(f"BROKEN: {line}\n")
    return 1 if promises.broken else 0


if __name__ == "__main__":
    sys.exit(main())
