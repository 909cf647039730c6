"""The machine's clocks and its randomness, as the core takes them: arguments of each input.

`mono` is time since boot, suspended time included, so that a lease does not outlive a laptop's sleep.
"""

from __future__ import annotations

import secrets
import time

from mirrormq.base.types import Now

_MONO = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> Now:
    """Return both clocks in microseconds."""
    return Now(time.clock_gettime_ns(_MONO) // 1000, time.time_ns() // 1000)


class MachineRng:
    """The randomness port over the operating system's generator."""

    def token(self, nbytes: int) -> bytes:
        """Return unpredictable bytes."""
        return secrets.token_bytes(nbytes)

    def below(self, n: int) -> int:
        """Return a number in range(n)."""
        return secrets.randbelow(n)
