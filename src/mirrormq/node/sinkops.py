"""The operations of a sink in the bulk protocol (docs/protocol/sink.md).

Guarantees
- A sink belongs to the user who opened it first; nobody else can stage, commit or look at it.
- Whatever node is asked, the master of the sink's staging queue decides. `unavailable` means that nothing is
  known about it; every operation may be repeated.

Each function serves one call; how calls are read and answered is for whoever dispatches them.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError, access_refused, not_found
from mirrormq.broker.queueport import QueuePort
from mirrormq.broker.staging import SinkError
from mirrormq.broker.vhost import VHost
from mirrormq.meta import hidden, records
from mirrormq.meta.commands import DeclareQueue
from mirrormq.meta.state import Outcome
from mirrormq.node import sinkdesk
from mirrormq.node.sinkintake import Intake, Writer

if TYPE_CHECKING:
    from mirrormq.node.node import Node

T = TypeVar("T")

_NAME = re.compile(r"[0-9A-Za-z_-]{1,64}")
_OWNER = "x-mirrormq-sink-owner"


class SinkSession(Protocol):
    """The client's connection."""

    user: str
    vhost: VHost | None

    def park(self, reason: str) -> None:
        """Read no more until `unpark`."""
        ...

    def unpark(self, reason: str) -> None:
        """Go on."""
        ...


class Call(Protocol):
    """A call, as these functions see it."""

    is_over: bool
    stream: Any

    @property
    def node(self) -> "Node":
        """The node that was asked."""
        ...

    @property
    def session(self) -> Any:
        """The client's connection: a `SinkSession`."""
        ...

    def take(self, kind: type[T]) -> T:
        """The arguments."""
        ...

    def answer(self, fields: dict[str, Any]) -> None:
        """Answer; with a stream it goes on."""
        ...

    def end(self, fields: dict[str, Any]) -> None:
        """All is taken."""
        ...

    def fail(self, error: Any) -> None:
        """It was not done."""
        ...


class Open(msgspec.Struct, frozen=True):
    """Which sink."""

    sink: str


class Stage(msgspec.Struct, frozen=True):
    """A transaction: rows of one partition of one batch. Seconds until it cannot be committed any more."""

    sink: str
    batch: int
    partition: int = 0
    attempt: int = 0
    tx_timeout: float = limits.sink_tx_timeout_us / 1_000_000
    origin: str = ""
    """Of a mirror job: the cluster whose messages these are, as the vhost's `mirror_of` names it."""
    sources: dict[str, str] = {}
    """The same: the id of the source's queue by the name of the queue that follows it here."""


class CommitSet(msgspec.Struct, frozen=True):
    """Commit these transactions as one batch; `wait`: seconds to wait for the rows to reach their queues."""

    sink: str
    batch: int
    txs: list[str]
    wait: float = 0


class Abort(msgspec.Struct, frozen=True):
    """Drop these transactions."""

    sink: str
    txs: list[str]


def sink_open(call: Call) -> None:
    """Make sure that a sink is there, and tell which batch it committed last."""
    asked = call.take(Open)
    if not _NAME.fullmatch(asked.sink):
        call.fail(SinkError("refused", "a sink's name has up to 64 letters, digits, '-' and '_'"))
        return
    vhost, user = _place(call)
    name = hidden.STAGING + asked.sink
    if name in vhost.queues:
        _ask(call, asked.sink, sinkdesk.STATE, {})
        return
    node = call.node
    arguments = {"x-expires": limits.sink_kept_ms, _OWNER: user}
    record = records.Queue(vhost=vhost.name, name=name, arguments=arguments)
    record = msgspec.structs.replace(record, node=node.place(record))

    def declared(outcome: Outcome) -> None:
        if call.is_over:
            return
        if not outcome.ok and outcome.error not in ("exists", "guard"):
            call.fail(SinkError("unavailable", outcome.detail or "the sink cannot be made now"))
        elif name not in vhost.queues:
            call.fail(SinkError("unavailable", "the sink is not there yet"))
        else:
            _guarded(call, lambda: _ask(call, asked.sink, sinkdesk.STATE, {}))

    node.propose(DeclareQueue(record), declared, True)


def stage(call: Call) -> None:
    """Take the rows of a transaction."""
    asked = call.take(Stage)
    vhost, user = _place(call)
    queue = _queue(call, asked.sink)
    # A time that is no number at all is above nothing.
    if asked.batch < 0 or asked.partition < 0 or not asked.tx_timeout > 0:
        call.fail(SinkError("refused", "batch, partition and tx_timeout are not negative"))
        return
    if asked.partition > limits.sink_partition_max:
        call.fail(SinkError("refused", f"no partition has an index above {limits.sink_partition_max}"))
        return
    if asked.origin != vhost.mirror_of:
        mirrors = f"mirrors '{vhost.mirror_of}'" if vhost.mirror_of else "is no mirror, or was promoted"
        call.fail(SinkError("access", f"vhost '{vhost.name}' {mirrors}: no rows of '{asked.origin}'"))
        return
    intake = Intake(call, call.node, Writer(vhost, user, asked.sources))
    timeout = int(min(asked.tx_timeout * 1_000_000, limits.sink_kept_ms * 1000))
    fields = {"batch": asked.batch, "partition": asked.partition, "timeout": timeout}
    call.session.park(sinkdesk.BEGIN)

    def begun(tx: str, opened: sinkdesk.Stage | SinkError) -> None:
        if isinstance(opened, SinkError):
            call.fail(opened)
        elif call.is_over:
            opened.abort()
        else:
            intake.begun(tx, opened)
            call.stream = intake
            call.answer({"tx": tx})
        call.session.unpark(sinkdesk.BEGIN)

    sinkdesk.begin(queue, fields, begun)


def commit_set(call: Call) -> None:
    """Commit a batch, unless it was committed before."""
    asked = call.take(CommitSet)
    if len(asked.txs) > limits.sink_txs_max:
        call.fail(SinkError("limit", f"more than {limits.sink_txs_max} transactions in one batch"))
        return
    seconds = max(0, asked.wait)
    wait = int(min(seconds, limits.sink_wait_us_max / 1_000_000) * 1_000_000)
    _ask(call, asked.sink, sinkdesk.COMMIT, {"batch": asked.batch, "txs": asked.txs, "wait": wait})


def abort(call: Call) -> None:
    """Drop transactions."""
    asked = call.take(Abort)
    _ask(call, asked.sink, sinkdesk.ABORT, {"txs": asked.txs})


def sink_state(call: Call) -> None:
    """Tell what is known of a sink."""
    _ask(call, call.take(Open).sink, sinkdesk.STATE, {})


def _ask(call: Call, sink: str, what: str, fields: dict[str, Any]) -> None:
    def done(answer: dict[str, Any] | SinkError) -> None:
        if isinstance(answer, SinkError):
            call.fail(answer)
        else:
            call.answer(answer)

    sinkdesk.ask(_queue(call, sink), what, fields, done)


def _place(call: Call) -> tuple[VHost, str]:
    vhost = call.session.vhost
    assert vhost is not None
    return vhost, call.session.user


def _queue(call: Call, sink: str) -> QueuePort:
    """The staging queue; 404 if it is not open, 403 if it is somebody else's."""
    vhost, user = _place(call)
    queue: QueuePort | None = vhost.queues.get(hidden.STAGING + sink)
    if queue is None:
        raise not_found(f"no sink '{sink}' in vhost '{vhost.name}': open it first")
    if queue.record.arguments.get(_OWNER) != user:
        raise access_refused(f"sink '{sink}' in vhost '{vhost.name}' belongs to another user")
    return queue


def _guarded(call: Call, step: Callable[[], None]) -> None:
    try:
        step()
    except AmqpError as error:
        call.fail(SinkError("access", error.reply_text))


OPS: dict[str, Callable[[Any], None]] = {
    "sink_open": sink_open,
    "stage": stage,
    "commit_set": commit_set,
    "abort": abort,
    "sink_state": sink_state,
}
