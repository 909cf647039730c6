"""Losses that copies remember: who was passed over by a lossy promotion, and where the histories part.

Guarantees
- A node that had a copy in sync when one that was not took over stands in exactly one parting until it says
  that what only it had is salvaged, or is forgotten; until then it gets no part in the queue's view.
- Each loss is made good by those whom it passed over: what a later one takes away, too, they leave to those
  whom that one passes over, so that nobody salvages what another does. Only if a master loses the queue again
  before it could tell what it had may both do so: rather twice than not at all.

Everything here is a pure function but for the numbers, which are those of the tables.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec.structs import replace

from mirrormq.base import limits
from mirrormq.meta.commands import NoteLoss, NoteSalvaged
from mirrormq.meta.records import FORGOTTEN, Parting, Record, View
from mirrormq.meta.tables import Refused, Tables

Spans = tuple[tuple[int, int], ...]


def after_loss(tables: Tables, view: View, epoch: int, heir: str) -> tuple[Parting, ...]:
    """The partings of a view in which `heir` takes over with a loss: everybody else in sync was passed over.

    Nobody knows yet what the heir has. If nobody knew what the last one had, either, whom that one passed
    over is measured by this one.
    """
    found = [
        one if one.is_known else replace(one, latest=epoch, untold=(*one.untold, one.latest))
        for one in without(view.partings, heir)
    ]
    before = {node for one in found for node in one.nodes}
    nodes = [entry.node for entry in view.members if entry.start != FORGOTTEN and entry.node != heir]
    passed = tuple(node for node in nodes if node not in before)
    if passed:
        # Even: no queue's records have such a name, and both stand in one table of whose letters came.
        found.append(Parting(2 * tables.next_id(), epoch, passed, epoch))
    return tuple(found)


def without(partings: Iterable[Parting], node: str) -> tuple[Parting, ...]:
    """Those that are left when a node has nothing to be salvaged any more."""
    kept = [replace(one, nodes=tuple(name for name in one.nodes if name != node)) for one in partings]
    return tuple(one for one in kept if one.nodes)


def known(partings: Iterable[Parting], told: NoteLoss) -> tuple[Parting, ...]:
    """The partings when the new master has told what it had."""
    facts = {"end": told.end, "epochs": told.epochs, "missing": joined(told.missing)}
    return tuple(one if one.is_known else replace(one, is_known=True, untold=(), **facts) for one in partings)


def joined(spans: Sequence[tuple[int, int]]) -> Spans:
    """Spans in order, as few as may be; beyond a bound those next to each other become one, which can only
    have more salvaged than has to be.
    """
    found: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    if len(found) > limits.parting_spans_max:
        gaps = [after[0] - before[1] for before, after in pairwise(found)]
        widest = sorted(range(len(gaps)), key=gaps.__getitem__)[-(limits.parting_spans_max - 1) :]
        firsts = [0, *(at + 1 for at in sorted(widest))]
        lasts = [at - 1 for at in firsts[1:]] + [len(found) - 1]
        found = [(found[one][0], found[other][1]) for one, other in zip(firsts, lasts, strict=True)]
    return tuple(found)


# --- commands ---


def note_loss(tables: Tables, command: NoteLoss) -> Record:
    """Where histories part is known."""
    view = _view(tables, command)
    if view.epoch != command.epoch:
        raise Refused("guard", f"the view of queue '{view.name}' is of epoch {view.epoch}", view)
    after = replace(view, epoch=view.epoch + 1, partings=known(view.partings, command))
    tables.put(after)
    return after


def note_salvaged(tables: Tables, command: NoteSalvaged) -> Record:
    """A node has nothing any more that only it has. Heard twice, it counts once."""
    view = _view(tables, command)
    found = view.parting_of(command.node)
    if found is None or found.id != command.parting:
        raise Refused("missing", f"nothing of '{view.name}' is to be salvaged on '{command.node}'", view)
    if found.reach != command.reach:
        raise Refused("guard", f"another node has salvaged '{view.name}' up to {found.reach}", view)
    reached = replace(found, reach=max(found.reach, command.upto))
    others = tuple(reached if one is found else one for one in view.partings)
    after = replace(
        view,
        epoch=view.epoch + 1,
        partings=without(others, command.node),
        salvaged=view.salvaged + command.messages,
        dropped=view.dropped + command.dropped,
    )
    tables.put(after)
    return after


def _view(tables: Tables, command: NoteLoss | NoteSalvaged) -> View:
    view = tables.views.get((command.vhost, command.name))
    if view is None or view.id != command.id:
        raise Refused("missing", f"no mirrored queue '{command.name}' in vhost '{command.vhost}'")
    return view
