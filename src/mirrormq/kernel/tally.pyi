"""Counters of what clients do: of one channel and, above it, of its vhost; of one exchange."""

from typing import Self, final

CHANNEL_COUNTS: tuple[str, ...]
EXCHANGE_COUNTS: tuple[str, ...]

@final
class Tally:
    above: Tally | None
    def __new__(cls) -> Self: ...
    def add(self, what: int, times: int = ...) -> None: ...
    def of_channel(self) -> tuple[int, ...]: ...
    def of_exchange(self) -> tuple[int, ...]: ...
