"""Nodes that get one thing about sinks wrong: a simulator that does not notice is broken.

Each is a subclass of the shipped node; the shipped code has no switches.
"""

from collections.abc import Callable
from typing import Any

from mirrormq.broker.arguments import QueueSettings
from mirrormq.broker.host import Host
from mirrormq.broker.queueport import QueuePort
from mirrormq.broker.staging import SinkError, Staging, StagingQueue
from mirrormq.broker.vhost import VHost
from mirrormq.log.copylog import CopyLog
from mirrormq.log.sinkstate import NO_BATCH
from mirrormq.meta import records
from mirrormq.node.copies import Copies
from mirrormq.node.node import Node
from mirrormq.node.switch import Switch


def _with_staging(staging: type[Staging]) -> type[Node]:
    """A node whose staging queues are wrong."""

    class WrongSwitch(Switch):
        def make_queue(
            self, host: Host, vhost: VHost, record: records.Queue, settings: QueueSettings
        ) -> QueuePort:
            queue = super().make_queue(host, vhost, record, settings)
            if isinstance(queue, StagingQueue):
                queue.staging.__class__ = staging
            return queue

    class WrongNode(Node):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self.switch.__class__ = WrongSwitch

    return WrongNode


def _with_log(log: type[CopyLog]) -> type[Node]:
    """A node whose new masters read their logs wrongly."""

    class WrongCopies(Copies):
        log_class = log

    class WrongNode(Node):
        copies_class = WrongCopies

    return WrongNode


class _Hasty(Staging):
    """Answers, and lets rows go, before the commit is durable."""

    def _answer(self, then: Callable[[], None], failed: Callable[[SinkError], None]) -> None:  # noqa: ARG002
        then()


class _Boastful(Staging):
    """Tells which batch is committed before that is durable."""

    def tell(self, done: Callable[[dict[str, object] | SinkError], None]) -> None:
        self.check_open()
        done(self._report())


class _Forgetful(CopyLog):
    """Does not know after a promotion which rows the queue has had."""

    def become_master(self) -> None:
        super().become_master()
        self.log.letters = {}


class _Careless(CopyLog):
    """Does not know after a promotion which batch was committed last."""

    def become_master(self) -> None:
        super().become_master()
        if self.log.sink is not None:
            self.log.sink.last = NO_BATCH


PLANTED: dict[str, type[Node]] = {
    "forwarded-before-commit": _with_staging(_Hasty),
    "told-before-durable": _with_staging(_Boastful),
    "dedup-lost-at-promotion": _with_log(_Forgetful),
    "batch-forgotten-at-promotion": _with_log(_Careless),
}
