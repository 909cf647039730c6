"""Staging rows: what is tried again, and what is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mirrormq.client.bulk import BulkClient, BulkError, Gone, Received, Target
from mirrormq.client.sink import Sink, encode_row
from mirrormq.wire import bulk

ROW = encode_row(b"body", b"queue")


class Script(BulkClient):
    """A client whose server says what is written here, one entry per frame that is waited for."""

    def __init__(self, *answers: Callable[[int], Received], retry_s: float = 30.0) -> None:
        super().__init__(Target([("127.0.0.1", 1)]), retry_s=retry_s)
        self.answers = list(answers)
        self.calls: list[str] = []
        self.rows = 0
        self.connections = 0
        self.is_open = False

    def connect(self, until: float | None = None) -> None:
        self.connections += not self.is_open
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    def send_call(self, op: str, fields: dict[str, Any]) -> int:
        self.calls.append(op)
        return len(self.calls)

    def send_frame(self, kind: int, request: int, body: bytes | memoryview = b"") -> None:
        self.rows += kind == bulk.DATA

    def poll(self) -> Received | None:
        return None

    def receive(self) -> Received:
        return self.answers.pop(0)(len(self.calls))


def says(kind: int, **fields: Any) -> Callable[[int], Received]:
    def answer(request: int) -> Received:
        return Received(kind, request, bulk.encode(kind, request, fields)[bulk.HEAD_BYTES :])

    return answer


def breaks(request: int) -> Received:
    raise Gone(f"the server closed the connection after {request}")


UNAVAILABLE = says(bulk.ERROR, code=bulk.UNAVAILABLE, text="the staging queue is about to get another master")
BEGUN = says(bulk.ANSWER, tx="1")
DONE = says(bulk.END, tx="1", count=1, crc=7)


@pytest.mark.parametrize("at_first", [UNAVAILABLE, breaks])
def test_a_transaction_that_could_not_be_opened_is_opened_again_before_any_row_is_taken(
    at_first: Callable[[int], Received],
) -> None:
    client = Script(at_first, BEGUN, DONE)
    taken: list[int] = []

    def rows() -> Iterator[bytes]:
        taken.append(len(client.calls))
        yield ROW

    assert Sink(client, "job").stage(rows(), batch=0).tx == "1"
    assert client.calls == ["stage", "stage"]
    assert taken == [2]


def test_rows_that_were_sent_are_not_sent_again() -> None:
    client = Script(BEGUN, breaks)
    with pytest.raises(Gone):
        Sink(client, "job").stage([ROW], batch=0)
    assert client.calls == ["stage"]
    assert not client.is_open


def test_what_is_refused_is_not_asked_again() -> None:
    client = Script(says(bulk.ERROR, code=bulk.REFUSED, text="no"))
    with pytest.raises(BulkError, match="no"):
        Sink(client, "job").stage([ROW], batch=0)
    assert client.calls == ["stage"]


def test_a_transaction_is_not_opened_again_for_ever() -> None:
    client = Script(UNAVAILABLE, retry_s=0)
    with pytest.raises(BulkError, match="another master"):
        Sink(client, "job").stage([ROW], batch=0)
