"""Reading many batches at once after a restart."""

from collections.abc import Callable
from typing import Any, TypeAlias, final

from mirrormq.kernel.ranges import RangeSet
from mirrormq.kernel.store import QueueStore

_Data: TypeAlias = bytes | bytearray | memoryview
_Facts: TypeAlias = tuple[list[tuple[int, int, int]], list[tuple[int, int, int, bytes]], bool]

@final
class Replay:
    seen: RangeSet
    """Seqs of the records that were found."""
    end: int
    epoch: int
    last_wall: int
    horizon: int
    after: int
    """Restored is only what lies above this seq."""
    counts: dict[int, int]
    refused: dict[int, RangeSet]
    since: int
    """Files with a lower serial do not count for this queue."""
    index_start: int
    is_copy: bool
    """Its batches are for the caller to heed."""
    @property
    def last_serial(self) -> int: ...
    @property
    def published(self) -> int: ...
    @property
    def written(self) -> int: ...
    @property
    def published_covered(self) -> int: ...
    @property
    def written_covered(self) -> int: ...
    def __init__(
        self,
        core: QueueStore | None,
        dead: RangeSet,
        dying: RangeSet,
        letters: dict[int, int],
        notes: tuple[Callable[[int, str, int, tuple[int, int, int]], None], Callable[[int, int], None]],
    ) -> None: ...

def learn(
    queues: dict[int, Replay], data: _Data, limit: int, where: tuple[str, int, int, int]
) -> tuple[
    int, list[tuple[int, int, int, bytes]], list[tuple[int, int, int, int]], list[tuple[Any, ...]]
]: ...
def facts(data: _Data, at: int) -> _Facts: ...
def bury(dead: RangeSet, payload: bytes) -> None: ...
def restore(
    queues: dict[int, Replay],
    data: _Data,
    limit: int,
    memory: tuple[int, int, int],
    only_dying: bool = ...,
) -> tuple[int, int, int]: ...
