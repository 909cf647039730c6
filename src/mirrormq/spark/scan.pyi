"""Log batches become the columns of Arrow batches."""

from collections.abc import Iterable
from typing import Any, Self, TypeAlias, final

REASON_LOST: int
REASON_PURGED: int
WIDTHS: dict[str, int]
TEXT_BITS: dict[str, int]
OTHERS: tuple[str, ...]

_Data: TypeAlias = bytes | bytearray | memoryview

@final
class Removals:
    """What left a queue, and why."""

    @property
    def position(self) -> int: ...
    def __new__(cls, spans_max: int, start: int = ...) -> Self: ...
    def feed(self, data: _Data, upto: int) -> int: ...
    def seal(self) -> None: ...
    def reason(self, seq: int) -> int: ...

@final
class Scanner:
    """The publishes start <= seq < end of one queue as rows; with `changes` its removals, too."""

    @property
    def position(self) -> int: ...
    def __init__(
        self,
        names: Iterable[str],
        *,
        start: int,
        end: int,
        rows_max: int,
        octets_max: int,
        reasons: dict[int, bytes],
        removals: Removals | None = ...,
        changes: bool = ...,
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
    def take(self) -> dict[str, tuple[Any, ...] | None]: ...
    def scan(self, data: _Data, at: int) -> int: ...
