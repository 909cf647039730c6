"""A staging queue on its master: where the rows of a sink wait for their commit, and leave from.

Guarantees
- A transaction counts when all of its rows and the STAGE record that lists them are durable; until then it
  is nobody's, and after a crash its rows are removed.
- The first COMMIT_SET of a batch decides for all targets at once. It is answered, and rows leave, only when
  it is durable on all in-sync mirrors. A later one of the same batch changes nothing and drops its
  transactions.
- Committed rows reach each target queue exactly once and in order: they leave like dead letters, under dense
  numbers per target by which the target knows what it has; what has not arrived is sent again after a crash
  or by the next master. A block is removed here when its target has it for good.
- A target that was deleted is skipped, and its rows are counted. One that is out of reach holds back its own
  rows only.
- A transaction is dropped when it is aborted, when its batch was committed without it, or at its timeout.

Nothing here runs per row: rows come and go in blocks (kernel/rows.pyx).
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from mirrormq.base.errors import access_refused
from mirrormq.base.types import Now
from mirrormq.broker.queue import Queue
from mirrormq.broker.queueport import Later
from mirrormq.broker.rowsender import RowSender
from mirrormq.kernel import records
from mirrormq.kernel.rows import PUBLISH, TAKE
from mirrormq.log import sinkstate
from mirrormq.log.durable import DurableLog
from mirrormq.log.sinkstate import NO_BATCH, SinkState, Staged, Tx

if TYPE_CHECKING:
    from mirrormq.broker.arguments import QueueSettings
    from mirrormq.broker.host import Host
    from mirrormq.broker.vhost import VHost
    from mirrormq.meta.records import Queue as QueueRecord

_REASON_SINK = 7
"""Why a block left: its rows arrived, or nobody wants them."""

_REMOVED = struct.Struct("<QQQ")
_U64 = struct.Struct("<Q")

Code = str
"""What went wrong, in the words of the bulk protocol: `refused`, `gone`, `unavailable`."""


class SinkError(Exception):
    """Why something was not done for a sink."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.more: dict[str, object] = {}


class Committed(NamedTuple):
    """The answer to a commit."""

    is_new: bool
    """False: the batch had been committed before."""
    rows: int
    is_forwarded: bool
    """Are all of its rows in their queues?"""


Done = Callable[["Committed | SinkError"], None]


class OpenTx:
    """A transaction that is being staged."""

    def __init__(self, staging: "Staging", tx: int, batch: int, partition: int, until: int) -> None:
        self._staging = staging
        self.tx = tx
        self._plan = Tx(tx, batch, staging.now.wall, until, partition, ())
        self._blocks: list[Staged] = []
        self.is_void = batch <= staging.state.last
        """Was the batch committed before? Then its rows are not even looked at."""
        self.is_over = False
        self.unsafe = 0
        """Bytes of blocks that are not durable yet: who sends more than a window of them should wait."""
        self.on_room: Callable[[int], None] = _nothing
        """Called with the bytes that have become durable."""

    def add(self, target: int, data: bytes, rows: int, op: int) -> None:
        """Write a block of rows for one queue."""
        if self.is_over:
            raise SinkError("gone", f"transaction {self.tx:x} is over: it was aborted, or took too long")
        if self.is_void:
            self.on_room(len(data))
            return
        seq = self._staging.write_block(data)
        self._blocks.append(Staged(seq, target, rows, op))
        self.unsafe += len(data)
        self._staging.when_durable(lambda: self._is_safe(len(data)))

    def _is_safe(self, size: int) -> None:
        self.unsafe -= size
        self.on_room(size)

    def stop(self) -> None:
        """This node is the master no longer: nobody will say that anything of it is durable."""
        self.is_over = True
        size, self.unsafe = self.unsafe, 0
        self.on_room(size)

    @property
    def seqs(self) -> list[int]:
        """The blocks written so far."""
        return [block.seq for block in self._blocks]

    @property
    def until(self) -> int:
        """When it is given up."""
        return self._plan.until

    def finish(self, done: Callable[[SinkError | None], None]) -> None:
        """All rows were added: `done` hears when they are durable and can be committed."""
        if self.is_over:
            done(SinkError("gone", f"transaction {self.tx:x} is over: it was aborted, or took too long"))
            return
        self.is_over = True
        self._staging.finish(self, self._plan._replace(blocks=tuple(self._blocks)), done)

    def abort(self) -> None:
        """Its client is gone, or does not want it any more."""
        if not self.is_over:
            self.is_over = True
            self._staging.abandon(self)


class Staging:
    """The sink behind one staging queue."""

    def __init__(self, queue: "StagingQueue") -> None:
        self.queue = queue
        self._open: dict[int, OpenTx] = {}
        self.sender = RowSender(self)
        self._is_begun = False
        self._orphans: list[int] = []
        """Blocks of transactions that ended before they were complete: removed in the next turn."""
        self._asked: dict[int, Callable[[SinkError], None]] = {}
        """Who waits for something to be durable: told if this node is the master no longer."""
        self._asks = 0
        self._waits: list[tuple[set[int], Callable[[], None]]] = []
        """Commits whose clients wait until these blocks have arrived."""

    @property
    def now(self) -> Now:
        """The time of this input."""
        return self.queue.host.now

    @property
    def log(self) -> DurableLog:
        """The log with the rows."""
        kept = self.queue.log.kept
        assert kept is not None
        return kept

    @property
    def state(self) -> SinkState:
        """What the log says."""
        log = self.log
        if log.sink is None:
            log.sink = SinkState()
        return log.sink

    # --- what clients ask -------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise unless something may be written now."""
        queue = self.queue
        queue.used_at = self.now.mono
        if queue.core.gone or queue.damage is not None:
            raise SinkError("not-found", f"the staging {queue.text} is gone or damaged: {queue.damage}")
        if queue.is_filling or not queue.log.is_open:
            raise SinkError("unavailable", f"the staging {queue.text} is about to get another master")
        self._begin()

    def begin(self, batch: int, partition: int, timeout_us: int) -> OpenTx:
        """Start a transaction."""
        self.check_open()
        tx = int.from_bytes(self.queue.host.rng.token(8), "big") >> 1 | 1
        opened = OpenTx(self, tx, batch, partition, self.now.wall + timeout_us)
        self._open[tx] = opened
        self.queue.wake_in(timeout_us)
        return opened

    def write_block(self, data: bytes) -> int:
        """Append a block of rows."""
        self.check_open()
        seq = int(self.log.stage(data, self.now))
        self.sender.keep(seq, data)
        return seq

    def when_durable(self, then: Callable[[], None]) -> None:
        """Call `then` when all that was written so far is durable, unless the mastership ends before."""
        self.log.when_durable(self.log.end, then)

    def finish(self, opened: OpenTx, tx: Tx, done: Callable[[SinkError | None], None]) -> None:
        """All rows of a transaction are written."""
        self._open.pop(tx.tx, None)
        try:
            self.check_open()
        except SinkError as error:
            # The queue is being handed over. If this node stays its master, nobody finishes what it has.
            self._orphans += opened.seqs
            self.queue.core.touch()
            done(error)
            return
        if opened.is_void or tx.batch <= self.state.last:
            # Its batch was committed by an earlier attempt: nobody will ever want these rows.
            self._remove(opened.seqs)
            self._answer(lambda: done(None), done)
            return
        payload = sinkstate.encode_tx(tx)
        self.log.write_other(records.STAGE, sinkstate.STAGED, payload, self.now, flush=True)
        self.state.txs[tx.tx] = tx
        self._answer(lambda: done(None), done)

    def abandon(self, opened: OpenTx) -> None:
        """A transaction ended before it was complete."""
        self._open.pop(opened.tx, None)
        self._orphans += opened.seqs
        self.queue.core.touch()

    def abort(self, txs: Iterable[int]) -> None:
        """Drop transactions; those that are not there, or committed, are passed over."""
        self.check_open()
        for tx in txs:
            if tx in self._open:
                self._open[tx].abort()
        self._drop([tx for tx in txs if tx in self.state.txs])

    def commit(self, batch: int, txs: Sequence[int], wait_us: int, done: Done) -> None:
        """Commit these transactions as one batch, unless it was committed before."""
        try:
            self.check_open()
            state = self.state
            if batch <= state.last:
                self._drop([tx for tx in txs if tx in state.txs])
                self._answer(lambda: done(Committed(False, 0, False)), done)
                return
            ordered = self._ordered(batch, txs)
        except SinkError as error:
            done(error)
            return
        # Nothing else of this batch, or of one before it, can ever be committed.
        others = [tx.tx for tx in state.txs.values() if tx.batch <= batch and tx not in ordered]
        payload = sinkstate.encode_commit(self.now.wall, batch, [tx.tx for tx in ordered])
        written = [(records.COMMIT_SET, 0, payload), *self._dropping(others)]
        self.log.write_others(written, self.now, flush=True)
        state.commit(payload)
        self._forget(others)
        seqs = [block.seq for tx in ordered for block in tx.blocks]
        rows = sum(tx.rows for tx in ordered)
        self._answer(lambda: self._committed(seqs, rows, wait_us, done), done)

    def _ordered(self, batch: int, txs: Sequence[int]) -> list[Tx]:
        """The transactions of a commit, by partition."""
        state, wall = self.state, self.now.wall
        found = []
        for number in dict.fromkeys(txs):
            tx = state.txs.get(number)
            if tx is None or tx.until <= wall:
                why = "it was aborted, or took longer than its txTimeout"
                raise SinkError("gone", f"transaction {number:x} of batch {batch} cannot be committed: {why}")
            if tx.batch != batch:
                raise SinkError("refused", f"transaction {number:x} is of batch {tx.batch}, not of {batch}")
            is_copied = any(block.op not in (PUBLISH, TAKE) for block in tx.blocks)
            if is_copied and not self.queue.vhost.mirror_of:
                why = "was promoted: it takes nothing from its mirror job any more"
                raise SinkError("access", f"vhost '{self.queue.vhost.name}' {why}")
            found.append(tx)
        found.sort(key=lambda tx: tx.partition)
        for one, other in pairwise(found):
            if one.partition == other.partition:
                raise SinkError(
                    "refused", f"two transactions of partition {one.partition} in one commit of batch {batch}"
                )
        return found

    def _committed(self, seqs: list[int], rows: int, wait_us: int, done: Done) -> None:
        """A commit is durable: its rows may leave."""
        self.sender.release(seqs)
        left = {seq for seq in seqs if seq in self.state.sending}
        if not wait_us or not left:
            done(Committed(True, rows, not left))
            return
        is_told = False

        def tell() -> None:
            nonlocal is_told
            if not is_told:
                is_told = True
                done(Committed(True, rows, not left))

        self._waits.append((left, tell))
        self.queue.tell_later(wait_us, tell)

    def tell(self, done: Callable[[dict[str, object] | SinkError], None]) -> None:
        """Say what is known of the sink, when all of it is durable: whoever hears that a batch is committed
        never sends it again.
        """
        self.check_open()
        report = self._report()
        self._answer(lambda: done(report), done)

    def _report(self) -> dict[str, object]:
        state = self.state
        under_way = sum(block.rows for block in state.sending.values())
        return {
            "last": None if state.last == NO_BATCH else state.last,
            "open": [f"{tx:016x}" for tx in (*self._open, *state.txs)],
            "committed": state.committed,
            "forwarded": state.committed - state.skipped - under_way,
            "waiting": under_way,
            "skipped": state.skipped,
        }

    def _answer(self, then: Callable[[], None], failed: Callable[[SinkError], None]) -> None:
        """Call `then` when all that was written so far is durable, `failed` if that cannot be told here."""
        self._asks += 1
        ask = self._asks
        self._asked[ask] = failed

        def durable() -> None:
            if self._asked.pop(ask, None) is not None:
                then()

        self.when_durable(durable)

    def stop(self) -> None:
        """This node is the master no longer, or the queue is gone."""
        asked, self._asked = self._asked, {}
        opened, self._open = self._open, {}
        for one in opened.values():
            one.stop()
        for failed in asked.values():
            failed(SinkError("unavailable", f"the staging {self.queue.text} has another master now"))
        self.sender.stop()

    # --- records ------------------------------------------------------------------------------------

    def _drop(self, txs: Sequence[int]) -> None:
        if txs:
            self.log.write_others(self._dropping(txs), self.now, flush=False)
            self._forget(txs)

    def _dropping(self, txs: Sequence[int]) -> list[tuple[int, int, bytes]]:
        """The records that say so."""
        if not txs:
            return []
        seqs = [block.seq for tx in txs for block in self.state.txs[tx].blocks]
        found = [(records.STAGE, sinkstate.DROPPED, sinkstate.encode_dropped(self.now.wall, txs))]
        if seqs:
            found.append((records.REMOVE, 0, self._removal(seqs)))
        return found

    def _forget(self, txs: Sequence[int]) -> None:
        for tx in txs:
            self._bury([block.seq for block in self.state.txs.pop(tx).blocks])

    def _remove(self, seqs: Sequence[int], others: Sequence[tuple[int, int, bytes]] = ()) -> None:
        if seqs:
            removal = (records.REMOVE, 0, self._removal(seqs))
            self.log.write_others([*others, removal], self.now, flush=False)
            self._bury(seqs)

    def _removal(self, seqs: Sequence[int]) -> bytes:
        spans: list[list[int]] = []
        for seq in sorted(seqs):
            if spans and spans[-1][1] + 1 == seq:
                spans[-1][1] = seq
            else:
                spans.append([seq, seq])
        rows = [_REMOVED.pack(first, last, _REASON_SINK) for first, last in spans]
        return _U64.pack(self.now.wall) + b"".join(rows)

    def _bury(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self.log.dead.add(seq, seq)
            self.sender.forget(seq)

    # --- forwarding -----------------------------------------------------------------------------------

    def turn(self) -> None:
        """Once per pass while touched: what arrived leaves, what is too old goes, what may is sent."""
        self._begin()
        orphans, self._orphans = self._orphans, []
        self._remove(orphans)
        self._settle()
        self._expire()
        self.sender.send()

    def _begin(self) -> None:
        """The first of this mastership: what was being staged when the last one ended is nobody's."""
        if self._is_begun:
            return
        self._is_begun = True
        log, state = self.log, self.state
        state.forget(log.dead)
        known = state.known()
        orphans = [seq for seq in _live(log) if seq not in known]
        if orphans or state.sending:
            if log.opening is not None:
                log.opening(self.now)  # nothing below is durable for this master before its first record is
            self._remove(orphans)
            log.journal.want_flush()
            sending = list(state.sending)
            self.when_durable(lambda: self.sender.release(sending, is_resent=True))

    def _settle(self) -> None:
        """Blocks that arrived leave the log."""
        arrived = self.sender.take_arrived()
        if not arrived:
            return
        skipped = sum(block.rows for block, is_gone in arrived if is_gone)
        seqs = [block.seq for block, _ in arrived]
        others = []
        if skipped:
            payload = sinkstate.encode_skipped(self.now.wall, skipped)
            others.append((records.STAGE, sinkstate.SKIPPED, payload))
        self._remove(seqs, others)
        self.state.skipped += skipped
        for seq in seqs:
            self.state.sending.pop(seq, None)
        gone = set(seqs)
        for left, _ in self._waits:
            left -= gone
        ready = [tell for left, tell in self._waits if not left]
        self._waits = [(left, tell) for left, tell in self._waits if left]
        for tell in ready:
            tell()

    def _expire(self) -> None:
        """Drop what was not committed in time."""
        wall = self.now.wall
        for opened in [one for one in self._open.values() if one.until <= wall]:
            opened.abort()
        old = [tx.tx for tx in self.state.txs.values() if tx.until <= wall]
        self._drop(old)
        left = [tx.until for tx in self.state.txs.values()] + [tx.until for tx in self._open.values()]
        if left:
            self.queue.used_at = self.now.mono
            self.queue.wake_in(min(left) - wall)


class StagingQueue(Queue):
    """A queue that holds the rows of a sink: nobody else can use it, and nothing in it is ever ready."""

    def __init__(
        self, host: "Host", vhost: "VHost", record: "QueueRecord", settings: "QueueSettings"
    ) -> None:
        self.staging = Staging(self)
        self._tells: list[tuple[int, Callable[[], None]]] = []
        super().__init__(host, vhost, record, settings)

    def turn(self) -> None:
        """Do everything this pass brought."""
        core = self.core
        if core.gone:
            return
        if core.pending:
            core.refuse(core.pending, False)
            self.tell_refused()
        if not self._may_turn():
            return
        if core.ready:
            core.purge()  # what recovery found stays in the log
        self.staging.turn()
        self._tell_due()
        if self.settings.expires_us is not None:
            self._expire_unused()

    @property
    def stored(self) -> int:
        """Blocks that wait or are under way."""
        log = self.log.kept
        return log.dead.missing_count(1, log.end) if log is not None and log.end else 0

    def tell_later(self, delay_us: int, tell: Callable[[], None]) -> None:
        """Call this after a while."""
        self._tells.append((self.host.now.mono + delay_us, tell))
        self.wake_in(delay_us)

    def _tell_due(self) -> None:
        now = self.host.now.mono
        due = [tell for at, tell in self._tells if at <= now]
        if due:
            self._tells = [one for one in self._tells if one[0] > now]
            for tell in due:
                tell()

    def purge(self) -> "int | Later[int]":
        """Committed rows are under way: nobody may remove them."""
        raise access_refused(f"{self.text} belongs to a sink")

    def _stop(self) -> None:
        super()._stop()
        self.staging.stop()
        tells, self._tells = self._tells, []
        for _, tell in tells:
            tell()


def _live(log: DurableLog) -> Iterable[int]:
    """Seqs of the records that are live."""
    seq = log.dead.first_missing(1)
    while seq <= log.end:
        yield seq
        seq = log.dead.first_missing(seq + 1)


def _nothing(_: int) -> None:
    """Nobody waits for room."""
