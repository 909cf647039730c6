"""What the node wants done, in order; the driver drains it after every input.

Effects are per batch, never per message. The driver may reorder nothing: a flush covers every append before
it, a close comes after the bytes that were written before it.
"""

from typing import Any, Literal, NamedTuple

from mirrormq.cluster.etcd.api import Request

WorkKind = Literal["argon2_verify", "argon2_hash"]


class Write(NamedTuple):
    """Take the output of this connection and write it."""

    conn: int


class Close(NamedTuple):
    """Close this connection's socket once everything written has gone out."""

    conn: int


class Pause(NamedTuple):
    """Stop reading from this connection."""

    conn: int


class Resume(NamedTuple):
    """Read from this connection again."""

    conn: int


class Append(NamedTuple):
    """Append to a file of the data folder."""

    file: str
    data: bytes


class Flush(NamedTuple):
    """Make everything appended to a file durable, then report `disk_done(token)`."""

    file: str
    token: int


class Replace(NamedTuple):
    """Replace a file as a whole, durably, then report `disk_done(token)`."""

    file: str
    data: bytes | bytearray
    token: int


class Read(NamedTuple):
    """Read a part of a file, then report `disk_read(token, data, error)`."""

    file: str
    offset: int
    length: int
    token: int


class Remove(NamedTuple):
    """Remove a file."""

    file: str


class Work(NamedTuple):
    """Compute something off the loop (a password hash), then report `work_done(token, result)`."""

    token: int
    kind: WorkKind
    args: tuple[Any, ...]


class Note(NamedTuple):
    """Tell the operator."""

    level: str
    text: str
    fields: dict[str, object]


class Send(NamedTuple):
    """Send a frame to another node."""

    peer: str
    lane: int
    payload: bytes


class Cut(NamedTuple):
    """Close the link to another node, then report it as down."""

    peer: str
    reason: str


class Introduce(NamedTuple):
    """Open links, or go on with them, as this start of this data folder in this cluster (zeros: in none)."""

    identity: bytes
    start: int
    cluster: bytes


class Dial(NamedTuple):
    """Keep a link to the node at this address."""

    address: str


class Undial(NamedTuple):
    """Dial this address no more."""

    address: str


class AskEtcd(NamedTuple):
    """Ask etcd for something, then report `etcd_answer`."""

    request: Request


class Doors(NamedTuple):
    """Let clients in, or take no more."""

    is_open: bool


class Stop(NamedTuple):
    """End the process, with this reason."""

    reason: str


Effect = (
    Write
    | Close
    | Pause
    | Resume
    | Append
    | Flush
    | Replace
    | Read
    | Remove
    | Work
    | Note
    | Send
    | Cut
    | Introduce
    | Dial
    | Undial
    | AskEtcd
    | Doors
    | Stop
)


class Effects:
    """The node's outbox."""

    def __init__(self) -> None:
        self._items: list[Effect] = []

    def __len__(self) -> int:
        return len(self._items)

    def take(self) -> list[Effect]:
        """Everything wanted since the last call."""
        items, self._items = self._items, []
        return items

    def write(self, conn: int) -> None:
        """Bytes wait for this connection."""
        self._items.append(Write(conn))

    def close(self, conn: int) -> None:
        """Hang up after what was written."""
        self._items.append(Close(conn))

    def pause(self, conn: int) -> None:
        """Read no more from this connection."""
        self._items.append(Pause(conn))

    def resume(self, conn: int) -> None:
        """Read from this connection again."""
        self._items.append(Resume(conn))

    def append(self, file: str, data: bytes) -> None:
        """Append to a file."""
        self._items.append(Append(file, data))

    def flush(self, file: str, token: int) -> None:
        """Make a file durable."""
        self._items.append(Flush(file, token))

    def replace(self, file: str, data: bytes | bytearray, token: int) -> None:
        """Replace a file durably."""
        self._items.append(Replace(file, data, token))

    def read(self, file: str, offset: int, length: int, token: int) -> None:
        """Read a part of a file, as it is after everything appended so far."""
        self._items.append(Read(file, offset, length, token))

    def remove(self, file: str) -> None:
        """Remove a file."""
        self._items.append(Remove(file))

    def work(self, token: int, kind: WorkKind, args: tuple[Any, ...]) -> None:
        """Compute off the loop."""
        self._items.append(Work(token, kind, args))

    def note(self, level: str, text: str, **fields: object) -> None:
        """Tell the operator."""
        self._items.append(Note(level, text, fields))

    def send(self, peer: str, lane: int, payload: bytes) -> None:
        """Send a frame to another node."""
        self._items.append(Send(peer, lane, payload))

    def cut(self, peer: str, reason: str) -> None:
        """Close the link to another node."""
        self._items.append(Cut(peer, reason))

    def introduce(self, identity: bytes, start: int, cluster: bytes) -> None:
        """Show other nodes who this is."""
        self._items.append(Introduce(identity, start, cluster or bytes(16)))

    def dial(self, address: str) -> None:
        """Keep a link to an address."""
        self._items.append(Dial(address))

    def undial(self, address: str) -> None:
        """Dial an address no more."""
        self._items.append(Undial(address))

    def ask_etcd(self, request: Request) -> None:
        """Ask etcd for something."""
        self._items.append(AskEtcd(request))

    def doors(self, *, is_open: bool) -> None:
        """Let clients in, or take no more."""
        self._items.append(Doors(is_open))

    def stop(self, reason: str) -> None:
        """End the process."""
        self._items.append(Stop(reason))
