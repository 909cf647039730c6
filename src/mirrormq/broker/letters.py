"""Dead letters of a durable queue: a message leaves it only when every durable target has its letter on disk.

Guarantees
- A persistent entry that dies is written down as dying, with its number and its targets, before a letter is
  sent. Its removal is written when every durable target has the letter on disk. After a crash the letters of
  what is still dying are sent again, as they were; a target drops those it has. So each durable target gets
  each letter exactly once.
- A letter leaves for a target that may outlive the record of its death only when that is durable: one on
  another node, or one of two queues either of which has mirrors.
- Letters reach a target in the order of their numbers, those sent again first.
- What nobody could get back after a crash is not waited for: letters that are transient or that go to
  queues which do not outlive a restart. Without a target at all the entry is dropped and counted.
- Over the backlog bound, what max-length drops is sent without waiting, and counted. Rejected and expired
  entries are waited for all the same.
- A target that is full and refuses publishes loses the letter, and counts it. One that is damaged holds its
  letters back in the queue where they died.
"""

from typing import TYPE_CHECKING, NamedTuple

from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.broker.arguments import text
from mirrormq.broker.deadletter import DeadLetter, Reason, make_dead_letter
from mirrormq.kernel.cores import (
    REASON_DELIVERY_LIMIT,
    REASON_EXPIRED,
    REASON_MAXLEN,
    REASON_REJECTED,
)
from mirrormq.kernel.message import Message
from mirrormq.log.durable import DurableLog
from mirrormq.log.dying import Death

if TYPE_CHECKING:
    from mirrormq.broker.queue import Queue
    from mirrormq.broker.queueport import QueuePort

REASONS: dict[int, Reason] = {
    REASON_REJECTED: "rejected",
    REASON_EXPIRED: "expired",
    REASON_MAXLEN: "maxlen",
    REASON_DELIVERY_LIMIT: "delivery_limit",
}

Dead = tuple[Message, int, int]
"""Message, seq (0: it was never in the log) and reason."""


class _Parcel(NamedTuple):
    """A letter and the queues it goes to; `number` if it is waited for, else 0."""

    message: Message
    targets: "list[QueuePort]"
    number: int
    is_resent: bool = False


class _Open:
    """A death whose letters are on their way."""

    __slots__ = ("death", "size", "waits")

    def __init__(self, death: Death, size: int) -> None:
        self.death = death
        self.size = size
        self.waits = len(death.targets)


class Letters:
    """The dead letters of one durable queue."""

    def __init__(self, queue: "Queue", log: DurableLog) -> None:
        self._queue = queue
        self._log = log
        self.queue_id = queue.record.log_id
        self._open: dict[int, _Open] = {}
        self._open_bytes = 0
        self._arrived: list[int] = []
        self._put_off = 0
        """Letters that wait until the records of their deaths are durable."""
        self.unsafe = 0
        """Letters that were sent without waiting because too many were on their way."""
        self._noted_at: int | None = None

    @property
    def backlog(self) -> int:
        """Entries whose letters are on their way."""
        return len(self._open)

    def send(self, dead: list[Dead]) -> None:
        """Send what died since the last turn, behind what recovery found dying."""
        dying = self._log.dying
        found = [(dying[seq], message) for message, seq, _ in dead if seq in dying]
        new = [one for one in dead if one[1] not in dying]
        for death, message in sorted(found, key=lambda pair: pair[0].number):
            self._send_again(death, message)
        parcels = [self._address(*one) for one in new]
        deaths = [self._open[parcel.number].death for parcel in parcels if parcel.number]
        if deaths:
            # Written before the letters: whichever of them a crash leaves, the deaths they tell of are there.
            must_wait = any(
                parcel.number and self._must_wait(target) for parcel in parcels for target in parcel.targets
            )
            self._log.die(deaths, self._queue.host.now, flush=must_wait)
        for parcel in parcels:
            self._post(parcel)

    def arrived(self, number: int) -> None:
        """One more target has this letter for good, or is no longer there to have it."""
        opened = self._open[number]
        opened.waits -= 1
        if opened.waits == 0:
            self._arrived.append(number)
            self._queue.core.touch()

    def settle(self) -> None:
        """What every target has leaves the queue; the caller writes its removal in this turn."""
        arrived, self._arrived = self._arrived, []
        for number in arrived:
            opened = self._open.pop(number)
            self._open_bytes -= opened.size
            self._leave(opened.death)

    # --- one letter ---

    def _address(self, message: Message, seq: int, reason: int) -> _Parcel:
        """Decide what becomes of a dead entry. If nobody has to be waited for, it leaves the queue now."""
        queue = self._queue
        exchange, key = queue.settings.dead_letter_exchange, queue.settings.dead_letter_key
        targets: list[QueuePort] = []
        durable: tuple[int, ...] = ()
        if exchange is not None:  # else a policy was cleared since it died
            letter = dead_letter(queue, message, reason, queue.host.now)
            message = letter.message
            targets = queue.vhost.dead_letter_targets(exchange, letter)
            queue.dead_letters_dropped += not targets
            if seq and message.persistent:
                durable = tuple(target.record.log_id for target in targets if target.outlives)
        if not durable or (reason == REASON_MAXLEN and self._is_over_bound()):
            if seq:
                queue.core.leave(seq, reason)
            return _Parcel(message, targets, 0)
        self._log.last_number += 1
        number = self._log.last_number
        sent_to, sent_key = message.exchange, None if key is None else message.routing_key
        death = Death(seq, number, reason, queue.host.now.wall, sent_to, sent_key, durable)
        self._keep_open(death, message)
        return _Parcel(message, targets, number)

    def _must_wait(self, target: "QueuePort") -> bool:
        """May the target have a letter without the record of its death being anywhere?

        None overtakes those that wait: the master of the target may have come here since.
        """
        is_apart = not isinstance(target, type(self._queue)) or target.log.is_mirrored
        return is_apart or self._queue.log.is_mirrored or self._put_off > 0

    def _post(self, parcel: _Parcel) -> None:
        for target in parcel.targets:
            if not (parcel.number and target.outlives):
                target.core.push(parcel.message)
            elif self._must_wait(target):
                self._post_later(parcel, target)
            else:
                target.receive(parcel.message, self, parcel.number, is_resent=parcel.is_resent)

    def _post_later(self, parcel: _Parcel, target: "QueuePort") -> None:
        """A letter may not reach another node's disk before its death is on ours, and on those of our
        mirrors: a crash in between would give its number to another letter, which the target would then take
        for this one and drop.
        """
        self._put_off += 1
        record = target.record

        def durable() -> None:
            self._put_off -= 1
            # The target may have got another master meanwhile: what was its port then takes no more.
            there = self._queue.vhost.queues.get(record.name)
            if there is not None and there.record.log_id == record.log_id:
                there.receive(parcel.message, self, parcel.number, is_resent=parcel.is_resent)
            else:
                self.arrived(parcel.number)

        self._log.when_durable(self._log.end, durable)

    def _send_again(self, death: Death, message: Message) -> None:
        """A crash came before the removal: send the same letter to those of its durable targets still there.

        Queues that did not outlive the restart have no claim to it: they are not the ones it went to.
        """
        queue = self._queue
        there = [target for target in queue.vhost.queues.values() if target.record.log_id in death.targets]
        if not there:
            queue.dead_letters_dropped += 1
            self._leave(death)
            return
        letter = make_dead_letter(
            message,
            REASONS[death.reason],
            Now(queue.host.now.mono, death.time),
            queue=queue.name,
            exchange=text(death.exchange),
            key=death.key,
        )
        opened = self._keep_open(death, letter.message)
        opened.waits = len(there)
        # A target may have delivered the letter and lost its record in the crash.
        self._post(_Parcel(letter.message, there, death.number, is_resent=True))

    def _keep_open(self, death: Death, message: Message) -> _Open:
        opened = self._open[death.number] = _Open(death, message.body_size)
        self._open_bytes += opened.size
        return opened

    def _leave(self, death: Death) -> None:
        del self._log.dying[death.seq]
        self._queue.core.leave(death.seq, death.reason)

    def _is_over_bound(self) -> bool:
        if (
            len(self._open) < limits.dead_letter_backlog_max
            and self._open_bytes < limits.dead_letter_backlog_bytes_max
        ):
            return False
        self.unsafe += 1
        now = self._queue.host.now.mono
        if self._noted_at is None or now - self._noted_at >= limits.dead_letter_note_us:
            self._noted_at = now
            self._queue.host.note(
                "warning",
                f"too many dead letters of {self._queue.text} are on their way: what its length limit drops "
                "now is sent without waiting for the disk and may be lost in a crash",
                backlog=len(self._open),
                sent_unsafe=self.unsafe,
                event="queue.dead_letters_behind",
            )
        return True


def dead_letter(queue: "Queue", message: Message, reason: int, now: Now) -> DeadLetter:
    """The letter a queue sends for a message that died in it."""
    exchange = queue.settings.dead_letter_exchange
    assert exchange is not None
    key = queue.settings.dead_letter_key
    return make_dead_letter(message, REASONS[reason], now, queue=queue.name, exchange=exchange, key=key)
