"""A blocking client of a sink: stages rows, commits batches (docs/protocol/sink.md).

Guarantees
- `stage` returns when every row is durable on all in-sync members of the sink's staging queue, and raises
  otherwise; then nothing of it is ever seen, and staging again is right. Until the first row is sent it tries
  again by itself, as long as the client does: a fail-over between two tasks is nobody's concern.
- `commit` returns when it is certain that the batch is committed, now or before. It is sent again, to the
  next host if need be, for as long as the client tries again: a batch cannot be committed twice.
- Rows keep their order within a partition, partitions stand in the order of their indexes.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from mirrormq.client.bulk import BulkClient, BulkError, Gone, error_of
from mirrormq.wire import bulk

PUBLISH, COPY, REMOVE, COPY_AS, TAKE = range(5)
"""What a row does: publish a message, or take messages out of a queue that a query consumes, by their seqs.
The others are for vhosts that mirror another cluster: publish a copy of a message, remove that copy, by the
seq of its record there, and publish a copy with the exchange and key it had there.
"""

DURABLE = b"\x10\x00\x02"
"""Raw properties with nothing but delivery mode 2; rows without it are made persistent by the server."""

FRAME_BYTES = 256 * 1024
"""Rows are sent in frames of at most this size: a node serves a frame at once, and others wait meanwhile."""

_ROW = struct.Struct("<IBHHI")
_SEQ = struct.Struct("<Q")
_COUNTED = _ROW.size - 4
_PAUSE_S = 0.2
T = TypeVar("T")


class Staged(NamedTuple):
    """A transaction that can be committed."""

    tx: str
    rows: int
    crc: int
    """CRC32C of the bytes of all rows."""


class Committed(NamedTuple):
    """The answer to a commit."""

    is_new: bool
    """False: the batch had been committed before, and these transactions were dropped."""
    rows: int
    """Rows, counted once per queue they go to."""
    is_forwarded: bool
    """Were all of them in their queues when the answer was sent?"""


def encode_row(body: bytes, routing_key: bytes, exchange: bytes = b"", properties: bytes = DURABLE) -> bytes:
    """A row that publishes."""
    size = _COUNTED + len(exchange) + len(routing_key) + len(properties) + len(body)
    head = _ROW.pack(size, PUBLISH, len(exchange), len(routing_key), len(properties))
    return b"".join((head, exchange, routing_key, properties, body))


def encode_take(first: int, last: int, queue: bytes) -> bytes:
    """A row that takes the messages first..last out of a queue."""
    head = _ROW.pack(_COUNTED + len(queue) + len(DURABLE) + 2 * _SEQ.size, TAKE, 0, len(queue), len(DURABLE))
    return b"".join((head, queue, DURABLE, _SEQ.pack(first), _SEQ.pack(last)))


class Sink:
    """One sink, by its name: a uuid that belongs to one query."""

    def __init__(self, client: BulkClient, name: str) -> None:
        self.client = client
        self.name = name

    def open(self) -> int | None:
        """Make sure that it is there; the batch it committed last, None if there is none."""
        last: int | None = self._repeat("sink_open")["last"]
        return last

    def state(self) -> dict[str, Any]:
        """What is known of it."""
        return self._repeat("sink_state")

    def commit(self, batch: int, txs: Sequence[str], *, wait_s: float = 0) -> Committed:
        """Commit these transactions as one batch; with `wait_s` wait so long for the rows to arrive."""
        answer = self._repeat("commit_set", batch=batch, txs=list(txs), wait=wait_s)
        return Committed(answer["state"] == "committed", answer["rows"], answer["forwarded"])

    def abort(self, txs: Sequence[str]) -> None:
        """Drop these transactions."""
        self._repeat("abort", txs=list(txs))

    def _repeat(self, op: str, **fields: Any) -> dict[str, Any]:
        """Ask until somebody knows: none of these operations does harm when it is done twice."""
        return self._until_done(lambda: self.client.call(op, sink=self.name, **fields))

    def _until_done(self, step: Callable[[], T]) -> T:
        until = time.monotonic() + self.client.retry_s
        while True:
            try:
                return step()
            except Gone:
                self.client.close()
                if time.monotonic() >= until:
                    raise
            except BulkError as error:
                if error.code != bulk.UNAVAILABLE or time.monotonic() >= until:
                    raise
            select.select([], [], [], _PAUSE_S)

    # --- rows ---

    def stage(
        self,
        rows: Iterable[bytes],
        *,
        batch: int,
        partition: int = 0,
        attempt: int = 0,
        tx_timeout_s: float | None = None,
        origin: str = "",
        sources: Mapping[str, str] | None = None,
    ) -> Staged:
        """Send the rows of one partition; each is what `encode_row` gives, or several of them in a row.

        A mirror job names the cluster its rows come from, and the id of the source's queue for each queue.
        Rows that take messages out of queues need the ids of these as `sources`.
        """
        client = self.client
        fields: dict[str, Any] = {"sink": self.name, "batch": batch, "partition": partition}
        fields["attempt"] = attempt
        if tx_timeout_s is not None:
            fields["tx_timeout"] = tx_timeout_s
        if origin:
            fields["origin"] = origin
        if sources:
            fields["sources"] = dict(sources)
        try:
            request = self._until_done(lambda: self._begin(fields))
            pending: list[bytes] = []
            size = 0
            for row in rows:
                pending.append(row)
                size += len(row)
                if size >= FRAME_BYTES:
                    self._send(request, b"".join(pending))
                    pending.clear()
                    size = 0
            self._send(request, b"".join(pending))
            client.send_frame(bulk.END, request, bulk.encode(bulk.END, request, {})[bulk.HEAD_BYTES :])
            answer = self._answer(request, bulk.END)
        except BaseException as error:
            if not isinstance(error, BulkError):
                client.close()  # whatever was sent is dropped with the connection
            raise
        return Staged(answer["tx"], answer["count"], answer["crc"])

    def _begin(self, fields: dict[str, Any]) -> int:
        """Have a transaction opened; it has no rows yet, so one whose answer is lost is no loss."""
        self.client.connect()
        request = self.client.send_call("stage", fields)
        self._answer(request, bulk.ANSWER)
        return request

    def _send(self, request: int, data: bytes) -> None:
        view = memoryview(data)
        for at in range(0, len(view), FRAME_BYTES):
            self.client.send_frame(bulk.DATA, request, view[at : at + FRAME_BYTES])
        frame = self.client.poll()
        if frame is not None and frame.request == request and frame.kind == bulk.ERROR:
            raise error_of(frame.body)  # it is of no use to send more

    def _answer(self, request: int, kind: int) -> dict[str, Any]:
        while True:
            frame = self.client.receive()
            if frame.request == request and frame.kind == bulk.ERROR:
                raise error_of(frame.body)
            if frame.request == request and frame.kind == kind:
                return bulk.decode(frame.body)
