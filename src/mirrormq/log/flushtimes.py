"""How long flushes take, as a histogram for monitoring.

Guarantee: a fixed number of counters, whatever is measured.
"""

from bisect import bisect_left

BOUNDS_US = (
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    5_000_000,
)
"""Upper ends of the buckets; behind them is one more, without an end."""


class FlushTimes:
    """Flushes of one file or of many, from their begin to their end."""

    __slots__ = ("buckets", "count", "total_us")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS_US) + 1)
        self.count = 0
        self.total_us = 0

    def add(self, took_us: int) -> None:
        """One took so long."""
        self.buckets[bisect_left(BOUNDS_US, took_us)] += 1
        self.count += 1
        self.total_us += took_us
