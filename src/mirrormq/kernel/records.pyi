"""The batch: unit of append, checksum, replication and recovery of a queue's records."""

from collections.abc import Container
from typing import TypeAlias

from mirrormq.kernel.message import Message
from mirrormq.kernel.ranges import RangeSet
from mirrormq.kernel.store import QueueStore

PUBLISH: int
PUBNOTE: int
REMOVE: int
REQUEUE: int
HORIZON: int
DYING: int
POLICY: int
EPOCH: int
DELETE: int
HADCONSUMER: int
PRODGONE: int
CURSOR: int
STAGE: int
COMMIT_SET: int
BASE: int
MARK: int
TRUNCATE: int
PROMISE: int
"""Notes of the journal, never records of a queue."""
HEAD_BYTES: int
PID_OF_LETTERS: int
PID_OF_HOMES: int
"""Set in the publishing channel of a PUBLISH that is a dead letter; the other bits are its source queue."""

_Data: TypeAlias = bytes | bytearray | memoryview

def encode_publishes(
    core: QueueStore,
    n: int,
    queue_id: int,
    epoch: int,
    first_seq: int,
    now: int,
    note: bytes | None = ...,
) -> tuple[bytes, int]: ...
def encode_removals(
    core: QueueStore, dead: RangeSet, queue_id: int, epoch: int, seq: int, now: int
) -> bytes | None: ...
def encode_batch(
    queue_id: int, epoch: int, first_seq: int, now: int, records: list[tuple[int, int, bytes]]
) -> bytes: ...
def encode_staged(queue_id: int, epoch: int, seq: int, now: int, block: _Data) -> bytes: ...
def staged_blocks(data: _Data, at: int, wanted: Container[int]) -> list[tuple[int, bytes]]: ...
def read_head(data: _Data, at: int) -> tuple[int, int, int, int, int, int, int] | None: ...
def is_whole(data: _Data, at: int) -> bool: ...
def read_tail(data: _Data, end: int) -> tuple[int, int, int] | None: ...
def other_records(data: _Data, at: int) -> list[tuple[int, int, int, bytes]]: ...
def refill(
    core: QueueStore,
    level: int,
    batches: list[tuple[bytes, int]],
    upto: int,
    dead: RangeSet,
    horizon: int,
    dying: RangeSet | None = ...,
) -> int: ...
def messages(data: _Data, at: int, wanted: set[int]) -> list[tuple[Message, int, int]]: ...
def last_seq(data: _Data, at: int) -> int: ...
def copy_kept(
    data: _Data, at: int, dead: RangeSet, after: int, keep: int
) -> tuple[bytes, int, int, int, int, int] | None: ...
def cut(data: _Data, at: int, first: int, end: int) -> tuple[bytes, int, int, int, int, int] | None: ...
def transient_seqs(data: _Data, at: int) -> list[int]: ...
def transients(data: _Data, at: int) -> list[tuple[int, int, int]]: ...
