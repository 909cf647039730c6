"""Between the queues of this node and those of others: which object stands for a queue, who gets a frame.

Guarantees
- A queue is a `Queue` where its record, or the view of a mirrored one, says that this node is its master, and
  a `RemoteQueue` elsewhere.
- A frame that breaks the protocol costs the link it came on. What both ends do then is what they do for any
  broken link, so a peer gone wrong can delay but not corrupt.
- Deliveries of mirrored queues are taken and handed out only under a lease that has not run out since they
  were asked for (`look_at_lease`): after a lapse this node registers anew.
- Nothing here runs per message.

Roles: `homeside` serves what masters send to this node as a home node, `masterside` what home nodes send to
it as a master. A link carries both.
"""

from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from mirrormq.base import limits, staggered
from mirrormq.base.errors import not_found
from mirrormq.base.staggered import StaggeredDict
from mirrormq.broker.arguments import QueueSettings
from mirrormq.broker.host import Host
from mirrormq.broker.mirrorqueue import MirrorQueue
from mirrormq.broker.queue import Queue
from mirrormq.broker.queueport import QueuePort
from mirrormq.broker.staging import StagingQueue
from mirrormq.kernel.cores import ChannelCore
from mirrormq.kernel.forward import Malformed
from mirrormq.kernel.outbuffer import Dirty
from mirrormq.kernel.records import PID_OF_HOMES
from mirrormq.meta import hidden, records, views
from mirrormq.node import farreply, homeside, masterside, peerframes, sinkdesk
from mirrormq.node.peerframes import Answer, BadFrame, Hello, Ready, Sync, Untold
from mirrormq.node.peerlink import PeerLink
from mirrormq.node.promotions import Promotions
from mirrormq.node.remotequeue import RemoteQueue
from mirrormq.node.settling import Settling
from mirrormq.node.spool import Detours, Spool
from mirrormq.node.stream import Stream, make_pid

if TYPE_CHECKING:
    from mirrormq.broker.vhost import VHost
    from mirrormq.node.copies import Copies
    from mirrormq.node.effects import Effects
    from mirrormq.node.inlet import Inlet
    from mirrormq.node.membership import Membership
    from mirrormq.node.outlet import Outlet
    from mirrormq.node.partition import Partition


class PeerEffects(Protocol):
    """What may be asked to be done to links."""

    def send(self, peer: str, lane: int, payload: bytes) -> None:
        """Send a frame."""
        ...

    def cut(self, peer: str, reason: str) -> None:
        """Close the link."""
        ...


class NodePort(Host, Protocol):
    """The node, as forwarding sees it."""

    membership: "Membership"
    copies: "Copies | None"
    partition: "Partition"
    effects: "Effects"

    @property
    def is_alone(self) -> bool:
        """Is there no other node in the cluster?"""
        ...

    @property
    def settled_index(self) -> int:
        """Index of the last metadata command that everything here has followed."""
        ...

    def is_mirror_master(self, queue_id: int) -> bool:
        """Does this node act as the master of a mirrored queue, by the view it has entered?"""
        ...

    def turn_queues(self) -> None:
        """Give every touched queue its turn."""
        ...

    def after_local_flush(self, done: Callable[[], None]) -> None:
        """Call `done` when every change so far of the queues mastered here is on this node's disk."""
        ...


class Switch:
    """All links of this node, and the queues behind them."""

    def __init__(self, node: NodePort, effects: PeerEffects) -> None:
        self.node, self._effects = node, effects
        self._is_begun = False
        self._early: dict[str, list[bytes]] = {}
        """Frames of linked nodes that came before this node could serve them: greetings."""
        self.pid = make_pid(node.node_name, node.rng.token(5))
        self.links: dict[str, PeerLink] = {}
        self.masters: StaggeredDict[int, Queue] = StaggeredDict(staggered.MASTERS)
        """Queues mastered here, by id."""
        self.remotes: dict[int, RemoteQueue] = {}
        """Queues mastered elsewhere, by id."""
        self.promotions = Promotions(self)
        self.spool = Spool(node.effects, node.read)
        self.detours = Detours(self)
        node.partition.detours = self.detours
        self.settling = Settling(self)
        self._has_lease = False
        self.lapses = 0
        """How often this node's lease ran out."""
        self.when_leased: list[Callable[[], None]] = []
        """What waits for the lease to be back: one get of a channel at most."""
        self.outlets = Dirty()
        self.fed: dict[Stream, None] = {}
        """Streams that brought something in this pass."""
        self.waiting: dict[Inlet, None] = {}
        """Inlets whose client did not take all that arrived."""
        self._reporting: dict[Stream, None] = {}
        """Streams that may have something to report."""
        self._dropped: set[int] = set()
        self._requests = 0
        self.sent: dict[int, int] = {}
        """The last number of a publish that this process has sent to each queue of another node."""
        self._is_alarmed = False
        self._own: list[bytes] = []
        """Frames of this node to itself: what was owed to a master that this node has become."""

    # --- queues ---------------------------------------------------------------------------------

    def is_master(self, record: records.Queue) -> bool:
        """Is this node the queue's master? One that has been given a new name is alone.

        Of a mirrored queue only if its view names this very start of this node.
        """
        view = self.node.state.views.get(record.identity)
        if view is not None:
            return self.node.is_mirror_master(record.id)
        return record.node == self.node.node_name or self.node.is_alone

    def master_of(self, record: records.Queue) -> str:
        """The node that acts for a queue; empty if none does now."""
        view = self.node.state.views.get(record.identity)
        if view is None:
            return record.node
        if view.master == self.node.node_name:
            return view.master if self.is_master(record) else ""
        return view.master if views.has_master(self.node.state.nodes, view) else ""

    def make_queue(
        self, host: Host, vhost: "VHost", record: records.Queue, settings: QueueSettings
    ) -> QueuePort:
        """The object that stands for a queue on this node."""
        if self.is_master(record):
            made: type[Queue] = Queue
            if hidden.is_staging(record.name):
                made = StagingQueue
            elif vhost.mirror_of and record.outlives_restart:
                made = MirrorQueue
            queue = self.masters[record.id] = made(host, vhost, record, settings)
            return queue
        self.drop(record)
        return RemoteQueue(self, vhost, record, settings)

    def deleted(self, record: records.Queue) -> None:
        """A queue is deleted: so is what this node owed to itself when it became the master."""
        self.drop(record)
        retired = self.link(self.node.node_name).queues.get(record.id)
        if retired is not None:
            retired.end()
            retired.release_parked()

    def drop(self, record: records.Queue) -> None:
        """A queue is deleted, or its master moved away: what other nodes hold of it is forgotten."""
        if self.masters.pop(record.id, None) is not None:
            self._dropped.add(record.id)

    def holders(self) -> Iterable[ChannelCore]:
        """Who may hold messages of queues mastered here, on other nodes."""
        return [outlet.channel for link in self.links.values() for outlet in link.outlets.values()]

    def when_settled(self, queue: Queue, done: Callable[[], None]) -> None:
        """Call `done` when all that has left the queue in this pass has left it at every mirror."""
        self.settling.when_received(queue, done)

    def refuse(self, queue: Queue, pid: int, number: int) -> None:
        """A queue refused a publish that came from another node."""
        for link in self.links.values():
            stream = link.streams.get(queue.record.id)
            if stream is not None and stream.pid == pid:
                stream.refuse(number)

    def report_later(self, stream: Stream) -> None:
        """Something a stream has taken is not durable yet, maybe."""
        self._reporting[stream] = None

    def forget_stream(self, stream: Stream) -> None:
        """Nothing is reported of it any more."""
        self.fed.pop(stream, None)
        self._reporting.pop(stream, None)

    def listener(self, pid: int, address: bytes) -> farreply.FarListener | None:
        """Who waits for answers on the node with this process; None if it is out of reach."""
        return farreply.find(self, pid, address)

    # --- links ----------------------------------------------------------------------------------

    @property
    def meta_index(self) -> int:
        """Index of the last metadata command applied here."""
        return self.node.meta_index

    def link(self, peer: str) -> PeerLink:
        """The link to a node, known or not."""
        link = self.links.get(peer)
        if link is None:
            link = self.links[peer] = PeerLink(self, peer)
            link.down_at = self.node.now.mono
            if peer == self.node.node_name:
                link.is_up = link.is_open = True
                link.pid, link.session = self.pid, 1
                link.start = self.node.membership.identity.start
        return link

    def next_request(self) -> int:
        """A number no request had before."""
        self._requests += 1
        return self._requests

    def carry(self, peer: str, payload: bytes) -> None:
        """Send a frame."""
        if peer == self.node.node_name:
            self._own.append(payload)
        else:
            self._effects.send(peer, peerframes.BULK, payload)

    def begin(self, linked: Iterable[str]) -> None:
        """The queues are there: greet the nodes that are linked already."""
        self._is_begun = True
        early, self._early = self._early, {}
        for peer in linked:
            self.link_change(peer, True)
            for payload in early.get(peer, ()):
                self.peer_frame(peer, payload)

    def link_change(self, peer: str, is_up: bool) -> None:
        """A link came up or went down."""
        if not self._is_begun:
            self._early.pop(peer, None)
            return
        link = self.link(peer)
        if link.is_up:
            self._down(link)
        if is_up:
            link.is_up = True
            held = link.pid if link.is_held else 0
            start = self.node.membership.identity.start
            link.greet(peerframes.encode(Hello(self.pid, self.meta_index, held, start)))

    def link_full(self, peer: str, is_full: bool) -> None:
        """A link takes no more for now, or takes more again."""
        link = self.link(peer)
        link.is_full = is_full
        for outlet in list(link.outlets.values()):
            outlet.set_blocked(is_full)
        if not is_full:
            farreply.link_writable(link)
            for queue in list(link.active):
                queue.core.touch()

    def _down(self, link: PeerLink) -> None:
        is_dropped = link.is_dropped
        link.reset()
        sinkdesk.link_down(link)
        link.down_at = self.node.now.mono
        link.is_held = True
        for outlet in list(link.outlets.values()):
            outlet.suspend()
        if is_dropped:
            link.drop_suspended()  # not all that the peer would go on with is there
        for queue in list(link.active):
            queue.on_link_down()
        for waiting in link.take_requests():
            waiting(not_found(f"node '{link.peer}' is out of reach"))

    def peer_died(self, peer: str) -> None:
        """That node's process is known to be gone: what was kept for it is given out again at once."""
        link = self.links.get(peer)
        if link is not None and not link.is_up:
            link.drop_suspended()
        elif link is not None and not self._is_new(link):
            # It may live on without its lease, for which others were given what it held.
            link.drop_mirrored()
            link.is_dropped = True
            link.drops += 1

    def _is_new(self, link: PeerLink) -> bool:
        """Does the link lead to the process that came after the one which is known to be gone?"""
        record = self.node.state.nodes.get(link.peer)
        return record is not None and record.is_live and record.start == link.start

    def _hello(self, link: PeerLink, frame: Hello) -> None:
        if link.is_open:
            raise BadFrame("a second greeting")
        if frame.pid >> PID_OF_HOMES.bit_length() - 1 != 1:
            raise BadFrame("no process has this id")
        is_resumed = link.pid == frame.pid and frame.held == self.pid
        link.start = frame.start
        link.is_dropped &= link.pid == frame.pid  # it may have been called dead after it was greeted
        if not is_resumed:
            for queue in list(link.active):
                queue.forget_known()  # the master has given everything out again
        if link.pid != frame.pid:
            # Another process: what the one before consumed and published is over.
            link.pid = frame.pid
            link.spoken = 0
            for stream in link.streams.values():
                self.forget_stream(stream)
            link.streams.clear()
            link.drop_suspended()
        link.is_open = True
        link.session += 1
        for queue in list(link.active):
            queue.on_link_up()
        link.send(peerframes.encode(Ready()))
        link.asked = 0
        self.settling.link_back(link, is_resumed=is_resumed)

    def follow_node(self, record: records.Node, due: Container[tuple[str, str]]) -> None:
        """A node died or came back: who waits for it as a master looks again. Not those whose views are `due`
        to be entered: they follow with them.
        """
        link = self.links.get(record.name)
        for queue in list(link.queues.values()) if link is not None else ():
            if queue.record.identity not in due:
                queue.follow()

    # --- the lease ------------------------------------------------------------------------------

    def look_at_lease(self) -> bool:
        """May this node act for the cluster? If that was over for a while, all inlets are stale.

        It is seen here before it may act again: that takes a command of the metadata.
        """
        had_lease, self._has_lease = self._has_lease, self.node.membership.has_lease()
        if had_lease and not self._has_lease:
            self.lapses += 1
            self.lapse()
        elif self._has_lease and not had_lease:
            # What came without a lease, and before anything was stale, waits to be handed out.
            for link in self.links.values():
                for inlet in link.inlets.values():
                    inlet.core.touch()
        return self._has_lease

    def lapse(self) -> None:
        """This node may have been taken for dead: what it consumes of mirrored queues is asked for anew.

        On all links: who called this node dead when it consumed nothing there has to hear that it lives
        again, or what it holds then would be given out to others after the next lapse, when nobody did.
        """
        for link in self.links.values():
            is_other = link.peer != self.node.node_name
            if link.is_open and (is_other or any(one.queue.is_mirrored for one in link.inlets.values())):
                link.go_stale()

    def _renew(self) -> None:
        """The lease is back."""
        waiting, self.when_leased = self.when_leased, []
        for again in waiting:
            again()
        for link in self.links.values():
            if link.is_stale and link.is_open and link.renewing != link.renewals:
                link.renewing = link.renewals
                link.request(peerframes.Renew, self._on_renewed(link, link.renewals))

    def _on_renewed(self, link: PeerLink, renewal: int) -> Callable[[object], None]:
        def answered(answer: object) -> None:
            if not isinstance(answer, Answer) or renewal != link.renewals:
                return  # the link broke, or the lease has run out once more
            link.is_stale = False
            for queue in [queue for queue in link.active if queue.is_mirrored]:
                queue.renew(is_held=answer.numbers[:1] == (1,))
            link.send(peerframes.encode(Ready()))

        return answered

    # --- frames ---------------------------------------------------------------------------------

    def peer_frame(self, peer: str, payload: bytes | memoryview) -> None:
        """A frame arrived; nothing refers to it afterwards."""
        if not self._is_begun:
            # Nobody says more than a greeting before it is greeted.
            kept = self._early.setdefault(peer, [])
            if len(kept) < limits.early_frames_max:
                kept.append(bytes(payload))
            return
        link = self.link(peer)
        if not link.is_up:
            return  # cut a moment ago
        self.look_at_lease()
        if link.awaited:
            link.inbox.append(bytes(payload))
        else:
            self._serve(link, payload)

    def _serve(self, link: PeerLink, payload: bytes | memoryview) -> None:
        try:
            frame = peerframes.decode(payload)
            if isinstance(frame, Hello):
                self._await(link, frame.index)
                self._hello(link, frame)
            elif not link.is_open:
                raise BadFrame("no greeting")
            elif isinstance(frame, Sync):
                self._await(link, frame.index)
            else:
                _SERVERS[type(frame)](self, link, frame)
        except (BadFrame, Malformed) as error:
            level, text = "error", f"node '{link.peer}' sent a bad frame: {error}"
            if isinstance(error, Untold):
                level, text = "warning", f"the link to node '{link.peer}' begins anew: {error}"
            self.node.note(level, text, peer=link.peer, event="link.bad_frame")
            self._down(link)
            self._effects.cut(link.peer, str(error))

    def _await(self, link: PeerLink, index: int) -> None:
        if index > self.node.settled_index:
            link.awaited = index

    def _serve_kept(self, link: PeerLink) -> None:
        """Metadata came in: serve the frames that waited for it."""
        while link.inbox and link.awaited <= self.node.settled_index:
            link.awaited = 0
            self._serve(link, link.inbox.popleft())
        if link.awaited <= self.node.settled_index:
            link.awaited = 0

    # --- the pass -------------------------------------------------------------------------------

    @property
    def needs_pass(self) -> bool:
        """Is something left for the next pass?"""
        return bool(self._own or self._dropped or self.promotions.needs_pass or self.detours.needs_pass)

    def begin_pass(self) -> None:
        """Before the queues get their turns."""
        if self._is_begun and self.look_at_lease():
            self._renew()
        self.promotions.look()
        for link in self.links.values():
            if link.awaited:
                self._serve_kept(link)
        if self._dropped:
            dropped, self._dropped = self._dropped, set()
            masterside.forget(self, dropped)
        self.serve_own()
        self.detours.step()
        if self.waiting:
            waiting, self.waiting = self.waiting, {}
            for inlet in waiting:
                if not inlet.core.gone and (inlet.core.ready or inlet.is_paused):
                    self.waiting[inlet] = None
                    inlet.retry()

    def serve_own(self) -> None:
        """Serve what this node has sent to itself."""
        own, self._own = self._own, []
        for payload in own:
            self._serve(self.link(self.node.node_name), payload)

    def catch_up(self) -> None:
        """Let everything that came before a request stand before it."""
        self.node.turn_queues()
        for link in self.links.values():
            link.flush()

    def end_pass(self) -> None:
        """After the queues had their turns: tell the other nodes what came of it."""
        if self.fed:
            fed, self.fed = self.fed, {}
            limit = self.node.settings.publish_ahead_bytes
            for stream in fed:
                if not stream.after_turn(limit):
                    self.fed[stream] = None
            self._reporting.update(fed)
        if self._reporting:
            reporting, self._reporting = self._reporting, {}
            for stream in reporting:
                if stream.report():
                    self._reporting[stream] = None
        self.settling.look()
        outlets: Iterable[Outlet] = self.outlets.take()
        for outlet in outlets:
            outlet.flush()
        for link in self.links.values():
            link.flush()
            if link.holding:
                self._release(link)

    def _release(self, link: PeerLink) -> None:
        """Publishers that were held go on when the master has caught up."""
        if link.owed_bytes > limits.forward_owed_bytes_max // 2:
            return
        for queue in list(link.holding):
            if not queue.is_held:
                queue.release_parked()

    def on_alarm(self) -> None:
        """This node runs short of something, or no longer does: publishers of other nodes must wait, too."""
        if self._is_alarmed != bool(self.node.alarms):
            self._is_alarmed = bool(self.node.alarms)
            for link in self.links.values():
                for stream in link.streams.values():
                    stream.set_alarm(self._is_alarmed)

    def tick(self) -> None:
        """Give up what has waited for too long."""
        now = self.node.now.mono
        self.promotions.look()
        for link in self.links.values():
            for queue in list(link.active):
                queue.on_tick()
            if link.unsure and not link.is_open and now - link.down_at >= limits.link_grace_us:
                self.settling.link_back(link, is_resumed=False)
            for inlet in list(link.inlets.values()):
                inlet.on_tick()
            if link.is_held and not link.is_up and now - link.down_at >= limits.link_grace_us:
                link.drop_suspended()


Server = Callable[[Switch, PeerLink, Any], None]

_SERVERS: dict[type, Server] = {
    **homeside.SERVERS,
    **masterside.SERVERS,
    **farreply.SERVERS,
    **sinkdesk.SERVERS,
}
