"""Mirrored queues on nodes that vote: what clients of any node see while nodes die and come back."""

import msgspec
import pytest

from mirrormq.base import limits
from mirrormq.meta.commands import SetPolicy
from mirrormq.meta.records import Policy
from mirrormq.wire import methods
from tests.support.groupkit import Group, Member
from tests.support.kernelkit import PERSISTENT, publish
from tests.support.nodekit import Client

ALL = ("a", "b", "c")


def formed(*names: str) -> Group:
    group = Group()
    for name in names or ALL:
        group.start(name, *(names or ALL))
    group.settle()
    group.advance(
        6
    )  # for one lease after its start a voter vouches for what an earlier life may have promised
    return group


def mirror(member: Member, pattern: str = ".*", **definition: object) -> None:
    table = {key.replace("_", "-"): value for key, value in definition.items()}
    policy = Policy("/", "ha", pattern, table or {"ha-mode": "all"}, "queues")
    member.node.propose(SetPolicy(policy), lambda _: None, False)
    member.run()


def view(group: Group, name: str = "q", at: str = ""):
    member = group[at] if at else next(iter(group.members.values()))
    return member.node.meta.views.get(("/", name))


def members(group: Group, name: str = "q", at: str = "") -> list[str]:
    found = view(group, name, at)
    return [] if found is None else [entry.node for entry in found.members]


def confirmed(client: Client) -> int:
    acks = [it for _, it in client.inbox if isinstance(it, methods.BasicAck)]
    return max((ack.delivery_tag for ack in acks), default=0)


def publish_some(client: Client, first: int, count: int, queue: bytes = b"q") -> None:
    client.feed(b"".join(publish(queue, b"%d" % at, PERSISTENT) for at in range(first, first + count)))


def test_a_queue_is_born_in_sync_on_all_nodes():
    group = formed()
    mirror(group["a"])
    group["a"].client().declare("q", durable=True)
    group.advance(1)
    assert members(group, at="c") == ["a", "b", "c"]


def test_what_was_confirmed_is_there_after_the_master_is_killed():
    group = formed()
    mirror(group["a"])
    client = group["b"].client()
    client.declare("q", durable=True)
    group.advance(0.2)
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    publish_some(client, 0, 100)
    group.advance(0.2)
    assert confirmed(client) == 100
    group.kill("b")
    group.advance(3)
    assert view(group, at="a").master == "a" if members(group, at="a")[0] == "a" else True
    other = group["c"].client()
    answer = other.ask(methods.QueueDeclare(queue="q", passive=True), methods.QueueDeclareOk)
    assert answer.message_count == 100


def counted(client: Client, queue: str = "q") -> int:
    return client.ask(methods.QueueDeclare(queue=queue, passive=True), methods.QueueDeclareOk).message_count


def ready(group: Group, at: str, count: int = 100, **more: object) -> Client:
    """A client of a node that has declared a mirrored queue and published to it, all of it confirmed."""
    client = group[at].client()
    client.declare("q", **({"durable": True} | more))
    group.advance(0.2)
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    publish_some(client, 0, count)
    group.advance(0.3)
    assert confirmed(client) == count
    client.inbox.clear()
    return client


def in_sync(group: Group, at: str = "", name: str = "q") -> set[str]:
    found = view(group, name, at)
    return {entry.node for entry in found.members if not entry.is_restarted}


def test_a_publisher_on_a_surviving_node_goes_on_and_nothing_is_there_twice():
    group = formed()
    mirror(group["a"])
    ready(group, "b", 10)
    client = group["c"].client()
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    publish_some(client, 10, 50)
    group.kill("b")
    publish_some(client, 60, 50)
    group.advance(3)
    assert confirmed(client) == 100
    getter = group["a"].client()
    getter.consume("q", no_ack=True)
    group.advance(1)
    assert getter.deliveries() == [b"%d" % at for at in range(110)]


def test_a_node_that_comes_back_is_in_sync_again_without_a_full_copy():
    group = formed()
    mirror(group["a"])
    ready(group, "a", 100)
    group.kill("c")
    group.advance(3)
    assert in_sync(group, "a") == {"a", "b"}
    client = group["b"].client()
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    publish_some(client, 100, 20)
    group.advance(0.3)
    assert confirmed(client) == 20
    group.start("c", *ALL)
    group.settle()
    group.advance(3)
    assert in_sync(group, "c") == set(ALL)
    # It had the first hundred.
    log = group["c"].node.logs[view(group).log_id]
    assert log.end >= 120
    assert log.low == 1


def test_all_nodes_killed_at_once_lose_nothing_that_was_confirmed():
    group = formed()
    mirror(group["a"])
    ready(group, "a", 100)
    for name in ALL:
        group.kill(name)
    for name in ("c", "b", "a"):
        group.start(name, *ALL)
    group.settle()
    group.advance(40)
    assert counted(group["b"].client()) == 100
    assert in_sync(group) == set(ALL)


def test_the_last_one_alive_serves_and_the_others_catch_up():
    group = formed("a", "b", "c", "d", "e")
    mirror(group["a"])
    ready(group, "a", 50)
    for name in ("a", "b"):
        group.kill(name)
        group.advance(3)
    client = group["c"].client()
    assert counted(client) == 50
    for name in ("a", "b"):
        group.start(name, "a", "b", "c", "d", "e")
    group.settle()
    group.advance(4)
    assert in_sync(group) == {"a", "b", "c", "d", "e"}


def test_a_policy_set_later_mirrors_a_queue_that_holds_messages():
    group = formed()
    client = ready(group, "a", 100)
    assert view(group) is None
    mirror(group["a"])
    group.advance(4)
    assert in_sync(group) == set(ALL)
    publish_some(client, 100, 10)
    group.advance(0.3)
    assert confirmed(client) == 110
    group.kill("a")
    group.advance(3)
    other = group["b"].client()
    other.consume("q", no_ack=True)
    group.advance(1)
    assert other.deliveries() == [b"%d" % at for at in range(110)]


@pytest.mark.parametrize("master", ALL)
def test_a_queue_that_gets_its_first_mirror_confirms_nothing_whose_flush_is_under_way(master):
    group = formed()
    client = group[master].client()
    client.declare("q", durable=True)
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    group[master].hold_flushes = True
    publish_some(client, 0, 5)
    mirror(group[next(name for name in ALL if name != master)])
    group.advance(1)
    assert group[master].node.switch.masters[view(group, at=master).id].log.is_mirrored
    assert confirmed(client) == 0
    group[master].hold_flushes = False
    group.advance(2)
    assert confirmed(client) == 5
    assert members(group, at=master)[0] == master
    assert set(members(group, at=master)) == set(ALL)


def test_a_publish_from_before_the_first_mirror_is_answered_when_its_queue_is_deleted():
    group = formed()
    client = group["a"].client()
    client.declare("q", durable=True)
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    client.inbox.clear()
    group["a"].hold_flushes = True
    publish_some(client, 0, 5)
    mirror(group["b"])
    group.advance(1)
    assert group["a"].node.switch.masters[view(group, at="a").id].log.is_mirrored
    group["b"].client().send(methods.QueueDelete(queue="q"))
    group.advance(1)
    group["a"].hold_flushes = False
    group.advance(1)
    answers = [answer for answer in client.take() if isinstance(answer, methods.BasicAck | methods.BasicNack)]
    assert max(answer.delivery_tag for answer in answers) == 5


def test_a_copy_that_begins_anew_never_writes_to_files_of_the_one_before():
    group = formed()
    ready(group, "a", 10)
    mirror(group["a"])
    group.advance(4)
    found = view(group)
    copies = group["c"].node.copies
    segments = copies.copy_log(found.log_id).log.segments
    segments.avoid(7)  # one was wiped a moment ago: its file is there until the next checkpoint
    copies._let_go(found.log_id)
    assert copies._copy_log(found).copy.log.segments.draw_number() == 8
    copies.avoid({1234: 5})  # left by an earlier process, of a queue this one is yet to hear of
    assert copies._copy_log(msgspec.structs.replace(found, log_id=1234)).copy.log.segments.draw_number() == 6


def test_a_policy_says_how_many_messages_a_full_copy_takes_at_once():
    group = formed()
    ready(group, "a", 200)
    mirror(group["a"], ha_mode="all", ha_sync_batch_size=7)
    group.advance(4)
    assert in_sync(group) == set(ALL)
    (copy,) = group["a"].node.copies.mirrors.copies.values()
    assert copy.options.sync_batch_size == 7
    group.kill("a")
    group.advance(3)
    other = group["c"].client()
    other.consume("q", no_ack=True)
    group.advance(1)
    assert other.deliveries() == [b"%d" % at for at in range(200)]


def test_exactly_two_replaces_a_dead_mirror_after_the_delay():
    group = formed()
    mirror(group["a"], ha_mode="exactly", ha_params=2, ha_replace_delay=5000)
    ready(group, "a", 20)
    first = in_sync(group)
    assert len(first) == 2
    gone = next(iter(first - {"a"}))
    group.kill(gone)
    group.advance(3)
    assert in_sync(group, "a") == {"a"}
    group.advance(8)
    assert len(in_sync(group, "a")) == 2


@pytest.mark.parametrize("others", [0, 1, 2, 3])
def test_a_mirror_that_is_back_within_the_delay_has_its_place_again(others):
    group = formed()
    mirror(group["a"], ha_mode="exactly", ha_params=2, ha_replace_delay=30000)
    for number in range(others):
        group["a"].client().declare(f"other{number}", durable=True)
        group.advance(0.2)
    ready(group, "a", 20)
    first = in_sync(group, "a")
    (gone,) = first - {"a"}
    group.kill(gone)
    group.advance(3)
    assert in_sync(group, "a") == {"a"}
    group.start(gone, *ALL)
    group.advance(8)
    assert in_sync(group, "a") == first


def test_nodes_moves_the_master_to_a_listed_node_when_that_is_in_sync():
    group = formed()
    client = ready(group, "a", 30)
    mirror(group["a"], ha_mode="nodes", ha_params=["b", "c"])
    group.advance(5)
    assert in_sync(group) == {"b", "c"}
    assert view(group).master in ("b", "c")
    publish_some(client, 30, 10)
    group.advance(0.5)
    assert confirmed(client) == 40
    assert counted(group["a"].client()) == 40


def test_a_node_that_stops_in_good_order_hands_its_queues_over():
    group = formed()
    mirror(group["a"])
    ready(group, "a", 30)
    done: list[bool] = []
    group["a"].node.hand_over(group.now, lambda: done.append(True))
    group.advance(1)
    assert done
    assert view(group).master != "a"
    group.kill("a")
    group.advance(2)
    assert counted(group["b"].client()) == 30


@pytest.mark.parametrize("wait", [0, 20])
def test_the_last_nodes_that_stop_do_not_wait_for_a_majority(wait):
    group = formed()
    mirror(group["a"])
    ready(group, "a")
    group.kill("b")
    group.kill("c")
    group.advance(wait)
    done: list[int] = []
    group["a"].node.hand_over(group.now, lambda: done.append(group.now.mono))
    began = group.now.mono
    group.advance(3)
    assert done
    assert done[0] - began <= limits.pause_grace_us + 200_000


def test_a_node_that_stops_while_the_leader_changes_hands_its_queues_over():
    group = formed()
    mirror(group["a"])
    (leader,) = group.leaders
    stopping, other = [name for name in ALL if name != leader]
    ready(group, stopping)
    group.kill(leader)
    done: list[int] = []
    group[stopping].node.hand_over(group.now, lambda: done.append(group.now.mono))
    group.advance(4)
    assert done
    assert view(group, at=other).master == other


@pytest.mark.parametrize("is_leader", [True, False])
def test_a_master_stops_in_time_when_its_disk_hangs(is_leader):
    group = formed()
    mirror(group["a"])
    (leader,) = group.leaders
    other, third = [name for name in ALL if name != leader]
    stuck, at = (leader, other) if is_leader else (other, third)
    ready(group, stuck)
    client = group[at].client()
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    # Of the journal only: nothing else tells that the disk is gone.
    group[stuck].holds = "journal/"
    publish_some(client, 0, 10)
    group.advance(2)
    assert confirmed(client) == 0
    assert view(group, at=at).master == stuck
    group.advance((limits.raft_disk_stall_us + limits.lease_us) / 1_000_000)
    assert view(group, at=at).master != stuck
    assert confirmed(client) == 10
    client.inbox.clear()
    assert counted(client) == 110
    assert not group[stuck].node.membership.has_lease()
    assert not group[stuck].is_open
    assert any("paused: its disk does not answer" in note.text for note in group[stuck].notes)


def test_a_node_whose_disk_answers_again_is_taken_back():
    group = formed()
    mirror(group["a"])
    (leader,) = group.leaders
    stuck, at = [name for name in ALL if name != leader]
    ready(group, stuck)
    client = group[at].client()
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    group[stuck].hold_flushes = True
    publish_some(client, 0, 10)
    group.advance(10)
    assert view(group, at=at).master != stuck
    assert confirmed(client) == 10
    group[stuck].hold_flushes = False
    group.advance(6)
    assert group[stuck].is_open
    assert in_sync(group, at=at) == set(ALL)


def test_a_queue_that_is_not_durable_survives_its_master():
    group = formed()
    mirror(group["a"])
    ready(group, "a", 30, durable=False)
    group.kill("a")
    group.advance(3)
    other = group["c"].client()
    other.consume("q", no_ack=True)
    group.advance(1)
    assert other.deliveries() == [b"%d" % at for at in range(30)]


def test_a_cleared_policy_leaves_the_master_alone_and_loses_nothing():
    group = formed()
    mirror(group["a"])
    client = ready(group, "a", 30)
    mirror(group["a"], pattern="other")
    group.advance(3)
    assert members(group) == ["a"]
    publish_some(client, 30, 10)
    group.advance(0.5)
    assert confirmed(client) == 40
    mirror(group["a"])
    group.advance(3)
    assert in_sync(group) == set(ALL)
    assert counted(group["b"].client()) == 40


def test_what_was_acknowledged_does_not_come_back_after_a_fail_over():
    group = formed()
    mirror(group["a"])
    ready(group, "a", 100)
    consumer = group["b"].client()
    consumer.ask(methods.BasicQos(prefetch_count=10), methods.BasicQosOk)
    consumer.consume("q")
    group.advance(0.3)
    consumer.send(methods.BasicAck(10, multiple=True))
    group.advance(1)
    group.kill("a")
    group.advance(3)
    other = group["c"].client()
    consumer.close_socket()
    group.advance(1)
    other.consume("q", no_ack=True)
    group.advance(1)
    assert other.deliveries() == [b"%d" % at for at in range(10, 100)]


def test_a_minority_confirms_nothing_and_comes_back():
    group = formed()
    mirror(group["a"])
    client = ready(group, "a", 10)
    group.cut("a")
    publish_some(client, 10, 5)
    group.advance(10)
    assert confirmed(client) == 0
    assert view(group, at="b").master != "a"
    other = group["b"].client()
    other.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    publish_some(other, 100, 5)
    group.advance(0.5)
    assert confirmed(other) == 5
    group.unlink("a", "b", eof=False)
    group.unlink("a", "c", eof=False)
    group.heal()
    group.advance(8)
    assert in_sync(group) == set(ALL)
    assert counted(group["a"].client()) == 15


def test_a_queue_in_memory_is_mirrored_with_what_it_holds():
    group = formed()
    client = ready(group, "a", 30, durable=False)
    holder = group["a"].client()
    holder.ask(methods.BasicQos(prefetch_count=2), methods.BasicQosOk)
    holder.consume("q")
    group.advance(0.2)
    assert holder.deliveries() == [b"0", b"1"]
    mirror(group["a"])
    group.advance(4)
    assert in_sync(group) == set(ALL)
    holder.send(methods.BasicAck(1))
    group.advance(0.2)
    assert holder.deliveries() == [b"2"]
    publish_some(client, 30, 10)
    group.advance(0.3)
    assert confirmed(client) == 40
    holder.close_socket()
    group.advance(0.3)
    group.kill("a")
    group.advance(3)
    other = group["b"].client()
    other.consume("q", no_ack=True)
    group.advance(1)
    assert other.deliveries() == [b"%d" % at for at in range(1, 40)]


@pytest.mark.parametrize("at", ["a", "c"])
def test_what_consumers_held_when_a_queue_in_memory_got_its_first_mirror_outlives_its_master(at: str):
    group = formed()
    ready(group, "a", 6, durable=False)
    holders = [group[at].client() for _ in range(2)]
    for holder in holders:
        holder.ask(methods.BasicQos(prefetch_count=2), methods.BasicQosOk)
        holder.consume("q")
        group.advance(0.2)
    assert [holder.deliveries() for holder in holders] == [[b"0", b"1"], [b"2", b"3"]]
    mirror(group["a"])
    group.advance(4)
    assert in_sync(group) == set(ALL)
    holders[1].send(methods.BasicAck(1))  # that of 2
    group.advance(0.3)
    assert holders[1].deliveries() == [b"4"]
    group.kill("a")
    group.advance(3)
    for holder in holders:
        if at != "a":
            holder.close_socket()
    other = group["b"].client()
    other.consume("q", no_ack=True)
    group.advance(1)
    found = [(it.redelivered, body) for it, (_, body) in pairs(other)]
    assert found[:4] == [(True, b"0"), (True, b"1"), (True, b"3"), (True, b"4")]
    assert [body for _, body in found[4:]] == [b"5"]


def pairs(client: Client) -> list[tuple[methods.BasicDeliver, tuple[object, bytes]]]:
    """What was delivered, each with its content."""
    found = [it for _, it in client.inbox]
    return [(it, found[at + 1]) for at, it in enumerate(found) if isinstance(it, methods.BasicDeliver)]


def test_what_a_restart_dropped_before_the_queue_had_mirrors_is_no_message_of_theirs():
    group = formed()
    client = ready(group, "a", 3)
    client.feed(b"".join(publish(b"q", b"transient") for _ in range(4)))
    publish_some(client, 3, 1)
    group.advance(0.3)
    group.kill("a")
    group.start("a", *ALL)
    group.settle("a", seconds=20)
    assert counted(group["a"].client()) == 4
    mirror(group["a"])
    group.advance(4)
    assert in_sync(group) == set(ALL)
    group.kill("a")
    group.advance(8)
    other = group["b"].client()
    other.consume("q", no_ack=True)
    group.advance(1)
    assert other.deliveries() == [b"0", b"1", b"2", b"3"]
