"""One call of a client of the bulk protocol, as those see it who serve it.

Guarantees
- A call is over once: with an answer, with the end of its stream, or with an error. What comes later is
  dropped, so whoever waited for something need not know whether the client is still there.
- The next call of the same connection begins when this one is over.

How to serve an operation: a function that takes a `Call`, entered in the table of `bulkops`. It reads its
arguments with `call.take(Struct)`, and either calls `call.answer(...)`, now or later, or raises `BulkError`.
An operation with a stream sets `call.stream` first: then `answer` does not end it, `data` sends records to
the client, `end` or `fail` ends it, and the stream hears what the client sends.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError
from mirrormq.wire import bulk
from mirrormq.wire.bulk import BulkError, Fields

if TYPE_CHECKING:
    from mirrormq.node.bulk import BulkConnection
    from mirrormq.node.node import Node

T = TypeVar("T")

_CODES = {403: bulk.ACCESS, 530: bulk.ACCESS, 404: bulk.NOT_FOUND, 541: bulk.UNAVAILABLE}


class Stream(Protocol):
    """What goes on while a call with a stream is served."""

    def on_writable(self) -> None:
        """The client takes more."""
        ...

    def on_data(self, data: bytes) -> None:
        """The client sent raw bytes."""
        ...

    def on_end(self, fields: Fields) -> None:
        """The client has sent all."""
        ...

    def on_cancel(self) -> None:
        """The client wants no more of it, or is gone: let go of everything. Nothing can be sent."""
        ...


class Output:
    """A stream that only sends; what the client says besides is ignored."""

    def on_data(self, data: bytes) -> None:
        """Nothing is expected."""

    def on_end(self, fields: Fields) -> None:
        """The same."""


class Call:
    """A request and what was answered."""

    __slots__ = ("fields", "is_over", "op", "request", "session", "stream")

    def __init__(self, session: "BulkConnection", request: int, fields: Fields) -> None:
        self.session = session
        self.request = request
        self.op = str(fields.get("op", ""))[: limits.short_string_bytes_max]
        self.fields = fields
        self.stream: Stream | None = None
        self.is_over = False

    @property
    def node(self) -> "Node":
        """The node that was asked."""
        return self.session.node

    def take(self, kind: type[T]) -> T:
        """The arguments; refused if they are not what `kind` describes."""
        try:
            return msgspec.convert(self.fields, kind)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise BulkError(bulk.REFUSED, f"{self.op}: {error}") from None

    def answer(self, fields: Fields) -> None:
        """Answer; with a stream it goes on."""
        if not self.is_over:
            self.session.write(bulk.encode(bulk.ANSWER, self.request, fields))
            if self.stream is None:
                self._end()

    def data(self, data: bytes | memoryview) -> None:
        """Send raw bytes."""
        if self.is_over:
            return
        most = limits.bulk_part_bytes
        while len(data) > most:
            self._data(bulk.PART, memoryview(data)[:most])
            data = memoryview(data)[most:]
        self._data(bulk.DATA, data)

    def _data(self, kind: int, data: bytes | memoryview) -> None:
        self.session.write(bulk.head(kind, self.request, len(data)))
        self.session.write(data)

    def end(self, fields: Fields) -> None:
        """All is sent, or taken."""
        if not self.is_over:
            self.session.write(bulk.encode(bulk.END, self.request, fields))
            self._end()

    def fail(self, error: BulkError) -> None:
        """It was not done."""
        if not self.is_over:
            fields = {"code": error.code, "text": error.text, **error.more}
            self.session.write(bulk.encode(bulk.ERROR, self.request, fields))
            self._end()

    def cancel(self) -> None:
        """The client wants no more of it, or is gone; nothing is sent."""
        if not self.is_over:
            self.is_over = True
            if self.stream is not None:
                self.stream.on_cancel()

    def _end(self) -> None:
        self.is_over = True
        self.session.call_over(self)


Handler = Callable[[Call], None]


def run(handler: Handler, call: Call) -> None:
    """Serve a call; a mistake of the client is an error of that call."""
    try:
        handler(call)
    except BulkError as error:
        call.fail(error)
    except AmqpError as error:
        call.fail(from_amqp(error))


def from_amqp(error: AmqpError) -> BulkError:
    """The same mistake in the words of this protocol."""
    return BulkError(_CODES.get(error.code, bulk.REFUSED), error.reply_text)


def guarded(call: Call, step: Callable[..., Any]) -> Callable[..., None]:
    """A later step of serving a call: what it raises is answered, too; nothing is done if it is over."""

    def stepped(*args: Any) -> None:
        if not call.is_over:
            run(lambda _: step(*args), call)

    return stepped
