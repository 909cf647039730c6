"""What a good process does beside its work: open files, garbage collection, systemd, orphans of process 1."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import socket
import time
from collections.abc import Mapping

from mirrormq.runtime import heap

GC_THRESHOLDS = (1_500, 1, 100_000)
"""Allocations between collections. Messages are not tracked, so what is left is slow-moving state. Of what is
new no more than some thousand objects are looked at in one go: that is a millisecond or two.
"""

YOUNG_US = 25_000
"""Time after which what is new is looked at, however little of it seems to be there: Python counts what is
allocated less what is freed, so while very many old objects are freed it would let tens of thousands of new
ones wait, and then look at all of them in one go.
"""


def raise_file_limit() -> int:
    """Allow as many open files as the machine lets this process have, and return how many those are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard or hard == resource.RLIM_INFINITY:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1_048_576 if soft == resource.RLIM_INFINITY else soft


def tune_garbage_collection() -> None:
    """Keep what start-up made out of every later collection, and collect seldom."""
    # Frozen by an earlier start of the application, and gone with it.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    heap.give_back()  # imports alone leave megabytes of holes behind


class Young:
    """Collects garbage among what is new, often and in small portions."""

    def __init__(self) -> None:
        self._at = 0

    def look(self, mono: int) -> None:
        """After some work: collect if it is time."""
        if mono - self._at >= YOUNG_US:
            self._at = mono
            gc.collect(1)


def reap_children() -> None:
    """Bury orphans: process 1 of a container inherits them, and nobody else will."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class ServiceManager:
    """systemd's notification socket, if there is one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.address = environment.get("NOTIFY_SOCKET", "")
        watchdog = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(watchdog) / 2_000_000 if watchdog.isdigit() and is_ours else 0.0
        """Half the time within which systemd wants to hear of us; 0 if it does not."""

    def ready(self, status: str) -> None:
        """The node accepts connections."""
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, text: str) -> None:
        """Tell what the node is doing."""
        self._send(f"STATUS={text}")

    def reloading(self) -> None:
        """The node reads its files again; `ready` follows."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """The node ends."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """The loop turns."""
        self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if not self.address:
            return
        # A leading '@' means the abstract namespace, written with a zero byte.
        target = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.setblocking(False)
            notify.sendto(text.encode(), target)
