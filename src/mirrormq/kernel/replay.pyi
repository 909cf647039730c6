"""Reading many batches at once after a restart."""

from collections.abc import Callable
from typing import TypeAlias, final

from mirrormq.kernel.ranges import RangeSet
from mirrormq.kernel.store import QueueStore

_Data: TypeAlias = bytes | bytearray | memoryview

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
    def __init__(
        self,
        core: QueueStore,
        dead: RangeSet,
        dying: RangeSet,
        letters: dict[int, int],
        note_place: Callable[[int, str, int], None],
    ) -> None: ...

def learn(
    queues: dict[int, Replay], data: _Data, limit: int, where: tuple[str, int, int]
) -> tuple[int, list[tuple[int, int, int, bytes]], list[tuple[int, int, int, int]]]: ...
def restore(
    queues: dict[int, Replay],
    data: _Data,
    limit: int,
    memory: tuple[int, int],
    only_dying: bool = ...,
) -> tuple[int, int, int]: ...
