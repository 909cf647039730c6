"""What a new master that took over with a loss has, told to whoever was passed over.

Guarantee: what is told stays true. A record of the new mastership is durable behind it, so that none of what
the master has by then is lost again but by another such promotion, whose master tells anew; and what its
EPOCH record drops is told with it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.kernel import records
from mirrormq.log.fold import decode_epoch
from mirrormq.meta import partings
from mirrormq.meta.commands import NoteLoss
from mirrormq.meta.records import Parting, View
from mirrormq.meta.state import Outcome
from mirrormq.mirror.ports import Data

if TYPE_CHECKING:
    from mirrormq.node.copies import Copies
    from mirrormq.node.node import Node

Identity = tuple[str, str]
Spans = list[tuple[int, int]]


class Losses:
    """The queues of this node of which nobody knows yet where their histories part."""

    def __init__(self, node: "Node", copies: "Copies") -> None:
        self._node = node
        self._copies = copies
        self._untold: dict[Identity, None] = {}
        self._asked: set[Identity] = set()

    def view_changed(self, view: View) -> None:
        """A view was made."""
        if _is_untold(view) and view.is_led_by(self._node.node_name, self._copies.start):
            self._untold[view.identity] = None

    def tick(self) -> None:
        """Every second."""
        for identity in [*self._untold][: limits.mirror_slice_queues]:
            # To the end of the line: one that has to wait holds nobody up.
            del self._untold[identity]
            view = self._node.meta.views.get(identity)
            if view is None or not _is_untold(view) or identity in self._asked:
                continue
            if view.is_led_by(self._node.node_name, self._copies.start):
                self._untold[identity] = None
                self._tell(view)

    def _tell(self, view: View) -> None:
        copy = self._copies.mirrors.copies.get(view.id)
        if copy is None or copy.master is None or copy.view != view:
            return
        master = copy.master
        if not master.may_commit(master.durable):
            self._copies.mirrors.to_touch.add(copy)
            return
        epochs = copy.log.epochs()
        latest = max(one.latest for one in view.partings if not one.is_known)
        first = next(seq for epoch, seq in epochs if epoch >= latest)
        told = [one for one in epochs if one[1] < first]
        unheard = _unheard(view.partings, told)
        if first < copy.log.low:
            # Its first record is gone, and with it what that says to be lost: rather twice than not at all.
            self._propose(view, first, told, [(1, first - 1)])
            return
        self._asked.add(view.identity)

        def read(batches: list[Data]) -> None:
            self._asked.discard(view.identity)
            if batches:
                self._propose(view, first, told, [*unheard, *_dropped(batches[0])])

        copy.log.read(first, 1, read)

    def _propose(self, view: View, first: int, epochs: Sequence[tuple[int, int]], missing: Spans) -> None:
        spans = [(one, min(last, first - 1)) for one, last in missing if one < first]
        command = NoteLoss(
            *(view.vhost, view.name, view.id, view.epoch, first - 1),
            epochs=tuple(epochs[-limits.mirror_epochs_max :]),
            missing=partings.joined(spans),
        )
        self._asked.add(view.identity)

        def answered(_: Outcome) -> None:
            self._asked.discard(view.identity)

        self._node.membership.propose(command, answered, False)


def _is_untold(view: View) -> bool:
    return any(not one.is_known for one in view.partings)


def _unheard(found: Sequence[Parting], epochs: Sequence[tuple[int, int]]) -> Spans:
    """What this log has of a master that took over with a loss and never told what it lacked: nobody knows
    which of the records before it are missing.
    """
    spans = []
    for epoch in {epoch for one in found for epoch in one.untold}:
        first = next((seq for known, seq in epochs if known >= epoch), 1)
        if first > 1:
            spans.append((1, first - 1))
    return spans


def _dropped(batch: Data) -> Spans:
    """What the EPOCH record at the head of a batch says to be lost."""
    for kind, flags, _, payload in records.other_records(batch, 0):
        if kind == records.EPOCH:
            return decode_epoch(flags, payload)[1].seqs
    return []
