"""Dead letters of this node's queues, and rows of its sinks, for one queue on another node: kept until they
have arrived there.

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
from mirrormq.broker.queueport import Rows, Sender
from mirrormq.kernel import forward
from mirrormq.kernel.message import Message
from mirrormq.node import peerframes

if TYPE_CHECKING:
    from mirrormq.node.remotequeue import RemoteQueue


class Letter:
    """A dead letter on its way, or a block of committed rows under the number of its last one."""

    __slots__ = ("is_resent", "message", "number", "sender", "sent_to", "size", "was_mirrored")

    def __init__(self, message: Message | Rows, sender: Sender, number: int, *, is_resent: bool) -> None:
        self.message = message
        self.sender = sender
        self.number = number
        self.is_resent = is_resent
        """Was it sent before a crash of this node?"""
        self.sent_to = 0
        """The target's process it was sent to first."""
        self.was_mirrored = False
        """Was the target mirrored then?"""
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
        while (
            self._unsent
            and self._queue.is_open
            and link.may_publish
            and self._in_flight < limits.forward_window_bytes
        ):
            letter = self._unsent.popleft()
            is_again = letter.sent_to not in (0, link.pid) and self._queue.may_be_known(letter.was_mirrored)
            is_resent = letter.is_resent or is_again
            if not letter.sent_to:
                letter.sent_to, letter.was_mirrored = link.pid, self._queue.is_mirrored
            frame = self._frame(letter, is_resent=is_resent)
            letter.size = len(frame)
            self._in_flight += letter.size
            link.publish(frame)

    def _frame(self, letter: Letter, *, is_resent: bool) -> bytes:
        target, message, source = self._queue.record.id, letter.message, letter.sender.queue_id
        if isinstance(message, Rows):
            return peerframes.post_rows(target, source, message, is_resent=is_resent)
        block = forward.encode(message, False)
        return peerframes.post(target, (source, letter.number), block, is_resent=is_resent)

    def pass_to(self, queue: "RemoteQueue") -> None:
        """Another object stands for the queue: letters under way are its own."""
        self._queue = queue
        self.start_again()

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
