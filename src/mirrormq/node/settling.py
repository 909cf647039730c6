"""When what has left queues is safe: home nodes wait for that, and clients that commit.

Guarantees
- `when_received`: every in-sync mirror has the record of all that left the queue up to then.
- `when_durable`: the same, and it is on their disks, so none of it comes back while one of these copies is
  left. Whoever waits is told False if this node lost the queue before: the next master may not have it.
- What left a queue while that was being handed over is in no log here. Its next master is told of it
  (subscriptions.py), and asked.
- `after` asks the masters of other nodes. One of a mirrored queue that goes away is told again, in the person
  of its successor, and asked again; another one when the link is back, if it is the same process.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError
from mirrormq.broker.branch import Branch
from mirrormq.broker.queue import Queue
from mirrormq.broker.queueport import QueuePort
from mirrormq.kernel.cores import QueueCore
from mirrormq.mirror.mirroredlog import MirroredLog
from mirrormq.node import peerframes
from mirrormq.node.inlet import Inlet
from mirrormq.node.peerframes import Answer, Got
from mirrormq.node.peerlink import PeerLink
from mirrormq.node.remotequeue import RemoteQueue
from mirrormq.node.wishes import Wish

if TYPE_CHECKING:
    from mirrormq.node.switch import Switch

Done = Callable[[bool], None]

_NOT_FOUND = 404


class _Received(NamedTuple):
    queue: Queue
    position: int
    """Of the log; 0 while not all is written that has left the queue."""
    done: Callable[[], None]


class _Durable(NamedTuple):
    queue: Queue
    position: int
    done: Done


class Settling:
    """Everybody on this node who waits for that."""

    def __init__(self, switch: "Switch") -> None:
        self._switch = switch
        self._received: list[_Received] = []
        self._durable: list[_Durable] = []

    # --- queues mastered here ---

    def when_received(self, queue: Queue, done: Callable[[], None]) -> None:
        """Call `done` when all that has left the queue in this pass has left it at every mirror."""
        self._received.append(_Received(queue, 0, done))

    def when_durable(self, queue: Queue, done: Done) -> None:
        """Call `done` when all that has left the queue so far never comes back."""
        node = self._switch.node
        if not queue.log.is_mirrored:
            node.after_local_flush(lambda: done(True))
            return
        node.turn_queues()
        self._durable.append(_Durable(queue, self._position(queue), done))

    def _position(self, queue: Queue) -> int:
        """Where the log has all that left the queue; 0 if it has not. The mirrors are asked to flush it: of
        themselves they keep removals until somebody waits for something else.
        """
        log = queue.log.kept
        is_read = queue.inherited is None or not queue.inherited.is_losing
        if log is None or queue.core.has_settled or queue.core.has_dying or not is_read:
            return 0
        if queue.log.is_open and not log.is_volatile and _removed(queue) < log.end:
            log.ask_flush(self._switch.node.now)
        return log.end

    def look(self) -> None:
        """End of a pass: who has waited long enough?"""
        if self._received:
            self._look_at_received()
        waiting, self._durable = self._durable, []
        for queue, position, done in waiting:
            if queue.core.gone:
                self._look_elsewhere(queue, position, done)
            elif queue.damage is not None:
                done(False)
            elif position and _removed(queue) >= position:
                done(True)
            else:
                self._durable.append(_Durable(queue, position or self._position(queue), done))

    def _look_at_received(self) -> None:
        waiting, self._received = self._received, []
        for queue, position, done in waiting:
            if queue.core.gone:
                continue  # another master has to hear of it, or nobody
            if not position and queue.core.has_settled:
                self._received.append(_Received(queue, 0, done))  # the queue is being handed over
                continue
            upto = position or queue.log.end
            received = getattr(queue.log, "received", upto)  # a log without mirrors has it
            if received >= upto:
                done()
            else:
                self._received.append(_Received(queue, upto, done))

    def _look_elsewhere(self, queue: Queue, position: int, done: Done) -> None:
        port = queue.vhost.queues.get(queue.name)
        if port is None or port.record.id != queue.record.id:
            done(True)  # it is deleted
        elif position:
            # What was written and is not everywhere may be in the next master's log, or not.
            done(_removed(queue) >= position)
        else:
            self._ask_port(port, done)

    # --- all queues ---

    def after(self, cores: Iterable[QueueCore], done: Done) -> None:
        """Call `done` when all that has left these queues so far never comes back; with False if it may."""
        self._switch.node.turn_queues()
        ports: dict[QueuePort, None] = {}
        inlets: list[Inlet] = []
        is_local = False
        for core in cores:
            owner = core.owner
            if isinstance(owner, Inlet):
                inlets.append(owner)
                ports[owner.queue] = None
            elif isinstance(owner, Queue) and owner.log.is_mirrored:
                ports[owner] = None
            else:
                is_local = True
        left = len(ports) + is_local
        are_sure = True

        def answered(is_sure: bool) -> None:
            nonlocal left, are_sure
            left -= 1
            are_sure = are_sure and is_sure
            if left == 0:
                done(are_sure and not any(inlet.is_lost for inlet in inlets))

        for port in ports:
            self._ask_port(port, answered)
        if is_local:
            self._switch.node.after_local_flush(lambda: answered(True))  # one flush for all of them
        elif not ports:
            done(True)

    def _ask_port(self, port: QueuePort, done: Done) -> None:
        if isinstance(port, Branch):
            done(False)  # the queue itself hears of it when this node is not cut off any more
        elif isinstance(port, Queue):
            self.when_durable(port, done)
        elif isinstance(port, RemoteQueue) and port.is_mirrored:
            self._wish(port, done)
        else:
            assert isinstance(port, RemoteQueue)
            self._ask_link(port.link, port.record.id, done)

    def _wish(self, queue: RemoteQueue, done: Done) -> None:
        def answered(answer: Answer | Got | AmqpError) -> None:
            done(_is_sure(answer) if isinstance(answer, Answer) else queue.core.gone)

        def here(port: QueuePort) -> None:
            self._ask_port(port, done)

        make, patience = _asking(queue.record.id), limits.failover_grace_us
        queue.wishes.ask(Wish(make, answered, here, patience_us=patience))

    def _ask_link(self, link: PeerLink, queue_id: int, done: Done) -> None:
        def go_on(is_resumed: bool) -> None:
            if is_resumed:
                self._ask_link(link, queue_id, done)
            else:
                done(False)

        def answered(answer: Answer | Got | AmqpError) -> None:
            if isinstance(answer, Answer):
                done(_is_sure(answer))
            else:
                link.unsure.append(go_on)  # when the link is back, the master is told again, and asked

        link.request(_asking(queue_id), answered)

    def link_back(self, link: PeerLink, *, is_resumed: bool) -> None:
        """The master behind a link knows again what its outlets hold (`is_resumed`), or never will."""
        unsure, link.unsure = link.unsure, []
        for go_on in unsure:
            go_on(is_resumed)


def _removed(queue: Queue) -> int:
    """Up to here nothing comes back that has left the queue, which may have lost its mirrors since."""
    return queue.log.removed if isinstance(queue.log, MirroredLog) else int(queue.log.durable)


def _asking(queue_id: int) -> Callable[[int], peerframes.Ask]:
    return lambda number: peerframes.Ask(number, queue_id, peerframes.FLUSH, 0)


def _is_sure(answer: Answer) -> bool:
    """Nor does anything come back that was in a queue which is deleted."""
    return answer.code in (0, _NOT_FOUND)
