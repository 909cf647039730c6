"""Direct reply-to between nodes: an answer published on one node for a requester connected to another.

Guarantees
- An answer goes to the process that gave out the address, or nowhere: one that has restarted since is another
  process, and knows nothing of the old addresses.
- Delivered at most once, never stored, as between clients of one node. What finds the link broken is dropped.
  While the link is full, at most `limits.forward_reply_bytes_max` wait for it; what comes then is dropped,
  and the operator is told.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError
from mirrormq.broker import replyto
from mirrormq.broker.queueport import Later
from mirrormq.kernel import forward
from mirrormq.kernel.message import Message
from mirrormq.node import peerframes
from mirrormq.node.peerframes import Answer, Got, Listen, Reply
from mirrormq.node.peerlink import PeerLink

if TYPE_CHECKING:
    from mirrormq.node.switch import Switch


class FarListener:
    """A requester connected to another node."""

    def __init__(self, switch: "Switch", link: PeerLink, address: bytes) -> None:
        self._switch = switch
        self._link = link
        self._address = address

    def deliver(self, message: Message) -> None:
        """Send an answer."""
        link = self._link
        frame = peerframes.reply(self._address, forward.encode(message, False))
        if not link.is_full:
            link.publish(frame)
        elif link.reply_bytes + len(frame) <= limits.forward_reply_bytes_max:
            link.reply_bytes += len(frame)
            link.replies.append(frame)
        else:
            if not link.replies_dropped:
                text = f"answers by direct reply-to are dropped: the link to node '{link.peer}' is full"
                self._switch.node.note("warning", text, event="link.replies_dropped")
            link.replies_dropped += 1

    def is_there(self) -> Later[bool]:
        """Ask its node."""
        later: Later[bool] = Later()

        def answered(answer: Answer | Got | AmqpError) -> None:
            later.answer(isinstance(answer, Answer) and any(answer.numbers))

        self._link.request(lambda number: Listen(number, self._address), answered)
        return later


def find(switch: "Switch", pid: int, address: bytes) -> FarListener | None:
    """Who listens on the node with this process; None if that is out of reach."""
    for link in switch.links.values():
        if link.is_open and link.pid == pid:
            return FarListener(switch, link, address)
    return None


def link_writable(link: PeerLink) -> None:
    """The link takes more again: send what waited for it."""
    replies, link.replies = link.replies, []
    link.reply_bytes = link.replies_dropped = 0
    for frame in replies:
        link.publish(frame)


def on_reply(switch: "Switch", _link: PeerLink, frame: Reply) -> None:
    """An answer for a client of this node, who may be gone."""
    message = forward.read_message(frame.data, frame.at)
    consumer = replyto.find_here(switch.node, frame.address)
    if consumer is not None:
        consumer.deliver(message)


def on_listen(switch: "Switch", link: PeerLink, frame: Listen) -> None:
    """Is the client still there?"""
    is_there = replyto.find_here(switch.node, frame.address) is not None
    link.send(peerframes.encode(Answer(frame.request, (int(is_there),))))


SERVERS: dict[type, Callable[["Switch", PeerLink, Any], None]] = {Reply: on_reply, Listen: on_listen}
