"""What a copy of the data folder consists of at one moment.

Guarantee: metadata and queue data of an image belong together. The metadata is what is in force, the journal
ends where it ended in the same pass, and checkpoint and segments do not change while the files are held. So
everything confirmed before is in the copy, and a restored node finds no queue without its records.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from mirrormq.base.types import Now
from mirrormq.log import journal
from mirrormq.log.disk import ReadDone
from mirrormq.log.journal import Journal
from mirrormq.log.recycler import Recycler


class Image(NamedTuple):
    """A data folder at one moment; checkpoint and segments are as they lie on the disk."""

    meta: Iterator[bytes]
    """Content of the metadata snapshot, part by part; made while it is read, on any thread."""
    serials: list[int]
    """Journal files, oldest first, those kept for damaged queues included; none if none is written."""
    last_size: int
    """Bytes of the last journal file that belong to it."""


class Definitions(Protocol):
    """Whoever keeps the definitions."""

    def image(self) -> Iterator[bytes]:
        """A snapshot of the state as it is now, in parts that may be made later and on any thread."""
        ...


class Holder(Protocol):
    """The node, as far as an image needs it."""

    now: Now
    journal: Journal
    recycler: Recycler

    @property
    def store(self) -> Definitions:
        """The definitions of the node."""
        ...

    def read(self, file: str, offset: int, length: int, done: ReadDone) -> None:
        """Read a part of a file of the data folder."""
        ...


def take_image(node: Holder, done: Callable[[Image | None, str | None], None]) -> None:
    """Note what belongs to the image now, and call `done` when all of it is flushed and can be read."""
    # What waits for the end of the pass must be with the disk before the read below is.
    node.journal.commit(node.now)
    serials = list(node.journal.serials)
    kept = sorted(node.recycler.kept)
    image = Image(node.store.image(), [*kept, *serials], node.journal.size)
    if not serials:
        done(image, None)
        return

    def flushed() -> None:
        # With fsync = never nothing was flushed: a read comes after everything that was appended before.
        node.read(journal.file_name(serials[-1]), 0, 1, was_read)

    def was_read(data: bytes | None, error: str | None) -> None:
        done(image if data is not None else None, error)

    node.journal.after_flush(flushed)
