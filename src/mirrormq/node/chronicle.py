"""Tells what happens: to the operator in lines, to whoever counts in numbers, to clients by events.

Guarantees
- One node tells of each thing: of a mirrored queue the one that is its master afterwards, of a queue that has
  none, of nodes and of definitions the leader of the metadata, of alarms the node that has them. While the
  leader changes, an event may be missing or come twice; nothing but the telling depends on it.
- What is told has happened: it is derived from changes that were applied, never from wishes.
- A change that concerns nobody here costs a comparison.
"""

from typing import TYPE_CHECKING, Any

from mirrormq.log.fold import Fold
from mirrormq.meta import mirroring, records, system
from mirrormq.meta.records import View
from mirrormq.meta.tables import Change
from mirrormq.mirror import views as wishes
from mirrormq.mirror.ports import Event
from mirrormq.node import definitionevents, happenings, report_mirrors
from mirrormq.node.eventexchange import EventExchange
from mirrormq.node.eventqueue import EventQueue
from mirrormq.node.happenings import Counters, MirrorChange, Promotion
from mirrormq.node.mirrornotes import TOO_SLOW, UNREACHABLE, UNWANTED, MirrorNotes

if TYPE_CHECKING:
    from mirrormq.node.copies import Copies
    from mirrormq.node.node import Node

_WHY = {wishes.REMOVE: UNREACHABLE, wishes.DEMOTE: TOO_SLOW, wishes.REMOVE_LEARNER: "it asked to leave"}
_TRANSFER_FAILED = "transfer_failed"
_DAMAGED = "damaged"


class Chronicle:
    """Follows the metadata and the protocol, after everything else in the node has."""

    def __init__(self, node: "Node", copies: "Copies") -> None:
        self._node = node
        self._copies = copies
        self.counters = Counters()
        self.exchange = EventExchange(node)
        node.census.tell = self.exchange.tell
        self._events = EventQueue(node)
        self._led = False
        self._notes = MirrorNotes(node)
        self._whys: dict[tuple[int, str], str] = {}
        """What the protocol asked for, by queue and node, until the view says what came of it."""
        self._syncs: dict[tuple[int, str], tuple[int, int]] = {}
        """(when it began, bytes sent) of mirrors of queues mastered here that are not in sync."""
        self._alarms: set[str] = set()

    # --- inputs ---------------------------------------------------------------------------------

    def follow(self, changes: list[Change]) -> None:
        """The metadata has changed, and the node has followed."""
        self._take_events()
        is_heard = self._is_heard
        for change in changes:
            record = change.record
            if isinstance(record, View | records.Queue) and system.is_system(record.vhost, record.name):
                continue  # of what is told elsewhere, nothing is told
            if isinstance(record, View):
                if isinstance(change.before, View) and change.kind == "put":
                    self._view_changed(change.before, record)
                elif change.kind == "delete":
                    self._forget(record)
            elif isinstance(record, records.Node):
                self._node_changed(change, record)
            elif is_heard and definitionevents.is_told(record):
                self._definition_changed(change, record)

    def step(self) -> None:
        """A pass is over."""
        if self._copies.mirrors.events:
            self._take_events()
        if self._node.alarms != self._alarms:
            self._alarms_changed()
        if self._is_leader != self._led:
            self._led = not self._led
            if self._led:
                self._events.add("cluster.leader_changed", {"name": self._node.node_name})
        self._notes.write()
        self._events.step()

    def tick(self) -> None:
        """Every second."""
        self._events.tick()

    @property
    def needs_pass(self) -> bool:
        """Are there events that could be told?"""
        return self._events.needs_pass

    @property
    def _is_heard(self) -> bool:
        """Does anybody want to know of what no counter or line tells?"""
        return self._events.is_on or self.exchange.is_heard

    def publish(self, key: str, **facts: Any) -> None:
        """Tell clients of something."""
        self.exchange.publish(key, **facts)
        self._events.add(key, facts)

    def sync_asked(self, queue_id: int, *, wanted: bool) -> None:
        """An operator has old records of a queue mastered here copied, or stops that."""
        view = self._view(queue_id)
        nodes = [] if view is None else [entry.node for entry in view.learners]
        if view is None or not nodes or not wanted:
            return
        if self._syncs_by_itself(view):
            return  # it has been told, and goes on
        self._notes.sync_begun(view, nodes)
        for node in nodes:
            self._syncs[queue_id, node] = (self._node.now.mono, 0)
            self._tell("queue.sync_started", view, mirror=node)

    # --- views ----------------------------------------------------------------------------------

    def _view_changed(self, before: View, after: View) -> None:
        if after.master != self._node.node_name:
            if before.master == self._node.node_name:
                self._forget(before)
            if self._is_leader and after.members[0].is_restarted and not before.members[0].is_restarted:
                self._tell_waiting([after])
            return
        found = happenings.promotion(before, after, self._node.meta.nodes)
        if found is not None:
            self._promoted(found)
        elif after.since == before.since:
            for change in happenings.mirror_changes(before, after):
                self._mirror_changed(change)

    def _promoted(self, found: Promotion) -> None:
        view = found.view
        self.counters.promotions[found.reason] += 1
        self.counters.lossy += found.is_lossy
        self._notes.promoted(found, lambda: self._held(view))
        for learner in view.learners:
            self._syncs[view.id, learner.node] = (self._node.now.mono, 0)
        if self.exchange.is_heard:
            self.exchange.publish("queue.master_changed", **self._promotion(found))
        # Later: there may be thousands, and counting what a queue holds takes its time.
        self._events.add("queue.master_changed", lambda: self._promotion(found))

    def _promotion(self, found: Promotion) -> dict[str, Any]:
        view = found.view
        messages, requeued = self._held(view)
        facts: dict[str, Any] = {"name": view.name, "vhost": view.vhost, "epoch": view.epoch}
        facts |= {"from": found.former, "to": view.master, "reason": found.reason}
        return facts | {"lossy": found.is_lossy, "requeued": requeued, "messages": messages}

    def _held(self, view: View) -> tuple[int, int]:
        """How many messages a queue mastered here has, and how many may have been delivered before."""
        log = self._node.logs.get(view.log_id)
        if log is None or not log.end:
            return 0, 0
        # It may be told before the queue is made: then the copy's committed part is what is known.
        is_made = log.copy is None or log.copy.is_master
        state: Fold = log
        upto = log.redelivered_upto
        if not is_made and log.copy is not None:
            state = log.copy.committed
            upto = min(state.horizon, state.end)
        requeued = state.dead.missing_count(1, upto) if upto else 0
        return (state.dead.missing_count(1, state.end) if state.end else 0), requeued

    def _mirror_changed(self, change: MirrorChange) -> None:
        view, node, now = change.view, change.node, self._node.now.mono
        self.counters.mirrors[change.kind] += 1
        key = (view.id, node)
        why = self._whys.pop(key, None) or self._why_not(node)
        sync = None
        if change.kind in (happenings.ADDED, happenings.DEMOTED):
            self._syncs[key] = (now, 0)
        else:
            begun, size = self._syncs.pop(key, (now, 0))
            sync = (size, now - begun)
        self._notes.mirrored(change, why, sync)
        self._tell(f"queue.mirror_{change.kind}", view, mirror=node, reason=why)
        if change.kind == happenings.SYNCHRONISED and sync is not None:
            self._tell("queue.synchronised", view, mirror=node, bytes=sync[0], milliseconds=sync[1] // 1000)
        elif change.kind in (happenings.ADDED, happenings.DEMOTED) and self._syncs_by_itself(view):
            self._tell("queue.sync_started", view, mirror=node)

    def _why_not(self, node: str) -> str:
        """Why a mirror is gone that the protocol did not ask to have removed."""
        record = self._node.meta.nodes.get(node)
        return UNWANTED if record is not None and record.is_live else UNREACHABLE

    def _syncs_by_itself(self, view: View) -> bool:
        record = self._node.meta.queues.get(view.identity)
        if record is None:
            return False
        found = mirroring.mirroring_of(self._node.meta, record, self._node.settings.ha_defaults)
        return found.sync_mode == "automatic"

    def _forget(self, view: View) -> None:
        """This node is not the master of a queue any more."""
        for node in happenings.nodes_of(view):
            self._whys.pop((view.id, node), None)
            self._syncs.pop((view.id, node), None)

    def _view(self, queue_id: int) -> View | None:
        copy = self._copies.mirrors.copies.get(queue_id)
        return copy.view if copy is not None and isinstance(copy.view, View) else None

    # --- the protocol ---------------------------------------------------------------------------

    def _take_events(self) -> None:
        mirrors = self._copies.mirrors
        events, mirrors.events = mirrors.events, []
        for event in events:
            view = self._view(event.queue)
            if view is not None:
                self._protocol_event(event, view)

    def _protocol_event(self, event: Event, view: View) -> None:
        if event.kind in _WHY:
            self._whys[event.queue, event.node] = _WHY[event.kind]
        elif event.kind == wishes.ADMIT:
            self._look_at_sync(event.queue, event.node)
        elif event.kind == _TRANSFER_FAILED:
            self.counters.transfers_failed += 1
            self._notes.transfer_failed(view, event.node)
        elif event.kind == _DAMAGED and event.node == self._node.node_name:
            self._notes.made_anew(view)
        elif event.kind not in (wishes.TRANSFER, wishes.SURRENDER):
            self._notes.trouble(view, event.node, event.kind)

    def _look_at_sync(self, queue_id: int, node: str) -> None:
        """A mirror is about to be taken as in sync: see what that took."""
        sent = next((size for peer, _, size, _ in self._copies.progress(queue_id) if peer == node), 0)
        begun = self._syncs.get((queue_id, node), (self._node.now.mono, 0))[0]
        self._syncs[queue_id, node] = (begun, sent)

    # --- nodes ----------------------------------------------------------------------------------

    def _node_changed(self, change: Change, record: records.Node) -> None:
        if not self._is_leader:
            return
        before = change.before if isinstance(change.before, records.Node) else None
        was_there = before is not None and before.is_live
        if change.kind == "delete":
            self.publish("node.deleted", name=record.name)
        elif record.is_live and (not was_there or (before is not None and before.start < record.start)):
            self.publish("node.up", name=record.name, start=record.start)
        elif before is not None and before.is_drained != record.is_drained:
            self.publish("node.drained" if record.is_drained else "node.revived", name=record.name)
        elif was_there and not record.is_live:
            self.publish("node.down", name=record.name, start=record.start)
            # Nothing is said of a view that stays as it is: nobody could take over.
            self._tell_waiting(self._node.meta.views_led_by(record.name))

    def _tell_waiting(self, found: list[View]) -> None:
        meta = self._node.meta
        users = [view for view in found if not system.is_system(view.vhost, view.name)]
        waiting = happenings.waiting(users, meta.nodes)
        self._notes.waits(waiting, lambda view: report_mirrors.awaited(meta, view))
        if self._is_heard:
            for view in waiting:
                self._tell("queue.master_missing", view, waits_for=report_mirrors.awaited(meta, view))

    def _alarms_changed(self) -> None:
        before, self._alarms = self._alarms, set(self._node.alarms)
        for alarm in sorted(self._alarms - before):
            self.publish("alarm.set", alarm=alarm, name=alarm)
        for alarm in sorted(before - self._alarms):
            self.publish("alarm.cleared", alarm=alarm, name=alarm)

    # --- definitions ----------------------------------------------------------------------------

    def _definition_changed(self, change: Change, record: records.Record) -> None:
        if isinstance(record, records.Queue):
            host = self._node.meta.nodes.get(record.node)
            is_here = record.node == self._node.node_name
            is_mine = is_here if host is not None and host.is_live else self._is_leader
        else:
            is_mine = self._is_leader
        if is_mine:
            for key, headers in definitionevents.events_of(change):
                self.exchange.publish(key, **headers)
                if self._is_lasting(record):
                    self._events.add(key, headers)

    def _is_lasting(self, record: records.Record) -> bool:
        """Is it more than what a client has for itself while it is connected, or than a part of that?"""
        if isinstance(record, records.Binding) and record.destination_type == "queue":
            queue = self._node.meta.queues.get((record.vhost, record.destination))
            return queue is not None and not queue.exclusive
        return not isinstance(record, records.Queue) or not record.exclusive

    @property
    def _is_leader(self) -> bool:
        return self._node.membership.raft.is_leader

    def _tell(self, key: str, view: View, **headers: Any) -> None:
        self.publish(key, name=view.name, vhost=view.vhost, epoch=view.epoch, **headers)
