"""The back ends of `Coordination`, with one and with three nodes: the embedded Raft, and etcd (simulated)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirrormq.cluster.coordination import Coordination
from mirrormq.sim.etcdworld import EtcdWorld
from mirrormq.sim.metaworld import MetaWorld
from tests.unit.cluster.contract import CoordinationContract


class SimulatedGroup:
    """Nodes of a simulated world without faults."""

    _world: MetaWorld | EtcdWorld

    @property
    def names(self) -> list[str]:
        return list(self._world.nodes)

    def node(self, name: str) -> Coordination:
        return self._world.nodes[name].metadata

    def until(self, is_so: Callable[[], bool]) -> None:
        self._world.until(is_so)

    def settle(self) -> None:
        self._world.until(self._is_quiet)

    def change_leader(self) -> None:
        leader = self._world.leader
        others = [name for name in self.names if name != leader.name]
        if others:
            self._world.until(lambda: leader.raft.transfer(self._world.now, others[0]))
            self._world.until(lambda: self._world.nodes[others[0]].raft.is_leader)

    def _is_quiet(self) -> bool:
        raise NotImplementedError


def names(size: int) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in range(1, size + 1))


class RaftGroup(SimulatedGroup):
    """Nodes that agree by the embedded Raft."""

    def __init__(self, size: int) -> None:
        self._world: MetaWorld = MetaWorld(names=names(size))

    def _is_quiet(self) -> bool:
        nodes = self._world.nodes.values()
        last = {node.raft.log.last_index for node in nodes}
        return len(last) == 1 and all(
            node.metadata.is_idle and node.raft.applied_index in last and node.raft.leader for node in nodes
        )


class TestEmbeddedRaft(CoordinationContract):
    @pytest.fixture(params=[1, 3], ids=["one-node", "three-nodes"])
    def group(self, request: pytest.FixtureRequest) -> RaftGroup:
        return RaftGroup(request.param)


class EtcdGroup(SimulatedGroup):
    """Nodes that agree by a simulated etcd."""

    def __init__(self, size: int) -> None:
        self._world: EtcdWorld = EtcdWorld(names=names(size))

    def _is_quiet(self) -> bool:
        nodes = self._world.nodes.values()
        last = {node.raft.applied_index for node in nodes}
        return len(last) == 1 and self._world.is_whole() and all(node.metadata.is_idle for node in nodes)


class TestEtcd(CoordinationContract):
    @pytest.fixture(params=[1, 3], ids=["one-node", "three-nodes"])
    def group(self, request: pytest.FixtureRequest) -> EtcdGroup:
        return EtcdGroup(request.param)
