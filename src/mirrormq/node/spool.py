"""Publishes that wait on disk while this node is cut off (`ignore`), and go to their queues when it is back.

Guarantees
- A publish to a queue that cannot commit here is kept, in order, and sent when its master is in reach: by the
  streams that carry publishes to other nodes (outgoing.py), so each is taken exactly once. It is confirmed
  when it is committed there, and never before.
- What does not fit into `limits.spool_memory_bytes` per master goes to disk, up to `limits.spool_bytes_max`
  for the node; beyond that publishers are held as by any master that does not keep up.
- A spool belongs to one process. Nobody was told that anything in it is safe, and whoever was to be told is
  gone with the process: its files are removed at the next start.

A queue that is mastered here and cannot commit gets a detour: an object like the one that stands for a queue
of another node, behind this node's own link. If the queue has another master when the node is back, its
object takes over what the detour holds; otherwise the queue here takes it, before anything that comes later.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mirrormq.base import limits
from mirrormq.broker.confirm import Position
from mirrormq.broker.queue import Queue
from mirrormq.log.disk import Disk, ReadDone
from mirrormq.node.remotequeue import RemoteQueue

if TYPE_CHECKING:
    from mirrormq.node.outgoing import Owed
    from mirrormq.node.switch import Switch

FOLDER = "spool/"


class Place(NamedTuple):
    """Where a block lies."""

    file: str
    offset: int
    length: int


class SpoolEffects(Protocol):
    """What may be asked to be done to files."""

    def append(self, file: str, data: bytes) -> None:
        """Append to a file."""
        ...

    def remove(self, file: str) -> None:
        """Remove a file."""
        ...

    def stop(self, reason: str) -> None:
        """End the process."""
        ...


Read = Callable[[str, int, int, ReadDone], None]


class Spool:
    """Blocks of publishes on disk."""

    def __init__(self, effects: SpoolEffects, read: Read) -> None:
        self._effects = effects
        self._read = read
        self.bytes = 0
        """Of blocks that are still needed."""
        self._numbers = 0
        self._file = ""
        self._size = 0
        self._live: dict[str, int] = {}
        """Blocks per file."""

    def clear(self, disk: Disk) -> None:
        """Remove what an earlier process has left."""
        for file in disk.list(FOLDER):
            self._effects.remove(file)

    def keep(self, owed: "Owed") -> None:
        """Put the block on disk, unless there is no room."""
        if self.bytes + len(owed.block) > limits.spool_bytes_max:
            return
        if not self._file or self._size >= limits.spool_file_bytes:
            self._numbers += 1
            self._file, self._size = f"{FOLDER}{self._numbers:010d}", 0
        owed.place = Place(self._file, self._size, len(owed.block))
        self._effects.append(self._file, owed.block)
        self._live[self._file] = self._live.get(self._file, 0) + 1
        self._size += len(owed.block)
        self.bytes += len(owed.block)
        owed.unload()

    def fetch(self, owed: "Owed", done: Callable[[], None]) -> None:
        """Bring the block back into memory."""
        place = owed.place
        assert place is not None
        if owed.is_read:
            return
        owed.is_read = True

        def on_read(data: bytes | None, error: str | None) -> None:
            owed.is_read = False
            if owed.place is None:
                return  # it was given up meanwhile
            if data is None or len(data) != place.length:
                self._effects.stop(f"{place.file} cannot be read: {error or 'it is too short'}")
                return
            self.drop(owed)
            owed.load(data)
            done()

        self._read(*place, on_read)

    def drop(self, owed: "Owed") -> None:
        """A block is not needed on disk any more."""
        place, owed.place = owed.place, None
        if place is None:
            return
        self.bytes -= place.length
        self._live[place.file] -= 1
        if not self._live[place.file]:
            del self._live[place.file]
            self._effects.remove(place.file)
            if place.file == self._file:
                self._file = ""


class Detour(RemoteQueue):
    """Stands before a queue of this node for what its clients publish while it cannot commit."""

    def __init__(self, switch: "Switch", queue: Queue) -> None:
        super().__init__(switch, queue.vhost, queue.record, queue.settings)
        switch.remotes.pop(queue.record.id, None)
        self.successor = queue
        self._is_retired = True

    @property
    def is_open(self) -> bool:
        """May the queue take what waits here?"""
        return self.switch.detours.is_draining and super().is_open


class Waiting:
    """What waits on this node for a queue of its own: behind a detour, or behind the object that stood for
    the queue when it had another master, if that has publishes on disk.
    """

    def __init__(self, remote: RemoteQueue) -> None:
        self.remote = remote

    @property
    def position(self) -> Position:
        """What the confirm of everything that went this way waits for."""
        return (self.remote.log, self.remote.log.end)

    @property
    def has_unsent(self) -> bool:
        """Is something here that the queue has not been given?"""
        return self.remote.outgoing.has_unsent or bool(self.remote.core.pending)

    @property
    def can_send(self) -> bool:
        """Is the next of it in memory?"""
        return bool(self.remote.core.pending) or self.remote.outgoing.can_send

    def take(self, queue: Queue) -> None:
        """What clients have published to the queue goes behind what is here."""
        if queue.core.pending:
            self.remote.core.take_local(queue.core)
            self.remote.outgoing.take()


class Detours:
    """All of them."""

    def __init__(self, switch: "Switch") -> None:
        self._switch = switch
        self._made: dict[int, Waiting] = {}
        self.is_draining = False
        """Are queues being given what waits?"""

    def is_aside(self, queue_id: int) -> bool:
        """Do publishes to a queue here have to wait behind others that do?"""
        waiting = self._made.get(queue_id) or self._inherited(queue_id)
        return waiting is not None and waiting.has_unsent and not self.is_draining

    def _inherited(self, queue_id: int) -> Waiting | None:
        """The queue has come here. What its clients on this node published before is sent to it at once,
        but for what has to be read from disk: nothing that is published now may overtake that.
        """
        found = self._switch.link(self._switch.node.node_name).queues.get(queue_id)
        if found is None or isinstance(found, Detour) or not isinstance(found.successor, Queue):
            return None
        waiting = Waiting(found)
        if not waiting.has_unsent or waiting.can_send:
            return None
        self._made[queue_id] = waiting
        return waiting

    def is_over(self, queue: Queue) -> bool:
        """Is as much kept for a queue as may be? What is on disk counts only when that is full."""
        waiting = self._made.get(queue.record.id)
        if waiting is None or waiting.remote.record.log_id != queue.record.log_id:  # of the trunk of a branch
            return False
        return waiting.has_unsent and waiting.remote.link.is_over

    def divert(self, queue: Queue) -> Position | None:
        """A queue does not take publishes now: keep what clients of this node have sent to it, if this node
        is cut off, or if it has done so before and is not through with that.
        """
        if not queue.log.is_mirrored or not (self._is_stuck(queue) or self.is_aside(queue.record.id)):
            return None
        waiting = self._find(queue)
        if waiting is None:
            return None
        waiting.take(queue)
        return waiting.position

    def _find(self, queue: Queue) -> Waiting | None:
        own = self._switch.link(self._switch.node.node_name)
        queue_id = queue.record.id
        found, waiting = own.queues.get(queue_id), self._made.get(queue_id)
        if found is None:
            waiting = self._made[queue_id] = Waiting(Detour(self._switch, queue))
        elif waiting is None or waiting.remote is not found:
            # Another object that is not through yet: it sends at once, and publishes wait in the queue.
            # But not if it has to read first.
            return self._inherited(queue_id)
        return waiting

    def positions(self, queue: Queue) -> list[Position]:
        """What confirms of a queue wait for besides the queue itself."""
        waiting = self._made.get(queue.record.id)
        return [] if waiting is None else [waiting.position]

    @property
    def needs_pass(self) -> bool:
        """Can somebody be given more at once?"""
        return any(self._may_drain(waiting) and waiting.can_send for waiting in self._made.values())

    def _may_drain(self, waiting: Waiting) -> bool:
        queue = waiting.remote.successor
        return isinstance(queue, Queue) and not self._is_stuck(queue)

    def _is_stuck(self, queue: Queue) -> bool:
        """Can a queue here commit nothing, since this node is cut off and goes on all the same?"""
        copies = self._switch.node.copies
        return copies is not None and copies.is_aside(queue.record.id)

    def step(self) -> None:
        """Give queues that may commit again what waits for them; in order, and before what came since."""
        own = self._switch.link(self._switch.node.node_name)
        for queue_id, waiting in list(self._made.items()):
            remote = waiting.remote
            queue = remote.successor
            if own.queues.get(queue_id) is not remote:
                del self._made[queue_id]  # all of it is done, or another object has it
            elif isinstance(queue, Queue) and waiting.has_unsent and self._may_drain(waiting):
                waiting.take(queue)
                self.is_draining = True
                remote.turn()
                own.flush()
                self._switch.serve_own()
                queue.turn()
                self.is_draining = False
