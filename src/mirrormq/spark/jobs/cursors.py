"""What a job does to a cursor when it is done with it: nothing else would let others consume again.

Guarantee: `has_taken` says so only if everything that the stream has read by the cursor was taken from the
queue; a cursor that has not got there is kept, and the next run goes on from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mirrormq.client.bulk import BulkError
from mirrormq.spark.broker import Broker
from mirrormq.spark.offsets import key_of
from mirrormq.spark.options import read_options


def last_offset(checkpoint: str) -> dict[str, Any] | None:
    """Where the last batch of a stream ends, by its checkpoint; None if there was no batch."""
    folder = Path(checkpoint, "offsets")
    found = [entry for entry in folder.iterdir() if entry.name.isdecimal()] if folder.is_dir() else []
    if not found:
        return None
    last = max(found, key=lambda entry: int(entry.name))
    offset: dict[str, Any] = json.loads(last.read_text(encoding="utf-8").splitlines()[-1])
    return offset


class Cursors:
    """The cursors of one queue."""

    def __init__(self, contact: Mapping[str, str], queue: str) -> None:
        self._contact = read_options({**contact, "queue": queue}).contact
        self._where = {"vhost": self._contact.vhost, "queue": queue}

    def has_taken(self, cursor: str, offset: Mapping[str, Any]) -> bool:
        """Has a cursor got to this offset of its stream? One that is gone has."""
        seq = self._seq(cursor)
        key = key_of((self._where["vhost"], self._where["queue"]))
        return seq is None or seq >= int(offset["q"][key]["s"])

    def is_under_way(self, sink: str) -> bool:
        """Is something a sink has committed not where it belongs yet? One that never wrote has nothing."""
        try:
            return bool(self._ask("sink_state", sink=sink)["waiting"])
        except BulkError as error:
            if error.code != "not-found":
                raise
            return False

    def drop(self, cursor: str) -> None:
        """Let go of what it holds; one that is gone is no error."""
        if self._seq(cursor) is not None:
            self._ask("cursor_drop", name=cursor)

    def _seq(self, cursor: str) -> int | None:
        rows = self._ask("cursor_list")["cursors"]
        return next((int(row["seq"]) for row in rows if row["name"] == cursor), None)

    def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        broker = Broker(self._contact, "mirrormq pipeline")
        try:
            answer: dict[str, Any] = broker.client.call(op, **self._where, **fields)
            return answer
        finally:
            broker.close()
