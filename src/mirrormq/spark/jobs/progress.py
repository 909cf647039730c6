"""What a person sees while a job runs: one line that changes on a terminal, few lines elsewhere, all on
stderr.

Guarantee: showing never disturbs the job. What cannot be asked (a stopped session, a remote one) is not
shown.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PERIOD_SECONDS = 0.5
PLAIN_SECONDS = 10.0
"""Between two lines where nothing can be written over."""
COLUMNS = 80
"""Of a terminal that does not say how wide it is."""

Told = Callable[[dict[str, Any]], None]


class Progress:
    """Tells how far a job is, to a person and to its state."""

    def __init__(self, name: str, told: Told, out: TextIO | None = None, *, is_quiet: bool = False) -> None:
        self._name = name
        self._told = told
        self._out = sys.stderr if out is None else out
        self._is_quiet = is_quiet
        self._is_terminal = self._out.isatty()
        self._shown = 0
        self._shown_at = 0.0
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self._is_quiet:
            self._clear()
            self._out.write(f"{self._name}: {text}\n")
            self._out.flush()

    def show(self, text: str, **facts: Any) -> None:
        """How far it is just now."""
        self._told({"text": text, **facts})
        now = time.monotonic()
        if self._is_quiet:
            return
        line = f"{self._name}: {text} ({now - self._began:.0f} s)"
        if self._is_terminal:
            # What does not fit would begin a new line, and stay there.
            line = line[: self._columns() - 1]
            self._out.write("\r" + line.ljust(self._shown))
            self._shown = len(line)
        elif now - self._shown_at >= PLAIN_SECONDS:
            self._out.write(line + "\n")
            self._shown_at = now
        self._out.flush()

    def end(self) -> None:
        """Leave the line."""
        self._clear()

    def _clear(self) -> None:
        if self._is_terminal and self._shown:
            self._out.write("\r" + " " * self._shown + "\r")
            self._out.flush()
            self._shown = 0

    def _columns(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(self._out.fileno()).columns or COLUMNS
        return COLUMNS

    @contextlib.contextmanager
    def watching(self, spark: SparkSession, what: str) -> Iterator[None]:
        """Show the tasks of batch work done inside."""
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(PERIOD_SECONDS):
                found = _tasks(spark)
                if found is not None:
                    done, count = found
                    self.show(f"{what}: {done} of {count} tasks", done=done, tasks=count)

        self.show(what)
        thread = threading.Thread(target=look, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def follow(
        self,
        query: StreamingQuery,
        what: str,
        each: Told | None = None,
        is_enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Show a stream until it ends, or is enough; raises what ended it. `each` gets what Spark says of
        every batch, once.
        """
        rows = batches = 0
        last = -1
        is_over = False
        while not is_over and not is_enough():
            is_over = bool(query.awaitTermination(1))  # whole seconds: Spark takes no others
            for one in map(plain, query.recentProgress):
                if one["batchId"] > last and one["numInputRows"]:
                    last = one["batchId"]
                    rows += one["numInputRows"]
                    batches += 1
                    if each is not None:
                        each(one)
            self.show(f"{what}: {rows} rows in {batches} batches", rows=rows, batches=batches)


def plain(told: Mapping[str, Any]) -> dict[str, Any]:
    """What Spark says of a batch, the same from all kinds of sessions.

    That of a Connect server has no sum of the rows, and metrics as a list of values beside their schema.
    """
    rows = sum(source["numInputRows"] for source in told["sources"])
    metrics = {name: _metrics(row.asDict()) for name, row in (told.get("observedMetrics") or {}).items()}
    return {**told, "numInputRows": rows, "observedMetrics": metrics}


def _metrics(found: dict[str, Any]) -> dict[str, Any]:
    if found.keys() != {"values", "schema"}:
        return found
    names = [field["name"] for field in found["schema"]["fields"]]
    return dict(zip(names, found["values"], strict=True))


def _tasks(spark: SparkSession) -> tuple[int, int] | None:
    try:
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    except Exception:  # noqa: BLE001  (a session that is remote, or being stopped, has many ways to say so)
        return None
    known = [stage for stage in stages if stage is not None]
    if not known:
        return None
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
