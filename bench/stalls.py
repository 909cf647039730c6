"""How long a program that does nothing is held:  python -m bench.stalls [SECONDS]

One program per core does nothing but read the clock of its own CPU time. Whatever lies between two looks
beyond a microsecond or so is the machine's: interrupts, and on a guest what its host does, which looks like
CPU time of whoever had the core. A measurement of how long an event loop was held cannot be better than that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import NamedTuple

LONG_MS = 2.0
SPIN = "--spin"


class Stalls(NamedTuple):
    """What programs that do nothing have seen."""

    cpu_s: float
    """Of all of them."""
    longest_ms: float
    long: int
    """Looks that took longer than `LONG_MS`."""

    def text(self) -> str:
        """A sentence."""
        return (
            f"programs that only read the clock, {self.cpu_s:.0f} s of CPU: "
            f"held {self.long} times for more than {LONG_MS:.0f} ms, {self.longest_ms:.2f} ms at most"
        )


def spin(seconds: float) -> list[float]:
    """Milliseconds between looks, those above the bound, and the longest."""
    look = time.thread_time_ns
    bound = int(LONG_MS * 1e6)
    end = look() + int(seconds * 1e9)
    long: list[float] = []
    longest = 0
    before = look()
    while before < end:
        now = look()
        if now - before > longest:
            longest = now - before
        if now - before > bound:
            long.append((now - before) / 1e6)
        before = now
    return [longest / 1e6, *long]


def measured(seconds: float) -> Stalls:
    """So many seconds of CPU per core, all cores at once."""
    words = [sys.executable, "-m", "bench.stalls", SPIN, str(seconds)]
    made = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(os.cpu_count() or 1)]
    found = [json.loads(one.communicate()[0]) for one in made]
    return Stalls(seconds * len(found), max(one[0] for one in found), sum(len(one) - 1 for one in found))


if __name__ == "__main__":
    if sys.argv[1:2] == [SPIN]:
        sys.stdout.write(json.dumps(spin(float(sys.argv[2]))))
    else:
        sys.stdout.write(measured(float(sys.argv[1]) if sys.argv[1:] else 10.0).text() + "\n")
