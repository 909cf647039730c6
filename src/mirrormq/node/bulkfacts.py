"""What a reader has to know of queues: who has them, and which records can be read.

Guarantee: marks come from the node that acts as the queue's master and from no other, so `next` never goes
back for whoever reads it, but for a lossy promotion, and what lies before it survives what the queue
survives.
"""

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from mirrormq.base import limits
from mirrormq.base.errors import access_refused, not_found, precondition_failed
from mirrormq.broker.queue import Queue
from mirrormq.log.durable import DurableLog
from mirrormq.meta import records, views
from mirrormq.meta.patterns import Pattern, PatternRefused, filter_pattern
from mirrormq.node.bulkcall import Call
from mirrormq.wire import bulk
from mirrormq.wire.bulk import BulkError, Fields

if TYPE_CHECKING:
    from mirrormq.node.bulk import BulkConnection
    from mirrormq.node.node import Node

NO_LOG = "a queue that does not survive a restart keeps no log"
_ANYWHERE = frozenset(("", "0.0.0.0", "::", "*"))


class Asked(Struct, frozen=True):
    """Which queues are meant: one, some, or those whose names match as a whole."""

    vhost: str | None = None
    queue: str | None = None
    queues: list[str] | None = None
    pattern: str | None = None
    partial: bool = False
    """Answer although the master of some queue does not."""


def wanted(call: Call, asked: Asked, done: Callable[[list[records.Queue]], None]) -> None:
    """Find the queues that were asked for, which the client may read; a pattern is tried in slices."""
    if asked.pattern is None or asked.queue is not None or asked.queues is not None:
        done(named(call, asked))
        return
    pattern = _compiled(asked.pattern)
    left = iter(list(call.node.meta.queues.values()))
    found: list[records.Queue] = []
    vhost = vhost_of(call.session, asked.vhost)

    def step() -> bool:
        """Try it on some; False when all have been."""
        if call.is_over:
            return False
        some = list(islice(left, pattern.slice_names))
        for record in some:
            if record.vhost == vhost and pattern.matches(record.name):
                found.extend(_readable(call, record))
        if len(found) > limits.bulk_queues_max:
            text = f"the pattern matches more than {limits.bulk_queues_max} queues"
            call.fail(BulkError(bulk.LIMIT, text))
            return False
        if some:
            return True
        try:
            done(found)
        except BulkError as error:
            call.fail(error)
        return False

    if step():
        call.node.bulk.go_on_with(step)


def _readable(call: Call, record: records.Queue) -> list[records.Queue]:
    """The queue as it is by now, if it is there and the client may read it."""
    now = call.node.meta.queues.get(record.identity)
    if now is None or not call.node.access.may(call.session.user, now.vhost, "read", now.name):
        return []
    return [now]


def _compiled(text: str) -> Pattern:
    try:
        return filter_pattern(text, is_whole=True)
    except PatternRefused as refusal:
        raise BulkError(bulk.REFUSED, f"the pattern cannot be used: {refusal}") from None


def named(call: Call, asked: Asked) -> list[records.Queue]:
    """The queues that were asked for by their names."""
    session = call.session
    vhost = vhost_of(session, asked.vhost)
    given = [name for name in (asked.queue, asked.queues, asked.pattern) if name is not None]
    if len(given) != 1:
        raise BulkError(bulk.REFUSED, "name one of: queue, queues, pattern")
    names = [asked.queue] if asked.queue is not None else asked.queues or []
    if len(names) > limits.bulk_queues_max:
        raise BulkError(bulk.LIMIT, f"{limits.bulk_queues_max} queues may be asked for at once")
    return [find(session, vhost, name) for name in dict.fromkeys(names)]


def vhost_of(session: "BulkConnection", name: str | None) -> str:
    """The vhost that is meant: that of the log-in, or another one the user may enter."""
    assert session.vhost is not None
    if name is None or name == session.vhost.name:
        return session.vhost.name
    if not session.node.access.may_open(session.user, name):
        raise access_refused(f"access to vhost '{name}' refused for user '{session.user}'")
    return name


def find(session: "BulkConnection", vhost: str | None, name: str) -> records.Queue:
    """A queue the client may read."""
    vhost = vhost_of(session, vhost)
    node = session.node
    if not node.access.may(session.user, vhost, "read", name):
        raise access_refused(f"access to queue '{name}' in vhost '{vhost}' refused for user '{session.user}'")
    record = node.meta.queues.get((vhost, name))
    if record is None:
        raise not_found(f"no queue '{name}' in vhost '{vhost}'")
    return record


def identity(record: records.Queue) -> str:
    """The queue's incarnation: another queue of the same name has another."""
    return f"{record.log_id:016x}"


# --- what every node knows ----------------------------------------------------------------------------------


def describe(node: "Node", record: records.Queue, session: "BulkConnection | None" = None) -> Fields:
    """What the definitions say of a queue."""
    tls = session is not None and session.peer.tls
    return {
        "vhost": record.vhost,
        "queue": record.name,
        "id": identity(record),
        "durable": record.outlives_restart,
        "master": node.switch.master_of(record) or None,
        "members": [
            {**member, "address": address(node, member["node"], tls=tls)} for member in members(node, record)
        ],
    }


def members(node: "Node", record: records.Queue) -> list[Fields]:
    """The nodes that have a copy of a queue, its master first."""
    view = node.meta.views.get(record.identity)
    if view is None:
        is_live = node.switch.is_master(record) or _is_heard(node, record.node)
        return [{"node": record.node, "is_master": True, "in_sync": True, "is_live": is_live}]
    nodes = node.meta.nodes
    master = node.switch.master_of(record)
    found = [
        {
            "node": entry.node,
            "is_master": entry.node == master,
            "in_sync": not entry.is_restarted and views.is_live(nodes, entry),
            "is_live": views.is_live(nodes, entry),
        }
        for entry in view.members
    ]
    found += [
        {
            "node": entry.node,
            "is_master": False,
            "in_sync": False,
            "is_live": views.is_live(nodes, entry),
        }
        for entry in view.learners
    ]
    return found


def in_sync(node: "Node", record: records.Queue) -> list[str]:
    """The nodes to ask for records of a queue: the mirrors first, the master last."""
    found = [member for member in members(node, record) if member["in_sync"] and member["is_live"]]
    return [member["node"] for member in sorted(found, key=lambda member: bool(member["is_master"]))]


def _is_heard(node: "Node", name: str) -> bool:
    return name == node.node_name or not node.news.is_silent(name)


def address(node: "Node", name: str, *, tls: bool = False) -> str | None:
    """Where clients of the same kind reach a node, as far as it has said so."""
    facts = node.news.of(name)
    kind = "amqp/ssl" if tls else "amqp"
    for listener in facts.listeners if facts is not None else ():
        if listener.protocol == kind:
            host = listener.interface if listener.interface not in _ANYWHERE else _host_of(node, name)
            return f"[{host}]:{listener.port}" if ":" in host else f"{host}:{listener.port}"
    return None


def _host_of(node: "Node", name: str) -> str:
    """The host of a node that listens everywhere: where other nodes reach it, or what its name says."""
    record = node.meta.nodes.get(name)
    host = record.address.rpartition(":")[0].strip("[]") if record is not None else ""
    return host if host not in _ANYWHERE else name.partition("@")[2] or "localhost"


# --- what the master knows ----------------------------------------------------------------------------------


def marks(node: "Node", queue: Queue) -> Fields:
    """How far the log of a queue that is mastered here can be read."""
    log = queue.log.kept
    if log is None or log.is_volatile:
        return {"next": None, "why": NO_LOG, "messages": queue.message_count + queue.core.unacked}
    following = log.durable + 1
    return {
        "epoch": epoch_of(node, queue.record),
        "low": min(log.low, following),
        "first": min(log.dead.first_missing(1), following),
        "next": following,
        "end_epoch": log.index.epoch_of(following - 1) if following > 1 else 0,
        "epochs": epochs_from(log, min(log.low, following) - 1),
        "published": log.published,
        "messages": queue.message_count + queue.core.unacked,
    }


def epochs_from(log: DurableLog, seq: int) -> list[tuple[int, int]]:
    """(epoch, its first seq) of the epoch of a record and all later ones, the last ones if there are many."""
    epochs = log.index.epochs
    begun = [at for at, (_, first) in enumerate(epochs) if first <= seq]
    return epochs[begun[-1] if begun else 0 :][-limits.bulk_epochs_max :]


def mastered(node: "Node", number: int) -> Queue:
    """The queue, if this node acts as its master and knows all of it."""
    queue = node.switch.masters.get(number)
    if queue is None:
        raise BulkError(bulk.UNAVAILABLE, f"node '{node.node_name}' is not the master of the queue")
    if queue.damage is not None:
        raise BulkError(bulk.UNAVAILABLE, f"{queue.text} is damaged: {queue.damage}")
    if queue.is_filling or (queue.log.is_mirrored and not node.membership.has_lease()):
        raise BulkError(bulk.UNAVAILABLE, f"the master of {queue.text} cannot answer now")
    return queue


def logged(node: "Node", number: int) -> tuple[Queue, DurableLog]:
    """The same, and its log; refused if it keeps none."""
    queue = mastered(node, number)
    log = queue.log.kept
    if log is None or log.is_volatile:
        raise precondition_failed(f"{NO_LOG}: {queue.text}")
    return queue, log


def epoch_of(node: "Node", record: records.Queue) -> int:
    """The epoch of a queue's view."""
    view = node.meta.views.get(record.identity)
    return views.FIRST_EPOCH if view is None else view.epoch
