"""Promises of the log in etcd: what leases, long commands, snapshots and strange folders come to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mirrormq.base import limits
from mirrormq.cluster.etcd import api
from mirrormq.cluster.etcd.agreement import EtcdAgreement, EtcdOptions
from mirrormq.cluster.raft import events as ev
from mirrormq.cluster.raft.membership import Change
from mirrormq.cluster.raft.raft import Myself
from mirrormq.sim.etcdworld import PREFIX, EtcdWorld
from mirrormq.sim.machine import SeededRng

PARTS = 200


@pytest.fixture
def world() -> EtcdWorld:
    return EtcdWorld()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "etcd_part_bytes", PARTS)


def under(world: EtcdWorld, place: str) -> list[bytes]:
    """Keys that begin so."""
    return sorted(key for key in world.etcd.keys if key.startswith(f"{PREFIX}/{place}".encode()))


def put(world: EtcdWorld, name: str, vhost: str, size: int = 0) -> list[Any]:
    from mirrormq.meta import commands, records

    heard: list[Any] = []
    command = commands.PutVHost(records.VHost(vhost, description="x" * size))
    world.nodes[name].metadata.propose(command, heard.append)
    return heard


# --- leases ---


def test_a_node_that_cannot_renew_its_lease_stops_before_its_key_goes_and_counts_a_lapse(
    world: EtcdWorld,
) -> None:
    node = world.nodes["n2"]
    world.cut_off.add("n2")
    while node.raft.lease_until(world.now) > world.now:
        world.step()
    assert f"{PREFIX}/now/nodes/n2".encode() in world.etcd.keys, "it stopped first"
    while f"{PREFIX}/now/nodes/n2".encode() in world.etcd.keys:
        world.step()
    world.until(lambda: node.raft.lease_until(world.now) > world.now)
    assert node.raft.lapses == 1


def test_a_link_that_ends_moves_the_key_to_another_lease_without_a_lapse(world: EtcdWorld) -> None:
    before = {name: node.raft._tenure.lease for name, node in world.nodes.items()}
    for name, node in world.nodes.items():
        node.raft.link_down(world.now, "n3" if name != "n3" else "n1", eof=False)
        assert node.raft.lease_until(world.now) == 0, "it stops at once"
    world.until(world.is_whole)
    after = {name: node.raft._tenure.lease for name, node in world.nodes.items()}
    assert all(after[name] != before[name] for name in before)
    assert [node.raft.lapses for node in world.nodes.values()] == [0, 0, 0]
    assert len({node.raft.term for node in world.nodes.values()}) == 1, "the leader stayed"


def test_a_leader_that_has_moved_to_another_lease_can_still_hand_over(world: EtcdWorld) -> None:
    leader = world.leader
    other = next(name for name in world.nodes if name != leader.name)
    leader.raft.link_down(world.now, other, eof=False)
    world.until(world.is_whole)
    world.until(lambda: leader.raft.transfer(world.now, other))
    world.until(lambda: world.nodes[other].raft.is_leader)


def test_the_end_of_a_dead_nodes_links_ends_its_lease_and_its_leadership_at_once(world: EtcdWorld) -> None:
    leader = world.leader.name
    other = world.nodes[next(name for name in world.nodes if name != leader)]
    term, began = other.raft.term, world.now
    world.crash(leader)
    world.until(lambda: other.raft.leader not in ("", leader) and other.raft.term > term)
    assert world.now - began < limits.etcd_lease_s * 500_000
    world.until(lambda: world.leader.raft.lease_over(leader, world.now, 1))


def test_without_death_certificates_the_lease_has_to_run_out() -> None:
    world = EtcdWorld()
    for node in world.nodes.values():
        node.raft.options = EtcdOptions(PREFIX, death_certificate=False)
    leader = world.leader.name
    key, began = f"{PREFIX}/now/nodes/{leader}".encode(), world.now
    world.crash(leader)
    while key in world.etcd.keys:
        world.step()
    assert world.now - began > 3_000_000


def test_a_disk_that_does_not_answer_costs_the_lease(world: EtcdWorld) -> None:
    node = world.nodes["n1"]
    node.raft.stalled_elsewhere = lambda _: limits.raft_disk_stall_us + 1
    key = f"{PREFIX}/now/nodes/n1".encode()
    while key in world.etcd.keys:
        world.step()
    assert node.raft.lease_until(world.now) <= world.now


# --- watches ---


def test_a_watch_whose_changes_are_compacted_is_made_good_by_reading_again(world: EtcdWorld) -> None:
    node = world.nodes["n3"]
    world.until(lambda: node.client.watch is not None)
    watch, node.client.watch = node.client.watch, None
    heard = put(world, "n1", "missed")
    world.until(lambda: bool(heard))
    world.etcd.compact(world.etcd.revision)
    node.client.watch = watch
    world.until(lambda: "missed" in node.state.vhosts)


def test_a_watch_that_falls_silent_is_noticed(world: EtcdWorld) -> None:
    node = world.nodes["n3"]
    world.until(lambda: node.client.watch is not None)
    node.client.watch = None
    heard = put(world, "n1", "missed")
    world.until(lambda: bool(heard) and "missed" in node.state.vhosts)


# --- long commands ---


@pytest.mark.usefixtures("small_parts")
def test_a_long_command_is_written_in_parts_and_applied_everywhere(world: EtcdWorld) -> None:
    heard = put(world, "n2", "long", 5 * PARTS)
    later = put(world, "n2", "later")
    world.until(lambda: bool(heard) and bool(later))
    assert len(under(world, "parts/bulk/")) == 6
    world.until(lambda: all("later" in node.state.vhosts for node in world.nodes.values()))
    assert [list(node.state.vhosts) for node in world.nodes.values()] == [["long", "later"]] * 3


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("written", [2, 6])
def test_a_long_command_of_a_node_that_died_is_finished_or_removed_by_whoever_leads(
    world: EtcdWorld, written: int
) -> None:
    name = next(name for name in world.nodes if name != world.leader.name)
    put(world, name, "long", 5 * PARTS)
    while len(under(world, "parts/bulk/")) < written:
        world.step()
    node = world.nodes.pop(name)
    node.client.asked.clear()
    for other in sorted(world.nodes):
        world.cut(name, other)
    if written == 6:
        world.until(lambda: all("long" in one.state.vhosts for one in world.nodes.values()))
    else:
        world.until(lambda: not under(world, "parts/bulk/") and not under(world, "now/bulk/"))
        assert all("long" not in one.state.vhosts for one in world.nodes.values())


# --- snapshots ---


def test_a_log_that_grows_is_cut_behind_a_snapshot_which_a_new_node_starts_on(
    world: EtcdWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "etcd_log_entries_max", 20)
    monkeypatch.setattr(limits, "etcd_trailing_entries", 5)
    heard: list[Any] = []
    for number in range(50):
        heard.append(put(world, "n2", f"v{number}"))
        world.settle(10)
    world.until(lambda: all(heard) and len(under(world, "log/")) < 35)
    assert len(under(world, "parts/snapshot/")) >= 1
    world.boot("n4")
    world.until(lambda: len(world.nodes["n4"].state.vhosts) == 50)
    assert any(isinstance(event, ev.Restored) for event in world.nodes["n4"].events)
    world.until(lambda: len(under(world, "parts/snapshot/")) == 1)


@pytest.mark.usefixtures("small_parts")
def test_parts_of_a_long_command_go_when_the_log_is_cut_behind_it(
    world: EtcdWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = put(world, "n2", "long", 5 * PARTS)
    world.until(lambda: bool(heard))
    monkeypatch.setattr(limits, "etcd_log_entries_max", 10)
    monkeypatch.setattr(limits, "etcd_trailing_entries", 2)
    for number in range(30):
        put(world, "n1", f"v{number}")
        world.settle(10)
    world.until(lambda: not under(world, "parts/bulk/") and not under(world, "now/bulk/"))


# --- who belongs ---


def agreement(name: str, identity: bytes, **more: Any) -> EtcdAgreement:
    class Machine:
        def apply(self, index: int, command: bytes) -> object:
            return None

        def capture(self) -> Iterator[bytes]:
            return iter(())

        def restore(self, data: bytes) -> None: ...

    me = Myself(name, identity, 1, (b"t" * 16,))
    return EtcdAgreement(me, Machine(), SeededRng("x"), EtcdOptions(PREFIX), **more)


def drive(world: EtcdWorld, raft: EtcdAgreement) -> list[ev.Event]:
    """Let a node alone talk to etcd for a while."""
    raft.begin()
    raft.speak_up()
    for _ in range(40):
        world.now += 50_000
        raft.on_timer(world.now)
        raft.end_pass(world.now)
        for request in raft.take_requests():
            if not isinstance(request, api.Watch):
                raft.answer(world.now, world.etcd.handle(world.now, request))
    return raft.events


def test_a_folder_with_another_identity_than_the_clusters_is_refused(world: EtcdWorld) -> None:
    events = drive(world, agreement("n1", b"emptied".ljust(16)))
    assert any(isinstance(event, ev.FolderRefused) for event in events)
    assert not any(isinstance(event, ev.Registered) for event in events)


def test_a_folder_of_another_cluster_is_refused_with_both_names(world: EtcdWorld) -> None:
    events = drive(world, agreement("n9", b"n9".ljust(16), cluster=b"c" * 16))
    (unfit,) = {event.reason for event in events if isinstance(event, ev.Unfit)}
    assert (b"c" * 16).hex() in unfit
    assert world.etcd.keys[f"{PREFIX}/now/cluster".encode()].value.hex() in unfit


def test_a_folder_with_a_cluster_does_not_found_another_one_where_there_is_none() -> None:
    world = EtcdWorld(names=("n1",))
    world.etcd.keys.clear()
    events = drive(world, agreement("n9", b"n9".ljust(16), cluster=b"c" * 16))
    assert any(isinstance(event, ev.Unfit) and "holds none" in event.reason for event in events)
    assert not world.etcd.keys


def test_keys_of_somebody_else_are_named_and_not_touched(world: EtcdWorld) -> None:
    head = f"{PREFIX}/now/head".encode()
    world.etcd.keys[head] = api.KeyValue(head, b"something else", 1)
    events = drive(world, agreement("n9", b"n9".ljust(16)))
    assert any(isinstance(event, ev.Unfit) and "something else wrote it" in event.reason for event in events)


def test_a_node_that_was_removed_gives_up_its_lease_and_is_told(world: EtcdWorld) -> None:
    leader = world.leader
    name = next(name for name in world.nodes if name != leader.name)
    node = world.nodes[name]
    leader.raft.change(world.now, Change(name, None), "ref")
    world.until(lambda: any(isinstance(event, ev.Removed) for event in node.events))
    world.until(lambda: leader.raft.lease_over(name, world.now, 1))
    assert node.raft.config.find(name) is None


def test_a_node_that_was_removed_while_it_was_away_does_not_add_itself_again(world: EtcdWorld) -> None:
    name = next(name for name in world.nodes if name != world.leader.name)
    world.crash(name)
    world.leader.raft.change(world.now, Change(name, None), "ref")
    world.until(lambda: world.leader.raft.config.find(name) is None)
    world.boot(name)
    world.until(lambda: any(isinstance(event, ev.Removed) for event in world.nodes[name].events))
    assert world.leader.raft.config.find(name) is None
