"""What must be true of a group after every event, seen from outside all nodes."""

from collections.abc import Mapping
from typing import Protocol

from mirrormq.cluster.identity import Identity
from mirrormq.cluster.raft.entries import encoded_configuration, is_configuration
from mirrormq.cluster.raft.membership import decode_configuration
from mirrormq.cluster.raft.raft import Raft
from mirrormq.kernel.crc32c import crc32c
from mirrormq.sim.model import Violation


class Checked(Protocol):
    """A node of any world; `raft` is None while its process is down."""

    name: str
    life: int
    removed: list[int]
    """Where this life was told that it was removed."""
    is_refused: bool
    """Whether this life was told that its folder is refused."""

    @property
    def raft(self) -> Raft | None:
        """Its Raft."""
        ...

    @property
    def mono(self) -> int:
        """Its clock."""
        ...

    @property
    def identity(self) -> Identity:
        """Who its folder says it is."""
        ...

    def take_applied(self) -> list[tuple[int, str]]:
        """Indices applied since the last call, each with a fingerprint of the state after it."""
        ...


class _Seen:
    """What one life of a node has shown."""

    def __init__(self, life: int, raft: Raft) -> None:
        self.life = life
        self.term = 0
        self.commit = raft.commit_index
        self.led_term = 0
        self.applied: list[tuple[int, str]] = []


class Checker:
    """Remembers what was ever true and must stay so."""

    def __init__(self, nodes: Mapping[str, Checked]) -> None:
        """Nothing has happened."""
        self._nodes = nodes
        self.leaders: dict[int, str] = {}
        self.committed: dict[int, tuple[int, int, int]] = {}
        """index -> (term, checksum of the data, term in which it was committed)."""
        self.starts: dict[str, set[tuple[bytes, bytes]]] = {}
        """Every folder and start that was ever recorded for a name."""
        self.configurations: dict[int, dict[str, bytes]] = {}
        """Identities of the members, by the index where that is committed."""
        self.chains: dict[int, str] = {}
        self.last_committed = 0
        self._seen: dict[str, _Seen] = {}

    def check(self, node: Checked) -> None:
        """Look at a node after something happened to it."""
        raft = node.raft
        if raft is None:
            return
        seen = self._seen.get(node.name)
        if seen is None or seen.life != node.life:
            seen = self._seen[node.name] = _Seen(node.life, raft)
        if raft.term < seen.term:
            raise Violation(f"{node.name}: term {raft.term} after {seen.term}")
        seen.term = raft.term
        self._check_commit(node, raft, seen)
        self._check_applied(node, raft, seen)
        if raft.is_leader and seen.led_term != raft.term:
            seen.led_term = raft.term
            self._check_leader(node, raft)
        self._check_removed(node)
        self._check_leases(node)

    def _check_removed(self, node: Checked) -> None:
        """Who is told that it was removed was removed: a configuration without it is committed there."""
        for index in node.removed:
            members = self.configurations.get(index)
            if members is None or node.identity.identity in members.values():
                raise Violation(f"{node.name} is told that entry {index} removed it, which has {members}")
        if node.is_refused and not self._has_better(node):
            raise Violation(f"{node.name} is told that its folder is refused, but there was no other")

    def _has_better(self, node: Checked) -> bool:
        """Was another folder of that name recorded, or a start that this folder does not know?"""
        mine, tokens = node.identity.identity, node.identity.tokens
        return any(
            folder != mine or (token and token not in tokens)
            for folder, token in self.starts.get(node.name, ())
        )

    def _check_leader(self, node: Checked, raft: Raft) -> None:
        other = self.leaders.setdefault(raft.term, node.name)
        if other != node.name:
            raise Violation(f"{other} and {node.name} both lead in term {raft.term}")
        for index, (term, crc, in_term) in self.committed.items():
            if in_term >= raft.term or index <= raft.log.base_index:
                continue
            if index > raft.log.last_index:
                raise Violation(f"{node.name} leads term {raft.term} without committed entry {index}")
            entry = raft.log.entry(index)
            if (entry.term, crc32c(entry.data)) != (term, crc):
                raise Violation(f"{node.name} leads term {raft.term} with another entry {index}")

    def _check_commit(self, node: Checked, raft: Raft, seen: _Seen) -> None:
        if raft.commit_index < seen.commit:
            raise Violation(f"{node.name}: commit {raft.commit_index} after {seen.commit}")
        for index in range(max(seen.commit, raft.log.base_index) + 1, raft.commit_index + 1):
            entry = raft.log.entry(index)
            found = (entry.term, crc32c(entry.data))
            known = self.committed.setdefault(index, (*found, raft.term))
            if is_configuration(entry.data):
                config = decode_configuration(encoded_configuration(entry.data), index)
                self.configurations[index] = {member.name: member.identity for member in config.members}
                for member in config.members:
                    self.starts.setdefault(member.name, set()).add((member.identity, member.token))
            if known[:2] != found:
                raise Violation(f"{node.name}: entry {index} is {found}, but {known} was committed")
        seen.commit = raft.commit_index
        self.last_committed = max(self.last_committed, raft.commit_index)

    def _check_applied(self, node: Checked, raft: Raft, seen: _Seen) -> None:
        seen.applied += node.take_applied()
        if not seen.applied:
            return
        # With one voter what is applied may still be lost: it counts when it is durable.
        durable = [one for one in seen.applied if one[0] <= raft.durable_index]
        seen.applied = [one for one in seen.applied if one[0] > raft.durable_index]
        for index, chain in durable:
            if self.chains.setdefault(index, chain) != chain:
                raise Violation(f"{node.name}: another state after entry {index}")

    def _check_leases(self, looked_at: Checked) -> None:
        """What the newest leader says is over is over.

        Either side acts on it in its own passes only: after one of the leader all others are looked at, after
        one of another node that node.
        """
        leader, term = self._newest_leader()
        # One of an older term is deposed without knowing it: nothing it says can be committed.
        if leader is None or leader.raft is None or term < max(self.leaders, default=0):
            return
        for node in self._nodes.values() if looked_at is leader else (looked_at,):
            raft = node.raft
            if node is leader or raft is None:
                continue
            mono = node.mono
            until = raft.lease_until(mono)
            if until > mono and leader.raft.lease_over(node.name, leader.mono, node.identity.start):
                raise Violation(
                    f"{leader.name} (term {term}) says the lease of {node.name} is over,"
                    f" which has {until - mono} us left in term {raft.term}"
                )

    def _newest_leader(self) -> tuple[Checked | None, int]:
        leader, term = None, -1
        for one in self._nodes.values():
            raft = one.raft
            if raft is not None and raft.term > term and raft.is_leader:
                leader, term = one, raft.term
        return leader, term
