"""What this node does while it is cut off from the majority, by the mode its operator chose; and its side.

Guarantees
- Nothing is done before the node has had no lease for `limits.pause_grace_us`, and all of it is undone by
  itself when the lease is back and everything agreed on meanwhile is applied.
- Whatever the mode, what needs a lease needs it still: views, definitions, and deliveries of mirrored queues,
  for another node may be their master by now. A mode says what becomes of clients, and of nothing else; a
  branch is a queue of its own.
- The mode may be changed at any time, also while the node is cut off: the next pass goes over to it.
- Nobody's loop is held: many connections are stopped and let go on in slices.

Modes: `pause_minority` sends clients away and closes the doors. `stop_processing` keeps them, tells them
connection.blocked, and neither reads from them nor delivers to them; new ones are not let in. `ignore` goes
on: queues whose in-sync members are all on this side commit and deliver (waivers.py), publishes to others
wait, on disk if they are many (spool.py). `pause_if_all_down` does that while one of the nodes it names is in
reach, and otherwise pauses. `autoheal` does what `ignore` does, and opens branches of mirrored queues that
cannot commit on this side, which are merged later (branches.py).
"""

from typing import TYPE_CHECKING, Any

from mirrormq.base import limits
from mirrormq.cluster.raft.raft import Raft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mirrormq.broker.confirm import Position
    from mirrormq.broker.connection import Connection
    from mirrormq.broker.queue import Queue
    from mirrormq.broker.queueport import QueuePort
    from mirrormq.node.branches import Branches
    from mirrormq.node.memberport import Inside
    from mirrormq.node.membership import Membership
    from mirrormq.node.spool import Detours

PAUSE_MINORITY, STOP_PROCESSING = "pause_minority", "stop_processing"
IGNORE, PAUSE_IF_ALL_DOWN, AUTOHEAL = "ignore", "pause_if_all_down", "autoheal"
MODES = (PAUSE_MINORITY, STOP_PROCESSING, IGNORE, PAUSE_IF_ALL_DOWN, AUTOHEAL)
OLD_NAMES = {"autoupgrade": AUTOHEAL}
"""Names that are taken with a warning."""
ALIASES = {"pause": PAUSE_MINORITY, **OLD_NAMES}

_NO_BRANCHES = {"open": 0, "merging": 0, "messages": 0, "merged": 0, "dropped": 0}

CLOSED, STOPPED, SERVING = "closed", "stopped", "serving"
"""Clients were sent away; they are kept and not served; they are served as far as that can be."""

MAJORITY, MINORITY, UNSURE = "majority", "minority", "unsure"


def chosen(written: object) -> str:
    """The mode that a word stands for. Raises ValueError with what there is instead."""
    mode = ALIASES.get(str(written), str(written))
    if mode in MODES:
        return mode
    known = f"there are pause_minority (or pause), the default, {', '.join(MODES[1:])}"
    raise ValueError(f"{known}, and not {written!r}")


def warning_about(written: object) -> str:
    """What is to be said of a word that was taken; nothing of most."""
    mode = OLD_NAMES.get(str(written))
    return "" if mode is None else f"cluster_partition_handling = {written} is deprecated: write {mode}"


def check_nodes(mode: str, nodes: "Sequence[str]") -> None:
    """Raise ValueError if a mode lacks the nodes it needs."""
    if mode == PAUSE_IF_ALL_DOWN and not nodes:
        raise ValueError(
            "pause_if_all_down needs the names of nodes, of which one must be in reach:"
            " cluster_partition_handling.pause_if_all_down.nodes.1 = name@host"
        )


class Partition:
    """The side this node is on, and what it does there."""

    def __init__(self, membership: "Membership", node: "Inside") -> None:
        self._membership = membership
        self._node = node
        self.reaction = ""
        """What is being done with clients; empty while the node is not cut off."""
        self.since = 0
        """When it was found to be cut off; wall time, 0 if it is not."""
        self._kept_until = 0
        """When clients that were kept while this node was cut off could go on."""
        self.detours: Detours | None = None
        """Where publishes wait that cannot be committed."""
        self.branches: Branches | None = None
        """What stands in for queues that cannot commit; once this node has entered its cluster."""
        self._todo: list[Connection] = []
        """Connections that are still to be stopped, or to go on."""
        self._swept_at = 0

    # --- what others ask ---

    @property
    def modes(self) -> tuple[str, ...]:
        """What may be chosen: whoever agrees by etcd has no peers that could vouch for a side of theirs."""
        return MODES if isinstance(self._membership.raft, Raft) else MODES[:1]

    @property
    def mode(self) -> str:
        """What the operator chose."""
        return self._node.settings.partition_handling

    @property
    def is_cut(self) -> bool:
        """Is this node cut off for longer than a change of leaders takes?"""
        return bool(self.reaction)

    @property
    def keeps_clients(self) -> bool:
        """Are clients kept although it is cut off? Then nothing they wait for is given up meanwhile."""
        return self.is_cut and self.reaction != CLOSED

    @property
    def waives(self) -> bool:
        """Is this node to go on with its queues, where that is safe, when it is cut off?"""
        return self.mode in (IGNORE, PAUSE_IF_ALL_DOWN, AUTOHEAL)

    @property
    def branches_out(self) -> bool:
        """Are clients served by branches of queues that cannot commit here?"""
        return self.reaction == SERVING and self.mode == AUTOHEAL

    def port(self, queue: "QueuePort") -> "QueuePort":
        """What serves this node's clients in place of a queue: itself, or a branch of it."""
        return queue if self.branches is None else self.branches.port(queue)

    @property
    def branch_counts(self) -> dict[str, int]:
        """How many branches there are, and how many messages are in them."""
        return _NO_BRANCHES if self.branches is None else self.branches.counts()

    def written(self, token: int) -> bool:
        """Something is on disk; False if it is nothing of a branch."""
        return self.branches is not None and self.branches.written(token)

    @property
    def spools(self) -> bool:
        """Are publishes kept that cannot be brought to their queues?"""
        return self.reaction == SERVING

    def divert(self, queue: "Queue") -> "Position | None":
        """A queue here takes no publishes now: where those of clients wait, if they wait elsewhere."""
        return None if self.detours is None else self.detours.divert(queue)

    def is_over(self, queue: "Queue") -> bool:
        """Is as much kept for a queue as may be?"""
        return self.detours is not None and self.detours.is_over(queue)

    def positions(self, queue: "Queue") -> "list[Position]":
        """What confirms of a queue wait for besides the queue itself."""
        return [] if self.detours is None else self.detours.positions(queue)

    @property
    def patient_since(self) -> int:
        """Whoever gives up what has waited for too long counts from here on: nobody could be reached before,
        and clients were kept for that.
        """
        return self._node.now.mono if self.keeps_clients else self._kept_until

    @property
    def side(self) -> str:
        """Which side this node is on."""
        if self._membership.has_lease():
            return MAJORITY
        return MINORITY if self.is_cut else UNSURE

    def why(self) -> str:
        """How this node knows its side, for people."""
        membership = self._membership
        if membership.raft.is_stalled(membership.now.mono):
            return "its disk does not answer"
        if not isinstance(membership.raft, Raft):
            return "it holds its lease in etcd" if membership.has_lease() else membership.why_paused()
        voters = [member.name for member in membership.raft.config.members if member.role != "non-voter"]
        heard = [name for name in voters if name == membership.name or name in membership.links]
        missing = [name for name in voters if name not in heard]
        text = f"in reach are {len(heard)} of {len(voters)} voting nodes ({', '.join(heard)})"
        if missing:
            text += f", not {', '.join(missing)}"
        if len(heard) * 2 > len(voters) and not membership.has_lease():
            text += "; but no leader answers"
        return text

    def status(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "handling": self.mode,
            "side": self.side,
            "why": self.why(),
            "reaction": self.reaction or "none",
            "since": self.since // 1000,
            "branches": self.branch_counts,
        }

    # --- what happens ---

    def changed(self, warning: str = "") -> None:
        """The operator chose another mode, maybe by a name that is not to be used any more."""
        if warning:
            self._node.note("warning", warning, event="partition.name_deprecated")
        self._node.note(
            "info",
            f"partition handling is {self.mode}; this node is on the side of the {self.side}: {self.why()}",
            event="partition.handling_changed",
        )
        self._membership.is_due = True

    def cut_off(self) -> None:
        """This node has no lease, and the time of grace is over: do what the mode says, once or anew."""
        wanted = self._wanted()
        if wanted != self.reaction:
            self._go_over(wanted)
        elif wanted == STOPPED and self._node.now.mono - self._swept_at >= limits.tick_us:
            self._sweep()  # who was in the middle of its log-in
        self._step()

    def _wanted(self) -> str:
        if self.mode == PAUSE_IF_ALL_DOWN:
            reached = {self._membership.name, *self._membership.links}
            return SERVING if reached & set(self._node.settings.partition_nodes) else CLOSED
        return {PAUSE_MINORITY: CLOSED, STOP_PROCESSING: STOPPED}.get(self.mode, SERVING)

    def _go_over(self, wanted: str) -> None:
        self.since = self.since or self._node.now.wall
        before, self.reaction = self.reaction, wanted
        membership, why = self._membership, self._membership.why_paused()
        side = {"handling": self.mode, "side": self.side, "why": self.why()}
        if wanted == CLOSED:
            self._node.note("warning", f"paused: {why}", **side, event="node.paused")
        elif wanted == SERVING:
            others = "others get branches" if self.mode == AUTOHEAL else "other publishes wait"
            text = f"cut off: {why}; queues that are whole on this side go on, {others}"
            self._node.note("warning", text, **side, event="partition.ignored")
        else:
            text = f"processing is stopped: {why}; clients are kept and wait"
            self._node.note("warning", text, **side, event="partition.stopped")
        if wanted != SERVING and before in ("", SERVING):
            membership.pause()
        elif wanted == SERVING and before:
            membership.unpause()
        if wanted == STOPPED:
            self._sweep()
        else:
            self._let_go_on()
        if wanted == CLOSED:
            self._node.send_away(f"this node is paused: {why}")

    def healed(self) -> None:
        """The lease is back, and all that was agreed on meanwhile is applied."""
        if self.is_cut:
            if self.reaction == SERVING:
                self._node.note("info", "the cluster is in reach again", event="partition.healed")
            self._kept_until = self.patient_since
            self._let_go_on()
            self.reaction, self.since = "", 0
            self._step()

    # --- clients ---

    def _sweep(self) -> None:
        self._swept_at = self._node.now.mono
        self._todo = list(self._node.connections.values())

    def _let_go_on(self) -> None:
        self._todo = [one for one in self._node.connections.values() if one.flow.is_stopped]

    @property
    def has_more(self) -> bool:
        """Is another pass wanted?"""
        return bool(self._todo)

    def step(self) -> None:
        """Go on with what is left."""
        if self._todo:
            self._step()

    def _step(self) -> None:
        now = self._todo[-limits.partition_slice_connections :]
        del self._todo[-limits.partition_slice_connections :]
        for connection in now:
            if self.reaction == STOPPED:
                connection.flow.stop("this node is cut off from the majority of the cluster")
            else:
                connection.flow.go_on()
