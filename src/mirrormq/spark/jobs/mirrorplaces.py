"""The two ends of a mirror: the cluster that is followed, and the vhost that follows it.

Guarantees
- Sources are asked in the order they were given; the first that answers is taken.
- Nothing is written into a vhost that is no mirror of the source, or was promoted, nor is anything forwarded
  to a cluster that it has come from.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from mirrormq.client.bulk import BulkClient, BulkError, Gone
from mirrormq.client.sink import Sink
from mirrormq.spark.broker import facts_of, target_of
from mirrormq.spark.jobs.frame import JobFailed
from mirrormq.spark.jobs.mirrordefinitions import Definitions, pieces
from mirrormq.spark.offsets import Facts, Position
from mirrormq.spark.options import Contact, read_options
from mirrormq.spark.urls import in_vhost
from mirrormq.wire.bulk import UNAVAILABLE

QUERY = "mirrormq pipeline mirror"
RETRY_S = 20.0
FIRST_S = 3.0
"""How long a source is looked for before the next one is."""
PAUSE_S = 0.1
EVERYWHERE = "/"
"""Where to log in to make a vhost that is not there yet."""


class Unreachable(Exception):
    """Nobody answers; the text says who was asked."""


class Promoted(JobFailed):
    """The target is no mirror any more."""


def split_urls(text: str) -> list[str]:
    """URLs with commas between them; hosts within one are separated by commas, too."""
    return [part.strip() for part in re.split(r",(?=\s*amqps?://)", text) if part.strip()]


class Place:
    """A vhost of a cluster."""

    def __init__(self, options: Mapping[str, str], retry_s: float = RETRY_S) -> None:
        self.options = dict(options)
        self.contact: Contact = read_options({**options, "queue": "-"}).contact
        self.vhost = self.contact.vhost
        self._retry_s = retry_s
        self._client: BulkClient | None = None

    @property
    def text(self) -> str:
        """Its address."""
        return ", ".join(f"{host}:{port}" for host, port in self.contact.hosts)

    @property
    def client(self) -> BulkClient:
        """The connection."""
        if self._client is None:
            self._client = BulkClient(
                target_of(self.contact, self.contact.hosts, QUERY), retry_s=self._retry_s
            )
        return self._client

    def close(self) -> None:
        """End the connection."""
        if self._client is not None:
            self._client.close()

    def connect(self) -> None:
        """Log in."""
        try:
            self.client.connect()
        except Gone as error:
            raise Unreachable(f"no node answers at {self.text}: {error}") from None

    @property
    def cluster(self) -> str:
        """The cluster's id."""
        self.connect()
        return str(self.client.welcome["cluster"])

    @property
    def cluster_name(self) -> str:
        """The cluster's name."""
        self.connect()
        return str(self.client.welcome.get("cluster_name") or "")

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Ask, once more if the connection broke."""
        for is_last in (False, True):
            try:
                return self.client.call(op, **{"vhost": self.vhost, **fields})
            except Gone as error:
                if is_last:
                    raise Unreachable(f"no node answers at {self.text}: {error}") from None
            except BulkError as error:
                if error.code != UNAVAILABLE:
                    raise
                raise Unreachable(f"{self.text}: {error.text}") from None
        raise AssertionError

    def definitions(self) -> dict[str, Any]:
        """The definition file of the vhost."""
        for is_last in (False, True):
            try:
                return dict(json.loads(b"".join(self.client.stream("definitions", vhost=self.vhost))))
            except Gone as error:
                if is_last:
                    raise Unreachable(f"no node answers at {self.text}: {error}") from None
        raise AssertionError

    def queues(self) -> dict[str, Facts]:
        """The queues that have a log, by name."""
        rows = self.ask("queues", pattern=".*")["queues"]
        return {row["queue"]: facts_of(row) for row in rows if row.get("next") is not None}

    def chain(self) -> list[str]:
        """The clusters its messages have come through: itself first, last the one they were published in."""
        found = self.ask("vhost")
        further = [*found.get("via", ()), found["mirror_of"]] if found.get("mirror_of") else []
        return [self.cluster, *further]


class Source(Place):
    """What is followed."""

    def held_from(self, queue: str, cursor: str) -> int | None:
        """Where a cursor stands; None if there is none that holds everything from there on."""
        rows = self.ask("cursor_list", queue=queue)["cursors"]
        found = next((row for row in rows if row["name"] == cursor), None)
        if found is not None and found["lost"]:
            self.release(queue, cursor)
        return None if found is None or found["lost"] else int(found["seq"])

    def hold(self, facts: Facts, cursor: str) -> int:
        """Make a cursor that holds everything that happens from now on; where it stands."""
        answer = self.ask("cursor_open", queue=facts.queue, id=facts.id, name=cursor, at=facts.next)
        return int(answer["seq"])

    def release(self, queue: str, cursor: str) -> None:
        """Let go of what a cursor holds; one that is gone is no error."""
        try:
            self.ask("cursor_drop", queue=queue, name=cursor)
        except BulkError as error:
            if error.code != "not-found":
                raise


def first_source(found: Sequence[Source], say: Callable[[str], None]) -> Source:
    """The first that answers."""
    problems = []
    for at, source in enumerate(found):
        try:
            source.connect()
        except Unreachable as error:
            problems.append(str(error))
            if at + 1 < len(found):
                say(f"{error}; asking the next source, {found[at + 1].text}")
            continue
        return source
    raise Unreachable("; ".join(problems))


class Target(Place):
    """The mirror."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self.mirror_of = ""

    def begin(self, source: Source, *, was_mirror: bool) -> bool:
        """Have a vhost that mirrors the source; was it made just now? Raises if there cannot be one."""
        there = self._look()
        try:
            return self._begin(there, source, was_mirror=was_mirror)
        finally:
            if there is not self:
                there.close()

    def _begin(self, there: Place, source: Source, *, was_mirror: bool) -> bool:
        chain = source.chain()
        if there.cluster in chain:
            way = " from ".join(chain)
            raise JobFailed(
                f"vhost '{source.vhost}' at {source.text} holds what comes from this cluster itself "
                f"({way}): it is not forwarded to where it came from"
            )
        found = there.ask("vhost", vhost=self.vhost)
        root, via = chain[-1], chain[:-1]
        self.mirror_of = found.get("mirror_of") or root
        if found["exists"]:
            self._check(found, source, chain, was_mirror=was_mirror)
        if not found["exists"] or found["via"] != via:
            there.ask("mirror_vhost", vhost=self.vhost, mirror_of=self.mirror_of, via=via)
        if there is not self:
            self._enter()
        return not found["exists"]

    def _check(self, found: dict[str, Any], source: Source, chain: list[str], *, was_mirror: bool) -> None:
        if not found["mirror_of"]:
            if was_mirror:
                raise self.promoted()
            raise JobFailed(
                f"vhost '{self.vhost}' at {self.text} exists and is no mirror: name one in --url that does "
                "not exist yet"
            )
        names = {chain[-1]} | ({source.cluster_name} if len(chain) == 1 else set())
        if found["mirror_of"] not in names:
            raise JobFailed(
                f"vhost '{self.vhost}' at {self.text} mirrors '{found['mirror_of']}', and the messages at "
                f"{source.text} come from '{chain[-1]}': name another vhost in --url"
            )

    def _look(self) -> Place:
        """Log in, elsewhere if the vhost is not there yet."""
        try:
            self.connect()
        except BulkError as refused:
            if self.vhost == EVERYWHERE:
                raise
            # Whoever names another vhost than that has given an address.
            other = Place({**self.options, "url": in_vhost(self.options["url"], EVERYWHERE)})
            try:
                other.connect()
                is_there = other.ask("vhost", vhost=self.vhost)["exists"]
            except BulkError as error:
                other.close()
                raise JobFailed(f"vhost '{self.vhost}' cannot be made: {error.text}") from None
            if is_there:
                other.close()
                raise JobFailed(f"vhost '{self.vhost}' at {self.text}: {refused.text}") from None
            return other
        return self

    def _enter(self) -> None:
        """Log in to a vhost that was just made: a node may hear of it a moment later."""
        until = time.monotonic() + self._retry_s
        while True:
            try:
                self.connect()
                return
            except BulkError:
                if time.monotonic() >= until:
                    raise
                threading.Event().wait(PAUSE_S)

    def check(self) -> None:
        """Raise if it was promoted."""
        found = self.ask("vhost")
        if found["exists"] and not found["mirror_of"]:
            raise self.promoted()

    def promoted(self) -> Promoted:
        """What is said about it."""
        return Promoted(
            f"vhost '{self.vhost}' at {self.text} was promoted: it is no mirror any more, and this job does "
            "not write into it; to mirror again, name a new vhost in --url"
        )

    def messages(self, names: Collection[str]) -> int:
        """How many these queues hold."""
        rows = self.ask("queues", pattern=".*")["queues"]
        return sum(int(row["messages"]) for row in rows if row["queue"] in names)

    def define(self, definitions: Definitions) -> None:
        """Make what is missing."""
        for piece in pieces(definitions):
            self.ask("define", definitions=piece, origin=self.mirror_of)

    def undefine(self, definitions: Definitions) -> None:
        """Remove what is too much."""
        for piece in pieces(definitions, is_reversed=True):
            self.ask("undefine", definitions=piece, origin=self.mirror_of)

    def settle(self, sinks: Sequence[str], told: Callable[[int], None]) -> None:
        """Wait until everything that these sinks have committed has arrived.

        Rows of two sinks may overtake each other, and a copy that comes after a later one counts as known.
        """
        for name in sinks:
            while (waiting := self._waiting(name)) > 0:
                told(waiting)
                threading.Event().wait(PAUSE_S)

    def _waiting(self, sink: str) -> int:
        try:
            return int(Sink(self.client, sink).state()["waiting"])
        except BulkError as error:
            if error.code == "not-found":
                return 0
            raise
        except Gone as error:
            raise Unreachable(f"no node answers at {self.text}: {error}") from None


def has_diverged(seq: int, epoch: int, facts: Facts) -> bool:
    """Has a queue another history than when the record before `seq` was of this epoch?

    A node that was not in sync has become its master: seqs are used again, for other messages.
    """
    now = facts.epoch_at(min(seq, facts.next) - 1)
    if not epoch or not now:
        return False
    return now > epoch or (seq <= facts.next and now != epoch)


def positions_of(offset: Mapping[str, Any] | None) -> dict[str, Position]:
    """Where a stream stands, by queue."""
    from mirrormq.spark.offsets import read_offsets

    return {} if offset is None else {name[1]: at for name, at in read_offsets(offset).queues.items()}
