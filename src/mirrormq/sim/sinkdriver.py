"""A driver of a sink in a simulated cluster: it stages and commits batch after batch, over any connection.

It behaves as Spark's writers do: tasks are run twice or given up in the middle, a batch whose commit was not
answered is done again, by the same transactions or by new ones. Each row says by which attempt it was sent,
so that the world can tell in the end that every batch came from one commit.
"""

import random
import struct
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from mirrormq.sim.model import Violation
from mirrormq.sim.timeline import SECOND
from mirrormq.wire import bulk
from mirrormq.wire.bulk import Frame, FrameBuffer

if TYPE_CHECKING:
    from mirrormq.sim.clusternode import SimNode
    from mirrormq.sim.sinkworld import SinkWorld

TARGETS = ("first", "second", "plain")
"""Queues that are always there."""
DOOMED = "doomed"
"""A queue that is deleted and declared again and again."""
PARTITIONS = 3
PATIENCE_US = 25 * SECOND
SEND, PAUSE = "send", "pause"
_ROW = struct.Struct("<IBHHI")
_DURABLE = b"\x10\x00\x02"

Fields = dict[str, Any]
Step = tuple[str, int, list[bytes]]
"""What a driver does next: sends frames and waits for an answer to a request, or rests for so long."""
Attempt = Generator[Step, Frame, None]


class FrameReader:
    """Puts the node's output together."""

    def __init__(self) -> None:
        self._frames = FrameBuffer()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """What is complete with these bytes."""
        self._frames.feed(data)
        while (frame := self._frames.next()) is not None:
            yield frame


class Refused(Exception):
    """A request was answered with an error."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def rows_of(seed: int, sink: str, batch: int, partition: int) -> list[str]:
    """Where the rows of a task go, in order: the same whenever it is run."""
    rng = random.Random(f"{seed}/{sink}/{batch}/{partition}")
    return [rng.choice((*TARGETS, *TARGETS, DOOMED)) for _ in range(rng.randrange(7))]


class Driver:
    """One sink and whoever writes to it."""

    def __init__(self, world: "SinkWorld", name: str) -> None:
        self.world = world
        self.name = name
        self.batch = 0
        """The batch that is to be committed next."""
        self.is_ending = False
        self.offers: dict[int, list[dict[int, int]]] = {}
        """What commits were asked for: by batch, the attempt of each partition."""
        self._attempts = 0
        self._is_doomed_avoided = False
        self._home: SimNode | None = None
        self._life = 0
        self._conn = 0
        self._request = 0
        self._awaited = 0
        self._since = 0
        self._rest_until = 0
        self._is_committing = self._is_resting = False
        self._work: Attempt | None = None

    @property
    def is_idle(self) -> bool:
        """Has it stopped between two batches? Of one whose commit was asked for it has to hear."""
        return self.is_ending and self._work is None and self.batch not in self.offers

    # --- connections ---

    def act(self) -> None:
        """Go on if nothing is waited for; begin anew if the other end is gone."""
        world = self.world
        home = self._home
        is_lost = home is not None and (home.life != self._life or world.now - self._since > PATIENCE_US)
        # A commit whose answer nobody hears is where it matters most.
        impatience = 0.15 if self._awaited and self._is_committing else 0.01
        if is_lost or (home is not None and world.rng.random() < impatience):
            self._drop()
        if world.now < self._rest_until:
            return
        if self._work is None:
            if not self.is_idle:
                self._begin()
        elif self._is_resting:
            self._advance(None)

    def _begin(self) -> None:
        homes = [node for node in self.world.nodes.values() if node.is_open and not node.is_paused]
        if not homes:
            return
        if self._home is None:
            self._home = home = self.world.rng.choice(homes)
            self._life, self._conn = home.life, self.world.next_conn()
            self.world.say(f"{self.name} connects to {home.name}")
            home.connect(self._conn, self._hear, FrameReader())
            home.send(self._conn, bulk.HEADER)
            self._work = self._logged_in()
        else:
            self._work = self._attempt()
        self._advance(None)

    def _drop(self) -> None:
        """The connection ends; what was under way may or may not have happened."""
        if self._home is not None:
            self._home.hang_up(self._conn)
        self._home, self._work, self._awaited = None, None, 0

    def _hear(self, frame: Frame) -> None:
        self.world.whisper(repr((self.name, frame.kind, frame.request, bytes(frame.body))).encode())
        if frame.kind == bulk.PING and self._home is not None:
            self._home.send(self._conn, bulk.encode(bulk.PONG, frame.request))
        elif frame.request and frame.request == self._awaited:
            self._awaited = 0
            conn = self._conn
            # Not inside the pass of the node that answers.
            self.world.after(0, lambda: self._advance(frame) if conn == self._conn else None)

    def _advance(self, frame: Frame | None) -> None:
        work = self._work
        if work is None or self._home is None:
            return
        try:
            kind, request, frames = next(work) if frame is None else work.send(frame)
        except StopIteration:
            self._work = None
            return
        except Refused as error:
            self.world.say(f"{self.name}: {error.code}: {error.text}")
            # Any of these may be answered while masters come and go; nothing else may.
            if error.code not in {bulk.UNAVAILABLE, bulk.GONE, bulk.NOT_FOUND}:
                raise Violation(f"{self.name}: {error.code}: {error.text}") from None
            self._work, self._rest_until = None, self.world.now + SECOND // 4
            return
        self._since = self.world.now
        self._is_resting = kind == PAUSE
        if kind == PAUSE:
            self._rest_until = self.world.now + request
        else:
            self._awaited = request
            for data in frames:
                self._home.send(self._conn, data)

    def _call(self, op: str, **fields: Any) -> Step:
        self._request += 1
        self._is_committing = op == "commit_set"
        self.world.say(f"{self.name}: {op} {fields}")
        return SEND, self._request, [bulk.encode(bulk.CALL, self._request, {"op": op, **fields})]

    # --- what it does ---

    def _logged_in(self) -> Attempt:
        _answer((yield self._call("login", user="guest", password="guest", vhost="/")))
        yield from self._attempt()

    def _attempt(self) -> Attempt:
        """Commit the batch that is next, unless it is committed."""
        rng, batch = self.world.rng, self.batch
        last = _answer((yield self._call("sink_open", sink=self.name)))["last"]
        if (-1 if last is None else last) < batch - 1:
            raise Violation(
                f"{self.name}: batch {batch - 1} was told to be committed; now the last is {last}"
            )
        if last is not None and last >= batch:
            self._committed()
            return
        offered, txs = {}, []
        for partition in range(PARTITIONS):
            for _ in range(rng.choice((1, 1, 1, 2))):
                attempt, tx = yield from self._staged(partition)
            offered[partition] = attempt
            txs.append(tx)
        if rng.random() < 0.1:
            yield PAUSE, rng.choice((1_000, SECOND)), []
        self.offers.setdefault(batch, []).append(offered)
        while True:
            wait = rng.choice((0, 0, 5))
            answer = _answer(
                (yield self._call("commit_set", sink=self.name, batch=batch, txs=txs, wait=wait))
            )
            if answer["state"] == "committed" and self.batch > batch:
                raise Violation(f"{self.name}: batch {batch} is committed twice")
            if self.batch == batch:
                self._committed()
            if rng.random() < 0.8:
                return

    def _committed(self) -> None:
        self.world.on_batch(self)
        self.batch += 1
        self._is_doomed_avoided = False

    def _staged(self, partition: int) -> Generator[Step, Frame, tuple[int, str]]:
        """(attempt, transaction) of a task that has come to its end."""
        rng = self.world.rng
        while True:
            self._attempts += 1
            attempt = self._attempts
            rows = self._rows(partition, attempt)
            fields = {"sink": self.name, "batch": self.batch, "partition": partition}
            tx = _answer((yield self._call("stage", **fields)))["tx"]
            data = b"".join(rows)
            cut = rng.randrange(len(data) + 1)
            parts = [
                bulk.head(bulk.DATA, self._request, len(part)) + part for part in (data[:cut], data[cut:])
            ]
            if rng.random() < 0.05:  # the task dies in the middle
                yield SEND, self._request, [parts[0], bulk.encode(bulk.CANCEL, self._request)]
                continue
            try:
                end = bulk.encode(bulk.END, self._request, {})
                _answer((yield SEND, self._request, [*parts, end]))
            except Refused as error:
                if DOOMED not in error.text:
                    raise
                self._is_doomed_avoided = True
                continue
            return attempt, tx

    def _rows(self, partition: int, attempt: int) -> list[bytes]:
        found = []
        for at, key in enumerate(rows_of(self.world.seed, self.name, self.batch, partition)):
            if key != DOOMED or not self._is_doomed_avoided:
                body = f"{self.name}/{self.batch}/{partition}/{at}/{attempt}/".encode()
                found.append(_row(key.encode(), body + bytes((at * 37) % 400)))
        return found


def _row(key: bytes, body: bytes) -> bytes:
    rest = key + _DURABLE + body
    return _ROW.pack(_ROW.size - 4 + len(rest), 0, 0, len(key), len(_DURABLE)) + rest


def _answer(frame: Frame) -> Fields:
    fields = bulk.decode(frame.body)
    if frame.kind == bulk.ERROR:
        raise Refused(fields["code"], fields["text"])
    return fields
