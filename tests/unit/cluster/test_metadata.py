"""Definitions on several nodes: proposed anywhere, applied everywhere, once and in order."""

from __future__ import annotations

import msgspec
import pytest

from mirrormq.cluster.metadata import BadEnvelope, Metadata, MetaMachine
from mirrormq.cluster.raft.raft import Myself, Raft
from mirrormq.meta import commands, records
from mirrormq.meta.state import MetaState
from mirrormq.meta.store import MetaStore
from mirrormq.sim.machine import SeededRng
from mirrormq.sim.metaworld import MetaWorld, ReadingDisk
from mirrormq.sim.model import Violation

NO_COMMAND = msgspec.msgpack.encode([msgspec.msgpack.encode(["n2", 1, 1, b"\x80"])])


def vhosts(cluster: MetaWorld, name: str) -> list[str]:
    return list(cluster.nodes[name].state.vhosts)


def all_done(cluster: MetaWorld) -> bool:
    return all(heard for heard in cluster.done.values())


@pytest.mark.parametrize("name", ["n1", "n2", "n3"])
def test_what_any_node_proposes_is_applied_on_all(name: str) -> None:
    cluster = MetaWorld()
    cluster.propose(name, "orders")
    cluster.until(lambda: all_done(cluster))
    assert [outcome.ok for outcome in cluster.done["orders"]] == [True]
    cluster.settle()
    assert [vhosts(cluster, each) for each in cluster.nodes] == [["orders"]] * 3


def test_a_proposal_that_breaks_a_rule_is_refused_where_it_was_made() -> None:
    cluster = MetaWorld()
    heard: list = []
    bad = commands.DeclareExchange(records.Exchange("missing", "x", type="direct"))
    cluster.nodes["n2"].metadata.propose(bad, heard.append)
    cluster.until(lambda: bool(heard))
    assert (heard[0].ok, heard[0].error) == (False, "no_vhost")


def test_proposals_wait_for_a_leader_and_are_applied_in_order() -> None:
    cluster = MetaWorld()
    leader = cluster.leader.name
    others = [name for name in cluster.nodes if name != leader]
    cluster.crash(leader)
    for number in range(20):
        cluster.propose(others[0], f"v{number:02}")
    cluster.until(lambda: all_done(cluster))
    assert vhosts(cluster, others[0]) == [f"v{number:02}" for number in range(20)]
    assert all(len(heard) == 1 for heard in cluster.done.values())


def test_a_minority_applies_nothing_and_catches_up_when_it_is_back() -> None:
    cluster = MetaWorld()
    leader = cluster.leader.name
    follower = next(name for name in cluster.nodes if name != leader)
    for other in cluster.nodes:
        if other != follower:
            cluster.cut(follower, other)
    cluster.propose(follower, "alone")
    cluster.propose(leader, "together")
    cluster.settle(3_000)
    assert cluster.done["together"]
    assert not cluster.done["alone"]
    assert vhosts(cluster, follower) == []
    for other in list(cluster.nodes):
        if other != follower:
            cluster.connect(follower, other)
    cluster.until(lambda: all_done(cluster))
    cluster.settle()
    assert vhosts(cluster, leader) == vhosts(cluster, follower) == ["together", "alone"]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_breaks_each_proposal_is_applied_once_and_told_once(seed: int) -> None:
    cluster = MetaWorld(seed=seed)
    cluster.run()


class Forgetful(MetaMachine):
    """Applies whatever comes, however often it came before."""

    def apply(self, index: int, command: bytes) -> object:
        node, start, _, _ = msgspec.msgpack.decode(command)
        self.state.put(records.Session(node, start, msgspec.msgpack.decode(command)[2] - 1))
        self.state.take_changes()
        return super().apply(index, command)


class WithoutSessions(Metadata):
    machine_class = Forgetful


def test_the_world_notices_a_state_that_forgets_what_it_has_applied() -> None:
    worlds = [MetaWorld(seed, make_metadata=WithoutSessions) for seed in range(20)]
    with pytest.raises(Violation):
        all(world.run() is None for world in worlds)


def test_the_folder_of_a_single_node_goes_on_as_a_group_with_one_voter() -> None:
    disk = ReadingDisk()
    old = MetaStore(MetaState(), disk)
    old.recover(disk)
    for name in ("a", "b"):
        old.propose(commands.PutVHost(records.VHost(name)), lambda _: None)
    old.commit()
    while (token := disk.finish_next()) is not None:
        old.flushed(token)
    state = MetaState()
    me = Myself("n1", b"i" * 16, 1, (b"t" * 16,))
    metadata = Metadata(
        state, ("n1", 1), lambda machine: Raft(me, machine, disk, SeededRng("x")), lambda *_: None
    )
    metadata.raft.start(1_000_000, disk)
    heard: list = []
    metadata.propose(commands.PutVHost(records.VHost("c")), heard.append)
    for _ in range(20):
        metadata.end_pass(1_000_000)
        if (token := disk.finish_next()) is not None:
            metadata.raft.disk_done(1_000_000, token)
    assert list(state.vhosts) == ["a", "b", "c"]
    assert heard[0].ok


def test_with_one_voter_a_proposal_is_applied_before_the_flush_and_told_after_it() -> None:
    cluster = MetaWorld(names=("n1",))
    cluster.settle()
    node = cluster.nodes["n1"]
    cluster.propose("n1", "quick", wait=False)
    cluster.propose("n1", "safe")
    for _ in range(3):
        node.end_pass()
    assert vhosts(cluster, "n1") == ["quick", "safe"]
    assert (len(cluster.done["quick"]), len(cluster.done["safe"])) == (1, 0)
    while (token := node.disk.finish_next()) is not None:
        node.raft.disk_done(cluster.now, token)
        node.end_pass()
    assert len(cluster.done["safe"]) == 1


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff", b"\x91\xc4\x01\x80", b"\x93\x01\x02\x03", b"\x91\xc4\x05\x94\x01\x02\x03\x04", NO_COMMAND],
)
def test_bytes_that_are_no_proposals_are_refused(payload: bytes) -> None:
    cluster = MetaWorld(names=("n1",))
    with pytest.raises(BadEnvelope):
        cluster.nodes["n1"].metadata.receive(payload)
