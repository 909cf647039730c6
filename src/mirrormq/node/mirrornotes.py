"""Lines for operators about mirrored queues: what happened, why, and what to do about it.

Guarantee: of what concerns very many queues at once at most `limits.mirror_notes_max` of a kind are named per
pass, and the rest is counted in one line; a loss is always a warning and says where the lost messages may be.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.meta.records import View
from mirrormq.node import happenings
from mirrormq.node.happenings import MirrorChange, Promotion

if TYPE_CHECKING:
    from mirrormq.node.node import Node

_WHY = {
    happenings.TRANSFER: "it was handed over by node {former}",
    happenings.FAILURE: "node {former} is dead",
    happenings.SHUTDOWN: "node {former} went down in good order",
    happenings.RESTART: "node {former} was started again",
    happenings.RETURN: "this node is back, and nobody else could take over",
}

_TROUBLE = {
    "damaged": "sent records of it that arrived damaged; they are asked for again",
    "misplaced": "sent records of it that do not follow those that are here; the master is asked",
    "parted": "has another history of it than this node has committed; the master is asked",
    "unreadable": "cannot read its records; it tries again, and the disk should be looked at",
}
"""What the protocol complains of; reads after a node's name."""


class _Kind:
    """The lines of a pass about one kind of thing."""

    __slots__ = ("count", "event", "level", "texts")

    def __init__(self, event: str, level: str) -> None:
        self.event = event
        self.level = level
        self.count = 0
        self.texts: list[str] = []


class MirrorNotes:
    """Collects lines in a pass and writes them at its end."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._kinds: dict[tuple[str, str], _Kind] = {}
        """By what is said of queues that are only counted, and the level."""

    def write(self) -> None:
        """Write what the pass has brought."""
        if not self._kinds:
            return
        kinds, self._kinds = self._kinds, {}
        for (rest, level), kind in kinds.items():
            for text in kind.texts:
                self._node.note(level, text, event=kind.event)
            left = kind.count - len(kind.texts)
            if left:
                self._node.note(level, f"{left} more queues {rest}; list_queues shows them", event=kind.event)

    def _add(self, event: str, rest: str, level: str, text: Callable[[], str]) -> None:
        """Count one more, and have its text made unless there are enough."""
        kind = self._kinds.get((rest, level))
        if kind is None:
            kind = self._kinds[rest, level] = _Kind(event, level)
        kind.count += 1
        if len(kind.texts) < limits.mirror_notes_max:
            kind.texts.append(text())

    # --- what happened ---

    def promoted(self, found: Promotion, held: Callable[[], tuple[int, int]]) -> None:
        """This node is the master of a queue now; `held`: how many messages, and how many come again."""
        if found.is_lossy:
            event = "queue.promoted_with_loss"
            rest, level = "have their master here now, and may have lost messages", "warning"
        else:
            event = "queue.promoted"
            rest, level = "have their master here now", "info"
        self._add(event, rest, level, lambda: _promotion_text(found, *held()))

    def mirrored(self, found: MirrorChange, why: str, sync: "tuple[int, int] | None") -> None:
        """Something became of a mirror of a queue mastered here; `sync`: bytes sent and microseconds."""
        what, node = queue_text(found.view), f"node {found.node} (epoch {found.view.epoch})"
        if found.kind == happenings.ADDED:
            self._add(
                "mirror.added",
                "get a mirror",
                "info",
                lambda: f"{what} gets a mirror on {node}, not in sync yet",
            )
        elif found.kind == happenings.SYNCHRONISED:
            size, taken = sync or (0, 0)
            text = f"{what} is in sync on {node}: {size} bytes in {taken / 1e6:.1f} s"
            self._add("mirror.in_sync", "have another mirror in sync", "info", lambda: text)
        elif found.kind == happenings.DEMOTED:
            text = f"{what} is no longer in sync on {node}: {why}; it is synchronised anew"
            self._add("mirror.behind", "have a mirror less in sync", "warning", lambda: text)
        else:
            level = "info" if why == UNWANTED else "warning"
            self._add(
                "mirror.removed",
                "have a mirror less",
                level,
                lambda: f"{what} has no mirror any more on {node}: {why}",
            )

    def waits(self, views: Sequence[View], names: Callable[[View], list[str]]) -> None:
        """Queues have no master, and nobody can take over."""
        for view in views:
            self._waits(view, names)

    def _waits(self, view: View, names: Callable[[View], list[str]]) -> None:
        self._add("queue.no_master", "wait for a master", "warning", lambda: _waiting_text(view, names(view)))

    def sync_begun(self, view: View, nodes: Sequence[str]) -> None:
        """Old records are being copied to mirrors of a queue mastered here."""
        text = f"{queue_text(view)} is being synchronised to node {', '.join(nodes)}"
        self._add("mirror.sync_begun", "are being synchronised", "info", lambda: text)

    def transfer_failed(self, view: View, node: str) -> None:
        """A planned transfer was given up."""
        text = (
            f"{queue_text(view)} stays here: not all of it was on node {node} after "
            f"{limits.mirror_transfer_us // 1_000_000} s, or its view changed meanwhile; publishers go on"
        )
        self._add(
            "queue.transfer_failed", "stay here although they were to be handed over", "warning", lambda: text
        )

    def made_anew(self, view: View) -> None:
        """The copy here was damaged, is out of the view, and gets everything from the others."""
        text = f"the damaged copy of {queue_text(view)} is fetched anew from the other nodes"
        self._add("mirror.mended", "have copies here that are fetched anew", "warning", lambda: text)

    def trouble(self, view: View, node: str, kind: str) -> None:
        """The protocol met something it should not."""
        text = f"node {node} {_TROUBLE.get(kind, kind)} ({queue_text(view)})"
        self._add("mirror.trouble", "have the same trouble", "warning", lambda: text)


def _promotion_text(found: Promotion, messages: int, requeued: int) -> str:
    view = found.view
    why = _WHY[found.reason].format(former=found.former)
    counts = f"{messages} messages, {requeued} of which may be delivered again"
    text = f"{queue_text(view)} has its master here from epoch {view.epoch} on: {why}; {counts}"
    if not found.is_lossy:
        return text
    where = ", ".join(found.passed) or "nodes that were forgotten"
    return (
        f"{text}; MESSAGES MAY BE LOST: this copy was not in sync. What it lacks, and how much that is, only "
        f"{where} can tell; it is salvaged when such a node is back"
    )


def _waiting_text(view: View, nodes: list[str]) -> str:
    if nodes:
        cure = (
            f"it is served again when node {' or '.join(nodes)} is back; if none of them ever comes, "
            f"`mirrormq ctl -p {view.vhost} force_promote {view.name}` shows what would be lost"
        )
    else:
        cure = "no node has a copy in sync any more: delete it, or force_promote what is left"
    return f"{queue_text(view)} has no master: {cure}"


UNWANTED = "its policy does not want one there"
UNREACHABLE = "the node is dead or cannot be reached"
TOO_SLOW = "it held up confirms for longer than ha-mirror-timeout, or needs a full copy"


def queue_text(view: View) -> str:
    """A queue as lines name it."""
    return f"queue '{view.name}' in vhost '{view.vhost}'"
