"""What must be true of mirrored queues, seen from outside all nodes: views, logs, marks and messages.

Guarantee: a broken promise raises `Violation` when it is seen, before any client or node hears of what
the pass did. The numbers are those of the invariants in docs/protocol/mirror.md.
"""

from functools import partial
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.kernel.records import PID_OF_HOMES, PID_OF_LETTERS
from mirrormq.log.disk import ReadDone
from mirrormq.meta import merges
from mirrormq.meta.records import FORGOTTEN, Learner, Member, Queue, View
from mirrormq.meta.tables import Change
from mirrormq.mirror.master import Master
from mirrormq.mirror.mirroredlog import MirroredLog
from mirrormq.mirror.views import ADMIT
from mirrormq.node.copies import Copies
from mirrormq.sim.clusterhistory import EMPTY, queue_key
from mirrormq.sim.clusternode import SimNode
from mirrormq.sim.haclient import SPECS
from mirrormq.sim.hafacts import DROPPED, PURGED, Batch, Publish, QueueFacts, WatchedCopyLog, summed
from mirrormq.sim.haheard import SPOOLING, Heard
from mirrormq.sim.hahistory import DYING, LETTERS, HaSent
from mirrormq.sim.model import Violation

if TYPE_CHECKING:
    from mirrormq.sim.haworld import HaWorld

ACKED, AUTO, REJECTED = 1, 2, 3
"""Reasons of removals (docs/format/batch.md)."""
_HOME_BITS = 40
"""A row of forwarded publishes is the node's name in front of so many bits of its process."""


class MirrorChecker:
    """The memory of a world with mirrored queues."""

    def __init__(self, world: "HaWorld") -> None:
        self._world = world
        self.facts: dict[int, QueueFacts] = {}
        self._homes: dict[str, tuple[int, str]] = {}
        """Id and node of each queue."""
        self._gone: set[int] = set()
        """Ids of queues that were deleted."""
        self._heard = Heard()
        self._destroyed: dict[str, int] = {}
        """The last start of a node whose disk is gone."""
        self.floors: dict[int, int] = {}
        """While policies change and nothing fails: how many copies in sync a queue has at least."""
        self._awaited: dict[tuple[str, int], HaSent] = {}
        """By queue and number: left for a client that acknowledges nothing, which has not heard it yet."""
        self._branched: set[tuple[str, str]] = set()
        """Nodes and queues of which these had branches."""
        self._sources: set[int] = set()
        """The numbers under which branches have sent something, or could."""

    # --- the metadata ---

    def watch(self, node: SimNode) -> None:
        """Follow what a node hears of views and queues."""
        core = node.node
        assert core is not None
        life = node.life
        self._heard.begin(node, self._world.now)

        def heard(changes: list[Change]) -> None:
            if node.life != life:
                return
            for change in changes:
                record = change.record
                self._heard.hear(node, change, self._world.now)
                if isinstance(record, View) and change.kind == "put":
                    self._on_view(record)
                elif isinstance(record, Queue) and change.kind == "put":
                    # A node that starts hears what is long past.
                    if record.id >= self._homes.get(record.name, (0, ""))[0]:
                        self._homes[record.name] = (record.id, record.node)
                elif isinstance(record, Queue):
                    self._on_deleted(node, record)

        core.meta.watch(heard)

    def _on_view(self, view: View) -> None:
        facts = self.facts.get(view.id)
        if facts is None:
            is_durable = view.name not in SPECS or SPECS[view.name].durable
            facts = self.facts[view.id] = QueueFacts(view.id, view.name, is_durable, view, self._world.now)
        elif view.epoch > facts.view.epoch:
            before, facts.view = facts.view, view
            self._on_step(facts, before)
        if facts.views.setdefault(view.epoch, view) != view:
            raise Violation(f"I1: {view.name} has two views of epoch {view.epoch}")
        if view.epoch == facts.view.epoch:
            self.destruction(facts)

    def _on_step(self, facts: QueueFacts, before: View) -> None:
        view, world = facts.view, self._world
        world.stats.views += 1
        world.say(f"{view.name} {view.id}: epoch {view.epoch} {_shown(view)}")
        if _in_sync(view) < self.floors.get(view.id, 0):
            raise Violation(f"I17: {view.name} has {_in_sync(view)} copies in sync on the way to its policy")
        if view.since > before.since:
            facts.is_excused = False
        if view.since > before.since and view.master != before.master:
            world.stats.failovers += 1
            facts.led_at = world.now
        if view.losses > before.losses:
            world.stats.losses += 1
            if any(parting.untold for parting in view.partings):
                world.ha_history.doubled.add(view.name)
            self._excuse(facts, "a lossy promotion", is_salvaged=facts.is_durable)
        elif view.since > before.since and view.drops_transient:
            world.ha_history.excuse(view.name, transient_only=True)
        self.members_have(facts)

    def destruction(self, facts: QueueFacts) -> None:
        """Is there an in-sync copy whose disk was not destroyed?"""
        if not facts.is_excused and all(
            entry.start == FORGOTTEN or entry.start <= self._destroyed.get(entry.node, -1)
            for entry in facts.view.members
        ):
            facts.is_excused = True
            self._excuse(facts, "all copies were destroyed")

    def _excuse(self, facts: QueueFacts, why: str, *, is_salvaged: bool = False) -> None:
        count = self._world.ha_history.excuse(facts.name, is_salvaged=is_salvaged)
        self._world.say(f"{facts.name}: {why}: {count} messages are excused")
        facts.known_from = facts.durable = 0
        for table in (facts.stream, facts.seqs, facts.numbers, facts.removed, facts.appended, facts.behind):
            table.clear()
        for node in self._world.nodes.values():
            log = self._log_of(node, facts)
            if log is not None:
                log.verified = 0

    def destroyed(self, name: str, start: int) -> None:
        """The disk of a node is gone, in all its lives so far."""
        self._destroyed[name] = start
        self._world.ha_history.lose_branches(name, self._committed())
        for facts in self.facts.values():
            if facts.view.losses:
                self._world.ha_history.forsake(facts.name)
            if not facts.is_deleted:
                self.destruction(facts)

    def ended(self, name: str) -> None:
        """A process is gone, and with it what was only in its memory: transient messages without mirrors."""
        history = self._world.ha_history
        for queue, (number, node) in self._homes.items():
            if node == name and number not in self.facts:
                history.excuse(queue, transient_only=True)
        # Letters of transient messages are not waited for: they may lie in the memory of any node.
        history.excuse_letters()
        history.lose_branches(name, self._committed(), transient_only=True)

    def _committed(self) -> set[int]:
        """Numbers of messages that are, or were, on the disks of all members of a view."""
        return {number for facts in self.facts.values() for number in (*facts.seqs, *facts.removed)}

    def _is_committed(self, message: HaSent) -> bool:
        found = (facts for facts in self.facts.values() if facts.name == message.queue)
        return any(message.number in facts.seqs for facts in found)

    def joined(self, name: str) -> None:
        """A node begins anew, under a name that all views have forgotten."""
        self._destroyed.pop(name, None)

    def _on_deleted(self, node: SimNode, record: Queue) -> None:
        if record.id in self._gone:
            return
        self._gone.add(record.id)
        facts = self.facts.get(record.id)
        if facts is not None:
            facts.is_deleted = True
        history = self._world.ha_history
        ops = history.ops.get(queue_key(record.name), ())
        if any(op.kind == "delete" and op.end >= self._world.now for op in ops):
            return
        core = node.node
        assert core is not None
        # A node that was told to leave takes its copies with it, though it is forgotten a little later.
        staying = {
            name: node for name, node in core.meta.nodes.items() if core.membership.raft.config.find(name)
        }
        entries = facts.view.members if facts is not None else ()
        alive = [
            entry.node
            for entry in entries
            if (known := staying.get(entry.node)) is not None and known.is_live and known.start == entry.start
        ]
        if record.durable or [name for name in alive if not self._was_restarted(facts, name)]:
            raise Violation(f"I18: {record.name} is gone, which nobody asked for; {entries} {alive}")
        self._world.say(f"{record.name} is gone with its nodes")
        history.queue_died(record.name, self._world.now)

    def _was_restarted(self, facts: QueueFacts | None, name: str) -> bool:
        entry = facts.view.member(name) if facts is not None else None
        return entry is not None and entry.is_restarted

    # --- logs ---

    def _log_of(self, node: SimNode, facts: QueueFacts) -> WatchedCopyLog | None:
        copies = node.node.copies if node.node is not None else None
        disk = copies._open.get(facts.view.log_id) if copies is not None else None
        if disk is None:
            return None
        assert isinstance(disk.copy, WatchedCopyLog)
        return disk.copy

    def passed(self, node: SimNode) -> None:
        """Look at a node after a pass, before anybody hears of what it did."""
        core = node.node
        copies = core.copies if core is not None else None
        if core is None or copies is None:
            return
        for copy in copies.mirrors.copies.values():
            facts = self.facts.get(copy.id)
            if copy.master is None or facts is None:
                continue
            self._check_master(node, facts, copy.master.view.epoch, touched=bool(copy.master.own_first))
            log = self._log_of(node, facts)
            assert log is not None
            view = copy.master.view
            assert isinstance(view, View)
            self._note_appended(facts, log, view)
            if facts.view.losses == view.losses:
                self._commit(node, facts, log, copy.master)
        self._check_deliverable(node)
        self._check_bounds(node, copies)
        self._note_branches(node, copies)

    def _check_master(self, node: SimNode, facts: QueueFacts, epoch: int, *, touched: bool) -> None:
        if touched:
            who = (node.name, node.identity.start)
            if facts.masters.setdefault(epoch, who) != who:
                raise Violation(
                    f"I1: epoch {epoch} of {facts.name} has two masters: {who} {facts.masters[epoch]}"
                )

    def _check_deliverable(self, node: SimNode) -> None:
        """Deliveries of two masterships do not overlap in true time (I14)."""
        assert node.node is not None
        for queue in node.node.switch.masters.values():
            facts = self.facts.get(queue.record.id)
            log = queue.log
            if facts is None or not isinstance(log, MirroredLog) or log.copy.view is None:
                continue
            view = log.copy.view
            if not node.node.membership.has_lease() and log.deliverable:
                self._world.stats.waived += 1
            if isinstance(view, View) and view.since != facts.delivering and log.deliverable:
                since = view.since
                if since < facts.delivering:
                    raise Violation(
                        f"I14: {node.name} delivers from {facts.name} as the master since epoch {since},"
                        f" the one since {facts.delivering} does already"
                    )
                facts.delivering = since

    def _check_bounds(self, node: SimNode, copies: Copies) -> None:
        """What waits for slow nodes is bounded (I19)."""
        mirrors = copies.mirrors
        if mirrors.proposals > limits.mirror_proposals_max:
            raise Violation(f"I19: {node.name} has asked for {mirrors.proposals} views at once")
        if len(mirrors._early) > limits.mirror_early_max:
            raise Violation(f"I19: {node.name} keeps what was said about {len(mirrors._early)} queues")
        assert node.node is not None
        kept = node.node.switch.spool.bytes
        self._world.stats.spooled += kept > 0
        if kept > limits.spool_bytes_max:
            raise Violation(f"I19: {node.name} keeps {kept} bytes of publishes on disk")
        largest = self._world.largest_batch
        for peer, link in mirrors._links.items():
            if link.waiting_bytes > 2 * limits.mirror_frame_bytes + 2 * largest:
                raise Violation(f"I19: {link.waiting_bytes} bytes wait at {node.name} for {peer}")

    def _note_branches(self, node: SimNode, copies: Copies) -> None:
        for branch in copies.branches.every():
            if branch.queue_id not in self._sources:
                self._sources.update(branch.sources)
                self._world.stats.branches += 1
                self._world.say(f"{node.name} opens a branch of {branch.name}")
            self._branched.add((node.name, branch.name))
            self._world.ha_history.branched.add(branch.name)

    def _note_appended(self, facts: QueueFacts, log: WatchedCopyLog, view: View) -> None:
        # One that has not heard of the next master may write for nobody: what it has, the other may have too.
        table = facts.appended if view.since == facts.view.since else facts.behind
        table.update({publish.number: publish.seq for publish in log.published})
        log.published.clear()

    def _commit(self, node: SimNode, facts: QueueFacts, log: WatchedCopyLog, master: Master) -> None:
        durable = master.durable
        if durable <= facts.durable:
            return
        if facts.known_from and master.view.epoch == facts.view.epoch:
            self._members_flushed(facts, master)
        start = facts.durable + 1 if facts.known_from else max(1, log.low)
        for batch, data in self._batches(node, log, start, durable):
            for publish, reason in facts.learn(data, partial(self._may_double, facts.name)):
                self._check_removal(facts, publish, reason)
            if batch.last > durable:
                raise Violation(f"I2: {facts.name}: {durable} is durable, which is inside {batch}")
        self.members_have(facts)

    def _batches(
        self, node: SimNode, log: WatchedCopyLog, start: int, upto: int
    ) -> list[tuple[Batch, bytes]]:
        """Whole batches of a copy, of this life by memory and of earlier ones by the disk."""
        found: list[tuple[Batch, bytes]] = []
        at = start
        while at <= upto:
            kept = log.batches.get(at)
            if kept is None:
                data = self._read(node, log, at)
                if data is None:
                    return found
                kept = (summed(data), data)
            found.append(kept)
            at = kept[0].last + 1
        return found

    def _read(self, node: SimNode, log: WatchedCopyLog, start: int) -> bytes | None:
        answers: list[list[bytes] | None] = []

        def read(file: str, offset: int, length: int, done: ReadDone) -> None:
            # What was written in this pass is not on its way to the disk yet, nor may its file be.
            is_there = bool(node.disk.list(file))
            done(*((node.disk.read_part(file, offset, length), None) if is_there else (None, "not there")))

        log.read(start, 1, lambda batches, _: answers.append(batches), read=read)
        return answers[0][0] if answers and answers[0] else None

    def _may_double(self, queue: str, number: int) -> bool:
        """A transient letter is not waited for: its queue may get a master that does not know it was sent."""
        message = self._world.ha_history.sent[number]
        if queue != LETTERS or message.queue != DYING or message.is_persistent:
            return False
        moved = any(facts.name == DYING and facts.led_at > message.at for facts in self.facts.values())
        message.is_excused |= moved
        return moved

    def _check_removal(self, facts: QueueFacts, publish: Publish, reason: int) -> None:
        """Nothing leaves a queue for good without a cause."""
        history = self._world.ha_history
        message = history.sent[publish.number]
        name = facts.name
        if reason == PURGED:
            is_right = any(op.kind == EMPTY for op in history.ops.get(queue_key(name), ()))
        elif reason == DROPPED:
            is_right = not publish.is_persistent and facts.views[max(facts.views)].since > 0
        else:
            causes = {ACKED: message.is_acked, AUTO: message.is_acked, REJECTED: message.is_rejected}
            is_right = causes.get(reason, False) or (
                reason in (ACKED, AUTO) and (self._world.went_unheard(message) or self._await(name, message))
            )
        if not is_right and not message.is_excused:
            raise Violation(f"I3: {name}: message {publish.number} left for reason {reason}, which is wrong")

    def _await(self, queue: str, message: HaSent) -> bool:
        """Is it on its way to a client that acknowledges nothing? Its home node may tell the master with a
        request of somebody else, before the pass ends in which it is written to that client.
        """
        is_taken = self._world.is_taken_unasked(queue)
        if is_taken:
            self._awaited[queue, message.number] = message
        return is_taken

    def client_lost(self) -> None:
        """What left for a client that is gone now may never be heard."""
        for key in [key for key, message in self._awaited.items() if self._world.went_unheard(message)]:
            del self._awaited[key]

    # --- who has what ---

    def masters_of(self, facts: QueueFacts) -> list[WatchedCopyLog]:
        """The logs of those who act for the newest mastership of a queue."""
        logs = []
        for node in self._world.nodes.values():
            copies = node.node.copies if node.node is not None else None
            copy = copies.mirrors.copies.get(facts.id) if copies is not None else None
            if copy is not None and copy.master is not None and isinstance(copy.master.view, View):
                log = self._log_of(node, facts)
                logs += [log] if log is not None and copy.master.view.since == facts.view.since else []
        return logs

    def _life_of(self, facts: QueueFacts, name: str, start: int) -> WatchedCopyLog | None:
        """The log of a member, if the process the view speaks of is there."""
        node = self._world.nodes.get(name)
        if node is None or node.node is None or node.identity.start != start:
            return None
        return self._log_of(node, facts)

    def _members_flushed(self, facts: QueueFacts, master: Master) -> None:
        """What a master calls durable is flushed by every recorded and every proposed member (I8)."""
        durable, proposed = master.durable, master.proposed
        entries: list[Member | Learner] = [*facts.view.members]
        if proposed is not None and proposed.kind == ADMIT:
            entries += [entry for entry in facts.view.learners if entry.node == proposed.node]
        for entry in entries:
            log = self._life_of(facts, entry.node, entry.start)
            if log is not None and log.durable < durable:
                raise Violation(
                    f"I8: {facts.name}: {durable} is called durable, {entry.node} has flushed {log.durable}"
                )

    def members_have(self, facts: QueueFacts) -> None:
        """Every in-sync member has what was committed, byte for byte (I2, I11)."""
        if not facts.known_from:
            return
        for entry in facts.view.members:
            node = self._world.nodes.get(entry.node)
            log = self._life_of(facts, entry.node, entry.start)
            if log is None or node is None:
                continue
            if log.end < facts.durable:
                raise Violation(
                    f"I2: {facts.name}: {facts.durable} was committed, {entry.node} ends at {log.end}"
                )
            self._verify(node, facts, log)

    def _verify(self, node: SimNode, facts: QueueFacts, log: WatchedCopyLog) -> None:
        start = max(log.verified + 1, facts.known_from, log.low)
        while start <= facts.durable and start not in facts.stream:
            start += 1
        for batch, _ in self._batches(node, log, start, facts.durable):
            known = facts.stream.get(batch.first)
            if known != batch:
                raise Violation(f"I2: {facts.name}: {node.name} has {batch}, committed was {known}")
            log.verified = batch.last
        if log.verified < facts.durable and start <= facts.durable:
            raise Violation(
                f"I2: {facts.name}: {node.name} has nothing behind {log.verified} of {facts.durable}"
            )

    # --- clients ---

    def confirmed(self, message: HaSent, node: SimNode) -> None:
        """A publish to a node is acknowledged: all members of the newest view have it (I8), or a branch."""
        home = node.name
        # What was routed to a queue that others had deleted by then goes with it.
        message.is_outlived = self._knew_deleted(node, message.queue, message.at)
        if message.is_returned or message.is_excused:
            return
        if self._world.policies.get(message.queue, {}).get("ha-replication") == "async":
            return  # its master's word is enough; what a promotion takes away is salvaged (I15)
        if (home, message.queue) in self._branched and not self._is_committed(message):
            # It may be on its way to the queue before its publisher hears of it: confirms come in order.
            message.branch = home
            self._world.stats.branched += 1
            return
        for facts in self.facts.values():
            if facts.name != message.queue or facts.is_deleted:
                continue
            seq = facts.appended.get(message.number)
            if seq is None and self._is_with_all(facts, message):
                return
            if seq is None:
                if self._must_be_known(facts, message, node) and not facts.is_excused:
                    raise Violation(f"I8: {facts.name}: message {message.number} is confirmed, nobody has it")
                continue
            if message.is_persistent and facts.is_durable:
                if message.number not in facts.seqs:
                    raise Violation(f"I8: {facts.name}: message {message.number} is confirmed, not committed")
                return
            for entry in facts.view.members:
                log = self._life_of(facts, entry.node, entry.start)
                if log is not None and not entry.is_restarted and log.end < seq:
                    raise Violation(
                        f"I8: {facts.name}: message {message.number} is confirmed, {entry.node} lacks it"
                    )
            return
        self._world.stats.unseen += 1

    def is_outdated(self, node: SimNode, queue: str, since: int) -> bool:
        """May a node that goes on although it is cut off have found a queue that others have deleted?"""
        is_spooling = self._world.settings.partition_handling in SPOOLING
        return is_spooling and self._knew_deleted(node, queue, since)

    def _knew_deleted(self, node: SimNode, queue: str, since: int) -> bool:
        """Has a node known a queue then or later that is deleted by now?"""
        return any(number in self._gone for number in self._heard.since(node, queue, since))

    def _must_be_known(self, facts: QueueFacts, message: HaSent, node: SimNode) -> bool:
        """Did its home node route a publish to this queue? It may have done so by definitions that are older,
        as long as its lease lasts and a little longer; or, where it keeps what it cannot send, for any time.
        """
        known_at = facts.made_at + limits.lease_us + limits.pause_grace_us
        if known_at > message.at:
            return False
        is_spooling = self._world.settings.partition_handling in SPOOLING
        return not is_spooling or self._heard.at(node, facts.name, message.at) == facts.id

    def _is_with_all(self, facts: QueueFacts, message: HaSent) -> bool:
        """Has a master that has not heard of the next one brought it to all members of the newest view?
        It may go on without a lease as long as these let it, however others have ordered them meanwhile.
        """
        seq = facts.behind.get(message.number)
        if seq is None:
            return False
        if message.is_persistent and facts.is_durable:
            return message.number in facts.seqs
        logs = [
            self._life_of(facts, entry.node, entry.start)
            for entry in facts.view.members
            if not entry.is_restarted
        ]
        return all(log is None or log.has(seq, message.number) for log in logs)

    def delivered(self, queue: str, message: HaSent) -> None:
        """A client gets a message: it must not have left for good (I5)."""
        if message.is_excused or self._awaited.pop((queue, message.number), None) is not None:
            return
        for facts in self.facts.values():
            if facts.name == queue and message.number in facts.removed:
                raise Violation(
                    f"I5: {queue}: message {message.number} is delivered after it left for good"
                    f" (reason {facts.removed[message.number]})"
                )

    # --- in the end ---

    def check_states(self) -> None:
        """At the same mark all members have the same state (I11); what left for a client was heard."""
        for queue, number in self._awaited:
            raise Violation(f"I3: {queue}: message {number} left for a client that never heard it")
        leader = self._world.leader()
        merging = set(merges.sources(leader.node.state)) if leader is not None and leader.node else set()
        for facts in self.facts.values():
            if facts.is_deleted:
                continue
            logs = {
                entry.node: log
                for entry in facts.view.members
                if (log := self._life_of(facts, entry.node, entry.start)) is not None
            }
            # Nor is what came from branches long ago: each forgets it by itself.
            outdated = _outdated(list(logs.values())) | self._sources - merging | self._of_the_dead(logs)
            shown = {name: _state(log, outdated) for name, log in logs.items()}
            at = {name: log.folded for name, log in logs.items()}
            if len(set(at.values())) == 1 and len(set(shown.values())) > 1:
                raise Violation(f"I11: {facts.name}: members differ: {shown}")

    def _of_the_dead(self, logs: dict[str, WatchedCopyLog]) -> set[int]:
        """Rows of processes that are gone: each member forgets them by itself."""
        living = {node.node.switch.pid for node in self._world.nodes.values() if node.node is not None}
        rows = {row for log in logs.values() for row in log.committed.letters}
        return {row for row in rows if row & PID_OF_HOMES and not row & PID_OF_LETTERS} - living


def _outdated(logs: list[WatchedCopyLog]) -> set[int]:
    """Rows of earlier processes of a node: they send nothing again, and a master forgets them by itself."""
    rows = [set(log.committed.letters) for log in logs]
    known = set.intersection(*rows) if rows else set()
    homes = {row >> _HOME_BITS for row in known if row & PID_OF_LETTERS}
    return {row for some in rows for row in some - known if row >> _HOME_BITS in homes}


def _state(log: WatchedCopyLog, outdated: set[int]) -> str:
    state = log.committed
    state.forget_buried()
    # What was refused is not compared: a master forgets by itself what home nodes have heard of.
    return repr(
        (
            (state.end, state.epoch, state.horizon, state.dead.spans_list(), state.last_number),
            sorted(state.dying.items()),
            sorted(state.counts.items()),
            sorted(row for row in state.letters.items() if row[0] not in outdated),
            (state.published, state.written),
        )
    )


def _in_sync(view: View) -> int:
    return sum(not entry.is_restarted for entry in view.members)


def _shown(view: View) -> str:
    members = ",".join(f"{one.node}.{one.start}{'r' if one.is_restarted else ''}" for one in view.members)
    learners = ",".join(f"{one.node}.{one.start}" for one in view.learners)
    return f"[{members}] [{learners}] since {view.since}{' drops' if view.drops_transient else ''}"
