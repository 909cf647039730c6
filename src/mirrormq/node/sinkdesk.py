"""What is asked of a sink, wherever the master of its staging queue is (docs/protocol/sink.md).

Guarantees
- A request is served by the master, and by it alone; the answer is the same on every node. If the master is
  out of reach, or another node is about to become it, the answer is `unavailable`, and asking again is safe.
- A transaction that another node stages here is dropped when the link to that node breaks: it cannot be
  complete.
- What another node asks or answers is read as a whole before anything is done with it; if it cannot be, that
  costs the link, and whoever waits hears `unavailable`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import msgspec

from mirrormq.base import limits
from mirrormq.broker.queueport import QueuePort
from mirrormq.broker.staging import Committed, OpenTx, SinkError, StagingQueue
from mirrormq.node import peerframes
from mirrormq.node.peerframes import BadFrame, SinkAsk, Taken, Told
from mirrormq.node.peerlink import PeerLink, SinkEnds
from mirrormq.node.remotequeue import RemoteQueue

if TYPE_CHECKING:
    from mirrormq.node.switch import Switch

Fields = dict[str, Any]
Done = Callable[[Fields | SinkError], None]

BEGIN, FINISH, COMMIT, ABORT, STATE = "begin", "finish", "commit", "abort", "state"

_encoder = msgspec.msgpack.Encoder()
_any = msgspec.msgpack.Decoder(Fields)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_T = TypeVar("_T")
_Time = Annotated[int, msgspec.Meta(ge=0, le=limits.sink_kept_ms * 1000)]


class _Begin(msgspec.Struct, frozen=True):
    """Start a transaction; `timeout` in µs."""

    batch: Annotated[int, msgspec.Meta(ge=0)]
    partition: Annotated[int, msgspec.Meta(ge=0, le=limits.sink_partition_max)]
    timeout: _Time


class _Begun(msgspec.Struct, frozen=True):
    """The answer; 16 hexadecimal digits."""

    tx: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    void: bool


class _Finish(msgspec.Struct, frozen=True):
    """All rows of a transaction were sent."""

    tx: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]


class _Commit(msgspec.Struct, frozen=True):
    """Commit transactions; `wait` in µs. Their names are what a client said."""

    batch: int
    txs: list[str]
    wait: _Time


class _Abort(msgspec.Struct, frozen=True):
    """Drop transactions."""

    txs: list[str]


class _Failed(msgspec.Struct, frozen=True):
    """An answer that says what is wrong."""

    code: str
    text: str


class Stage(Protocol):
    """A transaction that is being staged, here or at another node."""

    unsafe: int
    """Bytes that are not durable yet."""
    is_void: bool
    """Was its batch committed before? Then nobody wants its rows."""
    on_room: Callable[[int], None]

    def add(self, target: int, data: bytes, rows: int, op: int) -> None:
        """Add a block of rows for one queue."""
        ...

    def finish(self, done: Callable[[SinkError | None], None]) -> None:
        """All rows were added."""
        ...

    def abort(self) -> None:
        """Give it up."""
        ...


def ask(queue: QueuePort, what: str, fields: Fields, done: Done) -> None:
    """Ask the master of a staging queue; `done` gets the answer, maybe later."""
    if isinstance(queue, StagingQueue):
        _serve(queue, what, fields, done)
        return
    link = _link(queue)
    if link is None:
        done(SinkError("unavailable", f"the master of the staging {queue.text} is out of reach"))
        return

    def told(answer: Fields | None) -> None:
        if answer is None:
            done(SinkError("unavailable", "the master of the staging queue went out of reach"))
        elif "code" in answer:
            done(SinkError(answer["code"], answer["text"]))
        else:
            done(answer)

    body = _encoder.encode(fields)
    link.ask_sink(lambda number: SinkAsk(number, queue.record.id, what, body), told)


def begin(queue: QueuePort, fields: Fields, done: Callable[["str", "Stage | SinkError"], None]) -> None:
    """Start a transaction at the master; `done` gets its name and where its rows go."""
    if isinstance(queue, StagingQueue):
        try:
            opened = queue.staging.begin(fields["batch"], fields["partition"], fields["timeout"])
        except SinkError as error:
            done("", error)
            return
        done(f"{opened.tx:016x}", opened)
        return

    def begun(answer: Fields | SinkError) -> None:
        link = _link(queue)
        if isinstance(answer, SinkError):
            done("", answer)
        elif link is None:
            done("", SinkError("unavailable", "the link broke"))
        else:
            try:
                told = _convert(answer, _Begun)
            except BadFrame:
                done("", SinkError("unavailable", "the answer of the master cannot be read"))
                raise
            done(told.tx, FarStage(link, queue, int(told.tx, 16), is_void=told.void))

    ask(queue, BEGIN, fields, begun)


def _link(queue: QueuePort) -> PeerLink | None:
    return queue.link if isinstance(queue, RemoteQueue) and queue.is_open else None


def _read(body: bytes) -> Fields:
    """The map in a frame of another node."""
    try:
        return _any.decode(body)
    except _UNREADABLE as error:
        raise BadFrame(f"what is said about a sink is no map: {error}") from None


def _convert(fields: Fields, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(fields, kind)
    except _UNREADABLE as error:
        raise BadFrame(f"{kind.__name__[1:].lower()} of a sink: {error}") from None


# --- the master's side ----------------------------------------------------------------------------------


def _serve(queue: StagingQueue, what: str, fields: Fields, done: Done) -> None:
    staging = queue.staging
    try:
        if what == COMMIT:
            asked = _convert(fields, _Commit)
            txs = _numbers(asked.txs)
            staging.commit(asked.batch, txs, asked.wait, lambda answer: done(_committed(answer)))
        elif what == ABORT:
            staging.abort(_numbers(_convert(fields, _Abort).txs))
            done({})
        elif what == STATE:
            staging.tell(done)
        else:
            raise BadFrame(f"nothing is known about '{what}'")
    except SinkError as error:
        done(error)


def _numbers(txs: list[str]) -> list[int]:
    """Transactions by the names that a client gave: none has another one than those of `begin`."""
    try:
        return [int(tx, 16) for tx in txs]
    except ValueError as error:
        raise SinkError("refused", f"this is no transaction: {error}") from None


def _committed(answer: Committed | SinkError) -> Fields | SinkError:
    if isinstance(answer, SinkError):
        return answer
    state = "committed" if answer.is_new else "already"
    return {"state": state, "rows": answer.rows, "forwarded": answer.is_forwarded}


def on_ask(switch: "Switch", link: PeerLink, frame: SinkAsk) -> None:
    """Another node asks for one of its clients."""
    asker = link.asker(frame.request)

    def done(answer: Fields | SinkError) -> None:
        if isinstance(answer, SinkError):
            answer = {"code": answer.code, "text": answer.text}
        asker.send(peerframes.encode(Told(frame.request, _encoder.encode(answer))))

    fields, queue = _read(frame.body), switch.masters.get(frame.queue)
    if not isinstance(queue, StagingQueue):
        done(SinkError("unavailable", "the staging queue has another master, or is gone"))
        return
    if frame.what == BEGIN:
        _convert(fields, _Begin)
        begin(queue, fields, lambda name, stage: _begun(link, name, stage, done))
    elif frame.what == FINISH:
        tx = _convert(fields, _Finish).tx
        stage = link.sinks.stages.pop(int(tx, 16), None)
        if stage is None:
            done(SinkError("gone", f"transaction {tx} is not open here"))
        else:
            stage.finish(lambda error: done({} if error is None else error))
    else:
        _serve(queue, frame.what, fields, done)


def _begun(link: PeerLink, name: str, stage: "Stage | SinkError", done: Done) -> None:
    if isinstance(stage, SinkError):
        done(stage)
        return
    assert isinstance(stage, OpenTx)
    tx = stage.tx
    link.sinks.stages[tx] = stage
    stage.on_room = lambda size: link.send(peerframes.encode(Taken(tx, size)))
    done({"tx": name, "void": stage.is_void})


def on_block(_switch: "Switch", link: PeerLink, frame: peerframes.Staged) -> None:
    """Rows of a transaction that another node stages; with size 0 it is given up."""
    stage = link.sinks.stages.get(frame.tx)
    if stage is None:
        return  # it has timed out, as the other node hears when it wants to finish it
    if not frame.records:
        del link.sinks.stages[frame.tx]
        stage.abort()
        return
    try:
        stage.add(frame.target, bytes(frame.data[frame.at :]), frame.records, frame.op)
    except SinkError:
        # The queue is being handed over, or gone. If this node stays its master, nobody finishes what it has.
        del link.sinks.stages[frame.tx]
        stage.abort()


def on_taken(_switch: "Switch", link: PeerLink, frame: Taken) -> None:
    """Rows that this node sent to another for a transaction are durable there."""
    stage = link.sinks.far_stages.get(frame.tx)
    if stage is not None:
        stage.taken(frame.size)


def on_told(_switch: "Switch", link: PeerLink, frame: Told) -> None:
    """An answer; one that nobody waits for is ignored."""
    answer = _read(frame.body)
    if "code" in answer:
        _convert(answer, _Failed)
    told = link.sinks.asked.pop(frame.request, None)
    if told is not None:
        told(answer)


def link_down(link: PeerLink) -> None:
    """What was being staged over this link cannot be finished."""
    sinks, link.sinks = link.sinks, SinkEnds()
    for stage in sinks.stages.values():
        stage.abort()
    for far in sinks.far_stages.values():
        far.broken()
    for told in sinks.asked.values():
        told(None)


class FarStage:
    """A transaction that is staged at another node."""

    def __init__(self, link: PeerLink, queue: QueuePort, tx: int, *, is_void: bool) -> None:
        self.is_void = is_void
        self._link = link
        self._queue = queue
        self._tx = tx
        self._is_broken = False
        self.unsafe = 0
        self.on_room: Callable[[int], None] = _nothing
        link.sinks.far_stages[tx] = self

    def add(self, target: int, data: bytes, rows: int, op: int) -> None:
        """Send a block of rows."""
        if self._is_broken:
            raise SinkError("unavailable", "the link to the master of the staging queue broke")
        self.unsafe += len(data)
        self._link.send(peerframes.staged((self._tx, target, rows, op), data))

    def taken(self, size: int) -> None:
        """The master has so many bytes of it for good."""
        self.unsafe -= size
        self.on_room(size)

    def finish(self, done: Callable[[SinkError | None], None]) -> None:
        """All rows were sent."""
        self._link.sinks.far_stages.pop(self._tx, None)
        if self._is_broken:
            done(SinkError("unavailable", "the link to the master of the staging queue broke"))
            return
        fields = {"tx": f"{self._tx:016x}"}

        def finished(answer: Fields | SinkError) -> None:
            done(answer if isinstance(answer, SinkError) else None)

        ask(self._queue, FINISH, fields, finished)

    def abort(self) -> None:
        """Give it up."""
        if self._link.sinks.far_stages.pop(self._tx, None) is not None and not self._is_broken:
            self._link.send(peerframes.staged((self._tx, 0, 0, 0), b""))

    def broken(self) -> None:
        """The link is gone, and with it what was staged."""
        self._is_broken = True
        self.on_room(self.unsafe)


def _nothing(_: int) -> None:
    """Nobody waits for room."""


SERVERS: dict[type, Callable[["Switch", PeerLink, Any], None]] = {
    SinkAsk: on_ask,
    Told: on_told,
    Taken: on_taken,
    peerframes.Staged: on_block,
}
