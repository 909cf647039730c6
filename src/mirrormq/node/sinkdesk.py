"""What is asked of a sink, wherever the master of its staging queue is (docs/protocol/sink.md).

Guarantees
- A request is served by the master, and by it alone; the answer is the same on every node. If the master is
  out of reach, or another node is about to become it, the answer is `unavailable`, and asking again is safe.
- A transaction that another node stages here is dropped when the link to that node breaks: it cannot be
  complete.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from mirrormq.broker.queueport import QueuePort
from mirrormq.broker.staging import Committed, OpenTx, SinkError, StagingQueue
from mirrormq.node import peerframes
from mirrormq.node.peerframes import SinkAsk, Taken, Told
from mirrormq.node.peerlink import PeerLink, SinkEnds
from mirrormq.node.remotequeue import RemoteQueue

if TYPE_CHECKING:
    from mirrormq.node.switch import Switch

Fields = dict[str, Any]
Done = Callable[[Fields | SinkError], None]

BEGIN, FINISH, COMMIT, ABORT, STATE = "begin", "finish", "commit", "abort", "state"

_encoder = msgspec.msgpack.Encoder()


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

    body = _encoder.encode(fields)
    link.ask_sink(lambda number: SinkAsk(number, queue.record.id, what, body), lambda told: done(_read(told)))


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
            stage = FarStage(link, queue, int(answer["tx"], 16), is_void=answer["void"])
            done(answer["tx"], stage)

    ask(queue, BEGIN, fields, begun)


def _link(queue: QueuePort) -> PeerLink | None:
    return queue.link if isinstance(queue, RemoteQueue) and queue.is_open else None


def _read(told: Told | None) -> Fields | SinkError:
    if told is None:
        return SinkError("unavailable", "the master of the staging queue went out of reach")
    fields: Fields = msgspec.msgpack.decode(told.body)
    if "code" in fields:
        return SinkError(fields["code"], fields["text"])
    return fields


# --- the master's side ----------------------------------------------------------------------------------


def _serve(queue: StagingQueue, what: str, fields: Fields, done: Done) -> None:
    staging = queue.staging
    try:
        if what == COMMIT:
            txs = [int(tx, 16) for tx in fields["txs"]]
            staging.commit(fields["batch"], txs, fields["wait"], lambda answer: done(_committed(answer)))
        elif what == ABORT:
            staging.abort([int(tx, 16) for tx in fields["txs"]])
            done({})
        elif what == STATE:
            staging.tell(done)
        else:
            raise peerframes.BadFrame(f"nothing is known about '{what}'")
    except SinkError as error:
        done(error)
    except (KeyError, ValueError, TypeError) as error:
        done(SinkError("refused", f"{what}: {error}"))


def _committed(answer: Committed | SinkError) -> Fields | SinkError:
    if isinstance(answer, SinkError):
        return answer
    state = "committed" if answer.is_new else "already"
    return {"state": state, "rows": answer.rows, "forwarded": answer.is_forwarded}


def on_ask(switch: "Switch", link: PeerLink, frame: SinkAsk) -> None:
    """Another node asks for one of its clients."""

    def done(answer: Fields | SinkError) -> None:
        if isinstance(answer, SinkError):
            answer = {"code": answer.code, "text": answer.text}
        link.send(peerframes.encode(Told(frame.request, _encoder.encode(answer))))

    queue = switch.masters.get(frame.queue)
    if not isinstance(queue, StagingQueue):
        done(SinkError("unavailable", "the staging queue has another master, or is gone"))
        return
    fields: Fields = msgspec.msgpack.decode(frame.body)
    if frame.what == BEGIN:
        begin(queue, fields, lambda name, stage: _begun(link, name, stage, done))
    elif frame.what == FINISH:
        stage = link.sinks.stages.pop(int(fields["tx"], 16), None)
        if stage is None:
            done(SinkError("gone", f"transaction {fields['tx']} is not open here"))
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
        del link.sinks.stages[frame.tx]


def on_taken(_switch: "Switch", link: PeerLink, frame: Taken) -> None:
    """Rows that this node sent to another for a transaction are durable there."""
    stage = link.sinks.far_stages.get(frame.tx)
    if stage is not None:
        stage.taken(frame.size)


def on_told(_switch: "Switch", link: PeerLink, frame: Told) -> None:
    """An answer; one that nobody waits for is ignored."""
    told = link.sinks.asked.pop(frame.request, None)
    if told is not None:
        told(frame)


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
