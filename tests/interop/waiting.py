"""Waiting for a condition with a deadline: no test sleeps for a guessed time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

DEADLINE_S = 15.0
POLL_S = 0.01

Found = TypeVar("Found")


def until(condition: Callable[[], Found], what: str, seconds: float = DEADLINE_S) -> Found:
    """Poll until `condition` gives something true and return that; fail with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        pause.wait(POLL_S)


def pump(connection: Any, condition: Callable[[], Found], what: str, seconds: float = DEADLINE_S) -> Found:
    """As `until`, while a pika BlockingConnection goes on handling its events."""
    deadline = time.monotonic() + seconds
    while True:
        connection.process_data_events(time_limit=0)
        found = condition()
        if found:
            return found
        left = deadline - time.monotonic()
        if left <= 0:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        connection.process_data_events(time_limit=min(left, 0.05))
