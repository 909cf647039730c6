"""Who belongs to the group, and in which role.

Guarantee: two configurations that follow each other have majorities with a voter in common, because a change
touches the role of one node and the next change waits until this one is committed. A configuration counts
from the moment it stands in a node's log, committed or not.

A member is named with the identity of its data folder and the token of its last recorded start, so that a
folder that is new, or older than what the group remembers, is refused (`cluster/identity.py`). A witness
votes and stores the log like any voter; it stands for election only if nobody else does for a while.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from mirrormq.base import limits

VOTER = "voter"
NON_VOTER = "non-voter"
WITNESS = "witness"
ROLES = (VOTER, NON_VOTER, WITNESS)

FORMAT = 1


class BadConfiguration(Exception):
    """The bytes are no configuration this version can read."""


class ChangeRefused(Exception):
    """A change of membership that makes no sense; the text says why."""


class Member(Struct, frozen=True, array_like=True):
    """A node of the group. `start` counts the starts of its data folder, `token` is that of the last."""

    name: Annotated[str, Meta(min_length=1, max_length=limits.short_string_bytes_max)]
    identity: Annotated[bytes, Meta(max_length=16)]
    role: str
    start: int = 0
    token: Annotated[bytes, Meta(max_length=16)] = b""


class Configuration(Struct, frozen=True):
    """The members, by name, and the index of the entry that says so (0: none does)."""

    members: tuple[Member, ...] = ()
    index: int = 0
    voters: tuple[str, ...] = ()
    """Who votes, witnesses included. Follows from the members."""

    def __post_init__(self) -> None:
        """Work out once what is asked for in every pass."""
        voters = tuple(member.name for member in self.members if member.role != NON_VOTER)
        msgspec.structs.force_setattr(self, "voters", voters)

    @property
    def names(self) -> tuple[str, ...]:
        """Everybody."""
        return tuple(member.name for member in self.members)

    def find(self, name: str) -> Member | None:
        """The member of that name."""
        return next((member for member in self.members if member.name == name), None)

    def role_of(self, name: str) -> str | None:
        """Its role, None if it is no member."""
        member = self.find(name)
        return member.role if member else None

    def is_voter(self, name: str) -> bool:
        """Does it vote?"""
        return self.role_of(name) in (VOTER, WITNESS)

    def put(self, member: Member) -> "Configuration":
        """Add a member, or replace the one of the same name."""
        rest = [other for other in self.members if other.name != member.name]
        return Configuration(tuple(sorted([*rest, member], key=lambda one: one.name)), self.index)

    def without(self, name: str) -> "Configuration":
        """Leave one out."""
        return Configuration(tuple(one for one in self.members if one.name != name), self.index)

    def at(self, index: int) -> "Configuration":
        """The same, written at `index`."""
        return Configuration(self.members, index)


def quorum(count: int) -> int:
    """How many of `count` voters are a majority."""
    return count // 2 + 1


def majority_value(values: list[int]) -> int:
    """The highest value that a majority has reached."""
    assert values
    return sorted(values, reverse=True)[quorum(len(values)) - 1]


class Change(Struct, frozen=True):
    """One step: `role` None removes the node, otherwise it gets that role (and joins, if it is new)."""

    name: str
    role: str | None
    identity: bytes = b""


def changed(configuration: Configuration, change: Change) -> Configuration:
    """The configuration after one step; raises `ChangeRefused`."""
    member = configuration.find(change.name)
    if change.role is None:
        if member is None:
            raise ChangeRefused(f"{change.name} is no member")
        after = configuration.without(change.name)
    elif change.role not in ROLES:
        raise ChangeRefused(f"there is no role {change.role!r}")
    elif member is None:
        if change.role != NON_VOTER:
            raise ChangeRefused(f"{change.name} joins as a {NON_VOTER} and is promoted when it has caught up")
        if len(configuration.members) >= limits.raft_members_max:
            raise ChangeRefused(f"the group has {len(configuration.members)} members")
        return configuration.put(Member(change.name, change.identity, NON_VOTER))
    elif change.identity not in (b"", member.identity):
        raise ChangeRefused(f"{change.name} is a member with another identity: remove it first")
    else:
        after = configuration.put(msgspec.structs.replace(member, role=change.role))
    if not any(one.role == VOTER for one in after.members):
        raise ChangeRefused(f"{change.name} is the only voter that is no witness")
    return after


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Member, ...])


def encode_configuration(configuration: Configuration) -> bytes:
    """A version byte and the members."""
    return bytes((FORMAT,)) + _encoder.encode(configuration.members)


def decode_configuration(data: bytes, index: int) -> Configuration:
    """Read what `encode_configuration` wrote; raises `BadConfiguration`."""
    if data[:1] != bytes((FORMAT,)):
        raise BadConfiguration(f"format {data[:1].hex()} is unknown here")
    try:
        members = _decoder.decode(data[1:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfiguration(str(error)) from error
    unknown = [member.role for member in members if member.role not in ROLES]
    if unknown:
        raise BadConfiguration(f"role {unknown[0]!r} is unknown here")
    return Configuration(members, index)
