"""How long something takes, as a histogram for monitoring.

Guarantee: a fixed number of counters, whatever is measured.
"""

from bisect import bisect_left

FLUSH_BOUNDS_US = (500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000)
"""Upper ends of the buckets for flushes; behind them is one more, without an end."""
PASS_BOUNDS_US = (100, 250, 500, 1_000, 2_000, 5_000, 10_000, 25_000, 100_000, 1_000_000)
"""The same for passes of the loop."""


class Durations:
    """Measurements of one kind."""

    __slots__ = ("bounds", "buckets", "count", "total_us")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.count = 0
        self.total_us = 0

    def add(self, took_us: int) -> None:
        """One took so long."""
        self.buckets[bisect_left(self.bounds, took_us)] += 1
        self.count += 1
        self.total_us += took_us
