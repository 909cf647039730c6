"""Finding the batches in a part of a file, damaged places included.

A batch whose head cannot be read says neither whose it is nor how long: the next one is found by its magic.
What belongs to other queues is therefore never lost for the damage of one.
"""

from typing import NamedTuple

from mirrormq.kernel import records

MAGIC = b"MQB1"

Head = tuple[int, int, int, int, int, int, int]
"""(bytes, queue id, epoch, first seq, records, publishes, time)"""


class Scanned(NamedTuple):
    """The whole batches of a part of a file, and where to read on."""

    batches: list[tuple[int, Head]]
    resume: int
    """Everything before this is dealt with."""
    need: int
    """Bytes from `resume` on that the batch there takes; 0 if that is not known."""
    is_enough: bool = False
    """Did it stop before the end because enough was found?"""


def scan(data: bytes, enough: int = 0) -> Scanned:
    """Find the whole batches of `data`; with `enough`, stop after so many publishes of whatever queue."""
    batches: list[tuple[int, Head]] = []
    at = publishes = 0
    while at < len(data) and not (enough and publishes >= enough):
        head = records.read_head(data, at)
        if head is None and len(data) - at < records.HEAD_BYTES:
            return Scanned(batches, at, records.HEAD_BYTES)
        if head is None:
            following = data.find(MAGIC, at + 1)
            if following < 0:
                # A magic may be cut in two at the end of what was read.
                return Scanned(batches, max(at, len(data) - len(MAGIC) + 1), 0)
            at = following
        elif at + head[0] > len(data):
            return Scanned(batches, at, head[0])
        else:
            if records.is_whole(data, at):
                batches.append((at, head))
                publishes += head[5]
            at += head[0]
    return Scanned(batches, at, 0, at < len(data))


def next_batch(data: bytes, at: int) -> int | None:
    """Where the next whole batch begins, at `at` or later."""
    while True:
        at = data.find(MAGIC, at)
        if at < 0:
            return None
        if records.is_whole(data, at):
            return at
        at += 1
