"""The rows of one transaction, as a client sends them to whatever node it is connected to.

Guarantees
- Each row is checked and routed here as if its user had published it, by the topology of the moment; its
  target queues are fixed with that. A row without a queue ends the transaction with an error that names
  exchange and key.
- Within one queue rows keep the order in which they were sent.
- At most `limits.sink_window_bytes` of a client's rows are under way to the disks; beyond that its connection
  is not read.
- In a vhost that mirrors another cluster the only rows are those of its mirror job, and they say where they
  come from; an ordinary vhost takes no such rows. So a mirror cannot be mirrored back into its source.
- Messages are taken only from a queue that the user may read, and only from the incarnation that is named.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError
from mirrormq.broker.arguments import text
from mirrormq.broker.channel_publish import check_rights, examine
from mirrormq.broker.exchange import Letter
from mirrormq.broker.host import Host
from mirrormq.broker.publisher import Publisher
from mirrormq.broker.queueport import QueuePort
from mirrormq.broker.staging import SinkError
from mirrormq.broker.vhost import VHost
from mirrormq.kernel import rows
from mirrormq.kernel.message import Message
from mirrormq.kernel.rows import BadRow, Block, RowSplitter
from mirrormq.node.sinkdesk import Stage
from mirrormq.wire.properties import join_properties, split_properties

PARK = "sink"
SOURCE = "x-mirror-source"
"""Argument of a queue in a mirror: the id of the queue it follows."""
_ROW_OVERHEAD = 64 * 1024
"""What a row may have besides its body."""


class Session(Protocol):
    """The client's connection."""

    def park(self, reason: str) -> None:
        """Read no more until `unpark`."""
        ...

    def unpark(self, reason: str) -> None:
        """Go on."""
        ...


class StageCall(Protocol):
    """The client's call, as far as a transaction uses it."""

    is_over: bool

    @property
    def session(self) -> Session:
        """Its connection."""
        ...

    def end(self, fields: dict[str, Any]) -> None:
        """All is taken."""
        ...

    def fail(self, error: Any) -> None:
        """It was not done."""
        ...


class Origin(Publisher):
    """The mirror job: it writes where nobody else may."""

    __slots__ = ()

    def check_writable(self) -> None:
        """It is the one for whom the vhost is kept read-only."""


class Writer(NamedTuple):
    """Who stages rows, and where."""

    vhost: VHost
    user: str
    sources: Mapping[str, str] = {}
    """Of a mirror job: the id of the queue at the source, by that of the queue here. Of others: the id of the
    queue from which messages are taken, by its name.
    """


class Intake:
    """One transaction under way."""

    def __init__(self, call: StageCall, host: Host, writer: Writer) -> None:
        self._call = call
        self._host = host
        self._vhost = vhost = writer.vhost
        user = writer.user
        self._sources = writer.sources
        self._is_mirror = bool(vhost.mirror_of)
        self._publisher = (Origin if self._is_mirror else Publisher)(host, vhost, user)
        self._splitter = RowSplitter(
            host.settings.max_message_size + _ROW_OVERHEAD, limits.forward_block_bytes
        )
        self._blocks: dict[int, Block] = {}
        """What is collected for each queue, by log id."""
        self._targets: dict[Block, int] = {}
        self._routes: dict[tuple[int, bytes, bytes], list[Block] | None] = {}
        self._version = vhost.version
        self._stage: Stage | None = None
        self.tx = ""
        self._is_parked = False
        self._is_void = False
        """Was the batch committed before? Then rows are not looked at: their queues may be gone since."""

    def begun(self, tx: str, stage: Stage) -> None:
        """The transaction is open where the staging queue is."""
        self.tx = tx
        self._stage = stage
        self._is_void = stage.is_void
        stage.on_room = self._on_room

    # --- what the client sends ----------------------------------------------------------------------

    def on_data(self, data: bytes) -> None:
        """Rows, or parts of them."""
        if self._is_void:
            return
        try:
            self._check()
            self._splitter.feed(data)
            self._run()
        except SinkError as error:
            self._fail(error)
        except AmqpError as error:
            self._fail(SinkError("access" if error.code == 403 else "refused", error.reply_text))
        except BadRow as error:
            self._fail(SinkError("refused", f"row {self._splitter.count + 1}: {error}"))

    def _check(self) -> None:
        short = self._host.shortages()
        if short:
            raise SinkError("unavailable", f"the cluster runs short of {', '.join(sorted(short))}")
        if bool(self._vhost.mirror_of) != self._is_mirror:
            raise SinkError("access", f"vhost '{self._vhost.name}' was promoted: it is no mirror any more")
        if self._version != self._vhost.version:
            self._version = self._vhost.version
            self._routes.clear()
            self._splitter.forget_routes()

    def _run(self) -> None:
        splitter = self._splitter
        while True:
            row = splitter.run()
            full = splitter.take_full()
            for block in full:
                self._add(block)
            if row is not None:
                self._place(row)
            elif not full:
                break
        assert self._stage is not None
        if self._stage.unsafe > limits.sink_window_bytes and not self._is_parked:
            self._is_parked = True
            self._call.session.park(PARK)

    def _add(self, block: Block) -> None:
        assert self._stage is not None
        data, count, op = block.take()
        self._stage.add(self._targets[block], data, count, op)

    def _on_room(self, size: int) -> None:  # noqa: ARG002
        assert self._stage is not None
        if self._is_parked and self._stage.unsafe <= limits.sink_window_bytes // 2:
            self._is_parked = False
            self._call.session.unpark(PARK)

    def on_end(self, fields: dict[str, Any]) -> None:  # noqa: ARG002
        """The client has sent all."""
        assert self._stage is not None
        if not self._splitter.is_whole:
            self._fail(SinkError("refused", "the last row is cut short"))
            return
        try:
            for block in self._blocks.values():
                if block.rows:
                    self._add(block)
        except SinkError as error:
            self._fail(error)
            return
        stage, self._stage = self._stage, _Over()
        stage.finish(self._finished)

    def _finished(self, error: SinkError | None) -> None:
        if error is not None:
            self._call.fail(error)
        else:
            splitter = self._splitter
            answer = {"tx": self.tx, "count": splitter.count, "crc": splitter.crc, "already": self._is_void}
            self._call.end(answer)

    def on_cancel(self) -> None:
        """The client is gone, or wants no more of it."""
        if self._stage is not None:
            self._stage.abort()
            self._stage = _Over()

    def on_writable(self) -> None:
        """Nothing is sent but the end."""

    def _fail(self, error: SinkError) -> None:
        self.on_cancel()
        if self._is_parked:
            self._is_parked = False
            self._call.session.unpark(PARK)
        self._call.fail(error)

    # --- routing ---------------------------------------------------------------------------------------

    def _place(self, row: tuple[int, bytes, bytes, bytes, bytes]) -> None:
        """Decide about a row that the compiled loop cannot decide."""
        op, exchange, key, properties, body = row
        if (op in (rows.PUBLISH, rows.TAKE)) is self._is_mirror:
            takes = "mirrors another cluster and takes rows with" if self._is_mirror else "takes no rows with"
            raise SinkError("refused", f"vhost '{self._vhost.name}' {takes} an origin")
        if (op, exchange, key) not in self._routes:
            if op == rows.TAKE:
                self._learn_taken(exchange, key)
            else:
                self._learn(op, exchange, key)
            return  # and look at it once more
        message = Message(exchange, key, properties, body)
        extra_keys: list[bytes] = []
        if not self._is_mirror:  # a copy was examined where it was published, and goes to its queue alone
            message, extra_keys = examine(self._publisher, message)
        raw = message.properties
        if not message.persistent:
            fields = split_properties(raw)
            raw = join_properties({**fields, "delivery_mode": b"\x02"})
        blocks = self._routes[op, exchange, key]
        if blocks is None or extra_keys:
            routed = self._vhost.route_message(message, extra_keys)
            blocks = [self._block(queue.record.log_id) for queue in routed.queues]
            for queue in routed.queues if self._is_mirror else ():
                self._check_source(queue)
        if not blocks:
            raise _unroutable(exchange, key)
        self._splitter.place(blocks, raw)

    def _learn_taken(self, exchange: bytes, key: bytes) -> None:
        """Messages of this very queue leave it: whoever says so could as well have consumed them."""
        name = text(key)
        self._publisher.check("read", "queue", name)
        queue = self._vhost.queues.get(name)
        if exchange or queue is None:
            raise SinkError("not-found", f"no {self._publisher.text('queue', name)} to take messages from")
        record = queue.record
        if not record.outlives_restart or self._sources.get(name) != f"{record.log_id:016x}":
            why = "keeps no log" if not record.outlives_restart else "is not the one that was read"
            raise SinkError("refused", f"{queue.text} {why}: nothing can be taken from it")
        self._routes[rows.TAKE, exchange, key] = blocks = [self._block(record.log_id)]
        self._splitter.learn(rows.TAKE, exchange, key, blocks)

    def _learn(self, op: int, exchange: bytes, key: bytes) -> None:
        name = text(exchange)
        check_rights(self._publisher, name, key)
        walk = self._vhost.router.route(name, Letter((key,)))
        if not walk.keyed:
            self._routes[op, exchange, key] = None
            return
        if not walk.queues:
            raise _unroutable(exchange, key)
        queues = [self._vhost.queues[queue] for queue in walk.queues]
        if self._is_mirror:
            for queue in queues:
                self._check_source(queue)
        blocks = [self._block(queue.record.log_id) for queue in queues]
        self._routes[op, exchange, key] = blocks
        self._splitter.learn(op, exchange, key, blocks)

    def _check_source(self, queue: QueuePort) -> None:
        """Seqs are those of one queue at the source: of another, also of one with the same name declared
        later, they would be taken for known ones.
        """
        follows, given = queue.record.arguments.get(SOURCE), self._sources.get(queue.name)
        if follows != given:
            text = f"{queue.text} follows '{follows}' ({SOURCE}), the rows are of '{given}': declare it anew"
            raise SinkError("refused", text)

    def _block(self, target: int) -> Block:
        block = self._blocks.get(target)
        if block is None:
            block = self._blocks[target] = Block()
            self._targets[block] = target
        return block


class _Over:
    """A transaction that is not staged any more."""

    unsafe = 0
    is_void = False
    on_room: Callable[[int], None]

    def add(self, target: int, data: bytes, rows: int, op: int) -> None:
        """Too late."""

    def finish(self, done: Callable[[SinkError | None], None]) -> None:
        """Too late."""

    def abort(self) -> None:
        """Nothing is left to give up."""


def _unroutable(exchange: bytes, key: bytes) -> SinkError:
    return SinkError(
        "refused", f"no queue for routing key '{text(key)}' of exchange '{text(exchange)}': unroutable row"
    )
