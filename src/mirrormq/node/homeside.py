"""What a master sends to a home node: reports, deliveries, answers.

Whatever they name may be gone here already (a queue deleted, a consumer cancelled): then they change nothing.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mirrormq.node import peerframes
from mirrormq.node.peerframes import (
    Answer,
    Arrived,
    Cancelled,
    Deliver,
    Epochs,
    Got,
    Hold,
    Moved,
    Report,
    Settled,
    Tell,
)
from mirrormq.node.peerlink import PeerLink

if TYPE_CHECKING:
    from mirrormq.node.switch import Switch


def on_report(_switch: "Switch", link: PeerLink, frame: Report) -> None:
    """Publishes are safe, or refused."""
    queue = link.queues.get(frame.queue)
    if queue is not None:
        queue.on_report(frame.done, frame.refused)


def on_arrived(_switch: "Switch", link: PeerLink, frame: Arrived) -> None:
    """Dead letters are where they were to go."""
    queue = link.queues.get(frame.queue)
    if queue is not None:
        queue.on_arrived(frame.source, frame.numbers)


def on_deliver(_switch: "Switch", link: PeerLink, frame: Deliver) -> None:
    """Messages for a consumer. One that is gone has given everything back by going.

    What was sent under a registration that this node's lease did not outlive is not taken: the master may
    have called this node dead, and given it to others.
    """
    inlet = link.inlets.get(frame.outlet)
    if inlet is not None and not (link.is_stale and inlet.queue.is_mirrored):
        inlet.take(frame)


def on_tell(switch: "Switch", link: PeerLink, _frame: Tell) -> None:
    """What clients here hold of queues that moved was registered when this node followed the metadata."""
    link.send(peerframes.encode(Moved(switch.node.settled_index)))


def on_epochs(_switch: "Switch", link: PeerLink, frame: Epochs) -> None:
    """How the log behind deliveries goes on."""
    inlet = link.inlets.get(frame.outlet)
    if inlet is not None:
        inlet.queue.epochs = list(frame.rows)


def on_settled(_switch: "Switch", link: PeerLink, frame: Settled) -> None:
    """The master knows how deliveries ended."""
    inlet = link.inlets.get(frame.outlet)
    if inlet is not None:
        inlet.on_settled(frame.count)


def on_answer(_switch: "Switch", link: PeerLink, frame: Answer | Got) -> None:
    """A request is answered."""
    link.answered(frame)


def on_cancelled(_switch: "Switch", link: PeerLink, frame: Cancelled) -> None:
    """A consumer is no longer served."""
    inlet = link.inlets.get(frame.outlet)
    if inlet is not None:
        inlet.queue.subscriptions.on_cancelled(inlet, frame.consumer)


def on_hold(_switch: "Switch", link: PeerLink, frame: Hold) -> None:
    """Publishers must wait for consumers, or need not any more."""
    queue = link.queues.get(frame.queue)
    if queue is not None:
        queue.hold(frame.is_held)


SERVERS: dict[type, Callable[["Switch", PeerLink, Any], None]] = {
    Report: on_report,
    Arrived: on_arrived,
    Deliver: on_deliver,
    Epochs: on_epochs,
    Tell: on_tell,
    Settled: on_settled,
    Got: on_answer,
    Answer: on_answer,
    Cancelled: on_cancelled,
    Hold: on_hold,
}
