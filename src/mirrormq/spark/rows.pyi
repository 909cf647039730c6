"""Columns of Arrow batches become rows of a sink."""

from typing import TypeAlias, final

_Texts: TypeAlias = tuple[int, int, int, int]
_Numbers: TypeAlias = tuple[int, int, int]

NAMES: tuple[str, ...]

@final
class RowWriter:
    """Writes rows; a fixed exchange or key stands in for the column."""

    def __init__(self, exchange: bytes | None, key: bytes | None) -> None: ...
    def write(self, columns: dict[str, _Texts | _Numbers], rows: int) -> bytes: ...
