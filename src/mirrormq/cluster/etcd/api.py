"""What is asked of etcd, and what it answers: the little of its v3 API that is used here.

Every request has a token that its answer names. A request whose answer says that it failed may have been
carried out all the same: whoever asked finds out by what the keys say.
"""

from msgspec import Struct


class KeyValue(Struct, frozen=True, gc=False):
    """A key as it is. `mod`: the revision that wrote it last, 0 of a key that is not there."""

    key: bytes
    value: bytes
    mod: int
    lease: int = 0


class Guard(Struct, frozen=True, gc=False):
    """A transaction happens only if this key was last written by this revision (0: it is not there)."""

    key: bytes
    mod: int


class Put(Struct, frozen=True, gc=False):
    """Write a key; it goes with the lease, if there is one."""

    key: bytes
    value: bytes
    lease: int = 0


class Get(Struct, frozen=True, gc=False):
    """Read a key, or all from `key` to before `end`, in their order."""

    key: bytes
    end: bytes = b""
    limit: int = 0
    is_bare: bool = False
    """Keys without their values."""


class Delete(Struct, frozen=True, gc=False):
    """Remove a key, or all from `key` to before `end`."""

    key: bytes
    end: bytes = b""


Operation = Put | Get | Delete


class Txn(Struct, frozen=True):
    """Do `then` if all guards hold, otherwise the rest. What only reads sees all that was acknowledged."""

    token: int
    guards: tuple[Guard, ...]
    then: tuple[Operation, ...]
    otherwise: tuple[Operation, ...] = ()


class Grant(Struct, frozen=True):
    """Make a lease."""

    token: int
    seconds: int


class Renew(Struct, frozen=True):
    """Let a lease run from now on for as long as it did in the beginning."""

    token: int
    lease: int


class Revoke(Struct, frozen=True):
    """End a lease, and remove the keys that go with it."""

    token: int
    lease: int


class Watch(Struct, frozen=True):
    """Tell every change from `key` to before `end`, beginning with `revision`; ends an earlier watch."""

    token: int
    key: bytes
    end: bytes
    revision: int


Request = Txn | Grant | Renew | Revoke | Watch


class TxnDone(Struct, frozen=True):
    """What a transaction found, one tuple for each operation that was done (of those that read)."""

    token: int
    is_done: bool
    """The guards held."""
    revision: int
    found: tuple[tuple[KeyValue, ...], ...]


class Granted(Struct, frozen=True):
    """A lease, which may run for longer than was asked for."""

    token: int
    lease: int
    seconds: int


class Renewed(Struct, frozen=True):
    """The lease runs for this long from some moment after it was asked for; 0: it is gone."""

    token: int
    seconds: int


class Revoked(Struct, frozen=True):
    """The lease is gone."""

    token: int


class Failed(Struct, frozen=True):
    """No answer, or none that helps."""

    token: int
    reason: str


class Change(Struct, frozen=True, gc=False):
    """A key was written, or removed by the revision that `mod` names."""

    is_put: bool
    kv: KeyValue


class Seen(Struct, frozen=True):
    """Changes, in their order; a watch that was just begun may tell that with none."""

    token: int
    changes: tuple[Change, ...]


class WatchLost(Struct, frozen=True):
    """The watch has ended, or what it should have begun with is not kept any more."""

    token: int
    reason: str


Answer = TxnDone | Granted | Renewed | Revoked | Failed
Tidings = Seen | WatchLost
