"""What clients were promised: the reference a simulated node is compared with.

The model knows nothing of logs. It knows what was sent, confirmed, delivered and settled, and says of every
message in every queue whether it must be there, may be there, or must not. Where AMQP promises nothing (an
acknowledgement nobody confirmed, a publish nobody confirmed) it allows both.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mirrormq.wire.properties import Properties, decode_properties, encode_properties

LIVE, MAYBE, GONE = 0, 1, 2
"""Removal of an entry: none asked for; asked for, so it may be there or not; committed, so it must not
come back.
"""


class Violation(AssertionError):
    """A promise was broken."""


class QueueSpec(NamedTuple):
    """How a queue of the world is declared."""

    name: str
    durable: bool = True
    arguments: dict[str, Any] = {}  # noqa: RUF012
    in_fanout: bool = False

    @property
    def ttl_us(self) -> int | None:
        """The queue's time to live."""
        ttl = self.arguments.get("x-message-ttl")
        return None if ttl is None else ttl * 1000

    @property
    def drops_at(self) -> int | None:
        """The length above which the head is dropped."""
        drops = self.arguments.get("x-overflow", "drop-head") == "drop-head"
        return self.arguments.get("x-max-length") if drops else None

    @property
    def letters_to(self) -> str | None:
        """The queue that gets the dead letters."""
        return self.arguments.get("x-dead-letter-routing-key")


SPECS = (
    QueueSpec("plain", in_fanout=True),
    QueueSpec("ranked", arguments={"x-max-priority": 5}, in_fanout=True),
    QueueSpec("short-lived", arguments={"x-message-ttl": 2000}),
    QueueSpec("dropping", arguments={"x-max-length": 20}),
    QueueSpec("refusing", arguments={"x-max-length": 15, "x-overflow": "reject-publish"}),
    QueueSpec(
        "work",
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
        in_fanout=True,
    ),
    QueueSpec("come-and-go"),
    QueueSpec("dead"),
    QueueSpec("fleeting", durable=False),
)


@dataclass(slots=True, eq=False)
class Message:
    """One publish. Body and properties follow from the fields, so that what comes back can be checked
    alone.
    """

    number: int
    persistent: bool
    priority: int
    ttl_us: int | None
    size: int
    sent_wall: int
    publisher: int

    @property
    def body(self) -> bytes:
        """A body that names its message all over."""
        word = b"%d/" % self.number
        return (word * (self.size // len(word) + 1))[: max(self.size, len(word))]

    @property
    def properties(self) -> bytes:
        """Raw properties, some of each kind."""
        return encode_properties(
            Properties(
                delivery_mode=2 if self.persistent else None,
                priority=self.priority or None,
                expiration=None if self.ttl_us is None else str(self.ttl_us // 1000),
                message_id=str(self.number),
                headers={"n": self.number, "text": "ä" * (self.number % 7)} if self.number % 3 else None,
                correlation_id="c" * (self.number % 11) or None,
            )
        )


def number_of(body: bytes) -> int | None:
    """The message a body names; None if it is none of ours."""
    digits = body.split(b"/", 1)[0]
    return int(digits) if digits.isdigit() else None


@dataclass(slots=True, eq=False)
class Entry:
    """One message in one queue."""

    message: Message
    index: int
    """Position among everything sent to the queue."""
    ahead: int
    """Publishes to the queue that were sent earlier and might be taken later."""
    sure: bool = False
    """Confirmed, or found after a power failure: it must be there unless removed."""
    removal: int = LIVE
    delivered: bool = False
    """Ever handed to a client."""
    marked_in: tuple[int, int] | None = None
    """(pass, client) of the first delivery, if that said it was a repetition."""
    recovered: bool = False
    """In the queue since before the last restart."""
    deliveries: int = 0
    refused: bool = False
    is_letter: bool = False
    fuzzy: bool = False
    """More than one copy may exist (a letter that died twice across a crash)."""


@dataclass(slots=True)
class ModelQueue:
    """What may be in one queue."""

    spec: QueueSpec
    entries: dict[int, Entry] = field(default_factory=dict)
    is_up: bool = False
    """declare-ok came in this life of the node and nobody asked for its end since."""
    is_sure: bool = False
    """Its existence was promised."""
    may_exist: bool = False
    is_bound: bool = False
    """bind-ok came: what is sent to the fanout exchange reaches it."""
    is_auto: bool = False
    """Somebody consumes without acknowledgements: what is on its way to him counts as delivered."""
    sent: int = 0
    last_first: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """Highest index delivered as new, per publisher, priority and receiver."""
    was_touched: bool = False
    """Anybody ever consumed from it: marking as redelivered may overshoot."""
    unconfirmed: int = 0
    ends: int = 0
    """How often somebody asked for its end."""

    def add(self, message: Message, *, by_binding: bool = False) -> Entry:
        """A publish was sent to the queue."""
        entry = Entry(message, self.sent, self.unconfirmed)
        self.sent += 1
        self.unconfirmed += 1
        self.entries[message.number] = entry
        if not self.is_sure or (by_binding and not self.is_bound):
            entry.removal = MAYBE
        return entry

    def ask_end(self) -> None:
        """Someone asked for the queue's end: everything may be gone."""
        self.is_up = self.is_sure = self.is_bound = False
        self.ends += 1
        for entry in self.entries.values():
            entry.removal = max(entry.removal, MAYBE)

    def forget_promises(self) -> None:
        """A power failure may have taken whatever was not flushed, and nobody had waited for a flush."""
        for entry in self.entries.values():
            entry.sure = entry.delivered = False
            entry.removal = min(entry.removal, MAYBE)

    def declared(self) -> None:
        """declare-ok came."""
        self.is_up = self.is_sure = True

    def ended(self, sure_before: list[Entry]) -> None:
        """The end is committed: what was surely in the queue before must not come back."""
        for entry in sure_before:
            entry.removal = GONE

    def may_be_missing(self, entry: Entry, max_wall: int) -> bool:
        """Could the node rightly not have this entry any more?"""
        if entry.removal != LIVE or entry.fuzzy or entry.refused or not entry.sure or self.is_auto:
            return True
        if self.may_have_expired(entry, max_wall):
            return True
        limit = self.spec.drops_at
        return limit is not None and self.sent - entry.index - 1 + entry.ahead >= limit

    def may_have_expired(self, entry: Entry, max_wall: int) -> bool:
        """Has its time run out by any clock the node has seen?"""
        # Letters lose their expiration.
        own = None if entry.is_letter else entry.message.ttl_us
        times = [ttl for ttl in (own, self.spec.ttl_us) if ttl is not None]
        return bool(times) and max_wall >= entry.message.sent_wall + min(times)

    def may_have_died(self, entry: Entry, max_wall: int) -> bool:
        """Could it have become a dead letter without a client rejecting it?"""
        return self.may_have_expired(entry, max_wall)


class Found(NamedTuple):
    """A message as a queue gave it out."""

    properties: bytes
    body: bytes
    redelivered: bool
    exchange: str
    routing_key: str


def check_content(queue: ModelQueue, message: Message, found: Found, *, is_letter: bool) -> None:
    """Nothing about the message may have changed."""
    if found.body != message.body:
        raise Violation(f"{queue.spec.name}: the body of message {message.number} changed")
    if not is_letter and found.properties != message.properties:
        raise Violation(f"{queue.spec.name}: the properties of message {message.number} changed")
    if is_letter:
        properties = decode_properties(found.properties)
        if properties.message_id != str(message.number) or "x-death" not in (properties.headers or {}):
            raise Violation(f"{queue.spec.name}: letter {message.number} lost its properties")
