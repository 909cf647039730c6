"""Dead letters of this node's queues for one queue on another node: kept until they have arrived there.

Guarantees
- Letters of one source leave in the order of their numbers, and everything that has not arrived is sent
  again, in that order, whenever the link opens. The target knows by the number of its source which letters it
  has, so each is taken once.
- A letter is never given up: while its target is out of reach or damaged it stays here, and its message in
  the queue where it died. It leaves when the target has it for good, or is deleted.
- Letters have nothing to do with the numbers of publishes (outgoing.py): neither waits for the other.
"""

from collections import deque
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.broker.queueport import Sender
from mirrormq.kernel import forward
from mirrormq.kernel.message import Message
from mirrormq.node import peerframes

if TYPE_CHECKING:
    from mirrormq.node.remotequeue import RemoteQueue


class Letter:
    """A dead letter on its way."""

    __slots__ = ("is_resent", "message", "number", "sender", "sent_to", "size")

    def __init__(self, message: Message, sender: Sender, number: int, *, is_resent: bool) -> None:
        self.message = message
        self.sender = sender
        self.number = number
        self.is_resent = is_resent
        """Was it sent before a crash of this node?"""
        self.sent_to = 0
        """The target's process it was sent to first."""
        self.size = 0
        """Bytes of its frame while it is under way."""


class Postbox:
    """The letters for one queue."""

    def __init__(self, queue: "RemoteQueue") -> None:
        self._queue = queue
        self._letters: dict[tuple[int, int], Letter] = {}
        """What has not arrived, in order, by source and number."""
        self._unsent: deque[Letter] = deque()
        self._in_flight = 0

    @property
    def is_empty(self) -> bool:
        """Has everything arrived?"""
        return not self._letters

    def post(self, letter: Letter) -> None:
        """Send a letter behind those before it."""
        self._letters[letter.sender.queue_id, letter.number] = letter
        self._unsent.append(letter)
        self._queue.link.active[self._queue] = None

    def send(self) -> None:
        """Send what the link takes; the rest follows when some of it has arrived."""
        link = self._queue.link
        while self._unsent and link.may_publish and self._in_flight < limits.forward_window_bytes:
            letter = self._unsent.popleft()
            is_resent = letter.is_resent or letter.sent_to not in (0, link.pid)
            letter.sent_to = letter.sent_to or link.pid
            frame = peerframes.post(
                self._queue.record.id,
                (letter.sender.queue_id, letter.number),
                forward.encode(letter.message, False),
                is_resent=is_resent,
            )
            letter.size = len(frame)
            self._in_flight += letter.size
            link.publish(frame)

    def start_again(self) -> None:
        """The link is back, or there is another master."""
        self._in_flight = 0
        self._unsent = deque(self._letters.values())
        for letter in self._unsent:
            letter.size = 0

    def arrived(self, source: int, numbers: tuple[int, ...]) -> None:
        """The target has these letters for good, or had no room for them."""
        for number in numbers:
            letter = self._letters.pop((source, number), None)
            if letter is not None:
                self._in_flight -= letter.size
                letter.sender.arrived(number)
        self.send()

    def end(self) -> None:
        """The target is deleted: nobody waits for it any more."""
        letters, self._letters = self._letters, {}
        self._unsent.clear()
        for letter in letters.values():
            letter.sender.arrived(letter.number)
