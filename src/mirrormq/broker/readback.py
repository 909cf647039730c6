"""Reading a queue's head back from its log when it does not lie in memory.

Guarantee: entries come back in seq order, each once. One read is under way at a time; the queue is given a
turn when it has brought something, so nothing waits in between. A record that should be there and is not
makes the queue damaged: what is behind it is not served as if it were complete.
"""

from typing import TYPE_CHECKING, NamedTuple

from mirrormq.base import limits
from mirrormq.kernel import records
from mirrormq.kernel.cores import QueueCore
from mirrormq.log.durable import DurableLog
from mirrormq.log.places import Place
from mirrormq.log.scan import Scanned, scan

if TYPE_CHECKING:
    from mirrormq.broker.host import Host
    from mirrormq.broker.queue import Queue


def unreadable(queue: "Queue", reason: str) -> None:
    """Something of a queue cannot be read: another node that has it takes over, or nobody serves it."""
    if queue.log.mends(reason):
        text = f"{queue.text} is handed over to a node with a whole copy, and this one is made anew: {reason}"
        queue.host.note("error", f"{text}; check the disk of this node", event="mirror.damaged")
    else:
        queue.fail(reason)


class Ask(NamedTuple):
    """A part of a file to be read."""

    file: str
    offset: int
    length: int


class ReadBack:
    """The reader of one queue."""

    __slots__ = ("_core", "_host", "_log", "_queue", "is_reading")

    def __init__(self, host: "Host", core: QueueCore, log: DurableLog, queue: "Queue") -> None:
        self._host = host
        self._core = core
        self._log = log
        self._queue = queue
        self.is_reading = False

    def _damaged(self, reason: str) -> None:
        """A record cannot be found."""
        unreadable(self._queue, reason)

    def start(self) -> None:
        """Read what the queue needs next, unless a read is under way."""
        wanted = self._core.wanted()
        if self.is_reading or wanted is None:
            return
        if self._from_memory(wanted):
            self._core.touch()
            return
        place = self._log.places.at(wanted[1])
        if place is None:
            self._damaged(f"record {wanted[1]} is in no file")
            return
        self._read(Ask(place.file, place.offset, limits.read_back_bytes))

    def _from_memory(self, wanted: tuple[int, int, int, int]) -> bool:
        """Take what a mirrored queue still has in memory to send it on."""
        log = self._log
        recent = log.copy.recent.read(wanted[1], log.end, limits.read_back_bytes) if log.copy else None
        batches: list[tuple[bytes, int]] = []
        upto = 0
        for data in recent or ():
            head = records.read_head(data, 0)
            if head is not None and head[5]:
                batches.append((data, 0))
                upto = records.last_seq(data, 0)
        if not batches:
            return False
        # What lies behind the run is in the queue's memory.
        upto = min(upto, wanted[2])
        aside = log.aside_between(wanted[1], upto)
        try:
            records.refill(self._core, wanted[0], batches, upto, log.dead, log.redelivered_upto, aside)
        except ValueError as mismatch:
            self._damaged(f"what is kept of its log in memory does not hold what it should: {mismatch}")
        return True

    def _read(self, ask: Ask) -> None:
        end = self._log.end_of(ask.file)
        if end is not None:
            # Behind its end may lie what was being moved there when an earlier process died.
            ask = ask._replace(length=min(ask.length, max(end - ask.offset, 0)))
        self.is_reading = True
        self._host.read(*ask, lambda data, error: self._on_read(ask, data, error))

    def _on_read(self, ask: Ask, data: bytes | None, error: str | None) -> None:
        self.is_reading = False
        wanted = self._core.wanted()
        if self._core.gone or wanted is None:
            return  # deleted or purged meanwhile
        if data is None:
            if self._log.places.knows(ask.file):
                self._damaged(f"{ask.file} cannot be read: {error}")
            else:
                self.start()  # the file was emptied into a segment while we waited
            return
        found = scan(data, limits.window_entries)
        batches, upto = self._own(data, found, wanted[1])
        if not batches:
            self._go_on(ask, len(data), found, wanted[1])
            return
        try:
            log = self._log
            aside = log.aside_between(wanted[1], upto)
            records.refill(self._core, wanted[0], batches, upto, log.dead, log.redelivered_upto, aside)
        except ValueError as mismatch:
            file = self._blamed(ask, batches[0], wanted[1])
            self._damaged(f"{file} does not hold what it should: {mismatch}")
            return
        # Records that are no publishes were passed too: others who read need them found before this place.
        passed = max(
            records.last_seq(data, at)
            for at, head in found.batches
            if head[1] == log.queue_id and log.is_own(head[2], head[3])
        )
        # The file may have been emptied into a segment while it was being read.
        if passed < log.end and log.places.knows(ask.file):
            log.places.insert([Place(passed + 1, ask.file, ask.offset + found.resume)])
        self._core.touch()
        self.start()

    def _own(self, data: bytes, found: Scanned, first: int) -> tuple[list[tuple[bytes, int]], int]:
        """(this queue's batches that reach seq `first`, the last seq they reach)."""
        batches: list[tuple[bytes, int]] = []
        upto = 0
        for at, head in found.batches:
            if head[1] == self._log.queue_id and head[5] and self._log.is_own(head[2], head[3]):
                # A batch from a segment is sparse: its last seq is that of its last record.
                last = records.last_seq(data, at)
                if last >= first:
                    batches.append((data, at))
                    upto = last
        return batches, upto

    def _blamed(self, ask: Ask, batch: tuple[bytes, int], seq: int) -> str:
        """The file with the hole: what is missing before the first batch found should have been where the
        search began, though nothing of ours could be read there and it went on in the next file.
        """
        head = records.read_head(*batch)
        place = self._log.places.at(seq)
        is_before = head is not None and head[3] > seq
        return place.file if is_before and place is not None else ask.file

    def _go_on(self, ask: Ask, size: int, found: Scanned, seq: int) -> None:
        """Nothing of ours in what was read: read on in this file, or go to the next one."""
        end = self._log.end_of(ask.file)
        is_more = found.is_enough or (size == ask.length and (end is None or ask.offset + size < end))
        if is_more:
            self._read(Ask(ask.file, ask.offset + found.resume, max(found.need, limits.read_back_bytes)))
            return
        following = self._log.places.after(ask.file)
        if following is None:
            self._damaged(f"record {seq} is missing from {ask.file}")
        else:
            self._read(Ask(following.file, following.offset, limits.read_back_bytes))
