"""What a mirror job remembers of its queues between runs, beside the record of the run.

Guarantee: a queue counts as synchronised only if a copy of all of it was committed and has arrived; what is
read is whole, or there is nothing, and then everything is copied again, which repeats nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mirrormq.spark.jobs.state import write_json

NAME = "mirror.json"


class Memory:
    """The file of one run."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._targets: dict[str, str] = {}
        try:
            self._held: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self._held = {}
        self._queues: dict[str, dict[str, Any]] = self._held.setdefault("queues", {})

    def _save(self) -> None:
        write_json(self._path, self._held)

    @property
    def is_mirror(self) -> bool:
        """Was the target a mirror before?"""
        return bool(self._held.get("is_mirror"))

    def mirrors(self) -> None:
        """The target is a mirror."""
        if not self.is_mirror:
            self._held["is_mirror"] = True
            self._save()

    # --- queues ---

    def names(self) -> set[str]:
        """The queues that were synchronised."""
        return set(self._queues)

    def others(self, queues: Iterable[str]) -> set[str]:
        """The queues that were synchronised and are none of these."""
        return self.names() - set(queues)

    def has(self, name: str, source: str, target: str) -> bool:
        """Was this queue synchronised, from that one?"""
        entry = self._queues.get(name, {})
        return bool(entry.get("source") == source and entry.get("target") == target)

    def position(self, name: str, source: str) -> tuple[int, int] | None:
        """How far: the next seq, and the epoch of the record before it."""
        entry = self._queues.get(name, {})
        return (entry["seq"], entry["epoch"]) if entry.get("source") == source else None

    def expect(self, targets: Mapping[str, str]) -> None:
        """These are the queues of the target."""
        self._targets = dict(targets)

    def synchronised(self, found: Mapping[str, tuple[str, int, int]]) -> None:
        """Queues are there up to a position: the source's id, the next seq, the epoch before it."""
        for name, (source, seq, epoch) in found.items():
            entry = {"source": source, "target": self._targets[name], "seq": seq, "epoch": epoch}
            self._queues[name] = entry
        self._save()

    def forget(self, name: str) -> None:
        """A queue is not mirrored any more."""
        self._queues.pop(name, None)
        self._save()

    # --- sinks ---

    @property
    def sinks(self) -> list[str]:
        """Sinks that may have rows under way."""
        return list(self._held.get("sinks", []))

    def uses(self, sink: str) -> None:
        """Rows are about to be written through a sink."""
        if sink not in self.sinks:
            self._held["sinks"] = [*self.sinks, sink]
            self._save()

    def settled(self, current: str) -> None:
        """Nothing is under way; only the stream's sink will be used again."""
        left = [sink for sink in self.sinks if sink == current]
        if left != self.sinks:
            self._held["sinks"] = left
            self._save()

    def next_batch(self) -> int:
        """The number of the next full copy."""
        self._held["batch"] = int(self._held.get("batch", -1)) + 1
        self._save()
        return int(self._held["batch"])
