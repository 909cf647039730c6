"""What the replication protocol needs around it: the log of a copy, links, and somebody who keeps views.

Guarantee asked of a `CopyLog`: its records are those that were adopted or appended, in order; what is flushed
survives a crash; what was truncated does not come back with one.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.mirror.views import Change

Data = bytes | memoryview

EpochStart = tuple[int, int]
"""(epoch, seq of its first record)."""


class Snapshot(Protocol):
    """The state of a log as of one position, held for a full copy until it is closed (F14)."""

    @property
    def position(self) -> int:
        """K0: everything up to here is in the state."""
        ...

    @property
    def base(self) -> bytes:
        """Everything of the state but the records."""
        ...

    @property
    def is_lost(self) -> bool:
        """It held back too much and was given up: records of it may be gone."""
        ...

    def read(self, after: int, max_bytes: int, done: Callable[[list[bytes], int], None]) -> None:
        """Call `done` with sparse batches of the live records behind `after`, and how far they reach."""
        ...

    def kept(self, upto: int) -> bytes:
        """Which seqs up to here are live or held by a cursor: (first u64, last u64)…"""
        ...

    def close(self) -> None:
        """Hold nothing any more."""
        ...


class CopyLog(Protocol):
    """The record stream of one queue on this node."""

    stream_id: int
    """What the heads of its batches say."""
    end: int
    """Seq of the last record."""
    durable: int
    """Flushed here up to this seq; never above what a truncation left."""
    low: int
    """Every record from here on is kept."""
    folded: int
    """Everything up to here is known to be committed and is in the state."""
    copied: int
    """Of an unfinished full copy: the records up to here have come, and are flushed after a crash."""
    base: int
    """Of an unfinished full copy: its K0. 0 if none is under way: the log is complete."""
    on_batch: Callable[[Data, int, int], None]
    """Called for each batch that was appended here, not adopted: (bytes, first seq, number of records)."""
    on_flushed: Callable[[], None]
    """Called when `durable` or `is_complete` has changed."""

    @property
    def is_complete(self) -> bool:
        """Every live record is here, and flushed if it came by a full copy."""
        ...

    def epoch_at(self, seq: int) -> int:
        """The epoch of a record at or above `low` - 1; 0 for seq 0."""
        ...

    def epochs(self) -> Sequence[EpochStart]:
        """The epochs of the stream, in order."""
        ...

    def adopt(self, batch: Data, now: Now) -> None:
        """Append a checked batch as it is; it begins behind `end`."""
        ...

    def truncate(self, seq: int, now: Now) -> None:
        """Give up everything above `seq`, which is not below `folded`, for good."""
        ...

    def fold(self, seq: int) -> None:
        """Everything up to here is committed."""
        ...

    def read(self, start: int, max_bytes: int, done: Callable[[list[Data]], None]) -> None:
        """Call `done` with whole batches from `start` on; with none if `start` is below `low` by now."""
        ...

    def begin_epoch(self, epoch: int, node: str, now: Now, *, drops_transient: bool) -> None:
        """Append EPOCH and write in this epoch from now on."""
        ...

    def has_live_upto(self, seq: int) -> bool:
        """Whether any record up to here is live in the folded state, or held by a cursor."""
        ...

    def snapshot(self) -> Snapshot:
        """Pin the folded state."""
        ...

    def load_base(self, base: Data, position: int, kept: Data, now: Now) -> None:
        """Become a sparse copy as of K0, keeping of what is here only what `kept` names up to `position`.
        `copied` is `position` then, and `end` is K0.
        """
        ...

    def adopt_live(self, batches: Data, position: int, now: Now) -> None:
        """Take sparse batches that reach to this position; with K0 the copy is complete once flushed."""
        ...


class Options(NamedTuple):
    """What the policy of a queue says about its mirrors."""

    min_in_sync: int = 1
    mirror_timeout_us: int = limits.mirror_timeout_us
    is_manual: bool = False
    """Learners get no old records unless somebody asks for it."""
    sync_bytes_per_second: int = 0
    """0: as fast as the link takes it."""


class Event(NamedTuple):
    """Something an operator may want to know."""

    kind: str
    queue: int
    node: str


class Outside(Protocol):
    """Links to other nodes, and the keeper of views."""

    def send(self, peer: str, parts: tuple[Data, ...]) -> bool:
        """Hand a frame to the bulk lane of a link; whether it was taken."""
        ...

    def propose(self, change: Change, done: Callable[[bool], None]) -> None:
        """Ask for a view. `done(False)`: it was refused and will never be made. `done(True)`: it was made,
        and the view has been or will be told. Nothing is called while that is open.
        """
        ...
