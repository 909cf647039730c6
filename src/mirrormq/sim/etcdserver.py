"""An etcd in memory: transactions, leases and watches as the real one has them, and only what is used.

Guarantee: revisions rise by one with each transaction that changes something; a watch gets every change from
its revision on, in order, or is told that it is lost; keys go with their leases.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mirrormq.cluster.etcd import api

SECOND = 1_000_000


@dataclass
class Lease:
    """How long it runs, when it ends, and what goes with it."""

    seconds: int
    until: int
    keys: set[bytes] = field(default_factory=set)


class EtcdServer:
    """All keys there are."""

    def __init__(self) -> None:
        self.revision = 1
        self.keys: dict[bytes, api.KeyValue] = {}
        self.leases: dict[int, Lease] = {}
        self.history: list[tuple[int, api.Change]] = []
        self.compacted = 0
        """Changes up to this revision are not kept."""
        self._last_lease = 100

    def pass_time(self, now: int) -> None:
        """Let leases end."""
        for number, lease in list(self.leases.items()):
            if now >= lease.until:
                self._end(number)

    def handle(self, now: int, request: api.Request) -> api.Answer:
        """Carry out a request."""
        self.pass_time(now)
        if isinstance(request, api.Txn):
            return self._txn(request)
        if isinstance(request, api.Grant):
            self._last_lease += 1
            self.leases[self._last_lease] = Lease(request.seconds, now + request.seconds * SECOND)
            return api.Granted(request.token, self._last_lease, request.seconds)
        assert isinstance(request, api.Renew | api.Revoke)
        lease = self.leases.get(request.lease)
        if isinstance(request, api.Revoke):
            if lease is not None:
                self._end(request.lease)
            return api.Revoked(request.token)
        if lease is None:
            return api.Renewed(request.token, 0)
        lease.until = now + lease.seconds * SECOND
        return api.Renewed(request.token, lease.seconds)

    def changes(self, watch: api.Watch, since: int, most: int) -> list[tuple[int, api.Change]] | None:
        """Up to so many changes (and the rest of a revision) after one; None: they are not kept."""
        first = max(watch.revision, since + 1)
        if first <= self.compacted:
            return None
        found: list[tuple[int, api.Change]] = []
        for revision, change in self.history:
            if revision < first or not watch.key <= change.kv.key < watch.end:
                continue
            if len(found) >= most and found[-1][0] != revision:
                break
            found.append((revision, change))
        return found

    def compact(self, revision: int) -> None:
        """Keep no changes up to a revision."""
        self.compacted = max(self.compacted, min(revision, self.revision))
        self.history = [one for one in self.history if one[0] > self.compacted]

    def _txn(self, txn: api.Txn) -> api.Answer:
        is_done = all(self._mod(guard.key) == guard.mod for guard in txn.guards)
        operations = txn.then if is_done else txn.otherwise
        puts = [operation for operation in operations if isinstance(operation, api.Put)]
        if any(put.lease and put.lease not in self.leases for put in puts):
            return api.Failed(txn.token, "requested lease not found")
        assert len({put.key for put in puts}) == len(puts), "duplicate key given in txn request"
        assert len(operations) <= 128, "too many operations in txn request"
        size = sum(len(put.key) + len(put.value) for put in puts)
        assert size <= 1_500_000, "request is too large"
        revision = self.revision + 1
        found = tuple(self._operate(revision, operation) for operation in operations)
        return api.TxnDone(txn.token, is_done, self.revision, found)

    def _mod(self, key: bytes) -> int:
        found = self.keys.get(key)
        return found.mod if found is not None else 0

    def _operate(self, revision: int, operation: api.Operation) -> tuple[api.KeyValue, ...]:
        if isinstance(operation, api.Put):
            self._put(revision, operation)
            return ()
        end = operation.end or operation.key + b"\0"
        names = sorted(key for key in self.keys if operation.key <= key < end)
        if isinstance(operation, api.Delete):
            for key in names:
                self._delete(revision, key)
            return ()
        if operation.limit:
            names = names[: operation.limit]
        if operation.is_bare:
            return tuple(api.KeyValue(key, b"", self.keys[key].mod) for key in names)
        return tuple(self.keys[key] for key in names)

    def _put(self, revision: int, put: api.Put) -> None:
        self.revision = revision
        self._detach(put.key)
        kv = self.keys[put.key] = api.KeyValue(put.key, put.value, revision, put.lease)
        if put.lease:
            self.leases[put.lease].keys.add(put.key)
        self.history.append((revision, api.Change(True, kv)))

    def _delete(self, revision: int, key: bytes) -> None:
        self.revision = revision
        self._detach(key)
        del self.keys[key]
        self.history.append((revision, api.Change(False, api.KeyValue(key, b"", revision))))

    def _detach(self, key: bytes) -> None:
        old = self.keys.get(key)
        if old is not None and old.lease in self.leases:
            self.leases[old.lease].keys.discard(key)

    def _end(self, number: int) -> None:
        lease = self.leases.pop(number)
        revision = self.revision + 1
        for key in sorted(lease.keys):
            self._delete(revision, key)
