"""The node: every input from the machine comes in here, every effect on it goes out through `effects`.

Contract: each method takes the time of the input, runs to completion, never waits and never blocks. The
same class runs under the asyncio driver and in the simulator. Inputs only read and mark; the work of a loop
pass is done once in `end_pass`, in this order: queues that were touched, confirms, back-pressure, outputs.
One pass therefore costs one visit per queue and one write per connection, however many messages it carried.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count

from mirrormq.base import limits, staggered
from mirrormq.base.rng import Rng
from mirrormq.base.staggered import StaggeredDict
from mirrormq.base.types import Now, Peer
from mirrormq.broker.census import Census
from mirrormq.broker.channel import Channel
from mirrormq.broker.connection import Connection
from mirrormq.broker.host import BrokerSettings
from mirrormq.broker.queue import Queue
from mirrormq.broker.queueport import QueuePort
from mirrormq.broker.replyto import Listener
from mirrormq.broker.vhost import VHost
from mirrormq.cluster.metadata import Metadata
from mirrormq.kernel.cores import ChannelCore, QueueCore, Worklist
from mirrormq.kernel.index import Graveyard
from mirrormq.kernel.outbuffer import Dirty
from mirrormq.log.disk import QUIET, Disk, ReadDone
from mirrormq.log.durable import DurableLog
from mirrormq.log.journal import Journal
from mirrormq.log.queuelog import QueueLog
from mirrormq.log.recycler import Recycler
from mirrormq.meta import records
from mirrormq.meta.access import Access
from mirrormq.meta.authenticator import Authenticator
from mirrormq.meta.commands import Command
from mirrormq.meta.state import MetaState, Outcome
from mirrormq.meta.tables import Change
from mirrormq.node import alarms, backup, beats, changes, inquiry, news, rates
from mirrormq.node.admin import Admin
from mirrormq.node.backup import Image
from mirrormq.node.budget import Budget
from mirrormq.node.bulk import BulkConnection
from mirrormq.node.bulkservice import BulkService
from mirrormq.node.clockwatch import ClockWatch
from mirrormq.node.confirms import Confirms
from mirrormq.node.copies import FAMILIES, GREETING, Copies
from mirrormq.node.effects import Effects
from mirrormq.node.etcdmember import membership_of
from mirrormq.node.logins import AMQP, LoginDone, Logins
from mirrormq.node.memberport import ClusterOptions, Started
from mirrormq.node.membership import NEVER, Membership
from mirrormq.node.peerframes import FAMILY
from mirrormq.node.placement import Placement
from mirrormq.node.queuelogs import QueueLogs, letter_sources, with_log_ids
from mirrormq.node.recover import recover_queues
from mirrormq.node.requests import Request
from mirrormq.node.steps import Done
from mirrormq.node.switch import Switch

FORWARDING = bytes((FAMILY,))


class Node:
    """One broker node without any I/O of its own."""

    copies_class: type[Copies] = Copies

    def __init__(
        self,
        now: Now,
        *,
        name: str,
        settings: BrokerSettings,
        rng: Rng,
        cluster: ClusterOptions | None = None,
    ) -> None:
        self.now = self.started_at = now
        self.rng, self.settings = rng, settings
        self.node_name = self.cluster_name = name
        self.effects = Effects()
        self.dirty, self.work, self.grave = Dirty(), Worklist(), Graveyard()
        self.vhosts: dict[str, VHost] = {}
        self.channels: dict[int, Channel] = {}
        connections = StaggeredDict[int, Connection](0)
        self.connections: dict[int, Connection] = connections
        self.census, self.beats = Census(), beats.Beats(connections)
        self.alarms: set[str] = set()
        self.memory_used = self.disk_free = self._unfreed = 0
        self._clock = ClockWatch(now, lambda text: self.note("warning", text, event="clock.jumped"))
        self._tokens, self._uids = count(1), count(1)
        self.meta = MetaState()
        cluster = cluster or ClusterOptions()
        self.membership: Membership = membership_of(self, self.effects, self.next_token, cluster)
        self.partition = self.membership.partition
        self._disk: Disk | None = None
        """To read queues from, until that is done."""
        fsync, interval_us = settings.fsync, settings.fsync_interval_ms * 1000
        self.journal = Journal(self.effects, self.next_token, fsync=fsync, interval_us=interval_us)
        self.logs: StaggeredDict[int, DurableLog] = StaggeredDict(staggered.LOGS)
        """Logs of the durable queues, by queue id."""
        self._budget = Budget(self.work, self.logs, settings.memory_limit)
        self.copies: Copies | None = None
        """The copies of mirrored queues, once this node has entered its cluster."""
        self._greetings: dict[str, bytes] = {}
        """Of linked nodes that greeted before that."""
        self._queue_logs, tokens, logs = QueueLogs(self), self.next_token, self.logs
        self._reads: dict[int, ReadDone] = {}
        self.recycler = Recycler(self.effects, self.read, tokens, journal=self.journal, logs=logs)
        self.recycler.damaged = self._queue_logs.damaged
        self.access = Access(self.meta)
        self.authenticator = Authenticator(
            self.meta, rng, settings.loopback_users, argon2_cost=settings.argon2_cost
        )
        self.logins = Logins(self.authenticator, self.effects, self.next_token, settings.argon2_cost)
        self._heard: dict[int, Connection] = {}
        """Connections that serve frames in this pass, read just now or kept while they were parked."""
        self._confirms = Confirms(self)
        self._timers: list[tuple[int, int, QueuePort]] = []
        self._admin = Admin(self)
        self.switch: Switch = Switch(self, self.effects)
        self.news = news.News(self, self.effects, self.switch.masters)
        self.inquiries = inquiry.Inquiries(self, self.effects)
        self.following, self.bulk = changes.Following(), BulkService(self)
        self.rates, self.shortages = rates.Rates(self), self.news.shortages
        self.place = Placement(self, self.news).place

    @property
    def state(self) -> MetaState:
        """The metadata."""
        return self.meta

    # --- start ----------------------------------------------------------------------------------

    def start(self, now: Now, disk: Disk, fresh: list[Command] | Callable[[], list[Command]]) -> Started:
        """Read the data folder; a new cluster begins with the commands in `fresh`, or those it makes."""
        self.now = now
        self._disk = disk
        return self.membership.start(now, disk, fresh if callable(fresh) else fresh.copy)

    def enter(self) -> None:
        """The metadata is complete: make what it describes, and fill the queues mastered here."""
        changes.begin(self)
        for exchange in list(self.meta.exchanges.values()):
            self.vhosts[exchange.vhost].apply(Change("put", exchange))
        for queue in list(self.meta.queues.values()):
            self.vhosts[queue.vhost].apply(Change("put", queue))
        for binding in list(self.meta.bindings.values()):
            self.vhosts[binding.vhost].apply(Change("put", binding))
        assert self._disk is not None
        copies = self.copies_class(self)
        recover_queues(self, self._disk, copies)
        self._disk = None
        self.recycler.sources = lambda: letter_sources(self.meta, copies.branches.sources())
        self.meta.watch(lambda changed: changes.follow(self, changed))
        self.switch.begin(self.membership.links)
        self.copies = copies
        copies.begin()
        for view in self.meta.views.values():
            self.vhosts[view.vhost].follow_view(self.meta.queues[view.identity])
        for peer, greeting in self._greetings.items():
            copies.greeted(peer, greeting)

    # --- client inputs --------------------------------------------------------------------------

    def client_open(self, now: Now, conn: int, peer: Peer) -> None:
        """A client connected."""
        self.now = now
        self.connections[conn] = Connection(self, conn, peer)

    def client_bytes(self, now: Now, conn: int, data: bytes | memoryview) -> None:
        """A client sent something; nothing refers to `data` afterwards."""
        self.now = now
        connection = self.connections[conn]
        self.heard(connection)
        connection.on_bytes(data)

    def client_paused(self, now: Now, conn: int) -> None:
        """The client's socket takes no more output for now."""
        self.now = now
        connection = self.connections.get(conn)
        if connection is not None:
            connection.on_output_blocked()

    def client_writable(self, now: Now, conn: int) -> None:
        """The client's socket takes output again."""
        self.now = now
        connection = self.connections.get(conn)
        if connection is not None:
            connection.on_output_free()
            self._touch_consumed(connection)

    def client_closed(self, now: Now, conn: int) -> None:
        """The client's socket is gone."""
        self.now = now
        connection = self.connections.pop(conn, None)
        self._heard.pop(conn, None)
        if connection is not None:
            connection.on_closed()
            self.rates.connection_ended(connection)

    def take_output(self, conn: int) -> Sequence[bytes | memoryview]:
        """The pieces that wait for this client. Queues that stopped for lack of room get another turn."""
        connection = self.connections.get(conn)
        if connection is None:
            return ()
        out, pieces = connection.out, connection.take_output()
        if out.starved and not out.blocked:
            self._touch_consumed(connection)
        return pieces

    def _touch_consumed(self, connection: Connection) -> None:
        """Visit the queues this connection consumes from: there is room for their messages again."""
        connection.out.starved = False
        for channel in connection.channels.values():
            for consumer in channel.consumers.values():
                consumer.source.touch()

    # --- other nodes ----------------------------------------------------------------------------

    def link_change(
        self, now: Now, peer: str, is_up: bool, cluster: bytes = b"", *, eof: bool = False
    ) -> None:
        """A link to another node came up or went down.

        `cluster` is the one the peer belongs to (zeros: none), `eof`: the peer ended the link itself.
        """
        self.now = now
        self.membership.link_change(peer, is_up, cluster, eof=eof)
        self.switch.link_change(peer, is_up)
        self.news.link_change(peer, is_up)
        self.inquiries.link_change(peer, is_up)
        self.bulk.link_down(peer)
        self._greetings.pop(peer, None)
        if self.copies is not None:
            self.copies.link_change(peer, is_up, eof=eof)

    def peer_frame(self, now: Now, peer: str, payload: bytes | memoryview) -> None:
        """Another node sent a frame; nothing refers to `payload` afterwards."""
        self.now = now
        family = payload[:1]
        if family == FORWARDING:
            self.switch.peer_frame(peer, payload)
        elif family == news.FIRST:
            self.news.peer_frame(peer, payload)
        elif family == inquiry.FIRST:
            self.inquiries.peer_frame(peer, payload)
        elif family in FAMILIES:
            self._copies_frame(peer, payload)
        elif peer in self.membership.links:
            self.membership.frame(peer, payload)

    def _copies_frame(self, peer: str, payload: bytes | memoryview) -> None:
        if payload[:1] == GREETING and self.copies is None:
            self._greetings[peer] = bytes(payload)
        elif payload[:1] == GREETING and self.copies is not None:
            self.copies.greeted(peer, payload)
        elif self.copies is not None:
            self.copies.peer_frame(peer, payload)

    def link_writable(self, now: Now, peer: str) -> None:
        """A link takes more again."""
        self.link_full(now, peer, False)

    def link_suspected(self, now: Now, peer: str, is_silent: bool) -> None:
        """Nothing has come over a link for long, or something has again."""
        self.now = now
        if self.copies is not None:
            self.copies.link_suspected(peer, is_silent)

    def link_full(self, now: Now, peer: str, is_full: bool = True) -> None:
        """A link takes no more for now."""
        self.now = now
        self.switch.link_full(peer, is_full)
        self.inquiries.link_full(peer, is_full)
        if self.copies is not None:
            self.copies.link_full(peer, is_full)

    # --- other inputs ---------------------------------------------------------------------------

    def disk_done(self, now: Now, token: int) -> None:
        """A flush or replace is durable."""
        self.now = now
        is_known = self.journal.flushed(token, now) or self.recycler.done(token)
        if not is_known and not self.partition.written(token):
            self.membership.disk_done(token)

    def disk_read(self, now: Now, token: int, data: bytes | None, error: str | None) -> bool:
        """A part of a file was read, or could not be. Is there anything in it for a pass to do?"""
        self.now = now
        if (done := self._reads.pop(token, None)) is not None:
            return done(data, error) is not QUIET
        self.membership.disk_read(token, data, error)
        return True

    def work_done(self, now: Now, token: int, result: object) -> None:
        """A computation off the loop is finished."""
        self.now = now
        self.logins.done(token, result, now)

    def gauges(self, now: Now, memory: int, disk_free: int, *, is_full: bool = False) -> None:
        """How much memory the process uses and how much disk is left: raise or clear alarms.

        `is_full`: the space kept for emergencies is in use.
        """
        self.now = now
        self.memory_used, self.disk_free = memory, disk_free
        alarms.look(self, memory, disk_free, is_full=is_full)
        self.switch.on_alarm()
        self.news.on_alarm()
        self.recycler.is_tight = "disk" in self.alarms

    def tick(self, now: Now) -> None:
        """Time passes: heartbeats and timeouts, queue timers."""
        self.now = now
        if self._clock.look(now):
            for queue in chain.from_iterable(vhost.queues.values() for vhost in self.vhosts.values()):
                queue.core.touch()
        self._budget.look(self.switch.masters.values())
        self.beats.tick()
        self.recycler.tick(now)
        self.switch.tick()
        if self.copies is not None:
            self.copies.tick()
        self.on_timer(now)

    def expiry_wall(self) -> int:
        """The wall time by which messages expire."""
        return self._clock.wall(self.now)

    def memory_share(self) -> int:
        """Bytes of ready messages a durable queue may keep in memory now."""
        return self._budget.share()

    def on_timer(self, now: Now) -> None:
        """Give every queue whose time has come a turn."""
        self.now = now
        self.membership.on_timer()
        self.inquiries.on_timer()
        self.rates.on_timer()
        if self.copies is not None:
            self.copies.on_timer(now)
        while self._timers and self._timers[0][0] <= now.mono:
            heapq.heappop(self._timers)[2].core.touch()

    def next_timer(self) -> int | None:
        """When `on_timer` is needed next (mono µs)."""
        times = [*self._confirms.times(), self.rates.next_at()]
        times += [self.journal.next_flush_at() or 0, self.news.next_at(), self.inquiries.next_at()]
        if self.copies is not None:
            times.append(self.copies.timer_at)
        # What became due since `on_timer` was called (a timer may wake a moment too early) is not past yet.
        soon = self.now.mono + 1
        times.append(max(self.membership.timer_at, soon))
        if self._timers:
            times.append(max(self._timers[0][0], soon))
        soonest = min((at for at in times if at > self.now.mono), default=NEVER)
        return soonest if soonest < NEVER else None

    def admin(self, now: Now, request: Request, done: Done) -> None:
        """Carry out an administrator's request; `done` gets the answer, maybe later."""
        self.now = now
        self._admin.handle(request, done)

    def hold_files(self, now: Now, done: Callable[[Image | None, str | None], None]) -> None:
        """Let no file of the data folder change but the journal's last, until `release_files`.

        `done` gets what the folder consists of at that moment when all of it can be read, or why it cannot.
        """
        self.now = now
        self.recycler.hold(lambda: backup.take_image(self, done))

    def release_files(self, now: Now) -> None:
        """The copy is made, or given up."""
        self.now = now
        self.recycler.release()

    def drain(self, now: Now, reason: str) -> None:
        """The node stops: tell every client why."""
        self.now = now
        self.send_away(reason)

    def hand_over(self, now: Now, done: Callable[[], None]) -> None:
        """The node stops: mirrored queues go to other masters; `done` is called when none is left."""
        self.now = now
        if self.copies is None:
            done()
        else:
            self.copies.hand_over(done)

    def send_away(self, reason: str) -> None:
        """Close the connections of all clients, telling them why."""
        for connection in list(self.connections.values()):
            connection.force_close(reason)

    # --- the pass -------------------------------------------------------------------------------

    @property
    def needs_pass(self) -> bool:
        """Is there work left for another pass without new input?"""
        return bool(
            len(self.work)
            or len(self.dirty)
            or self._heard
            or self._unfreed
            or self.following.needs_pass
            or self.beats.needs_pass
            or self.recycler.needs_pass
            or self.switch.needs_pass
            or self.membership.needs_pass
            or self.inquiries.needs_pass
            or self.bulk.needs_pass
            or self.rates.needs_pass
            or (self.copies is not None and self.copies.needs_pass)
        )

    def end_pass(self, now: Now) -> None:
        """Do what the inputs of this pass asked for."""
        self.now = now
        # First: whoever waited for a definition goes on in this pass, with the queues it changed.
        self.membership.end_pass()
        self.following.step()
        self.beats.step()
        self.switch.begin_pass()
        self.turn_queues()
        if self.copies is not None:
            # Before anybody is told: what this pass wrote leaves for the mirrors, and their marks count.
            self.copies.end_pass(now)
        self.switch.end_pass()
        self.news.step()
        self.inquiries.step()
        self.bulk.step()
        self.rates.step()
        self._queue_logs.let_go()
        self.recycler.step()
        self.journal.commit(now)
        # Whoever is unparked by what follows serves frames again: those belong to the next pass.
        heard, self._heard = list(self._heard.values()), {}
        self._confirms.take(heard, now.mono)
        self._hold_back(heard)
        self._unfreed = self.grave.free(limits.entries_freed_per_pass)
        for conn in self.dirty.take():
            self.effects.write(conn)

    def turn_queues(self) -> None:
        """Give every touched queue its turn.

        Dead letters touch further queues in the same pass; what a cycle leaves over waits for the next
        one.
        """
        for _ in range(limits.turn_rounds_max):
            touched = self.work.take()
            if not touched:
                return
            for core in touched:
                core.owner.turn()

    def _hold_back(self, heard: list[Connection]) -> None:
        """Park connections that publish faster than willing consumers take."""
        limit = self.settings.publish_ahead_bytes
        for connection in heard:
            for core in connection.reader.take_fed():
                if not core.gone and core.owner.is_ahead(limit):
                    core.owner.park(connection)

    # --- what the broker asks -------------------------------------------------------------------

    def propose(self, command: Command, done: Callable[[Outcome], None], wait: bool) -> None:
        """Change the metadata."""
        self.membership.propose(with_log_ids(self, command), done, wait)

    @property
    def store(self) -> Metadata:
        """The definitions and how they are agreed on."""
        return self.membership.metadata

    @property
    def meta_index(self) -> int:
        """Index of the last metadata command applied, durable or not."""
        return self.membership.index

    def authenticate(
        self, user: str, password: str | None, peer: Peer, done: LoginDone, protocol: str = AMQP
    ) -> None:
        """Check a log-in; `done` gets None or why it was refused, maybe later."""
        self.logins.check(user, password, peer, self.now, done=self.census.counted(done), protocol=protocol)

    def hash_password(self, password: str, done: Callable[[str, str], None]) -> None:
        """Make a hash for a new password; `done` gets it and the name of its algorithm later."""
        self.logins.hash(password, done)

    def after_durable(self, queues: list[QueueCore], done: Callable[[bool], None]) -> None:
        """Call `done` when all that was published to these queues is durable; False: if it is, is unknown."""
        self.turn_queues()
        self.journal.want_flush()
        self._confirms.after(queues, done)

    def open_log(self, record: records.Queue) -> QueueLog:
        """The log of a queue."""
        return self._queue_logs.open(record)

    def new_log(self, record: records.Queue) -> DurableLog:
        """An empty log for a queue that had none."""
        return self._queue_logs.make(record)

    def fill(self, queue: Queue) -> None:
        """A queue was made here: one that was another node's until now is filled from its log."""
        if queue.log.is_mirrored:
            assert self.copies is not None
            self.copies.fill(queue)

    def drop_log(self, record: records.Queue) -> None:
        """The queue is deleted: its records go once the deletion itself cannot be lost any more."""
        self.switch.deleted(record)
        self._queue_logs.forget(record.log_id)

    def forget_log(self, log_id: int) -> None:
        """Nobody needs these records any more, once what says so cannot be lost."""
        self._queue_logs.forget(log_id)

    def read(self, file: str, offset: int, length: int, done: ReadDone) -> None:
        """Read a part of a file of the data folder."""
        self.journal.before_read(file)
        token = self.next_token()
        self._reads[token] = done
        self.effects.read(file, offset, length, token)

    @property
    def is_alone(self) -> bool:
        """Is there no other node in the cluster?"""
        return self.membership.is_alone

    @property
    def settled_index(self) -> int:
        """Index of the last metadata command that everything here has followed."""
        before_due = self.copies.before_due if self.copies is not None else None
        return self.membership.index if before_due is None else before_due

    def is_mirror_master(self, queue_id: int) -> bool:
        """Does this node act as the master of a mirrored queue, by the view it has entered?"""
        return self.copies is not None and self.copies.is_master(queue_id)

    def is_master(self, record: records.Queue) -> bool:
        """Is this node the queue's master?"""
        return self.switch.is_master(record)

    def holders(self) -> Iterable[ChannelCore]:
        """Everybody who may hold messages of queues mastered here."""
        return chain((channel.core for channel in self.channels.values()), self.switch.holders())

    def refuse_forwarded(self, queue: Queue, pid: int, number: int) -> None:
        """A queue refused a publish that came from another node."""
        self.switch.refuse(queue, pid, number)

    @property
    def pid(self) -> int:
        """A number no other process of the cluster has."""
        return self.switch.pid

    def far_listener(self, pid: int, address: bytes) -> Listener | None:
        """Who waits for answers on the node with this process."""
        return self.switch.listener(pid, address)

    def wake_queue(self, queue: QueuePort, at_mono: int) -> None:
        """Give the queue a turn at this time."""
        heapq.heappush(self._timers, (at_mono, next(self._uids), queue))

    def begin_bulk(self, connection: Connection, header: bytes) -> None:
        """A client speaks the bulk protocol."""
        made = self.connections[connection.conn_id] = BulkConnection.instead_of(self, connection)
        made.begin(header, connection.give_up())

    def heard(self, connection: Connection) -> None:
        """The connection serves frames in this pass."""
        self._heard[connection.conn_id] = connection

    def next_uid(self) -> int:
        """A number used for nothing else on this node."""
        return next(self._uids)

    def note(self, level: str, text: str, **fields: object) -> None:
        """Tell the operator."""
        self.effects.note(level, text, **fields)

    def next_token(self) -> int:
        """A number for an input that answers an effect."""
        return next(self._tokens)

    # --- flushes --------------------------------------------------------------------------------

    def after_settled(self, queues: list[QueueCore], done: Callable[[bool], None]) -> None:
        """Call `done` when nothing that left these queues so far comes back; with False if nobody knows."""
        self.switch.settling.after(queues, done)

    def after_local_flush(self, done: Callable[[], None]) -> None:
        """Call `done` when every change so far of the queues mastered here is on this node's disk."""
        self.turn_queues()
        self.journal.after_flush(done)
