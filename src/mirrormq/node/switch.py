"""Between the queues of this node and those of others: which object stands for a queue, who gets a frame.

Guarantees
- A queue is a `Queue` where its record says that this node is its master, and a `RemoteQueue` elsewhere.
- A frame that breaks the protocol costs the link it came on. What both ends do then is what they do for any
  broken link, so a peer gone wrong can delay but not corrupt.
- Nothing here runs per message.

Roles: `homeside` serves what masters send to this node as a home node, `masterside` what home nodes send to
it as a master. A link carries both.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from mirrormq.base import limits
from mirrormq.base.errors import not_found
from mirrormq.broker.arguments import QueueSettings
from mirrormq.broker.host import Host
from mirrormq.broker.queue import Queue
from mirrormq.broker.queueport import QueuePort
from mirrormq.kernel.cores import ChannelCore
from mirrormq.kernel.forward import Malformed
from mirrormq.kernel.outbuffer import Dirty
from mirrormq.kernel.records import PID_OF_HOMES
from mirrormq.meta import records
from mirrormq.node import farreply, homeside, masterside, peerframes
from mirrormq.node.peerframes import BadFrame, Hello, Ready, Sync
from mirrormq.node.peerlink import PeerLink
from mirrormq.node.remotequeue import RemoteQueue
from mirrormq.node.stream import Stream, make_pid

if TYPE_CHECKING:
    from mirrormq.broker.vhost import VHost
    from mirrormq.node.inlet import Inlet
    from mirrormq.node.outlet import Outlet


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

    @property
    def is_alone(self) -> bool:
        """Is there no other node in the cluster?"""
        ...

    def turn_queues(self) -> None:
        """Give every touched queue its turn."""
        ...

    def after_local_flush(self, done: Callable[[], None]) -> None:
        """Call `done` when every change of the queues mastered here is durable."""
        ...


class Switch:
    """All links of this node, and the queues behind them."""

    def __init__(self, node: NodePort, effects: PeerEffects) -> None:
        self.node = node
        self._effects = effects
        self._is_begun = False
        self._early: dict[str, list[bytes]] = {}
        """Frames of linked nodes that came before this node could serve them: greetings."""
        self.pid = make_pid(node.node_name, node.rng.token(5))
        self.links: dict[str, PeerLink] = {}
        self.masters: dict[int, Queue] = {}
        """Queues mastered here, by id."""
        self.outlets = Dirty()
        self.fed: dict[Stream, None] = {}
        """Streams that brought something in this pass."""
        self.waiting: dict[Inlet, None] = {}
        """Inlets whose client did not take all that arrived."""
        self._reporting: dict[Stream, None] = {}
        self._dropped: set[int] = set()
        self._requests = 0
        self._is_alarmed = False
        self._own: list[bytes] = []
        """Frames of this node to itself: what was owed to a master that this node has become."""

    # --- queues ---------------------------------------------------------------------------------

    def is_master(self, record: records.Queue) -> bool:
        """Is this node the queue's master? One that has been given a new name is alone."""
        return record.node == self.node.node_name or self.node.is_alone

    def make_queue(
        self, host: Host, vhost: "VHost", record: records.Queue, settings: QueueSettings
    ) -> QueuePort:
        """The object that stands for a queue on this node."""
        if self.is_master(record):
            queue = self.masters[record.id] = Queue(host, vhost, record, settings)
            return queue
        self.drop(record)
        return RemoteQueue(self, vhost, record, settings)

    def drop(self, record: records.Queue) -> None:
        """A queue is deleted, or its master moved away: what other nodes hold of it is forgotten."""
        if self.masters.pop(record.id, None) is not None:
            self._dropped.add(record.id)

    def holders(self) -> Iterable[ChannelCore]:
        """Who may hold messages of queues mastered here, on other nodes."""
        return [outlet.channel for link in self.links.values() for outlet in link.outlets.values()]

    def refuse(self, queue: Queue, pid: int, number: int) -> None:
        """A queue refused a publish that came from another node."""
        for link in self.links.values():
            stream = link.streams.get(queue.record.id)
            if stream is not None and stream.pid == pid:
                stream.refuse(number)

    def report_later(self, stream: Stream) -> None:
        """Something a stream has taken is not durable yet, maybe."""
        self._reporting[stream] = None

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
            link.greet(peerframes.encode(Hello(self.pid, self.meta_index, held)))

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
        link.reset()
        link.down_at = self.node.now.mono
        link.is_held = True
        for outlet in list(link.outlets.values()):
            outlet.suspend()
        for queue in list(link.active):
            queue.on_link_down()
        for waiting in link.take_requests():
            waiting(not_found(f"node '{link.peer}' is out of reach"))

    def peer_died(self, peer: str) -> None:
        """That node's process is known to be gone: what was kept for it is given out again at once."""
        link = self.links.get(peer)
        if link is not None and not link.is_up:
            link.drop_suspended()

    def _hello(self, link: PeerLink, frame: Hello) -> None:
        if link.is_open:
            raise BadFrame("a second greeting")
        if frame.pid >> PID_OF_HOMES.bit_length() - 1 != 1:
            raise BadFrame("no process has this id")
        is_resumed = link.pid == frame.pid and frame.held == self.pid
        if not is_resumed:
            for queue in list(link.active):
                queue.forget_inlets()  # the master has given everything out again
        if link.pid != frame.pid:
            # Another process: what the one before consumed and published is over.
            link.pid = frame.pid
            for stream in link.streams.values():
                self.fed.pop(stream, None)
                self._reporting.pop(stream, None)
            link.streams.clear()
            link.drop_suspended()
        link.is_open = True
        link.session += 1
        for queue in list(link.active):
            queue.on_link_up()
        link.send(peerframes.encode(Ready()))
        self._settle_unsure(link, is_resumed=is_resumed)

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
            self.node.note("error", f"node '{link.peer}' sent a bad frame: {error}", peer=link.peer)
            self._down(link)
            self._effects.cut(link.peer, str(error))

    def _await(self, link: PeerLink, index: int) -> None:
        if index > self.meta_index:
            link.awaited = index

    def _serve_kept(self, link: PeerLink) -> None:
        """Metadata came in: serve the frames that waited for it."""
        while link.inbox and link.awaited <= self.meta_index:
            link.awaited = 0
            self._serve(link, link.inbox.popleft())
        if link.awaited <= self.meta_index:
            link.awaited = 0

    # --- the pass -------------------------------------------------------------------------------

    @property
    def needs_pass(self) -> bool:
        """Is something left for the next pass?"""
        return bool(self._own or self._dropped)

    def begin_pass(self) -> None:
        """Before the queues get their turns."""
        for link in self.links.values():
            if link.awaited:
                self._serve_kept(link)
        if self._dropped:
            dropped, self._dropped = self._dropped, set()
            masterside.forget(self, dropped)
        own, self._own = self._own, []
        for payload in own:
            self._serve(self.link(self.node.node_name), payload)
        if self.waiting:
            waiting, self.waiting = self.waiting, {}
            for inlet in waiting:
                if not inlet.core.gone and (inlet.core.ready or inlet.is_paused):
                    self.waiting[inlet] = None
                    inlet.retry()

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
                stream.after_turn(limit)
            self._reporting.update(fed)
        if self._reporting:
            self._reporting = {stream: None for stream in self._reporting if stream.report()}
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

    def after_flush(self, done: Callable[[bool], None]) -> None:
        """Call `done` when the masters that are told now how deliveries ended have that on disk.

        With False if one of them went out of reach before it said so, and did not come back in time.
        """
        self.node.turn_queues()
        asked = [link for link in self.links.values() if link.has_settles]
        left = len(asked)
        are_sure = True

        def answered(is_sure: bool) -> None:
            nonlocal left, are_sure
            left -= 1
            are_sure = are_sure and is_sure
            if left == 0:
                done(are_sure)

        for link in asked:
            self._ask_flush(link, answered)
        if not asked:
            done(True)

    def _ask_flush(self, link: PeerLink, done: Callable[[bool], None]) -> None:
        def answered(answer: object) -> None:
            if isinstance(answer, peerframes.Answer):
                done(True)
            else:
                link.unsure.append(done)  # when the link is back, the master is told again, and asked

        link.request(lambda number: peerframes.Ask(number, 0, peerframes.FLUSH, 0), answered)

    def _settle_unsure(self, link: PeerLink, *, is_resumed: bool) -> None:
        unsure, link.unsure = link.unsure, []
        for done in unsure:
            if is_resumed:
                self._ask_flush(link, done)
            else:
                done(False)

    def tick(self) -> None:
        """Give up what has waited for too long."""
        now = self.node.now.mono
        for link in self.links.values():
            if link.unsure and not link.is_open and now - link.down_at >= limits.link_grace_us:
                self._settle_unsure(link, is_resumed=False)
            for queue in list(link.active):
                queue.on_tick()
            for inlet in list(link.inlets.values()):
                inlet.on_tick()
            if link.is_held and not link.is_up and now - link.down_at >= limits.link_grace_us:
                link.drop_suspended()


Server = Callable[[Switch, PeerLink, Any], None]

_SERVERS: dict[type, Server] = {**homeside.SERVERS, **masterside.SERVERS, **farreply.SERVERS}
