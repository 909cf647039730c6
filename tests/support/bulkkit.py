"""Clients of the bulk protocol for nodes without sockets, and what their batches hold."""

from collections import deque
from typing import Any

from mirrormq.base.types import Peer
from mirrormq.kernel import records
from mirrormq.log.scan import scan
from mirrormq.wire import bulk
from mirrormq.wire.bulk import BulkError, Frame, FrameBuffer
from tests.support.nodekit import NodeKit


class BulkUser:
    """Speaks frames of the bulk protocol to a node in a kit."""

    def __init__(self, kit: NodeKit, *, host: str = "127.0.0.1", header: bytes = bulk.HEADER) -> None:
        self.kit = kit
        kit._conn += 1
        self.conn = kit._conn
        kit.clients[self.conn] = self  # type: ignore[assignment]
        self.inbox: deque[Frame] = deque()
        self.raw = b""
        self._frames = FrameBuffer()
        self._request = 0
        kit.node.client_open(kit.now, self.conn, Peer(host, 40000 + self.conn, "127.0.0.1", 5672))
        self.feed(header)

    @classmethod
    def logged_in(cls, kit: NodeKit, user: str = "guest", password: str = "guest", **more: Any) -> "BulkUser":
        made = cls(kit)
        made.call("login", user=user, password=password, **{"vhost": "/", **more})
        return made

    @property
    def is_closed(self) -> bool:
        return self.conn in self.kit.closed

    def feed(self, data: bytes) -> None:
        self.kit.node.client_bytes(self.kit.now, self.conn, memoryview(data))
        self.kit.run()

    def received(self, data: bytes) -> None:
        self.raw += data
        if self.raw.startswith(bulk.MAGIC):
            return
        self._frames.feed(data)
        while (frame := self._frames.next()) is not None:
            self.inbox.append(frame)

    def send(self, op: str, **fields: Any) -> int:
        self._request += 1
        self.feed(bulk.encode(bulk.CALL, self._request, {"op": op, **fields}))
        return self._request

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Ask; the answer, or its error raised."""
        return self.answer(self.send(op, **fields))

    def answer(self, request: int) -> dict[str, Any]:
        for frame in list(self.inbox):
            if frame.request == request and frame.kind in (bulk.ANSWER, bulk.ERROR, bulk.END):
                self.inbox.remove(frame)
                fields = bulk.decode(frame.body)
                if frame.kind == bulk.ERROR:
                    raise BulkError(fields.pop("code"), fields.pop("text"), **fields)
                return fields
        raise AssertionError(f"no answer to {request}: {self.inbox}")

    def read(self, **fields: Any) -> bytes:
        """All bytes of a range, or its error raised."""
        request = self.send("read", **fields)
        ended = self.answer(request)
        data = b"".join(frame.body for frame in self.inbox if frame.request == request)
        self.inbox.clear()
        self.position = ended.get("position")
        return data

    def facts(self, queue: str) -> dict[str, Any]:
        return self.call("queues", queue=queue)["queues"][0]

    def close_socket(self) -> None:
        self.kit.node.client_closed(self.kit.now, self.conn)
        self.kit.run()


def unpacked(data: bytes) -> list[tuple[int, int, bytes]]:
    """(seq, kind, body or payload) of all records, whose batches must be whole and follow each other."""
    found = scan(data)
    assert found.resume == len(data), "bytes that are no batch"
    out: list[tuple[int, int, bytes]] = []
    position = 0
    for at, head in found.batches:
        last = records.last_seq(data, at)
        wanted = set(range(head[3], last + 1))
        rows = [
            (seq, records.PUBLISH, message.body) for message, seq, _ in records.messages(data, at, wanted)
        ]
        rows += [(seq, kind, payload) for kind, _, seq, payload in records.other_records(data, at)]
        assert len(rows) == head[4]
        for row in sorted(rows):
            assert row[0] > position, "records out of order"
            position = row[0]
            out.append(row)
    assert sum(head[0] for _, head in found.batches) == len(data)
    return out


def bodies(data: bytes) -> list[bytes]:
    """Bodies of the publishes."""
    return [body for _, kind, body in unpacked(data) if kind == records.PUBLISH]
