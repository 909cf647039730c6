"""Forms in which a password is kept: RabbitMQ's salted digests, and argon2id for passwords set here.

RabbitMQ's: base64 of a 4-byte salt and the digest of salt + password. They are fast to check and fast to
guess, so they are accepted from imported definitions and not made for new users. argon2id costs memory and
time by intent and is therefore computed off the loop (`authenticator`); its stored form is the encoded string
`$argon2id$...`.
"""

import base64
import binascii
import hashlib
import hmac

ARGON2ID = "argon2id"
SHA256 = "rabbit_password_hashing_sha256"
SHA512 = "rabbit_password_hashing_sha512"
MD5 = "rabbit_password_hashing_md5"

_DIGESTS = {SHA256: "sha256", SHA512: "sha512", MD5: "md5"}
_SALT_BYTES = 4

ALGORITHMS = (SHA256, SHA512, MD5, ARGON2ID)


def algorithm_of(password_hash: str) -> str:
    """The algorithm of a stored hash of unknown origin; none for an account that no password opens."""
    if password_hash.startswith("$argon2id$"):
        return ARGON2ID
    return SHA256 if password_hash else ""


def salted_hash(password: bytes, salt: bytes, algorithm: str = SHA256) -> str:
    """Hash a password as RabbitMQ does."""
    assert len(salt) == _SALT_BYTES, len(salt)
    return base64.b64encode(salt + _digest(password, salt, algorithm)).decode("ascii")


def is_salted_match(password: bytes, stored: str, algorithm: str) -> bool:
    """Check a password against one of RabbitMQ's salted digests, in constant time."""
    try:
        raw = base64.b64decode(stored, validate=True)
    except binascii.Error:
        return False
    if algorithm not in _DIGESTS or len(raw) <= _SALT_BYTES:
        return False
    salt, digest = raw[:_SALT_BYTES], raw[_SALT_BYTES:]
    return hmac.compare_digest(digest, _digest(password, salt, algorithm))


def decoy_hash(*, memory_kib: int, passes: int, lanes: int) -> str:
    """An argon2id string that no password matches and that costs as much to check as a real one."""
    salt = base64.b64encode(b"no such user....").rstrip(b"=").decode("ascii")
    digest = base64.b64encode(b"nobody knows the password of it.").rstrip(b"=").decode("ascii")
    return f"$argon2id$v=19$m={memory_kib},t={passes},p={lanes}${salt}${digest}"


def _digest(password: bytes, salt: bytes, algorithm: str) -> bytes:
    return hashlib.new(_DIGESTS[algorithm], salt + password, usedforsecurity=False).digest()
