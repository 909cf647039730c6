"""What the job `audit` asks of the cluster before and after Spark compares: who has which queue, up to where.

Guarantees
- The range to be compared ends at the durable mark and begins where every judged member keeps every record;
  a cursor holds it from before the marks are taken until `release`. What is older is compared as far as it
  is live.
- A cursor that a run leaves behind is dropped by whoever prepares the queue next under the same name.
- A queue that cannot be judged costs the others nothing: it says why (`Refused`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mirrormq.client.bulk import BulkClient, BulkError, Gone
from mirrormq.spark.broker import Broker, SourceFailed
from mirrormq.spark.jobs.audittasks import PAUSE_S, QUERY, SOON, Extent
from mirrormq.spark.options import Contact

SYSTEM = "mirrormq."
"""What the names of the cluster's own queues begin with."""

PIECE = 50_000_000
"""Seqs that one request for digests covers; each of them reads what was removed behind it, too."""

PATIENCE_S = 30.0

NO_LOG, GONE, FAILED = "no log", "gone", "not judged"


class Refused(Exception):
    """A queue that is not compared: `status` and why."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


@dataclass(frozen=True)
class Copy:
    """A copy of a queue that is to be judged."""

    node: str
    address: tuple[str, int] | None
    low: int


@dataclass(frozen=True)
class Prepared:
    """A queue whose copies can be compared."""

    number: int
    vhost: str
    queue: str
    id: str
    epoch: int
    epochs: tuple[tuple[int, int], ...]
    start: int
    """From here on every judged copy has every record."""
    end: int
    copies: tuple[Copy, ...]
    others: tuple[tuple[str, str], ...]
    """(node, why) of copies that are not judged."""

    def extents(self) -> Iterator[Extent]:
        """What to ask of each copy."""
        for copy in self.copies:
            if self.start > 1:
                yield self.extent(copy, 1, self.start, is_live=True)
            for first in range(self.start, self.end, PIECE):
                yield self.extent(copy, first, min(first + PIECE, self.end))

    def extent(self, copy: Copy, start: int, end: int, *, is_live: bool = False) -> Extent:
        """A range of one copy."""
        return Extent(
            number=self.number,
            vhost=self.vhost,
            queue=self.queue,
            id=self.id,
            member=copy.node,
            address=copy.address,
            start=start,
            end=end,
            end_epoch=0 if is_live else self._epoch_at(end - 1),
            upto=self.end,
            is_live=is_live,
            is_only=len(self.copies) == 1,
        )

    def removals(self, upto: int) -> Extent:
        """Where it stands what has left the queue since the copies said what is live: from the lowest low
        mark on, because no copy's idea of what is live is older than its own.
        """
        oldest = min(self.copies, key=lambda copy: copy.low)
        made = self.extent(oldest, oldest.low, self.start, is_live=True)
        return Extent(**{**made.__dict__, "upto": upto})

    def _epoch_at(self, seq: int) -> int:
        return next((epoch for epoch, first in reversed(self.epochs) if first <= seq), 0)


class Cluster:
    """The queues of a vhost, as the driver sees them."""

    def __init__(self, contact: Contact, cursor: str) -> None:
        self._contact = contact
        self._broker = Broker(contact, QUERY)
        self._cursor = cursor

    def close(self) -> None:
        """End the connection."""
        self._broker.close()

    def names(self, queues: Sequence[str], pattern: str | None, *, is_system: bool) -> list[str]:
        """The queues that are meant, in order; the cluster's own only if they are asked for."""
        asked: dict[str, Any] = {"queues": list(queues)} if queues else {"pattern": pattern or ".*"}
        found = [row["queue"] for row in self._call("queues", partial=True, **asked)["queues"]]
        is_all = not queues and pattern is None
        return sorted(name for name in found if is_system or not is_all or not name.startswith(SYSTEM))

    def prepare(self, number: int, queue: str) -> Prepared:
        """Hold a queue's records and take its marks; whoever gets these has to release the queue."""
        row = self._row(queue)
        self.release(queue)
        try:
            held = self._call("cursor_open", queue=queue, id=row["id"], name=self._cursor, at="earliest")
            return self._marked(number, queue, int(held["seq"]))
        except BaseException:
            self.release_all([queue])
            raise

    def _marked(self, number: int, queue: str, held: int) -> Prepared:
        row = self._row(queue)
        said = {copy["node"]: copy for copy in self._call("copies", queue=queue)["copies"]}
        copies, others = [], []
        for member in row["members"]:
            name = member["node"]
            why = _why_not(member, said.get(name), is_mirrored=len(row["members"]) > 1)
            if why:
                others.append((name, why))
                continue
            low = int(said[name]["low"]) if name in said else held
            copies.append(Copy(name, _address(member.get("address")), min(low, int(row["next"]))))
        if not copies:
            raise Refused(FAILED, "no copy is in sync")
        return Prepared(
            number=number,
            vhost=row["vhost"],
            queue=queue,
            id=row["id"],
            epoch=int(row["epoch"]),
            epochs=tuple((int(epoch), int(first)) for epoch, first in row.get("epochs", ())),
            start=min(max(held, *(copy.low for copy in copies)), int(row["next"])),
            end=int(row["next"]),
            copies=tuple(copies),
            others=tuple(others),
        )

    def settled(self, one: Prepared) -> tuple[int, int]:
        """(mark, epoch) once everything that any copy has by now is durable: what a copy calls dead before
        others do is dead for all of them then.
        """
        ends = [int(copy["end"]) for copy in self._call("copies", queue=one.queue)["copies"]]
        until = time.monotonic() + PATIENCE_S
        while True:
            row = self._row(one.queue)
            if row["id"] != one.id:
                raise Refused(GONE, "it was deleted and declared again")
            if int(row["next"]) > max(ends, default=0) or int(row["epoch"]) != one.epoch:
                return int(row["next"]), int(row["epoch"])
            if time.monotonic() >= until:
                raise Refused(FAILED, "its records do not become durable")
            threading.Event().wait(PAUSE_S)

    def release(self, queue: str) -> None:
        """Let go of what is held; a cursor or a queue that is gone is no error."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._client.call("cursor_drop", queue=queue, name=self._cursor)
                return
            except Gone:
                if time.monotonic() >= until:
                    raise
            except BulkError as error:
                if error.code not in SOON:
                    return
                if time.monotonic() >= until:
                    raise Refused(FAILED, error.text) from None
            threading.Event().wait(PAUSE_S)

    def release_all(self, queues: Sequence[str]) -> list[str]:
        """Let go of all of them; returns those of which nobody knows whether that was heard."""
        left = []
        for queue in queues:
            try:
                self.release(queue)
            except (Refused, Gone):
                left.append(queue)
        return left

    @property
    def _client(self) -> BulkClient:
        return self._broker.client

    def _row(self, queue: str) -> dict[str, Any]:
        """A queue's facts and marks, waited for while it has no master."""
        until = time.monotonic() + PATIENCE_S
        while True:
            (row,) = self._call("queues", queue=queue, partial=True)["queues"]
            if row.get("next") is not None:
                found: dict[str, Any] = row
                return found
            if "code" not in row:
                raise Refused(NO_LOG, str(row.get("why", "it keeps no log")))
            if row["code"] not in SOON or time.monotonic() >= until or not _has_hope(row):
                raise Refused(FAILED, str(row["why"]))
            threading.Event().wait(PAUSE_S)

    def _call(self, op: str, **fields: Any) -> dict[str, Any]:
        try:
            with contextlib.suppress(Gone):
                return self._client.call(op, **fields)
            return self._client.call(op, **fields)  # what is asked here may be asked twice
        except Gone as error:
            hosts = ", ".join(f"{host}:{port}" for host, port in self._contact.hosts)
            raise SourceFailed(f"no node answers at {hosts}: {error}") from None
        except BulkError as error:
            if error.code in {"not-found", "gone"} and "queue" in fields:
                raise Refused(GONE, error.text) from None
            raise Refused(FAILED, error.text) from None


def _has_hope(row: dict[str, Any]) -> bool:
    """Can a queue get a master by itself? Not one whose only node is away."""
    return any(member["is_live"] for member in row["members"])


def _why_not(member: dict[str, Any], said: dict[str, Any] | None, *, is_mirrored: bool) -> str:
    """Why a copy is not judged; nothing if it is."""
    if not member["is_live"]:
        return "its node is away"
    if not member["in_sync"]:
        return "it is not synchronised"
    if is_mirrored and said is None:
        return "it says nothing of its copy"
    return "" if said is None or said["is_complete"] else "its copy is not complete"


def _address(text: str | None) -> tuple[str, int] | None:
    host, _, port = (text or "").rpartition(":")
    return (host.strip("[]"), int(port)) if host and port else None
