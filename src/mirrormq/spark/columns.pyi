"""Columns of an Arrow batch while they grow."""

from typing import Self, final

@final
class Buffer:
    """Octets that grow."""

@final
class Column:
    """One column."""

    def __new__(cls, width: int) -> Self: ...
