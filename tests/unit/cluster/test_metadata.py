"""Definitions on several nodes: proposed anywhere, applied everywhere, once and in order."""

from __future__ import annotations

import msgspec
import pytest

from mirrormq.base import limits
from mirrormq.cluster.metadata import BadEnvelope, Metadata, MetaMachine
from mirrormq.cluster.raft.raft import Myself, Options, Raft
from mirrormq.meta import commands, records
from mirrormq.meta.codec import encode_command
from mirrormq.meta.state import MetaState
from mirrormq.sim.machine import SeededRng
from mirrormq.sim.metaworld import PROPOSALS, MetaWorld, ReadingDisk
from mirrormq.sim.model import Violation
from tests.support import version1

NO_COMMAND = msgspec.msgpack.encode([msgspec.msgpack.encode(["n2", b"", 1, 1, b"\x80"])])


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
        node, folder, start, number, _ = msgspec.msgpack.decode(command)
        self.state.put(records.Session(node, folder, 0, start, number - 1))
        self.state.take_changes()
        return super().apply(index, command)


class WithoutSessions(Metadata):
    machine_class = Forgetful


def test_the_world_notices_a_state_that_forgets_what_it_has_applied() -> None:
    worlds = [MetaWorld(seed, make_metadata=WithoutSessions) for seed in range(20)]
    with pytest.raises(Violation):
        all(world.run() is None for world in worlds)


def send_and_cut_off(cluster: MetaWorld) -> tuple[str, str]:
    """A node's proposals reach the leader, and the node hears of nobody any more."""
    leader = cluster.leader.name
    name = next(one for one in cluster.nodes if one != leader)
    cluster.propose(name, "orders")
    heard: list = []
    cluster.done["refused"] = heard
    bad = commands.DeclareExchange(records.Exchange("missing", "x", type="direct"))
    cluster.nodes[name].metadata.propose(bad, heard.append)
    cluster.nodes[name].end_pass()
    for kind, payload in cluster.wires[name, leader].control:
        if kind == PROPOSALS:
            cluster.nodes[leader].metadata.receive(payload)
    for other in list(cluster.nodes):
        if other != name:
            cluster.cut(name, other)
    return name, leader


def come_back(cluster: MetaWorld, name: str) -> None:
    for other in list(cluster.nodes):
        if other != name:
            cluster.connect(name, other)
    cluster.until(lambda: all_done(cluster))
    cluster.settle(2_000)


def apply_twice(make_metadata: type[Metadata]) -> None:
    """What a node sends again because its link broke was carried out already, and undone since."""
    cluster = MetaWorld(make_metadata=make_metadata)
    name, leader = send_and_cut_off(cluster)
    cluster.settle(1_000)
    assert vhosts(cluster, leader) == ["orders"]
    cluster.nodes[leader].metadata.propose(commands.DeleteVHost("orders"), lambda _: None)
    cluster.settle(1_000)
    assert vhosts(cluster, leader) == []
    come_back(cluster, name)
    assert vhosts(cluster, leader) == [], "what was deleted is back"


def test_a_proposal_that_is_sent_again_is_applied_once() -> None:
    apply_twice(Metadata)


def test_without_sessions_a_proposal_that_is_sent_again_is_applied_twice() -> None:
    with pytest.raises((Violation, AssertionError)):
        apply_twice(WithoutSessions)


def test_a_proposal_is_told_even_if_its_node_learns_of_it_by_a_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "raft_trailing_bytes_max", 0)
    cluster = MetaWorld()
    for node in cluster.nodes.values():
        node.raft.options = Options(log_bytes_max=300)
    name, leader = send_and_cut_off(cluster)
    for number in range(20):
        cluster.propose(leader, f"v{number:02}")
        cluster.settle(100)
    raft = cluster.nodes[leader].raft
    assert raft.storage.mark.index > cluster.nodes[name].raft.log.last_index
    come_back(cluster, name)
    assert [outcome.ok for outcome in cluster.done["orders"]] == [True]
    assert [(outcome.ok, outcome.error) for outcome in cluster.done["refused"]] == [(False, "no_vhost")]


def test_what_a_busy_leader_could_not_take_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "raft_waiting_max", 4)
    cluster = MetaWorld()
    for name in cluster.nodes:
        for number in range(20):
            cluster.propose(name, f"{name} {number:02}")
    cluster.until(lambda: all_done(cluster))
    cluster.settle(2_000)
    assert all(len(vhosts(cluster, name)) == 60 for name in cluster.nodes)


def test_what_was_proposed_during_a_transfer_that_came_to_nothing_is_not_forgotten() -> None:
    cluster = MetaWorld()
    leader = cluster.leader
    target = next(name for name in cluster.nodes if name != leader.name)
    leader.raft.transfer(cluster.now, target)
    leader.raft.role._has_asked = True  # as if the target did not hear of it
    for name in cluster.nodes:
        cluster.propose(name, f"of {name}")
    cluster.until(lambda: all_done(cluster))
    assert cluster.leader is leader


def test_proposals_that_overtake_a_larger_one_are_applied_behind_it() -> None:
    cluster = MetaWorld()
    leader = cluster.leader.name
    name = next(one for one in cluster.nodes if one != leader)
    large = commands.PutVHost(records.VHost("large", description="x" * limits.peer_chunk_bytes))
    cluster.done["large"] = []
    cluster.nodes[name].metadata.propose(large, cluster.done["large"].append)
    cluster.nodes[name].end_pass()
    assert cluster.wires[name, leader].bulk
    cluster.propose(name, "small")
    cluster.nodes[name].end_pass()
    cluster.until(lambda: all_done(cluster))
    assert vhosts(cluster, name) == ["large", "small"]


def test_the_folder_of_a_single_node_goes_on_as_a_group_with_one_voter() -> None:
    files = {
        "meta/snapshot": version1.snapshot((4, 1), 7, [records.VHost("a")]),
        "meta/log-0000000000000005": version1.log_file(5, [commands.PutVHost(records.VHost("b"))]),
    }
    disk = ReadingDisk(files)
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


def test_a_snapshot_shows_the_state_as_it_was_when_it_was_asked_for() -> None:
    state = MetaState()
    machine = MetaMachine(state, "n1", lambda *_: None)
    state.apply(commands.PutVHost(records.VHost("before")))
    captured = machine.capture()
    state.apply(commands.PutVHost(records.VHost("after")))
    restored = MetaState()
    MetaMachine(restored, "n1", lambda *_: None).restore(b"".join(captured))
    assert list(restored.vhosts) == ["before"]


def envelope(folder: bytes, start: int, number: int, vhost: str) -> bytes:
    command = encode_command(commands.PutVHost(records.VHost(vhost)))
    return msgspec.msgpack.encode(["n1", folder, start, number, command])


def test_a_node_that_comes_back_with_a_new_folder_counts_from_the_beginning() -> None:
    machine = MetaMachine(MetaState(), "", lambda *_: None)
    machine.apply(1, envelope(b"old", 7, 1, "a"))
    machine.apply(2, envelope(b"new", 1, 1, "b"))
    machine.apply(3, envelope(b"old", 7, 1, "c"))
    machine.apply(4, envelope(b"new", 1, 2, "d"))
    assert list(machine.state.vhosts) == ["a", "b", "d"]


def test_folders_of_a_name_that_are_long_gone_are_forgotten() -> None:
    machine = MetaMachine(MetaState(), "", lambda *_: None)
    for number in range(10):
        machine.apply(number + 1, envelope(b"folder %d" % number, 1, 1, f"v{number}"))
    known = [folder for _, folder in machine.state.sessions]
    assert known == [b"folder %d" % number for number in range(10 - limits.session_folders_max, 10)]


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
    [
        b"",
        b"\xff",
        b"\x91\xc4\x01\x80",
        b"\x93\x01\x02\x03",
        b"\x91\xc4\x06\x95\x01\x02\x03\x04\x05",
        NO_COMMAND,
        b"\x91\xc4\x06\x95\xa1\xff\x01\x02\x03",
        b"\x91\xc5\x10\x00" + b"\x95" + b"\x91" * 4095,
    ],
)
def test_bytes_that_are_no_proposals_are_refused(payload: bytes) -> None:
    cluster = MetaWorld(names=("n1",))
    with pytest.raises(BadEnvelope):
        cluster.nodes["n1"].metadata.receive(payload)
