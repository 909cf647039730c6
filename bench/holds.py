"""How long callbacks of an event loop keep it, in CPU time of its thread: other processes do not count.

Three things are told apart. `request`: the longest callback, without what the collector of Python took in it;
`collector`: the longest single collection; `own`: the longest callback of what the node does every second
whether somebody asks or not. The loop must be asyncio's own, whose callbacks can be watched.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import threading
import time
from typing import Any, NamedTuple

from bench import machine

HOLD_MS_MAX = 2.0
"""No callback is to keep the loop for longer."""
SUSPECT_MS = 1.5
"""Of those from here on it is asked whether the host took the machine away meanwhile."""
SAMPLE_S = 0.002
OWN = "Driver._tick"
"""What the node does every second, whether it is asked for something or not."""


class Holds(NamedTuple):
    """The longest of each kind, in milliseconds, and what the longest callback of a request was."""

    request: float = 0.0
    collector: float = 0.0
    own: float = 0.0
    what: str = ""
    stolen: int = 0
    """Long callbacks that are not counted, since the host of the virtual machine took it away meanwhile."""
    long: int = 0
    """Callbacks above `HOLD_MS_MAX`."""
    spent_s: float = 0.0
    """Of CPU time, in all callbacks."""


class Watch:
    """The longest callbacks since it was last asked."""

    def __init__(self) -> None:
        self._worst = Holds()
        self._began = 0.0
        self._collecting = 0.0
        self._thread = 0
        self._sampled = 0.0
        self._stolen = 0

    def install(self) -> None:
        """Watch all loops from now on, and tell of them whoever writes a line to standard input."""
        run = asyncio.Handle._run
        gc.callbacks.append(self._on_collection)

        def watched(handle: asyncio.Handle) -> None:
            self._thread = threading.get_ident()
            self._collecting = 0.0
            place = _place(handle)
            usage = resource.getrusage(resource.RUSAGE_THREAD)
            if time.monotonic() - self._sampled > SAMPLE_S:
                self._sample()
            before = time.thread_time()
            run(handle)
            spent = (time.thread_time() - before - self._collecting) * 1000
            self._worst = self._worst._replace(spent_s=self._worst.spent_s + spent / 1000)
            if spent > SUSPECT_MS and self._sample():
                self._worst = self._worst._replace(stolen=self._worst.stolen + 1)
                return
            if spent > HOLD_MS_MAX:
                self._worst = self._worst._replace(long=self._worst.long + 1)
            if OWN in repr(handle):
                self._worst = self._worst._replace(own=max(spent, self._worst.own))
            elif spent > self._worst.request:
                self._worst = self._worst._replace(
                    request=spent, what=f"{place} -> {_place(handle)}{_events(usage)}"
                )

        asyncio.Handle._run = watched  # type: ignore[method-assign]
        threading.Thread(target=self._answer, daemon=True).start()

    def _sample(self) -> bool:
        """Has the host taken the machine away since the last look?"""
        before, self._stolen = self._stolen, machine.stolen()
        self._sampled = time.monotonic()
        return self._stolen > before

    def _on_collection(self, phase: str, _facts: dict[str, int]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._began = time.thread_time()
            return
        spent = time.thread_time() - self._began
        self._collecting += spent
        self._worst = self._worst._replace(collector=max(spent * 1000, self._worst.collector))

    def _answer(self) -> None:
        for _ in sys.stdin:
            told, self._worst = self._worst, Holds()
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()


def _events(before: resource.struct_rusage) -> str:
    """What the machine did to a callback: pages it had to fetch, times it was put aside."""
    now = resource.getrusage(resource.RUSAGE_THREAD)
    return f" (page faults {now.ru_minflt - before.ru_minflt}, put aside {now.ru_nivcsw - before.ru_nivcsw})"


def _place(handle: asyncio.Handle) -> str:
    """Where the task of a callback stands, or which function it is."""
    callback = getattr(handle, "_callback", None)
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return getattr(callback, "__qualname__", str(callback))
    coroutine: Any = task.get_coro()
    found = "begin"
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            found = f"{coroutine.__qualname__}:{frame.f_lineno}"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
    return found
