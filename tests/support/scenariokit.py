"""Mirrored queues on whole nodes in memory, in the words of the scenarios: policies, views, clients, deaths.

Nodes are those of `groupkit` and vote; virtual time passes only in `advance` and what is built on it. A
client that publishes is in confirm mode and knows what was confirmed.
"""

from collections.abc import Callable
from typing import Any

from mirrormq.meta.commands import ClearPolicy, Command, SetPolicy
from mirrormq.meta.records import Policy, View
from mirrormq.wire import methods
from tests.support.groupkit import Group, Member
from tests.support.kernelkit import PERSISTENT, publish
from tests.support.nodekit import Client

THREE = ("a", "b", "c")
PATIENCE_S = 40.0
STEP_S = 0.1


class Site(Group):
    """A cluster of nodes and its mirrored queues."""

    def __init__(self, *names: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.names = names or THREE
        for name in self.names:
            self.start(name, *self.names)
        self.settle()
        # Until then a voter answers for what it may have promised before its start.
        self.advance(6)

    # --- definitions ---

    def policy(self, pattern: str = ".*", name: str = "ha", **definition: Any) -> None:
        """Set a policy for queues; keys with underscores."""
        table = {key.replace("_", "-"): value for key, value in definition.items()}
        self._change(SetPolicy(Policy("/", name, pattern, table, "queues")))

    def clear_policy(self, name: str = "ha") -> None:
        self._change(ClearPolicy("/", name))

    def _change(self, command: Command) -> None:
        done: list[Any] = []
        self.any.node.propose(command, done.append, False)
        self.wait(lambda: bool(done), f"{command} is done")

    def declare(self, queue: str = "q", at: str = "a", **options: Any) -> None:
        """A durable queue, whose master is this node unless its policy says otherwise."""
        client = self[at].client()
        client.send(methods.QueueDeclare(queue=queue, durable=True, **options))
        self.wait(lambda: bool(client.inbox), f"{queue} is declared")
        client.expect(methods.QueueDeclareOk)
        client.close_socket()

    # --- nodes ---

    def stop(self, name: str) -> None:
        """Stop a node in good order."""
        done: list[None] = []
        copies = self[name].node.copies
        assert copies is not None
        copies.hand_over(lambda: done.append(None))
        self.run()
        self.wait(lambda: bool(done), f"{name} has handed over its queues")
        self.kill(name)

    def restart(self, name: str) -> None:
        """Start a node again on its old disk, and wait until it serves clients."""
        self.start(name, *self.names)
        self.settle(name, seconds=PATIENCE_S)

    # --- looking ---

    @property
    def any(self) -> Member:
        """A node that runs and is not cut off."""
        return next(member for member in self.members.values() if member.is_open)

    def view(self, queue: str = "q") -> View | None:
        return self.any.node.meta.views.get(("/", queue))

    def master(self, queue: str = "q") -> str:
        """The node that acts as master; nothing if none does."""
        record = self.any.node.meta.queues["/", queue]
        return self.any.node.switch.master_of(record)

    def in_sync(self, queue: str = "q") -> set[str]:
        """The nodes whose copies are in sync, the master among them; the master alone if not mirrored."""
        view = self.view(queue)
        if view is None:
            return {self.any.node.meta.queues["/", queue].node}
        return {entry.node for entry in view.members if not entry.is_restarted}

    def learners(self, queue: str = "q") -> set[str]:
        view = self.view(queue)
        return set() if view is None else {entry.node for entry in view.learners}

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
        """Let time pass until something is the case."""
        for _ in range(int(seconds / STEP_S)):
            if condition():
                return
            self.advance(STEP_S)
        views = {name: member.node.meta.views.get(("/", "q")) for name, member in self.members.items()}
        raise AssertionError(f"not within {seconds:g} s: {what}; views of q: {views}")

    def wait_copies(self, *nodes: str, queue: str = "q") -> None:
        """Wait until exactly these nodes have copies, all in sync."""
        self.wait(
            lambda: self.in_sync(queue) == set(nodes) and not self.learners(queue),
            f"{queue} is in sync on {nodes}: {self.view(queue)}",
        )

    # --- messages ---

    def publisher(self, at: str, queue: str = "q") -> "Publisher":
        return Publisher(self, self[at].client(), queue)

    def fill(self, count: int, at: str = "a", queue: str = "q", first: int = 0) -> None:
        """Publish persistent messages `first`, ...; all confirmed."""
        publisher = self.publisher(at, queue)
        publisher.publish(count, first)
        publisher.wait_confirmed(count)
        publisher.client.close_socket()

    def depth(self, queue: str = "q", at: str = "") -> int:
        """Messages ready, as a passive declare tells."""
        client = (self[at] if at else self.any).client()
        client.send(methods.QueueDeclare(queue=queue, passive=True))
        self.wait(lambda: bool(client.inbox), f"{queue} answers")
        count = client.expect(methods.QueueDeclareOk).message_count
        client.close_socket()
        return count

    def refusal(self, method: methods.Method, at: str = "") -> int:
        """The code with which a method closes its channel; 0 if it is answered otherwise."""
        client = (self[at] if at else self.any).client()
        client.send(method)
        self.wait(lambda: bool(client.inbox), f"{method.name} is answered")
        answer = client.take()[0]
        client.close_socket()
        return answer.reply_code if isinstance(answer, methods.ChannelClose) else 0

    def drain(self, at: str = "", queue: str = "q") -> list[tuple[int, bool]]:
        """Take everything: (number, redelivered) of each message."""
        consumer = Consumer(self, (self[at] if at else self.any).client(), queue)
        found: list[tuple[int, bool]] = []
        while self.depth(queue) or consumer.client.inbox:
            self.advance(STEP_S)
            found += consumer.take()
            consumer.ack_all()
        consumer.client.close_socket()
        return found


class Publisher:
    """A client that publishes numbers with confirms."""

    def __init__(self, site: Site, client: Client, queue: str) -> None:
        self.site = site
        self.client = client
        self.queue = queue
        self.sent = 0
        self.confirmed: set[int] = set()
        """Numbers of publishes, from 1."""
        self.nacked: set[int] = set()
        client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)

    def publish(self, count: int, first: int = 0) -> None:
        """Send messages `first`, ... without waiting."""
        bodies = range(first, first + count)
        self.client.feed(b"".join(publish(self.queue.encode(), b"%d" % n, PERSISTENT) for n in bodies))
        self.sent += count

    def hear(self) -> None:
        """Count what has come."""
        for answer in self.client.take():
            if isinstance(answer, methods.BasicAck | methods.BasicNack):
                low = 1 if answer.multiple else answer.delivery_tag
                tags = set(range(low, answer.delivery_tag + 1)) - self.confirmed - self.nacked
                (self.confirmed if isinstance(answer, methods.BasicAck) else self.nacked).update(tags)

    def wait_confirmed(self, count: int) -> None:
        """Wait until so many were confirmed."""

        def enough() -> bool:
            self.hear()
            return len(self.confirmed) >= count

        what = f"{count} of {self.sent} confirmed"
        try:
            self.site.wait(enough, what)
        except AssertionError as error:
            error.add_note(f"{len(self.confirmed)} confirmed, {len(self.nacked)} nacked")
            raise


class Consumer:
    """A client that takes numbers, and acknowledges when told to."""

    def __init__(self, site: Site, client: Client, queue: str = "q", prefetch: int = 0, **more: Any) -> None:
        self.site = site
        self.client = client
        self.unacked: list[tuple[int, int]] = []
        """(delivery tag, number)"""
        self.cancelled = 0
        client.ask(methods.BasicQos(0, prefetch, False), methods.BasicQosOk)
        client.send(methods.BasicConsume(queue=queue, consumer_tag="c", **more))
        site.wait(lambda: bool(client.inbox), "the consumer is there")
        client.expect(methods.BasicConsumeOk)

    def take(self) -> list[tuple[int, bool]]:
        """What has come since the last time: (number, redelivered)."""
        found = []
        deliver: methods.BasicDeliver | None = None
        for item in self.client.take():
            if isinstance(item, methods.BasicDeliver):
                deliver = item
            elif isinstance(item, methods.BasicCancel):
                self.cancelled += 1
            elif isinstance(item, tuple):
                assert deliver is not None
                self.unacked.append((deliver.delivery_tag, int(item[1])))
                found.append((int(item[1]), deliver.redelivered))
        return found

    def wait_taken(self, count: int) -> list[tuple[int, bool]]:
        """Wait for so many."""
        found: list[tuple[int, bool]] = []

        def enough() -> bool:
            found.extend(self.take())
            return len(found) >= count

        self.site.wait(enough, f"{count} messages are delivered")
        return found

    def ack_all(self) -> None:
        if self.unacked:
            self.client.send(methods.BasicAck(self.unacked[-1][0], True))
            self.unacked.clear()
