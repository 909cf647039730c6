"""What the source asks of a cluster, in the words of the source (docs/protocol/bulk.md).

Everything here may be asked twice. A connection is made when it is needed and is not part of what Spark ships
to its workers.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator, Sequence
from typing import Any

from mirrormq.client.bulk import BulkClient, BulkError, Gone, Target
from mirrormq.spark.offsets import Facts, Member, QueueName
from mirrormq.spark.options import Contact

SAMPLE_BYTES = 256 * 1024
"""What is read on the driver to learn how large records are."""

RETRY_S = 20.0
"""How long the driver looks for a node that answers, and for a master while there is none."""


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

    def __init__(self, contact: Contact, query: str = "") -> None:
        self._contact = contact
        self._query = query
        self._client: BulkClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    @property
    def client(self) -> BulkClient:
        """The connection."""
        if self._client is None:
            target = target_of(self._contact, self._contact.hosts, self._query)
            self._client = BulkClient(target, retry_s=RETRY_S)
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
        read = 0
        for is_last in (False, True):
            try:
                read = sum(map(len, self.client.read(vhost=facts.vhost, queue=facts.queue, **asked)))
                break
            except Gone as error:
                if is_last:
                    raise SourceFailed(f"queue '{facts.queue}' cannot be read: {error}") from None
        count = int(self.client.ended.get("position", facts.next)) - start
        return max(1, size * count // max(1, read))

    def open_cursor(self, name: QueueName, cursor: str, at: int | str, **more: str) -> dict[str, Any]:
        """Make a cursor, or take the one that is there."""
        return self._ask("cursor_open", vhost=name[0], queue=name[1], name=cursor, at=at, **more)

    def drop_cursor(self, name: QueueName, cursor: str) -> None:
        """Remove a cursor; one that is gone is no error."""
        try:
            self._ask("cursor_drop", vhost=name[0], queue=name[1], name=cursor)
        except BulkError as error:
            if error.code != "gone":
                raise

    def advance_cursor(self, name: QueueName, cursor: str, **more: Any) -> None:
        """Move a cursor forward."""
        self._ask("cursor_advance", vhost=name[0], queue=name[1], name=cursor, **more)

    def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Ask once more if the connection broke: every operation used here may be done twice."""
        for is_last in (False, True):
            try:
                return self.client.call(op, **fields)
            except Gone as error:
                if is_last:
                    hosts = ", ".join(f"{host}:{port}" for host, port in self._contact.hosts)
                    raise SourceFailed(f"no node answers at {hosts}: {error}") from None
            except BulkError as error:
                if error.code == "not-found":
                    raise QueueGone(error.text) from None
                raise
        raise AssertionError


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
