"""What clients of a cluster were told: definitions made and deleted, messages sent and received.

The history knows nothing of nodes. It says whether the definitions that are there in the end can be explained
by one order of what was asked for, in which whatever was answered before something else was asked stands
before that; and which messages must have arrived.
"""

from dataclasses import dataclass

from mirrormq.sim.model import Violation, number_of
from mirrormq.wire.properties import Properties, encode_properties

NEVER = 1 << 62
KNOWN_US = 1_000
"""What is answered faster was not agreed on with other nodes."""
LAG_US = 15_000_000
"""A node may route by definitions that others have changed, as long as it has a lease and a little longer."""
PUT, DELETE, EMPTY = "put", "delete", "empty"


@dataclass(slots=True, eq=False)
class Op:
    """A change of one definition that somebody asked for."""

    kind: str
    start: int
    end: int = NEVER
    """When it was answered: before then, and for ever if it is not, it may happen at any time."""
    is_sure: bool = False
    may_be_known: bool = False
    """A node that finds it done already answers at once, by definitions that others may have changed."""

    def answered(self, now: int, read_at: int = 0, pass_us: int = 0) -> None:
        """It has happened, or was found done by a node that may be behind: one that has read it at that time,
        and whose pass takes so long.
        """
        self.end = now
        self.is_sure = not self.may_be_known or now - max(self.start, read_at) > KNOWN_US + 2 * pass_us


@dataclass(slots=True, eq=False)
class Sent:
    """One publish."""

    number: int
    queue: str
    publisher: int
    at: int
    is_persistent: bool
    size: int
    confirmed_at: int = NEVER
    is_returned: bool = False
    deliveries: int = 0
    fresh: int = 0
    """Deliveries that said they were the first."""

    @property
    def body(self) -> bytes:
        """A body that names its message all over."""
        word = b"%d/" % self.number
        return (word * (self.size // len(word) + 1))[: max(self.size, len(word))]

    @property
    def properties(self) -> bytes:
        """Raw properties."""
        return encode_properties(
            Properties(delivery_mode=2 if self.is_persistent else None, message_id=str(self.number))
        )


def queue_key(name: str) -> str:
    """A queue in the history."""
    return f"queue {name}"


def exchange_key(name: str) -> str:
    """An exchange in the history."""
    return f"exchange {name}"


def binding_key(exchange: str, queue: str) -> str:
    """A binding in the history."""
    return f"binding {exchange} {queue}"


class History:
    """Everything clients did and heard."""

    def __init__(self) -> None:
        self.ops: dict[str, list[Op]] = {}
        self.sent: dict[int, Sent] = {}
        self.confirms = 0
        self.answers = 0
        self.deliveries = 0
        self._last: dict[tuple[int, str, int], int] = {}
        """Number of the last first delivery by publisher, queue and receiver."""

    # --- definitions ---

    def begin(self, kind: str, key: str, now: int) -> Op:
        """Somebody asks for something."""
        # Queues that exist are asked for at their master, and bindings always agreed on.
        op = Op(kind, now, may_be_known=kind == DELETE or key.startswith("exchange "))
        self.ops.setdefault(key, []).append(op)
        return op

    def lose_queue(self, name: str, now: int) -> Op:
        """The disk of a queue's master is gone: the queue may be deleted from now on."""
        return self.begin(DELETE, queue_key(name), now)

    def check_definition(self, key: str, *, is_there: bool) -> None:
        """Can the end of this definition's history be explained?"""
        ops = self._ops_on(key)
        puts = [op for op in ops if op.kind == PUT]
        deletes = [op for op in ops if op.kind == DELETE]
        if is_there:
            is_explained = any(
                not any(other.is_sure and other.start > put.end for other in deletes) for put in puts
            )
        else:
            is_explained = not any(put.is_sure for put in puts) or any(
                not any(other.is_sure and other.start > delete.end for other in puts) for delete in deletes
            )
        if not is_explained:
            told = "; ".join(f"{op.kind} {op.start}-{op.end if op.is_sure else '?'}" for op in ops[-8:])
            raise Violation(f"{key} is {'there' if is_there else 'not there'} in the end: {told}")

    def _ops_on(self, key: str) -> list[Op]:
        """What changes a definition; a binding goes with its ends."""
        ops = list(self.ops.get(key, ()))
        if key.startswith("binding "):
            _, exchange, queue = key.split(" ")
            for end in (exchange_key(exchange), queue_key(queue)):
                ops += [op for op in self.ops.get(end, ()) if op.kind == DELETE]
        return ops

    # --- messages ---

    def publish(self, message: Sent) -> None:
        """A message is sent."""
        self.sent[message.number] = message

    def confirm(self, number: int, now: int) -> None:
        """A publish was acknowledged."""
        self.confirms += 1
        self.sent[number].confirmed_at = now

    def deliver(self, queue: str, receiver: int, body: bytes, *, is_marked: bool) -> Sent:
        """A client got a message."""
        number = number_of(body)
        message = self.sent.get(number) if number is not None else None
        if message is None or message.body != body:
            raise Violation(f"{queue}: a message nobody sent: {body[:40]!r}")
        self.deliveries += 1
        message.deliveries += 1
        if message.queue != queue:
            raise Violation(f"{queue}: message {number} was sent to {message.queue}")
        if message.is_returned:
            raise Violation(f"{queue}: message {number} was returned, and is delivered")
        if is_marked:
            return message
        message.fresh += 1
        if message.fresh > 1:
            raise Violation(f"{queue}: message {number} was delivered as new {message.fresh} times")
        lane = (message.publisher, queue, receiver)
        if message.number < self._last.get(lane, 0):
            raise Violation(f"{queue}: message {number} was delivered after {self._last[lane]}")
        self._last[lane] = message.number
        return message

    def check_messages(self) -> int:
        """Everything that had to arrive has arrived; returns how many that were."""
        owed = 0
        for message in self.sent.values():
            if message.confirmed_at == NEVER or not message.is_persistent or message.is_returned:
                continue
            removals = [op for op in self.ops.get(queue_key(message.queue), ()) if op.kind != PUT]
            if any(op.end >= message.at - LAG_US for op in removals):
                continue
            owed += 1
            if not message.deliveries:
                raise Violation(f"{message.queue}: message {message.number} was confirmed and is lost")
        return owed

    def check_drained(self, message: Sent, now: int) -> None:
        """What was in a queue when that was deleted does not come back."""
        for op in self.ops.get(queue_key(message.queue), ()):
            if op.kind == DELETE and op.is_sure and message.confirmed_at < op.start and op.end < now:
                raise Violation(f"{message.queue}: message {message.number} is back after a deletion")
