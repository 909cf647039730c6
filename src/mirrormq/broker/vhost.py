"""One vhost on this node: its queues by name, its routes, and who may use them.

Guarantees
- Everything here follows from the metadata: `apply` is called with each change, in order, and nothing else
  adds or removes an exchange, a queue or a binding.
- A publish is routed by the topology of the moment. What the compiled lane remembers per user is forgotten
  at every change of topology or permissions, before the next frame is looked at.
- A policy that changes is followed by all queues and exchanges, a few per pass where there are many
  (`follow_on`); what is declared meanwhile begins with what applies now.
- A remembered route is plain only if a publish with this exchange and key, whatever its properties, is
  allowed for this user and reaches these queues, at least one. Everything else is decided message by message
  in `route_message`.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from mirrormq.base import limits, staggered
from mirrormq.base.staggered import StaggeredDict
from mirrormq.base.walk import Walk
from mirrormq.broker import replyto
from mirrormq.broker.arguments import QueueSettings, queue_settings, text
from mirrormq.broker.deadletter import DeadLetter
from mirrormq.broker.exchange import Letter
from mirrormq.broker.mirrorqueue import MirrorQueue
from mirrormq.broker.queue import Queue
from mirrormq.broker.queueport import QueuePort
from mirrormq.broker.replyto import Listener
from mirrormq.broker.routes import Place, Router
from mirrormq.kernel.frames import Route, RouteMemo
from mirrormq.kernel.message import Message
from mirrormq.kernel.tally import Tally
from mirrormq.meta import policy, records, system
from mirrormq.meta.tables import Change
from mirrormq.wire.properties import Properties

if TYPE_CHECKING:
    from mirrormq.broker.host import Host

MakeQueue = Callable[["Host", "VHost", records.Queue, QueueSettings], QueuePort]


class Routed(NamedTuple):
    """Where one message goes."""

    queues: list[QueuePort]
    exchange_found: bool
    replies: list[Listener]
    """Requesters waiting for this answer; no queues, so with `mandatory` it still counts as unroutable."""


class VHost:
    """The exchanges and queues of one vhost."""

    def __init__(self, host: "Host", name: str, make_queue: MakeQueue = Queue) -> None:
        """Start empty; whoever starts the node applies what the metadata holds already."""
        self.host = host
        self.name = name
        self.queues: dict[str, QueuePort] = StaggeredDict(staggered.PORTS)
        self.router = Router(self.queues, system.names_in(name))
        self.tally = Tally()
        """What all channels of this node have done here."""
        self.version = 0
        """Grows with every change that may change a route."""
        self._make_queue = make_queue
        self.following: Walk[records.Queue | records.Exchange] = Walk(self._governed)
        """Those to whom other policies may apply since one was set or cleared."""
        self._memos: dict[str, RouteMemo] = {}

    @property
    def mirror_of(self) -> str:
        """The cluster this vhost mirrors; empty if it is an ordinary one."""
        record = self.host.state.vhosts.get(self.name)
        return "" if record is None else record.mirror_of

    # --- routing --------------------------------------------------------------------------------

    def memo_for(self, user: str) -> RouteMemo:
        """The routes remembered for one user, shared by all of the user's connections."""
        memo = self._memos.get(user)
        if memo is None:
            memo = RouteMemo(lambda exchange, key: self.resolve(user, exchange, key))
            self._memos[user] = memo
        return memo

    def forget_routes(self) -> None:
        """Permissions or the topology changed."""
        self.version += 1
        for memo in self._memos.values():
            memo.clear()

    def resolve(self, user: str, exchange: bytes, key: bytes) -> Route:
        """Decide what the compiled lane may do by itself; never raises."""
        name = text(exchange)
        place = self.router.place(name)
        # Answers come and go without a change of topology, so nothing about them is remembered.
        if place is not None and not (name == "" and replyto.is_address(key)):
            walk = self.router.route(name, Letter((key,)))
            if walk.keyed and walk.queues and self._may_publish(user, place, key):
                targets = [self.host.partition.port(self.queues[queue]).core for queue in walk.queues]
                return Route(exchange, key, targets, True, place.tally)
        return Route(exchange, key, [], False)

    def route_message(self, message: Message, extra_keys: Sequence[bytes] = ()) -> Routed:
        """Find the queues of a message; `extra_keys` are those of its CC and BCC headers."""
        letter = Letter((message.routing_key, *extra_keys), message.properties)
        return self._route(text(message.exchange), letter)

    def route(
        self, exchange: str, key: bytes, headers: dict[str, Any] | None, extra_keys: Sequence[bytes] = ()
    ) -> Routed:
        """Find the queues a message with these keys and headers would reach."""
        return self._route(exchange, Letter((key, *extra_keys), Properties(headers=headers)))

    def dead_letter_targets(self, exchange: str, letter: DeadLetter) -> list[QueuePort]:
        """The queues a dead letter enters; none if the exchange is missing or a cycle would close."""
        keys = (letter.message.routing_key, *letter.extra_keys)
        routed = self._route(exchange, Letter(keys, letter.message.properties))
        return [queue for queue in routed.queues if letter.may_enter(queue.name)]

    def _route(self, exchange: str, letter: Letter) -> Routed:
        replies: list[Listener] = []
        if exchange == "" and any(map(replyto.is_address, letter.keys)):
            for address in filter(replyto.is_address, dict.fromkeys(letter.keys)):
                listener = replyto.find(self.host, address)
                if listener is not None:
                    replies.append(listener)
        walk = self.router.route(exchange, letter)
        return Routed([self.queues[name] for name in walk.queues], walk.found, replies)

    def _may_publish(self, user: str, place: Place, key: bytes) -> bool:
        record = place.record
        if record.internal or self.mirror_of:
            return False
        access = self.host.access
        if not access.may(user, self.name, "write", record.name):
            return False
        return record.type != "topic" or access.may_topic(user, self.name, "write", record.name, key)

    # --- metadata -------------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Follow one change of the metadata; records of other kinds than these four change nothing here."""
        record = change.record
        is_put = change.kind == "put"
        if isinstance(record, records.Queue):
            if is_put:
                self._put_queue(record)
            else:
                self._delete_queue(record)
        elif isinstance(record, records.Exchange):
            if is_put:
                self._put_exchange(record)
            else:
                self.router.remove_exchange(record.name)
        elif isinstance(record, records.Binding):
            if is_put:
                self.router.bind(record)
            else:
                self.router.unbind(record)
        elif isinstance(record, records.Policy):
            self.following.begin()
            if len(self.queues) < limits.policy_slice_objects:
                self.follow_on()
        else:
            return
        self.forget_routes()

    def destroy(self) -> None:
        """The vhost is deleted: its queues go with it."""
        queues = list(self.queues.values())
        self.queues.clear()
        self.forget_routes()
        for queue in queues:
            queue.destroy()

    def _put_queue(self, record: records.Queue) -> None:
        settings = queue_settings(record.arguments, self._definition(record))
        existing = self.queues.get(record.name)
        if existing is None:
            self.queues[record.name] = self._make_queue(self.host, self, record, settings)
        elif existing.is_local != self.host.is_master(record):
            # In the table first: what its consumers do when they are moved must find the new one.
            successor = self.queues[record.name] = self._make_queue(self.host, self, record, settings)
            # Publishers that were parked go on at once: by an old route they would reach the old object, and
            # what they publish next, by a new one, would overtake that.
            self.forget_routes()
            existing.retire(successor)
        else:
            existing.record = record
            existing.configure(settings)

    def promoted(self) -> None:
        """The vhost mirrors another cluster no longer: its queues are ordinary ones."""
        self.forget_routes()
        for queue in list(self.queues.values()):
            if isinstance(queue, MirrorQueue):
                queue.promoted()

    def follow_view(self, record: records.Queue) -> None:
        """The queue's view has changed: its master may be another one, or none."""
        existing = self.queues.get(record.name)
        if existing is None:
            return
        if existing.is_local != self.host.is_master(record):
            self._put_queue(record)
        elif not existing.is_local:
            existing.record = record
            existing.configure(existing.settings)

    def _delete_queue(self, record: records.Queue) -> None:
        # Out of the table first: its consumers are told, and what they do then must not find it.
        queue = self.queues.pop(record.name)
        self.forget_routes()
        queue.destroy()

    def _put_exchange(self, record: records.Exchange) -> None:
        place = self.router.place(record.name)
        if place is None:
            self.router.add_exchange(record, self._alternate(record))
        else:
            place.record = record
            place.alternate = self._alternate(record)

    def _governed(self) -> Iterable[records.Queue | records.Exchange]:
        # Records and not queues: touching very many scattered objects at once takes a millisecond.
        return chain(self.host.state.queues_in(self.name), self.host.state.exchanges_in(self.name))

    def follow_on(self) -> None:
        """Give some more queues and exchanges what applies to them now."""
        for found in self.following.take(limits.policy_slice_objects):
            if isinstance(found, records.Exchange):
                self._follow_exchange(found.name)
            elif (queue := self.queues.get(found.name)) is not None:  # it may be gone since the round began
                settings = queue_settings(queue.record.arguments, self._definition(queue.record))
                if settings != queue.settings:
                    queue.configure(settings)

    def _follow_exchange(self, name: str) -> None:
        record = self.host.state.exchanges.get((self.name, name))
        place = self.router.place(name)
        if record is None or place is None:
            return
        alternate = self._alternate(record)
        if alternate != place.alternate:
            self.router.set_alternate(name, alternate)
            self.forget_routes()

    def _alternate(self, record: records.Exchange) -> str | None:
        name = record.arguments.get("alternate-exchange")
        if name is None:
            name = self._definition(record).get("alternate-exchange")
        return None if name is None else text(name)

    def _definition(self, record: records.Queue | records.Exchange) -> records.Table:
        return policy.effective(self.host.state, record).definition
