"""Follows the metadata: each change of it becomes a change of what this node serves.

Guarantee: changes are followed in their order, each once, and completely before the next input: nobody sees
a queue whose vhost is gone, nor a master that its view does not know. Only what a policy comes to for each of
very many queues takes several passes; `Following` tells when it is done.
"""

from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mirrormq.base.errors import connection_forced
from mirrormq.broker.queueport import Later
from mirrormq.broker.vhost import VHost
from mirrormq.meta import records
from mirrormq.meta.tables import Change
from mirrormq.node import patterncheck

if TYPE_CHECKING:
    from mirrormq.node.node import Node


class Following:
    """Vhosts whose queues and exchanges have not all heard of the policies there are now."""

    def __init__(self) -> None:
        self._vhosts: dict[VHost, None] = {}
        """By itself, not by name: one that was deleted and made again is another."""
        self._waiting: list[tuple[VHost, int, Later[None]]] = []
        self._breaths: list[Later[None]] = []

    def breath(self) -> Later[None]:
        """Answered in the next pass: who has very much to read lets everybody else go on in between."""
        self._breaths.append(Later())
        return self._breaths[-1]

    def add(self, vhost: VHost) -> None:
        """A policy of this vhost was set or cleared."""
        if vhost.following.is_under_way:
            self._vhosts[vhost] = None

    def followed(self, name: str) -> Later[None]:
        """Answered when all that was set so far in a vhost is followed on this node."""
        later: Later[None] = Later()
        found = [vhost for vhost in self._vhosts if vhost.name == name]
        if not found:
            later.answer(None)
        for vhost in found[-1:]:
            self._waiting.append((vhost, vhost.following.served_by, later))
        return later

    @property
    def needs_pass(self) -> bool:
        """Is there more to do?"""
        return bool(self._vhosts or self._breaths)

    def step(self) -> None:
        """Do some of it."""
        breaths, self._breaths = self._breaths, []
        for breath in breaths:
            breath.answer(None)
        for vhost in list(islice(self._vhosts, 1)):
            vhost.follow_on()
            del self._vhosts[vhost]
            self.add(vhost)  # behind the others
            done = [entry for entry in self._waiting if entry[0].following.rounds >= entry[1]]
            self._waiting = [entry for entry in self._waiting if entry not in done]
            for _, _, later in done:
                later.answer(None)


def begin(node: "Node") -> None:
    """Make the vhosts there are; the warnings of what is stored follow."""
    for record in node.meta.vhosts.values():
        add_vhost(node, record)
    patterncheck.begin(node)


def follow(node: "Node", changes: list[Change]) -> None:
    """Make what the metadata says now."""
    for change in changes:
        record = change.record
        if change.kind == "put" and isinstance(record, patterncheck.Record):
            patterncheck.look_at(node, record)
        if isinstance(record, records.VHost):
            if change.kind == "put" and record.name not in node.vhosts:
                add_vhost(node, record)
            elif change.kind == "put" and _was_mirror(change) and not record.mirror_of:
                node.vhosts[record.name].promoted()
            elif change.kind == "delete":
                _drop_vhost(node, record.name)
        elif isinstance(record, records.View):
            _view_changed(node, change, record)
        elif isinstance(record, records.Exchange | records.Queue | records.Binding | records.Policy):
            _object_changed(node, change, record)
        elif isinstance(record, records.User | records.Permission | records.TopicPermission):
            _access_changed(node, change)
        elif isinstance(record, records.Node):
            _node_changed(node, change, record)
        elif isinstance(record, records.Rebalance) and node.copies is not None:
            node.copies.balancer.follow(change)
    if node.copies is not None:
        node.copies.tell_moved()
        node.copies.chronicle.follow(changes)


def _was_mirror(change: Change) -> bool:
    return isinstance(change.before, records.VHost) and bool(change.before.mirror_of)


def add_vhost(node: "Node", record: records.VHost) -> None:
    """There is a new vhost."""
    node.vhosts[record.name] = VHost(node, record.name, node.switch.make_queue)


def _drop_vhost(node: "Node", name: str) -> None:
    node.vhosts.pop(name).destroy()
    for connection in list(node.connections.values()):
        if connection.vhost is not None and connection.vhost.name == name:
            connection.close_with(connection_forced(f"vhost '{name}' is deleted"))


def _object_changed(
    node: "Node", change: Change, record: records.Exchange | records.Queue | records.Binding | records.Policy
) -> None:
    if (
        node.copies is not None
        and isinstance(record, records.Queue)
        and _has_only_moved(node, change, record)
    ):
        return  # thousands may at once, and each follows when its view is entered
    if isinstance(record, records.Queue) and record.node in ("", node.node_name):
        if change.kind == "delete":
            node.census.churn["queue_deleted"] += 1
        elif change.before is None:
            node.census.churn["queue_created"] += 1
    vhost = node.vhosts.get(record.vhost)
    if vhost is not None:
        vhost.apply(change)
    if node.copies is not None:
        if isinstance(record, records.Policy):
            node.copies.policy.look_at_all()
            if vhost is not None:
                node.following.add(vhost)
        elif isinstance(record, records.Queue) and change.kind == "put":
            node.copies.policy.look_at(record)


def _has_only_moved(node: "Node", change: Change, record: records.Queue) -> bool:
    """Has a mirrored queue got another master, and is all else as it was?"""
    before = change.before
    return (
        change.kind == "put"
        and isinstance(before, records.Queue)
        and record.identity in node.meta.views
        and before == replace(record, node=before.node)
    )


def _view_changed(node: "Node", change: Change, view: records.View) -> None:
    """Heard of before the queue: what stands for it follows from its view."""
    if node.copies is None:
        return
    if change.kind == "delete":
        node.copies.view_deleted(view)
    else:
        node.copies.view_put(view)


def _access_changed(node: "Node", change: Change) -> None:
    """Routes remember that a publish was permitted: forget them."""
    for vhost in node.vhosts.values():
        vhost.forget_routes()
    record = change.record
    if isinstance(record, records.User) and change.kind == "delete":
        for connection in list(node.connections.values()):
            if connection.user == record.name:
                connection.close_with(connection_forced(f"user '{record.name}' is deleted"))


def _node_changed(node: "Node", change: Change, record: records.Node) -> None:
    before = change.before if isinstance(change.before, records.Node) else None
    after = None if change.kind == "delete" else record
    is_over = before is not None and record.start > before.start
    if record.name != node.node_name and (after is None or is_over or not record.is_live):
        node.switch.peer_died(record.name)
    elif record.name == node.node_name and not record.is_live:
        node.switch.lapse()  # others were given what this node held
    node.switch.follow_node(record, () if node.copies is None else node.copies.due)
    if node.copies is not None:
        node.copies.node_changed(record.name, record if after is None else before, after)
    node.membership.follow(record)
