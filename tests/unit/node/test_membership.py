"""Forming, joining, leaving, dying and coming back, with nodes that vote."""

import itertools

import pytest

from mirrormq.cluster import identity as idn
from mirrormq.cluster.raft.membership import NON_VOTER, VOTER, WITNESS
from mirrormq.meta.commands import PutVHost, SetLevel
from mirrormq.meta.records import VHost
from mirrormq.node import memberframes as mf
from mirrormq.node import requests
from mirrormq.node.council import FOREIGN
from mirrormq.node.membership import PAUSED, READY, SEEKING
from mirrormq.node.steps import Answer
from mirrormq.wire import methods
from tests.support.groupkit import Group, Member

ALL = ("a", "b", "c")


def formed(*names: str) -> Group:
    group = Group()
    for name in names or ALL:
        group.start(name, *(names or ALL))
    group.settle()
    group.advance(1)
    return group


def roles(group: Group, name: str) -> dict[str, str]:
    members = group[name].node.membership.raft.config.members
    return {member.name: member.role for member in members}


def clusters(group: Group) -> set[bytes]:
    return {member.node.membership.identity.cluster for member in group.members.values()}


def asked(member: Member, request: requests.Request) -> list[Answer]:
    heard: list[Answer] = []
    member.node.admin(member.now, request, heard.append)
    member.run()
    return heard


# --- forming ---


@pytest.mark.parametrize("order", list(itertools.permutations(ALL)))
def test_fresh_nodes_with_one_list_form_one_cluster_in_whatever_order_they_start(order: tuple[str, ...]):
    group = Group()
    for name in order:
        group.start(name, *ALL)
        group.advance(0.3)
    group.settle()
    group.advance(1)
    assert len(clusters(group)) == 1
    assert all(roles(group, name) == dict.fromkeys(ALL, VOTER) for name in ALL)
    assert all("/" in group[name].node.vhosts for name in ALL)


def test_a_node_of_a_list_never_forms_a_cluster_alone():
    group = Group()
    group.start("a", *ALL)
    group.advance(5)
    assert group["a"].phase == SEEKING
    assert "waiting for a cluster" in group["a"].node.membership.waits_for()


def test_without_the_first_of_the_list_the_others_wait():
    group = Group()
    group.start("b", *ALL)
    group.start("c", *ALL)
    group.advance(5)
    assert {group["b"].phase, group["c"].phase} == {SEEKING}
    group.start("a", *ALL)
    group.settle()
    assert len(clusters(group)) == 1


def test_a_node_without_a_list_is_a_cluster_of_its_own_at_once():
    group = Group()
    group.start("a")
    group.settle()
    assert group["a"].is_open


def test_a_node_that_is_alone_may_come_back_under_another_name_and_keeps_its_queues():
    group = Group()
    group.start("a")
    group.settle()
    client = group["a"].client()
    client.declare("q", durable=True)
    client.publish("q", b"kept", properties=b"\x10\x00\x02")
    group.kill("a")
    group.disks["b"] = group.disks.pop("a")
    group.start("b")
    group.settle()
    assert group["b"].node.state.queues["/", "q"].node == "b"
    assert set(group["b"].node.state.nodes) == {"b"}
    assert group["b"].client().declare("q", durable=True).message_count == 1


# --- joining and leaving ---


def let_in_without_knowing() -> Group:
    """Node b is a member of a's cluster, whose name never reaches its disk."""
    group = Group()
    group.start("a")
    group.settle()
    group.start("b", join="a").holds = idn.FILE
    group.advance(3)
    return group


def test_a_node_takes_part_in_nothing_before_the_name_of_its_cluster_is_on_its_disk():
    group = let_in_without_knowing()
    assert group["b"].phase == SEEKING
    assert roles(group, "a") == {"a": VOTER, "b": NON_VOTER}
    assert group["b"].node.membership.raft.is_fresh
    assert not group["b"].disk.list("meta/")
    assert group["a"].phase == READY


@pytest.mark.parametrize("order", list(itertools.permutations(("a", "b"))))
def test_a_node_that_loses_power_before_it_knows_its_cluster_is_let_in_at_its_next_start(
    order: tuple[str, ...],
):
    group = let_in_without_knowing()
    cluster = group["a"].node.membership.identity.cluster
    group.kill("b")
    group.kill("a")
    for name in order:
        group.start(name, join="a" if name == "b" else "")
        group.advance(2)
    group.settle()
    group.advance(1)
    assert clusters(group) == {cluster}
    assert roles(group, "a") == {"a": VOTER, "b": VOTER}


def test_a_node_joins_through_any_member():
    group = formed()
    (leader,) = group.leaders
    through = next(name for name in ALL if name != leader)
    group.start("d", join=through)
    group.settle()
    group.advance(1)
    assert roles(group, "a") == dict.fromkeys((*ALL, "d"), VOTER)
    assert "d" in group[through].node.state.nodes


def test_a_node_that_joined_finds_the_others_after_a_restart_without_the_one_it_joined_through():
    group = formed()
    group.start("d", join="a")
    group.settle()
    group.advance(1)
    known = tuple(sorted(group["d"].dials))
    group.kill("a")
    group.kill("d")
    group.start("d", known=known)
    group.settle("b", "c", "d")


def test_a_member_is_removed_by_its_own_wish_and_its_queues_go_with_it():
    group = formed()
    client = group["b"].client()
    client.declare("q", durable=True)
    heard: list[mf.Answer] = []
    group["b"].node.membership.council.wish(mf.Forget("b", "b"), heard.append)
    group.advance(7)
    assert [answer.problem for answer in heard] == [""] or group["b"].stopped
    assert roles(group, "a") == {"a": VOTER, "c": VOTER}
    assert ("/", "q") not in group["a"].node.state.queues
    assert "removed from the cluster" in group["b"].stopped


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("leads", [True, False])
def test_a_node_leaves_whether_it_leads_or_not_and_from_two_voters_as_well(count: int, leads: bool):
    names = ALL[:count]
    group = formed(*names)
    (leader,) = group.leaders
    leaving = leader if leads else next(name for name in names if name != leader)
    client = group[leaving].client()
    heard = asked(group[leaving], requests.LeaveCluster())
    assert any(isinstance(it, methods.ConnectionClose) for it in client.take())
    group.advance(7)
    assert [answer.problem for answer in heard] == [None]
    assert not group[leaving].stopped
    rest = [name for name in names if name != leaving]
    assert set(roles(group, rest[0])) == set(rest)
    assert leaving not in group[rest[0]].node.state.nodes


def test_a_node_with_messages_that_are_only_there_does_not_leave_unless_it_is_forced():
    group = formed()
    client = group["b"].client()
    client.declare("q", durable=True)
    client.publish("q", b"precious", properties=b"\x10\x00\x02")
    (answer,) = asked(group["b"], requests.LeaveCluster())
    assert answer.problem is not None
    assert "1 durable queues with 1 messages are only here, 'q' among them" in answer.problem.text
    assert client.take() == []
    heard = asked(group["b"], requests.LeaveCluster(force=True))
    group.advance(3)
    assert [answer.problem for answer in heard] == [None]


def test_a_running_member_is_not_forgotten_by_others_and_a_dead_one_is():
    group = formed()
    (answer,) = asked(group["a"], requests.ForgetClusterNode(node="c"))
    assert answer.problem is not None
    assert "is running" in answer.problem.text
    group.kill("c")
    heard = asked(group["a"], requests.ForgetClusterNode(node="c"))
    group.advance(7)
    assert [answer.problem for answer in heard] == [None]
    assert roles(group, "b") == {"a": VOTER, "b": VOTER}


def test_the_last_node_cannot_be_forgotten():
    group = Group()
    group.start("a")
    group.settle()
    heard: list[mf.Answer] = []
    group["a"].node.membership.council.wish(mf.Forget("a", "a"), heard.append)
    assert "last one of the cluster" in heard[0].problem


def test_a_node_can_become_a_witness_and_a_voter_again():
    group = formed()
    asked(group["c"], requests.ChangeClusterNodeType(role="witness"))
    group.advance(2)
    assert roles(group, "a")["c"] == WITNESS
    asked(group["a"], requests.ChangeClusterNodeType(node="c", role="voter"))
    group.advance(2)
    assert roles(group, "b")["c"] == VOTER


def test_a_node_whose_software_does_not_know_the_feature_level_is_not_let_in():
    group = Group()
    group.start("a")
    group.settle()
    heard: list[mf.Answer] = []
    membership = group["a"].node.membership
    wish = mf.Join("z", bytes(16), "z", 0)
    membership.council.wish(wish, heard.append)
    assert "feature level 1" in heard[0].problem


def test_the_feature_level_is_never_lowered_and_not_raised_above_what_a_node_knows():
    group = formed()
    state = group["a"].node.state
    assert not state.execute(SetLevel(0)).ok
    assert "is not known to a, b, c" in state.execute(SetLevel(2)).detail


# --- identity ---


def test_a_member_that_lost_its_disk_is_refused_however_often_it_starts():
    group = formed()
    group.kill("c")
    group.empty("c")
    for _ in range(3):
        member = group.start("c", *ALL)
        group.advance(3)
        assert FOREIGN in member.stopped
        assert member.phase != READY
        group.kill("c")
    assert roles(group, "a") == dict.fromkeys(ALL, VOTER)


def test_a_member_that_lost_its_disk_comes_back_when_it_was_forgotten():
    group = formed()
    group.kill("c")
    group.empty("c")
    asked(group["a"], requests.ForgetClusterNode(node="c"))
    group.advance(2)
    group.start("c", *ALL)
    group.settle()
    group.advance(1)
    assert roles(group, "b") == dict.fromkeys(ALL, VOTER)


# --- dying and coming back ---


def test_the_cluster_goes_on_without_one_node_and_takes_it_back():
    group = formed()
    (leader,) = group.leaders
    group.kill(leader)
    group.advance(1)
    rest = [name for name in ALL if name != leader]
    client = group[rest[0]].client()
    client.declare("q", durable=True)
    group.start(leader, *ALL)
    group.settle()
    assert ("/", "q") in group[leader].node.state.queues


def test_what_lived_in_the_memory_of_a_dead_node_is_gone_and_its_durable_queues_wait():
    group = formed()
    client = group["c"].client()
    client.declare("kept", durable=True)
    client.declare("lost", auto_delete=True)
    client.ask(methods.QueueDeclare(queue="mine", exclusive=True), methods.QueueDeclareOk)
    group.kill("c")
    group.advance(8)
    names = {name for _, name in group["a"].node.state.queues}
    assert names == {"kept"}
    assert not group["a"].node.state.nodes["c"].is_live


def test_a_minority_sends_its_clients_away_and_comes_back_by_itself():
    group = formed()
    client = group["c"].client()
    group.cut("c")
    group.advance(10)
    assert group["c"].phase == PAUSED
    assert not group["c"].is_open
    (closing,) = [it for it in client.take() if isinstance(it, methods.ConnectionClose)]
    assert closing.reply_code == 320
    assert "majority" in closing.reply_text
    group["a"].node.propose(PutVHost(VHost("meanwhile")), lambda _: None, True)
    group.advance(1)
    group.heal()
    group.settle()
    assert group["c"].is_open
    assert "meanwhile" in group["c"].node.vhosts


def test_a_node_alone_in_a_minority_changes_no_definition():
    group = formed()
    group.cut("c")
    heard: list[object] = []
    group["c"].node.propose(PutVHost(VHost("alone")), heard.append, True)
    group.advance(5)
    assert heard == []
    assert "alone" not in group["c"].node.state.vhosts
    group.heal()
    group.settle()
    group.advance(1)
    assert len(heard) == 1
    assert all("alone" in group[name].node.vhosts for name in ALL)


def test_a_change_of_leaders_costs_no_connection():
    group = formed()
    (leader,) = group.leaders
    rest = [name for name in ALL if name != leader]
    client = group[rest[0]].client()
    group.kill(leader)
    group.advance(8)
    assert client.take() == []
    assert group[rest[0]].phase == READY


def test_a_forced_start_goes_on_alone_under_another_cluster_id():
    group = formed()
    client = group["a"].client()
    client.declare("q", durable=True)
    before = group["a"].node.membership.identity.cluster
    for name in ALL:
        group.kill(name)
    group.start("a", *ALL, is_forced=True)
    group.settle()
    assert group["a"].node.membership.identity.cluster != before
    assert roles(group, "a") == {"a": VOTER}
    assert ("/", "q") in group["a"].node.state.queues
