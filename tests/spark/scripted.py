"""A node that says what a test wants: to see what a reader makes of answers that come once in a fail-over."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mirrormq.wire import bulk
from mirrormq.wire.bulk import BulkError, Fields


class Stream(NamedTuple):
    """DATA, and what the END says."""

    data: bytes
    end: Fields = {}  # noqa: RUF012  (nobody changes it)


Answer = Fields | BulkError | Stream | None
"""What a call is answered with: a map, an error or a stream; None ends the connection."""


class Scripted:
    """Serves the bulk protocol on a loopback port; `say` is asked for every call but the log-in."""

    def __init__(self, listener: socket.socket, say: Callable[[str, Fields], Answer]) -> None:
        self.port = int(listener.getsockname()[1])
        self.asked: list[str] = []
        self._listener = listener
        self._say = say

    @property
    def url(self) -> str:
        return f"amqp://guest@127.0.0.1:{self.port}/"

    def serve(self) -> None:
        """Connections as they come, until the listener is closed."""
        while True:
            try:
                made, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(made,), daemon=True).start()

    def _serve(self, made: socket.socket) -> None:
        with made, contextlib.suppress(OSError):
            frames = bulk.FrameBuffer()
            made.recv(len(bulk.HEADER), socket.MSG_WAITALL)
            while data := made.recv(65536):
                frames.feed(data)
                while (frame := frames.next()) is not None:
                    if frame.kind == bulk.CALL and not self._answer(made, frame):
                        return

    def _answer(self, made: socket.socket, frame: bulk.Frame) -> bool:
        fields = bulk.decode(frame.body)
        op = fields.pop("op")
        answer: Answer = {"cluster": "c1"}
        if op != "login":
            self.asked.append(op)
            answer = self._say(op, fields)
        if answer is None:
            return False
        if isinstance(answer, BulkError):
            told = {"code": answer.code, "text": answer.text, **answer.more}
            made.sendall(bulk.encode(bulk.ERROR, frame.request, told))
        elif isinstance(answer, Stream):
            made.sendall(bulk.head(bulk.DATA, frame.request, len(answer.data)) + answer.data)
            made.sendall(bulk.encode(bulk.END, frame.request, answer.end))
        else:
            made.sendall(bulk.encode(bulk.ANSWER, frame.request, answer))
        return True


@contextlib.contextmanager
def scripted(say: Callable[[str, Fields], Answer]) -> Iterator[Scripted]:
    """Such a node while it is needed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        node = Scripted(listener, say)
        thread = threading.Thread(target=node.serve, daemon=True)
        thread.start()
        yield node
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for the next connection
    thread.join(10)


def in_turn(*answers: Answer) -> Callable[[str, Fields], Answer]:
    """These answers one after the other, the last one for ever."""
    left = list(answers)
    return lambda _op, _fields: left.pop(0) if len(left) > 1 else left[0]


def queue_row(name: str, **more: Any) -> Fields:
    """What a node says of a queue with records 1 to 9."""
    row: Fields = {"vhost": "/", "queue": name, "id": "a1", "first": 1, "low": 1, "next": 10}
    return {**row, "epochs": [(1, 1)], "members": [], **more}
