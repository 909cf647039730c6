"""Password hashes with argon2id, computed on a thread of their own.

argon2 is imported at the first hash, not at start: most starts need none. Nothing here raises: a hash that
cannot be checked is one that does not fit.
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

HASH_BYTES = 32
SALT_BYTES = 16


class Cost(NamedTuple):
    """What one new hash costs, in argon2's words m, t and p."""

    memory_kib: int
    passes: int
    lanes: int


def hash_work(kind: str, args: tuple[Any, ...]) -> Any:
    """Do one piece of work of the node: `argon2_verify` gives a bool, `argon2_hash` the encoded hash."""
    if kind == "argon2_verify":
        return is_match(*args)
    assert kind == "argon2_hash", kind
    return make_hash(args[0], Cost(*args[1:]))


def make_hash(password: str, cost: Cost) -> str:
    """Hash a new password under a salt of its own."""
    from argon2.low_level import Type, hash_secret

    return hash_secret(
        password.encode(),
        secrets.token_bytes(SALT_BYTES),
        time_cost=cost.passes,
        memory_cost=cost.memory_kib,
        parallelism=cost.lanes,
        hash_len=HASH_BYTES,
        type=Type.ID,
    ).decode("ascii")


def is_match(stored: str, password: bytes) -> bool:
    """Check a password against an encoded hash; one that cannot be read matches nothing."""
    from argon2.exceptions import Argon2Error
    from argon2.low_level import Type, verify_secret

    try:
        return verify_secret(stored.encode("ascii"), password, Type.ID)
    except (Argon2Error, ValueError):
        return False
