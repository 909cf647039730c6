"""A branch: what the clients of one node see of a queue that cannot commit on their side (mode `autoheal`).

Guarantees
- It is a durable queue without mirrors, with a log of its own, beside the copy of the queue it stands for
  (the trunk), which it never touches. What it has taken is confirmed when it is flushed here, and not before
  this node's list of branches, which is read at the next start, names it on disk.
- When it is closed its messages go into the trunk, each exactly once whatever crashes meanwhile, in the order
  in which they stand here: a slice at a time gets numbers, which are on disk before it leaves, and by which
  every copy of the trunk knows what it has. Limits of the trunk's length do not refuse them.
- What a client holds when it is closed stays its own: acknowledged it is gone, returned it goes to the trunk.
- It never deletes the queue it stands for, and is not used up by a lack of consumers.
- After its end it is a way to the trunk: a transaction may have chosen it before.
"""

from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from mirrormq.base import limits
from mirrormq.broker.arguments import QueueSettings
from mirrormq.broker.confirm import Position
from mirrormq.broker.consumer import Subscriber
from mirrormq.broker.healed import make_healed
from mirrormq.broker.letters import Dead, Letters
from mirrormq.broker.queue import NO_LIMIT, Queue
from mirrormq.broker.queueport import Later, QueuePort, Rows
from mirrormq.kernel import forward
from mirrormq.kernel.cores import REASON_ACK
from mirrormq.kernel.message import Message
from mirrormq.kernel.rows import PUBLISH
from mirrormq.log.durable import DurableLog
from mirrormq.log.dying import Death
from mirrormq.meta import records

if TYPE_CHECKING:
    from mirrormq.broker.host import Host
    from mirrormq.broker.vhost import VHost

HEALED = 0x100
"""Why an entry leaves a branch that goes to the trunk; no reason of the kernel's."""

Parcel = list[tuple[Death, Message]]


class Keeper(Protocol):
    """Whoever has all branches of a node."""

    def trunk(self, branch: "Branch") -> QueuePort | None:
        """The queue a branch stands for, while it is there."""
        ...

    def may_merge(self, branch: "Branch") -> bool:
        """May its messages go to the trunk now?"""
        ...

    def emptied(self, branch: "Branch") -> None:
        """A branch that is closed has nothing more to bring to the trunk."""
        ...


class Listing:
    """The entry of a branch in the list of its node, as confirms see it: a log whose position 1 is reached
    when it is on disk.
    """

    is_over = False

    def __init__(self) -> None:
        self.confirmable = 0


class Branch(Queue):
    """A branch of a queue on one node."""

    def __init__(
        self,
        host: "Host",
        vhost: "VHost",
        record: records.Queue,
        settings: QueueSettings,
        *,
        sources: tuple[int, int],
        keeper: Keeper,
    ) -> None:
        """`record` is that of the trunk. `sources`: the id of the branch's own log, and the number under
        which its messages are sent.
        """
        self._keeper = keeper
        self.trunk_log = record.log_id
        self.sources = sources
        self.queue_id = sources[1]
        self.listing = Listing()
        self.is_closed = False
        self.is_over = False
        self.merged = 0
        """Messages that have arrived in the trunk since this process started."""
        self._under_way: dict[int, list[int]] = {}
        """Seqs of what is on its way, by the last number of each block."""
        self._again: Parcel = []
        """What an earlier process may have sent: it goes first, under the numbers it has."""
        self._dead: list[Dead] = []
        """What died here. Its letters leave when the branch is being merged: before that nobody else knows
        of it, nor would remember the numbers of its letters.
        """
        own = replace(record, log_id=sources[0], auto_delete=False, node=host.node_name)
        super().__init__(host, vhost, own, replace(settings, expires_us=None))

    @property
    def own_log(self) -> DurableLog:
        """Its log."""
        assert self.log.kept is not None
        return self.log.kept

    @property
    def messages(self) -> int:
        """What it has: ready, held by clients, and on the way to the trunk."""
        return self.core.ready + self.core.unacked + self.core.pending + self._dying + len(self._dead)

    @property
    def _dying(self) -> int:
        """What is on its way elsewhere. What has left may still be named in the log of an earlier process."""
        log = self.own_log
        return sum(seq not in log.dead for seq in log.dying)

    @property
    def positions(self) -> list[Position]:
        """What the confirm of everything published so far waits for."""
        if self.is_over:
            self._pass_on()
            trunk = self._keeper.trunk(self)
            return [] if trunk is None else trunk.positions
        if self.core.pending:
            self.turn()
        return [(self.log, self.log.end), (self.listing, 1)]

    def delete(self, *, if_unused: bool, if_empty: bool) -> Later[int]:
        """The queue is deleted, if anything is: that is for the trunk to judge."""
        trunk = self._keeper.trunk(self)
        if trunk is None:
            later: Later[int] = Later()
            later.answer(0)
            return later
        return trunk.delete(if_unused=if_unused, if_empty=if_empty)

    # --- its end ---

    def close(self) -> list[Subscriber]:
        """Clients are served by the trunk again: returns its consumers. What they hold stays theirs."""
        self.is_closed = True
        consumers = self.consumers.clear()
        self._consumers_changed()
        self._answer_gets()
        self._holding.release()
        # From now on nothing leaves it for its length: only so much is here since it could not go there.
        self.configure(replace(self.settings, max_length=None, max_bytes=None))
        return consumers

    def end(self) -> None:
        """Everything has left it, or has nowhere to go."""
        self.is_over = True
        self._answer_gets()
        self._holding.release()
        self.core.touch()

    def give_up(self) -> None:
        """The queue is deleted: so is what is here."""
        self.is_over = True
        self._stop()

    def _pass_on(self) -> None:
        trunk = self._keeper.trunk(self)
        if trunk is not None and self.core.pending:
            trunk.core.take_over(self.core)

    @property
    def is_empty(self) -> bool:
        """Is nothing in it, nor on its way?"""
        core = self.core
        is_left = core.ready or core.unacked or core.pending or core.has_coming_back or core.has_dying
        is_leaving = self._again or self._under_way or self._dying or self._dead
        return not (is_left or core.has_settled or is_leaving)

    # --- the turn ---

    def turn(self) -> None:
        """As any queue; a closed one sends the next slice."""
        if self.is_over:
            self._pass_on()
            return
        super().turn()
        if self.is_closed and self.damage is None and not self._under_way and self._keeper.may_merge(self):
            self._go_on()

    def _go_on(self) -> None:
        if self._dead:
            self._send_letters()
        if self._again:
            self._send_again()
        elif self.is_empty:
            self._keeper.emptied(self)
        else:
            self._send_slice()

    def _send_slice(self) -> None:
        """Take the next messages from the head, give them numbers, and send them when those are on disk."""
        core, log, now = self.core, self.own_log, self.host.now
        before, count = core.ready_bytes, 0
        was_dead_lettering, core.dead_letter = core.dead_letter, True
        # The head may lie in the log only: then the turn is asking for it.
        while core.ready and core.drop_head(core.ready - 1, NO_LIMIT):
            count += 1
            is_much = before - core.ready_bytes >= limits.salvage_slice_bytes
            if is_much or count >= limits.branch_slice_messages:
                break
        core.dead_letter = was_dead_lettering
        parcel: Parcel = []
        for message, seq, _ in core.take_dying(settle=False):
            number = log.last_number + len(parcel) + 1
            death = Death(seq, number, HEALED, now.wall, b"", None, (self.trunk_log,))
            parcel.append((death, message))
        if parcel:
            log.die([death for death, _ in parcel], now, flush=True)
            self._send(parcel, is_resent=False)

    def _send_again(self) -> None:
        again, self._again = sorted(self._again, key=lambda pair: pair[0].number), []
        parcel: Parcel = []
        for pair in again:
            if parcel and pair[0].number != parcel[-1][0].number + 1:
                self._send(parcel, is_resent=True)
                parcel = []
            parcel.append(pair)
        self._send(parcel, is_resent=True)

    def _send(self, parcel: Parcel, *, is_resent: bool) -> None:
        log, node = self.own_log, self.host.node_name
        blocks = [
            forward.encode(make_healed(message, node), death.seq <= log.horizon) for death, message in parcel
        ]
        first, number = parcel[0][0].number, parcel[-1][0].number
        rows = Rows(b"".join(blocks), first, len(parcel), PUBLISH)
        self._under_way[number] = [death.seq for death, _ in parcel]

        def durable() -> None:
            trunk = self._keeper.trunk(self)
            if trunk is not None and not self.is_over:
                trunk.receive(rows, self, number, is_resent=is_resent)

        log.when_durable(log.end, durable)

    def arrived(self, number: int) -> None:
        """The trunk has this block for good."""
        seqs = self._under_way.pop(number, [])
        for seq in seqs:
            self.own_log.dying.pop(seq, None)
            self.core.leave(seq, REASON_ACK)
        self.merged += len(seqs)
        self.core.touch()

    def _dead_letter(self) -> None:
        """What died here waits until its letters may leave; what was on its way to the trunk when an earlier
        process ended, for its turn.
        """
        log = self.own_log
        for message, seq, reason in self.core.take_dying(settle=False):
            death = log.dying.get(seq)
            if death is not None and death.reason == HEALED:
                self._again.append((death, message))
            else:
                self._dead.append((message, seq, reason))

    def _send_letters(self) -> None:
        dead, self._dead = self._dead, []
        if self.letters is None:
            self.letters = Letters(self, self.own_log)
        self.letters.send(dead)
        self.core.touch()
