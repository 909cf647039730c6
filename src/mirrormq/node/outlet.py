"""Where deliveries to another node leave the master: one for each channel there that consumes or gets.

Guarantees
- The queue treats the consumers behind it like any others: turns, priority, exclusiveness, a single active
  one are decided here. Tags are dense from 1, so only the first of a block travels.
- Everything sent stays unacked here until the home node tells how it ended, also for clients that do not
  acknowledge: a link that breaks loses nothing.
- No more than `limits.forward_window_bytes` (and one message) is on its way or kept at the home node.
- When the link breaks, consumers keep their places and their messages for `limits.link_grace_us`, so that a
  short break repeats nothing, deletes no auto-delete queue and gives no exclusive queue away. What was on its
  way then is ready again when the link is back; if it does not come back in time, or another process of the
  home node does, everything outstanding is, at its place and marked as redelivered.
- What a client holds of the master before this one is outstanding here under the tags its home node gave it
  (broker/inherited.py), and counts against the limits of its consumer.
- The home node of a mirrored queue hears that a delivery has ended when every mirror has the record of it, so
  it can tell the next master what this one took with it.
"""

from typing import TYPE_CHECKING, Any

from mirrormq.base import limits
from mirrormq.broker.inherited import epochs_of, since_of
from mirrormq.broker.queue import Queue
from mirrormq.broker.queueport import Later
from mirrormq.kernel import forward
from mirrormq.kernel.cores import ChannelCore, ConsumerCore
from mirrormq.kernel.outbuffer import Dirty, OutBuffer
from mirrormq.node import peerframes
from mirrormq.node.peerframes import BadFrame, Consume, Inherit, Resume, Span

if TYPE_CHECKING:
    from mirrormq.node.peerlink import PeerLink
    from mirrormq.node.switch import NodePort

_UNSEEN = 3


class FarConsumer:
    """A consumer of another node, as its queue sees it."""

    def __init__(self, outlet: "Outlet", frame: Consume, arguments: dict[str, Any]) -> None:
        self.outlet = outlet
        self.number = frame.consumer
        self.tag = frame.tag.decode("utf-8", "surrogateescape")
        self.no_ack = frame.no_ack
        self.exclusive = frame.exclusive
        self.prefetch = 0 if frame.no_ack else frame.prefetch
        self.priority = frame.priority
        self.order = frame.order
        self.arguments = arguments
        self.active = True
        number = frame.consumer.to_bytes(4, "little")
        self.core = ConsumerCore(outlet.channel, number, False, self.prefetch, frame.no_ack)

    def is_reading(self) -> bool:
        """Does the home node take what is sent, or did so a moment ago?"""
        return self.outlet.is_reading()

    def cancelled(self) -> None:
        """The queue no longer serves it; what it holds can still be settled."""
        link = self.outlet.link
        link.suspended.pop(self.number, None)
        if self.outlet.remove(self.number) is not None:
            link.send(peerframes.encode(peerframes.Cancelled(self.outlet.number, self.number)))


class Outlet:
    """What one channel of another node takes from one queue."""

    def __init__(self, host: "NodePort", link: "PeerLink", number: int, queue: Queue, dirty: Dirty) -> None:
        self._host = host
        self.link = link
        self._pid = link.pid
        """Of the process at the other end that it belongs to."""
        self.number = number
        self.queue = queue
        self.consumers: dict[int, FarConsumer] = {}
        self.out = OutBuffer(dirty, self, compact=True)
        self.out.high = limits.forward_window_bytes
        self.out.blocked = link.is_full
        self.channel = ChannelCore(0, host.next_uid(), self.out)
        self._next = 1
        self._in_flight = 0
        self.is_suspended = False
        self._settled = 0
        """Frames of settlements taken so far."""
        self._told = 0
        self._spans = 0
        """Spans in those of them that the home node still keeps."""
        self._skip = 0
        """Frames to come that were taken before the link broke."""
        self._heard_at = host.now.mono
        self._epochs_told = 0
        self.refused: list[int] = []
        """First and last tag of each run of inherited deliveries that the client holds no more."""
        link.outlets[number] = self

    def add(self, consumer: FarConsumer) -> None:
        """The queue has taken this consumer."""
        self.consumers[consumer.number] = consumer
        self.link.served.add(consumer.number)
        forward.bind_consumer(self.channel, consumer.core, consumer.number)

    def remove(self, number: int) -> FarConsumer | None:
        """Forget a consumer, if it is there."""
        self.link.served.discard(number)
        return self.consumers.pop(number, None)

    def cancel(self, number: int) -> Later[None] | None:
        """The home node's client wants no more; answered when an auto-delete queue has gone with it."""
        consumer = self.remove(number)
        return None if consumer is None else self.queue.cancel(consumer)

    def is_reading(self) -> bool:
        """Does the home node take what is sent, or did so a moment ago?"""
        if not self.link.is_open:
            return False
        return self.out.high > 0 or self._host.now.mono - self._heard_at < limits.output_stall_us

    # --- to the home node ---

    def flush(self) -> None:
        """Send what the queue delivered in this pass."""
        block = self.out.take()
        first, self._next = self._next, self.channel.next_tag
        if self.link.is_open and block:
            self._tell_epochs()
            self.link.send(peerframes.deliver(self.number, first, self._next - first, block))
            self._in_flight += len(block)
            self._set_room()

    def get(self) -> tuple[int, bytes | memoryview]:
        """Tag and record of the message at the queue's head; (0, b"") if there is none."""
        self.flush()
        if not self.queue.get(self.channel, False):
            return 0, b""
        self._tell_epochs()
        block = self.out.take()
        self._next = self.channel.next_tag
        self._in_flight += len(block)
        self._set_room()
        return self._next - 1, block

    def _tell_epochs(self) -> None:
        """Which record a delivery is, the home node knows by its seq and epoch."""
        epochs = epochs_of(self.queue)
        if epochs is not None and len(epochs) != self._epochs_told:
            self._epochs_told = len(epochs)
            rows = tuple(epochs[-limits.forward_epochs_max :])
            self.link.send(peerframes.encode(peerframes.Epochs(self.number, rows)))

    # --- from the home node ---

    def inherit(self, frame: Inherit) -> None:
        """What a client holds of the master before; `refused`: what of it is not known here."""
        rows: list[tuple[int, int]] = []
        for consumer, first, last, epoch in frame.rows:
            if last < first or last - first >= limits.forward_inherited_max:
                raise BadFrame("a row of deliveries that no node has")
            inherited = self.queue.inherited
            seqs = [0] * (last - first + 1) if inherited is None else inherited.claim(first, last, epoch)
            rows += [(seq, consumer) for seq in seqs]
        forward.inherit(self.channel, self.queue.core, rows, self._host.now.mono)
        self._next = self.channel.next_tag
        self.is_suspended = True  # the home node goes on with it as after a break
        self.channel.flow = False
        for tag, (seq, _) in enumerate(rows, 1):
            if not seq and self.refused and self.refused[-1] == tag - 1:
                self.refused[-1] = tag
            elif not seq:
                self.refused += [tag, tag]

    def settle(self, spans: list[Span]) -> None:
        """Deliveries ended."""
        if self._skip:
            self._skip -= 1
            return
        self._settled += 1
        self._spans += len(spans)
        for how, first, last in spans:
            forward.settle_span(self.channel, first, last, how)
        is_many = self._settled - self._told >= limits.forward_settles_kept
        if is_many or self._spans >= limits.forward_spans_kept:
            self._told, self._spans = self._settled, 0
            told = peerframes.encode(peerframes.Settled(self.number, self._settled))
            if since_of(self.queue):
                self.link.when_settled(self.queue, lambda: self._tell(told))
            else:
                self._tell(told)

    def _tell(self, told: bytes) -> None:
        # If that took long another process may be there, which counts its outlets anew.
        if self.link.pid == self._pid:
            self.link.publish(told)

    def credit(self, size: int) -> None:
        """So many bytes have left the home node's memory."""
        self._in_flight = max(self._in_flight - size, 0)
        self._heard_at = self._host.now.mono
        self._set_room()

    def limit(self, shared: int, is_flowing: bool) -> None:
        """The limits of the client's channel changed, or the client stopped taking messages."""
        self.channel.prefetch_limit = shared
        self.channel.flow = is_flowing
        self.queue.core.touch()

    def _set_room(self) -> None:
        self.out.high = max(limits.forward_window_bytes - self._in_flight, 0)
        self.set_blocked(self.link.is_full)

    def set_blocked(self, is_blocked: bool) -> None:
        """The link takes nothing for now, or takes more again."""
        self.out.blocked = is_blocked
        if self.out.starved and not is_blocked and self.out.high:
            self.out.starved = False
            self.queue.core.touch()

    # --- the end ---

    def suspend(self) -> None:
        """The link broke: nothing is delivered until the home node resumes, or is given up."""
        self.is_suspended = True
        self.channel.flow = False
        self.link.suspended.update(self.consumers)
        self.link.served.difference_update(self.consumers)
        self.consumers.clear()
        self.out.take()

    def resume(self, frame: Resume) -> None:
        """The link is back."""
        if not self.is_suspended or frame.first > self._settled + 1:
            raise BadFrame("an outlet goes on where it was not")
        self.is_suspended = False
        self._skip = self._settled + 1 - frame.first
        self._next = self.channel.next_tag
        forward.settle_span(self.channel, frame.received + 1, self._next, _UNSEEN)
        self._in_flight = frame.waiting
        self._heard_at = self._host.now.mono
        self._set_room()
        self.limit(frame.prefetch, frame.is_flowing)

    def drop(self) -> None:
        """Forget it, with everything outstanding ready again."""
        self.link.outlets.pop(self.number, None)
        self.link.served.difference_update(self.consumers)
        # A consumer that the home node did not ask for again after a break is cancelled when that is ready:
        # until then its queue must not take it for one that could be given something.
        self.channel.flow = False
        self.out.take()
        self.channel.release()
