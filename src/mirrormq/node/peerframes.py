"""Frames between a home node and a master, as values and as bytes (docs/protocol/forwarding.md).

Guarantee: what `decode` returns is well formed down to its fields; anything else raises `BadFrame`, which
costs the link and nothing more. Blocks of messages are checked where they are taken (kernel/forward.pyx).

The first octet names family and version, the second the kind. Frames that come per batch of messages have
a fixed head; the others are MessagePack.
"""

import struct
from collections.abc import Callable
from typing import Annotated, NamedTuple

import msgspec

from mirrormq.broker.queueport import Rows

FAMILY = 0xF1
"""Forwarding, version 1."""

BULK = 1
"""The lane of all these frames: one lane, because order among them matters."""

_PUBLISH, _LETTER, _DELIVER, _GOT, _SETTLE, _REPORT, _CREDIT, _OTHER, _REPLY, _ROWS, _STAGED = range(1, 12)

_HEAD = struct.Struct("<BB")
_PUBLISHED = struct.Struct("<BBQQIQB")
_POSTED = struct.Struct("<BBQQQB")
_ROWS_POSTED = struct.Struct("<BBQQQIBB")
_BLOCK_STAGED = struct.Struct("<BBQQIB")
_DELIVERED = struct.Struct("<BBQQI")
_ANSWERED = struct.Struct("<BBQQQI")
_SETTLED = struct.Struct("<BBQI")
_SPAN = struct.Struct("<BQQ")
_REPORTED = struct.Struct("<BBQQI")
_NUMBER = struct.Struct("<Q")
_CREDITED = struct.Struct("<BBQQ")
_REPLIED = struct.Struct("<BBB")


class BadFrame(Exception):
    """A peer sent what no node of this version sends; its link is closed."""


class Untold(BadFrame):
    """A peer goes on with what is gone without its knowing; its link is closed, the next greeting says so."""


class Publish(NamedTuple):
    """Home to master: a block of publishes with dense numbers."""

    queue: int
    first: int
    records: int
    base: int
    """The home node has seen the reports of everything up to here."""
    is_resent: bool
    """Sent before to an earlier process of the master, which may have delivered it and then lost it."""
    data: bytes | memoryview
    at: int


class Post(NamedTuple):
    """Home to master: one dead letter, with its number at its source."""

    queue: int
    source: int
    number: int
    is_resent: bool
    data: bytes | memoryview
    at: int


class PostRows(NamedTuple):
    """Home to master: committed rows of a sink, with their numbers at its staging queue."""

    queue: int
    source: int
    first: int
    records: int
    op: int
    is_resent: bool
    data: bytes | memoryview
    at: int


class Staged(NamedTuple):
    """Home to master: rows of a transaction for one queue; without any the transaction is given up."""

    tx: int
    target: int
    records: int
    op: int
    data: bytes | memoryview
    at: int


class Deliver(NamedTuple):
    """Master to home: a block of deliveries with dense tags."""

    outlet: int
    first: int
    records: int
    data: bytes | memoryview
    at: int


class Got(NamedTuple):
    """Master to home: the answer to `Get`, with a block of one message if `tag` is not 0."""

    request: int
    outlet: int
    tag: int
    left: int
    data: bytes | memoryview
    at: int


Span = tuple[int, int, int]
"""How deliveries end (0 ack, 1 requeue, 2 reject, 3 never seen by a client), first and last tag."""


class Settle(NamedTuple):
    """Home to master: how deliveries ended."""

    outlet: int
    spans: list[Span]


class Report(NamedTuple):
    """Master to home: publishes up to `done` are safe, or refused if named."""

    queue: int
    done: int
    refused: list[int]


class Credit(NamedTuple):
    """Home to master: so many more bytes of deliveries have left the home node's memory."""

    outlet: int
    size: int


class Reply(NamedTuple):
    """To the node of a requester: an answer by direct reply-to, a block of one message."""

    address: bytes
    data: bytes | memoryview
    at: int


Natural = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]


class _Other(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A frame that does not come per batch of messages."""


class Hello(_Other, frozen=True, tag=1):
    """Both ways, first on every link: who this process is, and which metadata it has applied.

    `held`: the process of the other end whose outlets it has kept while the link was broken, 0 if none.
    `start`: the start of the node that this process is, as views name it.
    """

    pid: Natural
    index: Natural
    held: Natural = 0
    start: Natural = 0


class Sync(_Other, frozen=True, tag=2):
    """Both ways: what follows relies on metadata up to this index."""

    index: Natural


class Open(_Other, frozen=True, tag=3):
    """Home to master: publishes to this queue follow; those up to `base` are done with."""

    queue: Natural
    base: Natural


class Consume(_Other, frozen=True, tag=4):
    """Home to master: register a consumer. The answer is its place among all, `order`, 0 if it is new.

    `since`: the mastership it is meant for, 0 if the queue is not mirrored.
    """

    request: Natural
    queue: Natural
    outlet: Natural
    consumer: Count
    tag: bytes
    prefetch: Count
    shared: Count
    no_ack: bool
    exclusive: bool
    priority: int
    arguments: bytes
    since: Natural = 0
    order: Natural = 0


class Cancel(_Other, frozen=True, tag=5):
    """Home to master: this consumer takes no more; 0 = the outlet is not needed any more."""

    request: Natural
    outlet: Natural
    consumer: Count


class Limit(_Other, frozen=True, tag=6):
    """Home to master: prefetch the channel's consumers share (0 = any), and whether they take messages."""

    request: Natural
    outlet: Natural
    prefetch: Count
    is_flowing: bool


class Get(_Other, frozen=True, tag=7):
    """Home to master: fetch one message."""

    request: Natural
    queue: Natural
    outlet: Natural
    since: Natural = 0


class Ask(_Other, frozen=True, tag=8):
    """Home to master: counts, purge, delete; or, about no queue, a flush of everything so far."""

    request: Natural
    queue: Natural
    what: Natural
    flags: Natural


class Answer(_Other, frozen=True, tag=9):
    """Master to home: what a request brought; with a code what the client did wrong."""

    request: Natural
    numbers: tuple[Natural, ...] = ()
    code: Natural = 0
    text: str = ""


class Cancelled(_Other, frozen=True, tag=10):
    """Master to home: a consumer is no longer served."""

    outlet: Natural
    consumer: Count


class Hold(_Other, frozen=True, tag=11):
    """Master to home: publishers to this queue run ahead of its consumers, or no longer do."""

    queue: Natural
    is_held: bool


class Ready(_Other, frozen=True, tag=12):
    """Home to master, when the link is back: all consumers that are still there are registered."""


class Listen(_Other, frozen=True, tag=13):
    """To the node of a requester: does anybody listen at this reply-to address? Answered with 1 or 0."""

    request: Natural
    address: bytes


class Arrived(_Other, frozen=True, tag=14):
    """Master to home: the queue has these dead letters of one source for good, or had no room for them."""

    queue: Natural
    source: Natural
    numbers: tuple[Natural, ...]


class Resume(_Other, frozen=True, tag=15):
    """Home to master, when the link is back: go on with an outlet that was kept.

    Deliveries up to tag `received` have arrived; the others are ready again. The frames of settlements follow
    from number `first` on, those among them that the master has had already included. `waiting` bytes are at
    the home node. The rest is as in `Limit`.
    """

    outlet: Natural
    received: Natural
    first: Natural
    waiting: Natural
    prefetch: Count
    is_flowing: bool


class Settled(_Other, frozen=True, tag=16):
    """Master to home: so many frames of settlements of an outlet were taken; they need not be kept."""

    outlet: Natural
    count: Natural


class Inherit(_Other, frozen=True, tag=17):
    """Home to master, after a change of masters: what a channel holds of the master before.

    The tags from 1 on, in rows of (consumer, first seq, last seq, epoch of the records). How those of them
    ended that the master before has not answered follows, after a `Resume`. A row that the new master's log
    does not have, or no longer, uses up its tags and nothing else: the answer names them as first and last
    tags, so that the home node never claims them again. Somebody else may hold those messages by then.
    """

    request: Natural
    queue: Natural
    since: Natural
    outlet: Natural
    rows: tuple[tuple[Count, Natural, Natural, Natural], ...]


class Epochs(_Other, frozen=True, tag=18):
    """Master to home: (epoch, seq of its first record) in the log behind an outlet, before deliveries."""

    outlet: Natural
    rows: tuple[tuple[Count, Natural], ...]


class Tell(_Other, frozen=True, tag=19):
    """Master to home: say when all that is here of queues that got a new master has been told.

    It is served when the home node has followed the metadata the master had when it asked: by then it has.
    """


class Moved(_Other, frozen=True, tag=21):
    """Home to master: the answer, for all that moved up to this index of the metadata."""

    index: Natural


class Renew(_Other, frozen=True, tag=20):
    """Home to master: this node's lease had run out; what was under way to it was not taken.

    The answer is 1 if its outlets were kept: it resumes them then, as after a break of the link. Otherwise it
    begins anew.
    """

    request: Natural


class SinkAsk(_Other, frozen=True, tag=22):
    """Home to master: a request of a sink's client (sinkdesk.py); `body` is MessagePack."""

    request: Natural
    queue: Natural
    what: str
    body: bytes


class Told(_Other, frozen=True, tag=23):
    """Master to home: the answer to it."""

    request: Natural
    body: bytes


class Taken(_Other, frozen=True, tag=24):
    """Master to home: so many more bytes of a transaction are durable."""

    tx: Natural
    size: Natural


MOVED = 301
"""The code of an answer: the queue has another master now, of which the home node is about to hear."""

COUNTS, USE, PURGE, DELETE, FLUSH = 1, 2, 3, 4, 5
IF_UNUSED, IF_EMPTY = 1, 2

Other = (
    Hello
    | Sync
    | Open
    | Consume
    | Cancel
    | Limit
    | Get
    | Ask
    | Answer
    | Cancelled
    | Hold
    | Ready
    | Listen
    | Arrived
    | Resume
    | Settled
    | Inherit
    | Epochs
    | Tell
    | Moved
    | Renew
    | SinkAsk
    | Told
    | Taken
)
Frame = Publish | Post | PostRows | Staged | Deliver | Got | Settle | Report | Credit | Reply | Other

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Other] = msgspec.msgpack.Decoder(Other)


def publish(queue: int, first: int, block: bytes, *, count: int, base: int, is_resent: bool) -> bytes:
    """Encode `Publish`."""
    return _PUBLISHED.pack(FAMILY, _PUBLISH, queue, first, count, base, is_resent) + block


def post(queue: int, letter: tuple[int, int], block: bytes, *, is_resent: bool) -> bytes:
    """Encode `Post`; `letter` is source and number."""
    return _POSTED.pack(FAMILY, _LETTER, queue, *letter, is_resent) + block


def post_rows(queue: int, source: int, rows: Rows, *, is_resent: bool) -> bytes:
    """Encode `PostRows`."""
    numbers = (queue, source, rows.first, rows.records, rows.op, is_resent)
    return _ROWS_POSTED.pack(FAMILY, _ROWS, *numbers) + rows.data


def staged(block: tuple[int, int, int, int], data: bytes) -> bytes:
    """Encode `Staged`; `block` is transaction, target, rows and op."""
    return _BLOCK_STAGED.pack(FAMILY, _STAGED, *block) + data


def deliver(outlet: int, first: int, count: int, block: bytes | memoryview) -> bytes:
    """Encode `Deliver`."""
    return b"".join((_DELIVERED.pack(FAMILY, _DELIVER, outlet, first, count), block))


def got(request: int, outlet: int, tag: int, left: int, block: bytes | memoryview) -> bytes:
    """Encode `Got`."""
    return b"".join((_ANSWERED.pack(FAMILY, _GOT, request, outlet, tag, min(left, 0xFFFFFFFF)), block))


def settle(outlet: int, spans: list[Span]) -> bytes:
    """Encode `Settle`."""
    head = _SETTLED.pack(FAMILY, _SETTLE, outlet, len(spans))
    return head + b"".join([_SPAN.pack(*span) for span in spans])


def report(queue: int, done: int, refused: list[int]) -> bytes:
    """Encode `Report`."""
    head = _REPORTED.pack(FAMILY, _REPORT, queue, done, len(refused))
    return head + b"".join(map(_NUMBER.pack, refused))


def credit(outlet: int, size: int) -> bytes:
    """Encode `Credit`."""
    return _CREDITED.pack(FAMILY, _CREDIT, outlet, size)


def reply(address: bytes, block: bytes) -> bytes:
    """Encode `Reply`."""
    return _REPLIED.pack(FAMILY, _REPLY, len(address)) + address + block


def encode(frame: Other) -> bytes:
    """Encode any other frame."""
    return _HEAD.pack(FAMILY, _OTHER) + _encoder.encode(frame)


def decode(data: bytes | memoryview) -> Frame:
    """Read a frame; it refers to `data`."""
    if len(data) < _HEAD.size or data[0] != FAMILY:
        raise BadFrame("no frame of this version")
    try:
        return _READERS[data[1]](data)
    except (KeyError, struct.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFrame(f"frame of kind {data[1]}: {error}") from None


def _read_publish(data: bytes | memoryview) -> Publish:
    _, _, queue, first, count, base, is_resent = _PUBLISHED.unpack_from(data)
    return Publish(queue, first, count, base, bool(is_resent), data, _PUBLISHED.size)


def _read_post(data: bytes | memoryview) -> Post:
    _, _, queue, source, number, is_resent = _POSTED.unpack_from(data)
    return Post(queue, source, number, bool(is_resent), data, _POSTED.size)


def _read_rows(data: bytes | memoryview) -> PostRows:
    _, _, queue, source, first, count, op, is_resent = _ROWS_POSTED.unpack_from(data)
    if not count or not first:
        raise BadFrame("rows without numbers")
    return PostRows(queue, source, first, count, op, bool(is_resent), data, _ROWS_POSTED.size)


def _read_staged(data: bytes | memoryview) -> Staged:
    _, _, tx, target, count, op = _BLOCK_STAGED.unpack_from(data)
    return Staged(tx, target, count, op, data, _BLOCK_STAGED.size)


def _read_deliver(data: bytes | memoryview) -> Deliver:
    _, _, outlet, first, count = _DELIVERED.unpack_from(data)
    return Deliver(outlet, first, count, data, _DELIVERED.size)


def _read_got(data: bytes | memoryview) -> Got:
    _, _, request, outlet, tag, left = _ANSWERED.unpack_from(data)
    return Got(request, outlet, tag, left, data, _ANSWERED.size)


def _read_settle(data: bytes | memoryview) -> Settle:
    _, _, outlet, count = _SETTLED.unpack_from(data)
    if len(data) != _SETTLED.size + count * _SPAN.size:
        raise BadFrame("a settlement has not the length it says")
    return Settle(outlet, list(_SPAN.iter_unpack(data[_SETTLED.size :])))


def _read_report(data: bytes | memoryview) -> Report:
    _, _, queue, done, count = _REPORTED.unpack_from(data)
    if len(data) != _REPORTED.size + count * _NUMBER.size:
        raise BadFrame("a report has not the length it says")
    return Report(queue, done, [number for (number,) in _NUMBER.iter_unpack(data[_REPORTED.size :])])


def _read_credit(data: bytes | memoryview) -> Credit:
    _, _, outlet, size = _CREDITED.unpack(data)
    return Credit(outlet, size)


def _read_reply(data: bytes | memoryview) -> Reply:
    _, _, size = _REPLIED.unpack_from(data)
    at = _REPLIED.size + size
    if len(data) < at:
        raise BadFrame("an address is cut short")
    return Reply(bytes(data[_REPLIED.size : at]), data, at)


def _read_other(data: bytes | memoryview) -> Other:
    return _decoder.decode(memoryview(data)[_HEAD.size :])


_READERS: dict[int, Callable[[bytes | memoryview], Frame]] = {
    _PUBLISH: _read_publish,
    _LETTER: _read_post,
    _ROWS: _read_rows,
    _STAGED: _read_staged,
    _DELIVER: _read_deliver,
    _GOT: _read_got,
    _SETTLE: _read_settle,
    _REPORT: _read_report,
    _CREDIT: _read_credit,
    _OTHER: _read_other,
    _REPLY: _read_reply,
}
