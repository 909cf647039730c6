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
        """Everything of the state but the records, and which of those are dead."""
        ...

    @property
    def is_lost(self) -> bool:
        """It held back too much and was given up, or cannot be read: records of it may be gone."""
        ...

    @property
    def is_aged(self) -> bool:
        """It holds so much by now that the log behind it may not be held until the copy is flushed."""
        ...

    def read(self, after: int, most: tuple[int, int], done: Callable[[list[bytes], int], None]) -> None:
        """Call `done` with live records behind `after`, `most` so many bytes and records, as the log of the
        other copy takes them, and how far they reach.
        """
        ...

    def close(self) -> None:
        """Hold nothing any more."""
        ...


class CopyLog(Protocol):
    """The record stream of one queue on this node."""

    on_batch: Callable[[Data, int, int], None]
    """Called for each batch that was appended here, not adopted: (bytes, first seq, number of records)."""
    on_flushed: Callable[[], None]
    """Called when `durable` or `is_complete` has changed."""
    held_from: Callable[[], int]
    """Tells from which seq on others need this log (F14); what is above it is kept, up to a bound."""

    @property
    def stream_id(self) -> int:
        """What the heads of its batches say."""
        ...

    @property
    def end(self) -> int:
        """Seq of the last record; of an unfinished full copy its K0, or what was adopted behind it."""
        ...

    @property
    def durable(self) -> int:
        """Flushed here up to this seq; never above what a truncation left."""
        ...

    @property
    def low(self) -> int:
        """Every record from here on is kept."""
        ...

    @property
    def folded(self) -> int:
        """Everything up to here is known to be committed and is in the state."""
        ...

    @property
    def copied(self) -> int:
        """Of an unfinished full copy: the records up to here have come."""
        ...

    @property
    def base(self) -> int:
        """Of an unfinished full copy: its K0. 0 if none is under way: the log is complete."""
        ...

    @property
    def damage(self) -> str | None:
        """Why this copy cannot be used; None if it can."""
        ...

    @property
    def is_complete(self) -> bool:
        """Every live record is here, and flushed if it came by a full copy."""
        ...

    @property
    def backlog(self) -> tuple[int, int, int]:
        """Above `folded`: how many records, how many bytes, and the wall time of the oldest (0: none)."""
        ...

    def hurt(self, reason: str) -> None:
        """Records of it cannot be read: it cannot be used any more."""
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
        """Call `done` with whole batches from `start` on; with none if `start` is below `low` by now, or if
        they cannot be read.
        """
        ...

    def begin_epoch(self, epoch: int, node: str, now: Now, *, drops_transient: bool) -> None:
        """Append EPOCH and write in this epoch from now on; maybe later, but before anything else."""
        ...

    def resign(self) -> None:
        """Nothing is appended here any more: another node is the master."""
        ...

    def has_live_upto(self, seq: int) -> bool:
        """Whether any record up to here is live in the folded state, or held by a cursor."""
        ...

    def snapshot(self) -> Snapshot:
        """Pin the folded state."""
        ...

    def load_base(self, base: Data, position: int, now: Now) -> None:
        """Become a sparse copy as of K0, keeping only what is here up to `position` and not dead there.
        `copied` is `position` then, and `end` is K0. Raises NotFollowing if the copy here does not stand
        at `position`.
        """
        ...

    def adopt_live(self, batches: Data, position: int, now: Now) -> None:
        """Take what a snapshot gave and reaches to this position; with K0 the copy is complete once flushed.
        Raises NotFollowing if it does not belong there, or is damaged.
        """
        ...

    def reset(self, now: Now) -> None:
        """Give up everything, for good: an empty log that is not damaged."""
        ...


class Options(NamedTuple):
    """What the policy of a queue says about its mirrors."""

    min_in_sync: int = 1
    mirror_timeout_us: int = limits.mirror_timeout_us
    is_manual: bool = False
    """Learners get no old records unless somebody asks for it."""
    sync_bytes_per_second: int = 0
    """0: as fast as the link takes it."""
    is_async: bool = False
    """Publishes are confirmed when the master has flushed them."""
    sync_batch_size: int = limits.ha_sync_batch_size
    """Messages of a full copy that are read and sent at once; never more than `mirror_read_bytes` of them."""


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
