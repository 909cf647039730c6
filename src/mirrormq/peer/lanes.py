"""What waits to be sent on one link, in two lanes of which control always goes first.

Guarantee: a control frame waits for at most what was handed out before it, never for what still waits here;
the window of the other end bounds how much bulk that can be in all buffers on the way. Neither lane grows
beyond its bound: `False` means not taken, and for bulk `Outgoing.has_room_again` says when to go on.

Bulk payloads are cut into chunks only when they leave, so a frame that comes late can still overtake. They
are referred to, not copied: nobody may change them after they were sent. Keepalives, grants and the goodbye
are kept as facts, of which only the last counts: a peer that asks for many answers without reading them must
not fill this node's memory.
"""

from collections import deque

from mirrormq.base import limits
from mirrormq.peer.framing import GRANT, HEAD_BYTES, PING, PONG, Data, Kind, frame, head_of

PIECES_MAX = 8
"""A chunk of more pieces than this is joined: many small pieces cost more than one copy."""


class Outgoing:
    """Both lanes of one link."""

    __slots__ = (
        "_bulk", "_control", "_goodbye", "_grant", "_limit", "_ping", "_pong", "_sent", "_was_full",
        "bulk_bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self._control = bytearray()
        self._bulk: deque[list[memoryview]] = deque()
        self.bulk_bytes = 0
        """Bulk bytes that wait here, with a frame's head for each payload: empty ones take space, too."""
        self._sent = 0
        self._limit = 0
        """How many bulk bytes the other end has granted since the link was opened."""
        self._was_full = False
        self._ping: bytes | None = None
        self._pong: bytes | None = None
        self._grant: bytes | None = None
        self._goodbye: bytes | None = None

    @property
    def is_full(self) -> bool:
        """Whether the bulk lane takes nothing more."""
        return self.bulk_bytes >= limits.peer_bulk_queue_bytes

    @property
    def control_bytes(self) -> int:
        """Control bytes that wait here."""
        return len(self._control)

    def control(self, payload: Data) -> bool:
        """Queue a control payload of at most one chunk; whether it was taken."""
        if len(self._control) >= limits.peer_control_queue_bytes:
            return False
        self._control += frame(Kind.CONTROL, payload)
        return True

    def bulk(self, parts: tuple[Data, ...]) -> bool:
        """Queue one bulk payload in pieces; whether it was taken."""
        if self.is_full:
            self._was_full = True
            return False
        views = [memoryview(part).cast("B") for part in parts]
        total = sum(map(len, views))
        assert total <= limits.peer_bulk_bytes_max, total
        self._bulk.append([view for view in views if view])
        self.bulk_bytes += total + HEAD_BYTES
        self._was_full = self._was_full or self.is_full
        return True

    def granted(self, limit: int) -> None:
        """The other end takes bulk up to this many bytes; a grant is never taken back."""
        self._limit = max(self._limit, limit)

    def grant(self, limit: int) -> None:
        """Let the other end send bulk up to this many bytes."""
        self._grant = frame(Kind.GRANT, GRANT.pack(limit))

    def ping(self, mono: int) -> None:
        """Ask for a sign of life."""
        self._ping = frame(Kind.PING, PING.pack(mono))

    def pong(self, echo: int, wall: int) -> None:
        """Give a sign of life."""
        self._pong = frame(Kind.PONG, PONG.pack(echo, wall))

    def goodbye(self, reason: str) -> None:
        """Say why the link ends; bulk that still waits goes no more."""
        self._goodbye = frame(Kind.GOODBYE, reason.encode()[: limits.peer_reason_bytes_max])
        self._bulk.clear()
        self.bulk_bytes = 0

    def has_room_again(self) -> bool:
        """Whether the bulk lane was full and is half empty by now; tells it once."""
        if self._was_full and self.bulk_bytes <= limits.peer_bulk_queue_bytes // 2:
            self._was_full = False
            return True
        return False

    def take(self) -> list[Data]:
        """Hand out what goes next: all of the control lane, then some chunks; empty if there is nothing."""
        first = self._take_control()
        taken: list[Data] = [first] if first else []
        room = limits.peer_write_bytes - len(first)
        while self._bulk and room > 0:
            size = self._take_chunk(taken)
            if size < 0:
                break
            room -= size + HEAD_BYTES
        return taken

    def _take_control(self) -> bytearray:
        first = bytearray()
        if self._pong is not None or self._ping is not None or self._grant is not None:
            for fact in (self._pong, self._ping, self._grant):
                first += fact or b""
            self._pong = self._ping = self._grant = None
        if self._control:
            first += self._control
            self._control = bytearray()
        if self._goodbye is not None:
            first += self._goodbye
            self._goodbye = None
        return first

    def _take_chunk(self, taken: list[Data]) -> int:
        """Cut the next chunk; returns its size, or -1 if the other end has granted nothing more."""
        views = self._bulk[0]
        credit = self._limit - self._sent
        if not credit and views:
            return -1
        room = size = min(limits.peer_chunk_bytes, credit)
        pieces: list[Data] = []
        used = 0
        for view in views:
            piece = view[:room]
            pieces.append(piece)
            room -= len(piece)
            if len(piece) < len(view):
                views[used] = view[len(piece) :]
                break
            used += 1
            if not room:
                break
        del views[:used]
        size -= room
        if len(pieces) > PIECES_MAX:
            pieces = [b"".join(pieces)]
        taken.append(head_of(pieces, size, has_more=bool(views)))
        taken += pieces
        if not views:
            self._bulk.popleft()
            self.bulk_bytes -= HEAD_BYTES
        self._sent += size
        self.bulk_bytes -= size
        return size
