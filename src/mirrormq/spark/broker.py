"""What the source asks of a cluster, in the words of the source (docs/protocol/bulk.md).

Guarantee: everything here may be asked twice, and is: a node that dies, and a queue that has no master for a
moment or one whose mark has to catch up, end no query that could go on a little later.

A connection is made when it is needed and is not part of what Spark ships to its workers.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from mirrormq.client.bulk import BulkClient, BulkError, Gone, Target
from mirrormq.spark.offsets import Facts, Member, QueueName
from mirrormq.spark.options import Contact
from mirrormq.wire import bulk

T = TypeVar("T")
SAMPLE_BYTES = 256 * 1024
"""What is read on the driver to learn how large records are."""

RETRY_S = 20.0
"""How long the driver looks for a node that answers, and for a master while there is none."""

PAUSES_S = (0.05, 0.1, 0.2, 0.5)
"""Between two tries; the last one again and again."""

PASSING = frozenset((bulk.UNAVAILABLE, bulk.ELSEWHERE))
"""What a fail-over makes a node say, and what another answer follows soon."""

NOT_THERE = frozenset((bulk.DATA_LOSS, bulk.GONE, bulk.NOT_FOUND))
"""What was to be read is no more, or its queue is not."""


class SourceFailed(RuntimeError):
    """What a user is told."""


class QueueGone(SourceFailed):
    """There is no such queue."""


def target_of(contact: Contact, hosts: Sequence[tuple[str, int]], query: str) -> Target:
    """How to log in somewhere."""
    return Target(
        hosts=tuple(hosts),
        user=contact.user,
        password=contact.password,
        vhost=contact.vhost,
        tls=context_of(contact),
        product="mirrormq-spark",
        query=query or f"spark on {socket.gethostname()}, process {os.getpid()}",
        timeout_s=contact.timeout,
    )


def context_of(contact: Contact) -> ssl.SSLContext | None:
    """TLS as the options say."""
    tls = contact.tls
    if tls is None:
        return None
    context = ssl.create_default_context(cafile=tls.ca)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    return context


class Broker:
    """A cluster, through one of the hosts in the URL."""

    def __init__(self, contact: Contact, query: str = "", patience_s: float = RETRY_S) -> None:
        self._contact = contact
        self._query = query
        self._patience_s = patience_s
        self._client: BulkClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    @property
    def client(self) -> BulkClient:
        """The connection."""
        if self._client is None:
            target = target_of(self._contact, self._contact.hosts, self._query)
            self._client = BulkClient(target, retry_s=self._patience_s)
        return self._client

    def close(self) -> None:
        """End the connection."""
        if self._client is not None:
            self._client.close()

    @property
    def cluster(self) -> str:
        """The cluster's identity."""
        if not self.client.is_connected:
            self._ask("queues", queues=[])
        return str(self.client.welcome["cluster"])

    def facts(self, queues: Sequence[str], pattern: str | None) -> dict[QueueName, Facts]:
        """The queues that are read, by name."""
        asked: dict[str, Any] = {"queues": list(queues)} if pattern is None else {"pattern": pattern}
        found: dict[QueueName, Facts] = {}
        for row in self._ask("queues", **asked)["queues"]:
            if row.get("next") is None:
                if pattern is None:
                    why = row.get("why", "it has no log")
                    raise SourceFailed(f"queue '{row['queue']}' cannot be read: {why}")
                continue
            facts = facts_of(row)
            found[facts.vhost, facts.queue] = facts
        return found

    def seek(self, facts: Facts, micros: int) -> int:
        """The first publish received at this time or later."""
        answer = self._ask("seek", vhost=facts.vhost, queue=facts.queue, id=facts.id, time=micros)
        return int(answer["seq"])

    def records_in(self, facts: Facts, start: int, size: int) -> int:
        """About how many records behind `start` have so many bytes: from the size of the first ones.

        The broker's own index is sparse, and says nothing about a few records.
        """
        asked = {"id": facts.id, "start": start, "end": facts.next, "upto": facts.next, "relay": True}
        asked |= {"max_bytes": min(size, SAMPLE_BYTES), "live": start < facts.low}

        def sizes() -> int:
            return sum(map(len, self.client.read(vhost=facts.vhost, queue=facts.queue, **asked)))

        try:
            read = self._again(sizes)
        except BulkError as error:
            if error.code in NOT_THERE:
                return 1  # whoever reads it says what is lost, and whether that ends the query
            raise SourceFailed(f"queue '{facts.queue}' cannot be read: {error.text}") from None
        count = int(self.client.ended.get("position", facts.next)) - start
        return max(1, size * count // max(1, read))

    def open_cursor(self, name: QueueName, cursor: str, at: int | str, **more: str) -> dict[str, Any]:
        """Make a cursor, or take the one that is there."""
        return self._ask("cursor_open", vhost=name[0], queue=name[1], name=cursor, at=at, **more)

    def drop_cursor(self, name: QueueName, cursor: str) -> None:
        """Remove a cursor; one that is gone, maybe with its queue, is no error."""
        with contextlib.suppress(QueueGone):
            self._ask("cursor_drop", vhost=name[0], queue=name[1], name=cursor)

    def advance_cursor(self, name: QueueName, cursor: str, **more: Any) -> None:
        """Move a cursor forward."""
        self._ask("cursor_advance", vhost=name[0], queue=name[1], name=cursor, **more)

    def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        try:
            return self._again(lambda: self.client.call(op, **fields))
        except BulkError as error:
            if error.code == bulk.NOT_FOUND:
                raise QueueGone(error.text) from None
            raise

    def _again(self, ask: Callable[[], T]) -> T:
        """Ask until there is an answer; once more after a break in any case, however late it was noticed."""
        until = time.monotonic() + self._patience_s
        pauses = iter(PAUSES_S)
        was_connected = self.client.is_connected
        while True:
            try:
                return ask()
            except Gone as error:
                if not was_connected and time.monotonic() >= until:
                    hosts = ", ".join(f"{host}:{port}" for host, port in self._contact.hosts)
                    raise SourceFailed(f"no node answers at {hosts}: {error}") from None
                self.client.close()
                was_connected = False
            except BulkError as error:
                if error.code not in PASSING or time.monotonic() >= until:
                    raise
            threading.Event().wait(next(pauses, PAUSES_S[-1]))


def facts_of(row: dict[str, Any]) -> Facts:
    """One queue as a node describes it."""
    low = int(row["low"])
    return Facts(
        vhost=row["vhost"],
        queue=row["queue"],
        id=row["id"],
        first=int(row.get("first", low)),
        low=low,
        next=int(row["next"]),
        epochs=tuple((int(epoch), int(first)) for epoch, first in row.get("epochs", ())),
        members=tuple(_members(row.get("members", ()))),
    )


def _members(rows: Sequence[dict[str, Any]]) -> Iterator[Member]:
    for row in rows:
        host, _, port = (row.get("address") or "").rpartition(":")
        yield Member(
            node=row["node"],
            host=host.strip("[]"),
            port=int(port or 0),
            is_master=bool(row["is_master"]),
            may_serve=bool(row["in_sync"] and row["is_live"]),
        )
