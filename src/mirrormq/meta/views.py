"""Rules for views: who has a mirrored queue, who may change that, and who takes over.

Guarantees
- Every change of a view adds one to its epoch, and only one is made on top of each epoch.
- A view never loses its last in-sync member, and its master is always one; `Queue.node` is that master.
- An entry speaks of one start of a node. It is added only if that start is the registered one and live.
- Only a live master takes members away. The death of a node removes nobody: as long as nobody live has said
  otherwise, what its disk holds may be the last copy.
- While a master may go on without a lease (`View.waiver`) nobody takes over who has not granted it that,
  unless an operator insists, and then it counts as a loss.
- A member takes over only if it is live, and one that was restarted only if no other can be waited for. A
  learner takes over only if the policy or an operator allows a loss, which is then counted in the view.

Which node acts is decided here; that no two act at once is the work of leases: a node acts as the master only
while `View.is_led_by` names its own start and its lease is valid.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from msgspec.structs import replace

from mirrormq.meta import commands, mirroring, partings, waiving
from mirrormq.meta.commands import HaDefaults
from mirrormq.meta.records import FORGOTTEN, Learner, Member, Node, Queue, Record, View
from mirrormq.meta.tables import Refused, Tables

FIRST_EPOCH = 1
"""The epoch of a queue that is not mirrored, and the first one of a queue that is born mirrored."""


# --- asking ------------------------------------------------------------------------------------------------


def is_live(nodes: Mapping[str, Node], entry: Member | Learner) -> bool:
    """Is the start that an entry speaks of live?"""
    node = nodes.get(entry.node)
    return node is not None and node.is_live and node.start == entry.start


def has_master(nodes: Mapping[str, Node], view: View) -> bool:
    """Is there a master that can act? Otherwise the queue waits."""
    master = view.members[0]
    return not master.is_restarted and is_live(nodes, master)


def has_other(nodes: Mapping[str, Node], view: View, name: str) -> bool:
    """Is there a member besides this node that is live and in sync?"""
    return any(
        is_live(nodes, entry) and not entry.is_restarted and entry.node != name for entry in view.members
    )


def waiting(tables: Tables) -> dict[str, int]:
    """The nodes whose mirrored queues have no master to act for them, with their last start."""
    masters = {view.master for view in tables.views_unled()}
    return {
        node.name: node.start
        for node in tables.nodes.values()
        if node.name in masters or (not node.is_live and tables.views_led_by(node.name))
    }


def sync_critical(tables: Tables, node: str) -> list[View]:
    """The mirrored queues of a node that no other could take over without a loss if it stopped now."""
    return [
        view
        for view in tables.views_led_by(node)
        if not any(is_live(tables.nodes, entry) and not entry.is_restarted for entry in view.members[1:])
    ]


def columns(view: View, nodes: Mapping[str, Node], pid: Callable[[str], str]) -> dict[str, list[str]]:
    """RabbitMQ's columns about mirrors, with the newer names of the same; `pid` names a queue on a node.

    A restarted member counts as not synchronised until the master has taken it back.
    """
    mirrors: list[Member | Learner] = [*view.members[1:], *view.learners]
    live = [entry for entry in mirrors if is_live(nodes, entry)]
    in_sync = [entry for entry in live if isinstance(entry, Member) and not entry.is_restarted]
    pids = [pid(entry.node) for entry in live]
    synchronised = [pid(entry.node) for entry in in_sync]
    return {
        "slave_pids": pids,
        "mirror_pids": pids,
        "synchronised_slave_pids": synchronised,
        "synchronised_mirror_pids": synchronised,
        "recoverable_slaves": [entry.node for entry in view.members[1:]],
    }


# --- a queue is declared -----------------------------------------------------------------------------------


def begin_mirrored(tables: Tables, queue: Queue, placed: Iterable[Member]) -> None:
    """Give a queue about to be put its first view: in sync on all placed nodes that are still there."""
    if queue.exclusive:
        raise Refused("guard", f"queue '{queue.name}' is exclusive and cannot be mirrored")
    able = mirroring.hosts(tables.nodes)
    live = {entry.node: Member(entry.node, entry.start) for entry in placed if is_live(able, entry)}
    master = live.pop(queue.node, None)
    if master is None:
        raise Refused("guard", f"node '{queue.node}' is not there to be the master of queue '{queue.name}'")
    members = (master, *live.values())
    tables.put(
        View(queue.vhost, queue.name, queue.id, queue.log_id, FIRST_EPOCH, queue.node, members=members)
    )


# --- the master changes its view ---------------------------------------------------------------------------


def change_views(tables: Tables, command: commands.ChangeViews) -> None:
    """Make each change that is still possible; a refusal of one has changed nothing."""
    for change in command.changes:
        try:
            change_view(tables, change)
        except Refused:
            continue


def change_view(tables: Tables, command: commands.ChangeView) -> Record:
    """Compare and set: make one change on top of the epoch that its master knew."""
    queue = _queue(tables, command.vhost, command.name, command.id)
    view = tables.views.get(queue.identity)
    epoch = view.epoch if view is not None else FIRST_EPOCH
    if epoch != command.epoch:
        raise Refused("guard", f"the view of queue '{queue.name}' is of epoch {epoch}", view)
    if command.change == "begin":
        after = _begun(tables, queue, view, command)
    elif view is None:
        raise Refused("missing", f"queue '{queue.name}' is not mirrored", queue)
    elif not has_master(tables.nodes, view):
        raise Refused("guard", f"queue '{queue.name}' has no live master", view)
    else:
        after = _CHANGES[command.change](tables, view, command)
    _put(tables, after)
    return after


def _begun(tables: Tables, queue: Queue, view: View | None, command: commands.ChangeView) -> View:
    if view is not None:
        raise Refused("exists", f"queue '{queue.name}' is mirrored", view)
    if queue.exclusive or command.node != queue.node:
        raise Refused("guard", f"queue '{queue.name}' cannot be mirrored from node '{command.node}'", queue)
    master = Member(command.node, command.start)
    _check_added(tables, master)
    epoch = FIRST_EPOCH + 1
    return View(queue.vhost, queue.name, queue.id, queue.log_id, epoch, queue.node, (master,), since=epoch)


def _with_learner(tables: Tables, view: View, command: commands.ChangeView) -> View:
    learner = Learner(command.node, command.start)
    _check_added(tables, learner)
    if view.member(learner.node) is not None or view.learner(learner.node) is not None:
        raise Refused("exists", f"node '{learner.node}' has queue '{view.name}'", view)
    if view.parting_of(learner.node) is not None:
        raise Refused("guard", f"what only node '{learner.node}' has of '{view.name}' is not salvaged", view)
    return replace(view, epoch=view.epoch + 1, learners=(*view.learners, learner))


def _without_learner(_: Tables, view: View, command: commands.ChangeView) -> View:
    _need_learner(view, command.node)
    return replace(view, epoch=view.epoch + 1, learners=_without(view.learners, command.node))


def _with_member(tables: Tables, view: View, command: commands.ChangeView) -> View:
    """That it holds everything is for the master to know (F8)."""
    member = view.member(command.node)
    if member is None:
        _need_learner(view, command.node)
    elif not member.is_restarted:
        raise Refused("exists", f"node '{command.node}' is in sync for queue '{view.name}'", view)
    admitted = Member(command.node, command.start)
    _check_added(tables, admitted)
    return replace(
        view,
        epoch=view.epoch + 1,
        members=(*_without(view.members, command.node), admitted),
        learners=_without(view.learners, command.node),
        last_in_sync=_without(view.last_in_sync, command.node),
    )


def _demoted(tables: Tables, view: View, command: commands.ChangeView) -> View:
    member = _need_mirror(view, command.node)
    learner = Learner(member.node, member.start)
    _check_added(tables, learner)
    return replace(_without_mirror(tables, view, command), learners=(*view.learners, learner))


def _without_mirror(_: Tables, view: View, command: commands.ChangeView) -> View:
    member = _need_mirror(view, command.node)
    return replace(view, epoch=view.epoch + 1, members=_without(view.members, member.node))


def _transferred(tables: Tables, view: View, command: commands.ChangeView) -> View:
    member = _need_mirror(view, command.node)
    if member.is_restarted or not is_live(tables.nodes, member):
        raise Refused("guard", f"node '{member.node}' cannot take over queue '{view.name}' now", view)
    return _promoted(view, member, view.epoch + 1)


def _surrendered(tables: Tables, view: View, command: commands.ChangeView) -> View:
    """The master cannot read its copy: another member takes over, and the copy is made anew."""
    member = _need_mirror(view, command.node)
    if not is_live(tables.nodes, member):
        raise Refused("guard", f"node '{member.node}' cannot take over queue '{view.name}' now", view)
    former = view.members[0]
    after = _promoted(view, member, view.epoch + 1)
    return replace(
        after,
        members=_without(after.members, former.node),
        learners=(*after.learners, Learner(former.node, former.start)),
    )


def _renewed(_: Tables, view: View, __: commands.ChangeView) -> View:
    return replace(view, epoch=view.epoch + 1, is_stopped=False)


def _stopped(tables: Tables, view: View, command: commands.ChangeView) -> View:
    """The master goes down in good order. One that could take over without loss should have been asked to."""
    if any(is_live(tables.nodes, entry) and not entry.is_restarted for entry in view.members[1:]):
        raise Refused("in_use", f"queue '{view.name}' has a mirror that is in sync: transfer it", view)
    stopped = replace(view, is_stopped=True)
    learner = _lossy_heir(tables, tables.nodes, stopped, command.ha_defaults)
    # A restarted member has all that was flushed: rather wait for it than lose that.
    if learner is not None and not any(is_live(tables.nodes, entry) for entry in view.members[1:]):
        return _promoted_with_loss(tables, view, learner)
    return replace(stopped, epoch=view.epoch + 1)


_CHANGES: dict[str, Callable[[Tables, View, commands.ChangeView], View]] = {
    "add_learner": _with_learner,
    "remove_learner": _without_learner,
    "admit": _with_member,
    "demote": _demoted,
    "remove": _without_mirror,
    "transfer": _transferred,
    "surrender": _surrendered,
    "renew": _renewed,
    "stop": _stopped,
    "waive": waiving.waived,
    "unwaive": waiving.unwaived,
}


# --- nodes come and go -------------------------------------------------------------------------------------
#
# `nodes` are the nodes as they are after the command. Their own records change last: who hears of the end of
# a node finds its queues in other hands already.

Nodes = Mapping[str, Node]


def staying(nodes: Nodes, departed: Iterable[str]) -> dict[str, Node]:
    """The nodes without those on their way out: a queue that goes to one of them is gone with it."""
    return {name: node for name, node in nodes.items() if name not in departed}


def on_dead(tables: Tables, nodes: Nodes, name: str, defaults: HaDefaults) -> list[Queue]:
    """A node is dead: its queues go to others. Returns those without a master that do not outlive that.

    Views in which it is a mirror stay as they are: their masters decide.
    """
    lost = []
    for view in tables.views_led_by(name):
        after = _with_master(tables, nodes, view, may_wait=True, defaults=defaults)
        if after is not None:
            _put(tables, after)
        elif not (queue := tables.queues[view.identity]).durable:
            lost.append(queue)
    return lost


def on_returned(tables: Tables, nodes: Nodes, name: str) -> None:
    """A node that was called dead is back with all it had: queues that waited for that have a master."""
    for view in tables.views_of(name):
        if not has_master(nodes, view):
            after = _with_master(tables, nodes, view, may_wait=True, defaults=None)
            if after is not None:
                _put(tables, after)


def on_restarted(tables: Tables, nodes: Nodes, name: str, start: int) -> list[Queue]:
    """A node was started again. Returns the queues that do not outlive that."""
    lost = []
    for view in tables.views_of(name):
        queue = tables.queues[view.identity]
        marked = _restarted(view, name, start, keeps=queue.durable)
        if marked is view:
            continue
        if not marked.members:
            lost.append(queue)
            continue
        if view.master == name or not has_master(nodes, marked):
            # In one step of the epoch: nobody sees the mark without the promotion.
            heir = _heir(nodes, marked, may_wait=True)
            former = marked.member(name) if view.master == name else None
            if former is not None and mirroring.async_of(tables, queue) is not None:
                heir = former  # it is back, and nobody else is sure to have all that it confirmed
            if heir is not None:
                marked = _promoted(marked, heir, marked.epoch)
            elif not queue.durable:
                lost.append(queue)
                continue
        _put(tables, marked)
    return lost


def on_alone(tables: Tables, name: str, start: int) -> None:
    """A node starts as the only one there is: what it holds is all there is.

    It may have been given another name, or be a copy of a data folder: then no node is registered that could
    have been in sync, and nothing tells that it lacks something.
    """
    for view in list(tables.views.values()):
        epoch = view.epoch + 1
        is_loss = view.member(name) is None and any(entry.node in tables.nodes for entry in view.members)
        after = View(
            *(view.vhost, view.name, view.id, view.log_id, epoch, name),
            members=(Member(name, start),),
            since=epoch,
            drops_transient=True,
            last_in_sync=view.members if is_loss else (),
            losses=view.losses + is_loss,
            partings=partings.after_loss(tables, view, epoch, name) if is_loss else (),
            salvaged=view.salvaged,
            dropped=view.dropped,
        )
        _put(tables, after)


def on_forgotten(tables: Tables, nodes: Nodes, name: str) -> list[Queue]:
    """A node is no member of the cluster any more. Returns the queues that are left without a copy.

    If only learners are left, the entry stays as one that nobody can fill: the queue waits for an operator.
    """
    gone = []
    for view in tables.views_of(name):
        members = _without(view.members, name)
        learners = _without(view.learners, name)
        queue = tables.queues[view.identity]
        after = replace(
            view,
            epoch=view.epoch + 1,
            members=members or (Member(name, FORGOTTEN),),
            learners=learners,
            last_in_sync=_without(view.last_in_sync, name),
            losses=view.losses + (view.waiver == name),
            partings=partings.without(view.partings, name),
        )
        has_copy = learners or any(entry.start != FORGOTTEN for entry in members)
        is_headless = view.master == name or not has_master(nodes, after)
        heir = _heir(nodes, after, may_wait=True) if is_headless else None
        if heir is not None:
            after = _promoted(after, heir, after.epoch)
        elif is_headless and not (queue.durable and has_copy):
            gone.append(queue)
            continue
        elif members and view.master == name:
            # The oldest that is left is the one to wait for, dead as it is.
            after = _headed(after, next((entry for entry in members if not entry.is_restarted), members[0]))
        _put(tables, after)
    return gone


def promote_restarted(tables: Tables, command: commands.PromoteRestarted) -> Record:
    """Waiting is over: take the best that is live."""
    node = tables.nodes.get(command.node)
    if node is None or node.start != command.start:
        raise Refused("guard", f"node '{command.node}' has been started again or is gone", node)
    nodes = staying(tables.nodes, command.departed)
    for view in tables.views_led_by(node.name):
        if not has_master(tables.nodes, view):
            after = _with_master(tables, nodes, view, may_wait=False, defaults=command.ha_defaults)
            if after is not None:
                _put(tables, after)
    return node


def force_promote(tables: Tables, command: commands.ForcePromote) -> Record:
    """An operator says who takes over."""
    queue = _queue(tables, command.vhost, command.name, command.id)
    view = tables.views.get(queue.identity)
    if view is None:
        raise Refused("missing", f"queue '{queue.name}' is not mirrored", queue)
    if has_master(tables.nodes, view):
        raise Refused("in_use", f"queue '{queue.name}' has a master on node '{view.master}'", view)
    if view.waiver and not command.force:
        text = f"queue '{queue.name}' may be served by node '{view.waiver}' where nobody sees it: force it"
        raise Refused("in_use", text, view)
    in_sync = [entry for entry in view.members if is_live(tables.nodes, entry)]
    if in_sync:
        best = next((entry for entry in in_sync if not entry.is_restarted), in_sync[0])
        member = next((entry for entry in in_sync if entry.node == command.node), best)
        if command.node not in ("", member.node):
            raise Refused("in_use", f"nothing is lost: node '{best.node}' has all of '{queue.name}'", view)
        after = _succeeded(tables, view, member) or _promoted(view, member, view.epoch + 1)
    else:
        learners = [entry for entry in view.learners if is_live(tables.nodes, entry)]
        learner = next((entry for entry in learners if command.node in ("", entry.node)), None)
        if learner is None:
            raise Refused("missing", f"no live node to promote has queue '{queue.name}'", view)
        after = _promoted_with_loss(tables, view, learner)
    _put(tables, after)
    return after


# --- who takes over ----------------------------------------------------------------------------------------


def _with_master(
    tables: Tables, nodes: Nodes, view: View, *, may_wait: bool, defaults: HaDefaults | None
) -> View | None:
    """The view after a promotion; None if nobody is promoted. Without `defaults` a loss is ruled out."""
    heir = _heir(nodes, view, may_wait=may_wait)
    if heir is not None:
        return _succeeded(tables, view, heir, is_loss_allowed=defaults is not None)
    # A live member that was restarted has all that was flushed: it is waited for rather than lost.
    if defaults is None or not view.learners or any(is_live(nodes, entry) for entry in view.members):
        return None
    # After a restart of everything the first that is back should not win over those that have more.
    learner = _lossy_heir(tables, nodes, view, defaults)
    if learner is None or (may_wait and learner.is_restarted):
        return None
    return _promoted_with_loss(tables, view, learner)


def _heir(nodes: Nodes, view: View, *, may_wait: bool) -> Member | None:
    """The in-sync member that takes over.

    The oldest live one that was not restarted; a restarted one only if no other could come back, or if that
    has been waited for: it lacks messages that were confirmed as soon as they had been received.
    """
    restarted = None
    awaited = False
    for entry in view.members:
        node = nodes.get(entry.node)
        is_there = node is not None and node.is_live and node.start == entry.start
        if entry.is_restarted:
            if is_there and restarted is None:
                restarted = entry
        elif is_there:
            return entry
        elif entry.start != FORGOTTEN:
            awaited = True
    return None if may_wait and awaited else restarted


def _lossy_heir(tables: Tables, nodes: Nodes, view: View, defaults: HaDefaults) -> Learner | None:
    """The learner that takes over if the policy of the queue allows a loss."""
    live = [entry for entry in view.learners if is_live(nodes, entry)]
    if not live or view.waiver:
        return None
    found = mirroring.mirroring_of(tables, tables.queues[view.identity], defaults)
    if not mirroring.may_lose(found, is_stopped=view.is_stopped):
        return None
    return next((entry for entry in live if not entry.is_restarted), live[0])


def _promoted(view: View, member: Member, epoch: int) -> View:
    """The view with a member as the master; the one before it is its youngest member then."""
    former = view.members[0]
    rest = [entry for entry in view.members if entry.node not in (member.node, former.node)]
    if former.node != member.node:
        rest.append(former)
    return View(
        *(view.vhost, view.name, view.id, view.log_id, epoch, member.node),
        members=(Member(member.node, member.start), *rest),
        learners=view.learners,
        since=epoch,
        drops_transient=member.is_restarted,
        last_in_sync=view.last_in_sync,
        losses=view.losses,
        waiver=view.waiver,
        partings=view.partings,
        salvaged=view.salvaged,
        dropped=view.dropped,
    )


def _succeeded(tables: Tables, view: View, heir: Member, *, is_loss_allowed: bool = True) -> View | None:
    """The view with a member in the place of a master that is not there; None if that has to be waited for.

    With asynchronous replication only the master's disk is sure to have all that was confirmed: it is passed
    over, as by any other loss.
    """
    former, epoch = view.members[0], view.epoch + 1
    after = _promoted(view, heir, epoch)
    if heir.node == former.node or former.start == FORGOTTEN:
        return after
    found = mirroring.async_of(tables, tables.queues[view.identity])
    if found is None:
        return after
    if not (is_loss_allowed and mirroring.may_lag(found)):
        return None
    return replace(
        after,
        members=_without(after.members, former.node),
        last_in_sync=(*_without(view.last_in_sync, former.node), former),
        losses=view.losses + 1,
        partings=partings.after_loss(tables, replace(view, members=(former,)), epoch, heir.node),
    )


def _promoted_with_loss(tables: Tables, view: View, learner: Learner) -> View:
    """The view with a learner as its only member; who had more is remembered."""
    passed = {entry.node: entry for entry in (*view.last_in_sync, *view.members) if entry.start != FORGOTTEN}
    passed.pop(learner.node, None)
    epoch = view.epoch + 1
    return View(
        *(view.vhost, view.name, view.id, view.log_id, epoch, learner.node),
        members=(Member(learner.node, learner.start),),
        learners=_without(view.learners, learner.node),
        since=epoch,
        drops_transient=learner.is_restarted,
        last_in_sync=tuple(passed.values()),
        losses=view.losses + 1,
        partings=partings.after_loss(tables, view, epoch, learner.node),
        salvaged=view.salvaged,
        dropped=view.dropped,
    )


def _headed(view: View, member: Member) -> View:
    """The view with a member in the master's place, which it takes when it is back."""
    return replace(
        view,
        master=member.node,
        members=(member, *_without(view.members, member.node)),
        since=view.epoch,
        drops_transient=False,
        is_stopped=False,
    )


def _restarted(view: View, name: str, start: int, *, keeps: bool) -> View:
    """The view after a restart of a node; itself if the node was not in it, or only after this start.

    A queue that does not outlive a restart `keeps` no entry.
    """
    for at, member in enumerate(view.members):
        if member.node == name and FORGOTTEN < member.start < start:
            marked = (Member(name, start, is_restarted=True),) if keeps else ()
            members = (*view.members[:at], *marked, *view.members[at + 1 :])
            return replace(view, epoch=view.epoch + 1, members=members)
    for at, learner in enumerate(view.learners):
        if learner.node == name and learner.start < start:
            renewed = Learner(name, start, is_restarted=True)
            learners = (*view.learners[:at], renewed, *view.learners[at + 1 :])
            return replace(view, epoch=view.epoch + 1, learners=learners)
    return view


# --- parts of rules ----------------------------------------------------------------------------------------

_E = TypeVar("_E", Member, Learner)


def _put(tables: Tables, view: View) -> None:
    tables.put(view)
    queue = tables.queues[view.identity]
    if queue.node != view.master:
        tables.put(replace(queue, node=view.master))


def _without(entries: tuple[_E, ...], node: str) -> tuple[_E, ...]:
    return tuple([entry for entry in entries if entry.node != node])


def _check_added(tables: Tables, entry: Member | Learner) -> None:
    """A proposal travels: meanwhile the node may have been started again, or have died."""
    if not is_live(mirroring.hosts(tables.nodes), entry):
        raise Refused("guard", f"start {entry.start} of node '{entry.node}' is not there to hold a queue")


def _need_learner(view: View, node: str) -> None:
    if view.learner(node) is None:
        raise Refused("missing", f"node '{node}' is no learner of queue '{view.name}'", view)


def _need_mirror(view: View, node: str) -> Member:
    member = view.member(node)
    if member is None:
        raise Refused("missing", f"node '{node}' is not in sync for queue '{view.name}'", view)
    if node == view.master:
        raise Refused("in_use", f"node '{node}' is the master of queue '{view.name}'", view)
    return member


def _queue(tables: Tables, vhost: str, name: str, number: int | None) -> Queue:
    queue = tables.queues.get((vhost, name))
    if queue is None or number not in (None, queue.id):
        raise Refused("missing", f"no queue '{name}' in vhost '{vhost}'")
    return queue
