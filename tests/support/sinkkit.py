"""A client of a sink without a socket: calls operations as the bulk protocol does, and keeps the answers."""

from __future__ import annotations

import struct
from typing import Any, TypeVar

import msgspec

from mirrormq.base.errors import AmqpError
from mirrormq.node import sinkops
from mirrormq.wire.properties import Properties, encode_properties

T = TypeVar("T")

_ROW = struct.Struct("<IBHHI")
DURABLE = encode_properties(Properties(delivery_mode=2))


def row(
    key: bytes | str, body: bytes, exchange: bytes = b"", properties: bytes = DURABLE, op: int = 0
) -> bytes:
    """One row as clients send it."""
    key = key.encode() if isinstance(key, str) else key
    rest = exchange + key + properties + body
    return _ROW.pack(_ROW.size - 4 + len(rest), op, len(exchange), len(key), len(properties)) + rest


class Session:
    """A connection: who is there, and why it is not read."""

    def __init__(self, vhost: Any, user: str) -> None:
        self.vhost = vhost
        self.user = user
        self.parks: set[str] = set()

    def park(self, reason: str) -> None:
        self.parks.add(reason)

    def unpark(self, reason: str) -> None:
        self.parks.discard(reason)


class Call:
    """A call and what was answered."""

    def __init__(self, client: SinkClient, op: str, fields: dict[str, Any]) -> None:
        self.client = client
        self.op = op
        self.fields = fields
        self.stream: Any = None
        self.is_over = False
        self.answers: list[dict[str, Any]] = []
        self.error: Any = None

    @property
    def node(self) -> Any:
        return self.client.kit.node

    @property
    def session(self) -> Session:
        return self.client.session

    def take(self, kind: type[T]) -> T:
        return msgspec.convert(self.fields, kind)

    def answer(self, fields: dict[str, Any]) -> None:
        self.answers.append(fields)
        self.is_over = self.stream is None

    def end(self, fields: dict[str, Any]) -> None:
        self.answers.append(fields)
        self.is_over = True

    def fail(self, error: Any) -> None:
        if not self.is_over:
            self.error = error
            self.is_over = True

    def cancel(self) -> None:
        """The client is gone."""
        self.is_over = True
        if self.stream is not None:
            self.stream.on_cancel()


class SinkClient:
    """One sink as one client of one node sees it. `settle` lets the world go on until answers come."""

    def __init__(self, kit: Any, sink: str = "s1", user: str = "guest", vhost: str = "/") -> None:
        self.kit = kit
        self.sink = sink
        self.session = Session(kit.node.vhosts[vhost], user)

    def settle(self) -> None:
        self.kit.run()
        self.kit.advance(0.3)

    def begin(self, op: str, **fields: Any) -> Call:
        call = Call(self, op, {"sink": self.sink, **fields})
        try:
            sinkops.OPS[op](call)
        except AmqpError as error:
            call.fail(error)
        return call

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        call = self.begin(op, **fields)
        self.settle()
        assert call.error is None, (call.error, getattr(call.error, "text", ""))
        return call.answers[-1]

    def refusal(self, op: str, **fields: Any) -> tuple[Any, str]:
        call = self.begin(op, **fields)
        self.settle()
        assert call.error is not None, call.answers
        return call.error.code, call.error.text

    def open(self) -> dict[str, Any]:
        return self.ask("sink_open")

    def send(self, rows: list[bytes], batch: int = 0, partition: int = 0, **more: Any) -> Call:
        """Begin a transaction, send its rows, and end it; nothing is waited for but its beginning."""
        call = self.begin("stage", batch=batch, partition=partition, **more)
        if call.stream is None:
            self.settle()
        if call.error is None:
            call.stream.on_data(b"".join(rows))
        if call.error is None:
            call.stream.on_end({})
        return call

    def stage(self, rows: list[bytes], batch: int = 0, partition: int = 0, **more: Any) -> str:
        """Stage a transaction; its name."""
        call = self.send(rows, batch, partition, **more)
        self.settle()
        assert call.error is None, (call.error, getattr(call.error, "text", ""))
        answer = call.answers[-1]
        assert answer["count"] == (0 if answer["already"] else len(rows))
        tx: str = call.answers[-1]["tx"]
        return tx

    def commit(self, batch: int, *txs: str, wait: float = 0) -> dict[str, Any]:
        return self.ask("commit_set", batch=batch, txs=list(txs), wait=wait)

    @property
    def staging(self) -> Any:
        """The staging queue, as this node has it."""
        return self.session.vhost.queues["mirrormq.sink." + self.sink]
