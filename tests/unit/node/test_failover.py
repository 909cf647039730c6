"""A mirrored queue gets another master: what clients hold stays theirs, and nothing is given out twice."""

from typing import Any

import pytest

from mirrormq.broker import inherited
from mirrormq.node import requests
from mirrormq.wire import methods
from tests.support.kernelkit import PERSISTENT, publish
from tests.support.scenariokit import Consumer, Site


def site(queue: dict[str, Any] | None = None, *names: str, **policy: Any) -> Site:
    """Three nodes with a mirrored queue whose master is the first."""
    made = Site(*names)
    made.policy(**({"ha_mode": "all"} | policy))
    made.declare("q", at=made.names[0], **(queue or {}))
    made.wait_copies(*made.names)
    return made


def wide(*members: str) -> Site:
    """Five nodes with a queue that is mirrored on some of them, on two if none is named."""
    made = Site("a", "b", "c", "d", "e")
    members = members or ("a", "b")
    made.policy(ha_mode="nodes", ha_params=list(members))
    made.declare("q", at="a")
    made.wait_copies(*members)
    # Who leads keeps the leases: it must not be one of those that die or are parted from the others.
    (leader,) = made.leaders
    made[leader].node.membership.raft.transfer(made.now.mono, "c")
    made[leader].node.membership.is_due = True
    made.wait(lambda: made.leaders == {"c"}, "c leads")
    made.advance(1)
    return made


def consumer(at: Site, node: str, prefetch: int = 0, **more: Any) -> Consumer:
    return Consumer(at, at[node].client(), prefetch=prefetch, **more)


def ack(taker: Consumer, *numbers: int) -> None:
    settle(taker, methods.BasicAck, *numbers)


def settle(taker: Consumer, how: Any, *numbers: int, **more: Any) -> None:
    for tag, number in list(taker.unacked):
        if number in numbers:
            taker.client.send(how(tag, **more))
            taker.unacked.remove((tag, number))


def fail_over(at: Site, to: str = "b", *, dead: str = "a") -> None:
    at.kill(dead)
    at.wait(lambda: at.master() == to, f"{to} is the master")
    at.advance(0.3)


def mastered(at: Site, node: str = "b") -> Any:
    return at[node].node.vhosts["/"].queues["q"]


def test_what_a_client_holds_is_its_own_under_the_next_master_and_late_acks_count():
    group = site()
    group.fill(10)
    taker = consumer(group, "c", prefetch=4)
    assert taker.wait_taken(4) == [(n, False) for n in range(4)]
    fail_over(group)
    assert taker.take() == []
    assert (mastered(group).core.unacked, mastered(group).core.ready) == (4, 6)
    ack(taker, 0, 2)
    assert taker.wait_taken(2) == [(4, True), (5, True)]  # up to the horizon nobody knows
    ack(taker, 1, 3, 4, 5)
    group.advance(0.3)
    taker.take()
    taker.ack_all()
    taker.client.close_socket()
    assert [number for number, _ in group.drain("c")] == []


def test_clients_of_the_new_master_keep_what_they_hold_too():
    group = site()
    group.fill(6)
    taker = consumer(group, "b", prefetch=3)
    assert len(taker.wait_taken(3)) == 3
    fail_over(group)
    assert taker.take() == []
    assert (mastered(group).core.unacked, mastered(group).core.ready) == (3, 3)
    ack(taker, 0, 1, 2)
    assert [number for number, _ in taker.wait_taken(3)] == [3, 4, 5]
    taker.ack_all()
    group.advance(0.3)
    assert (mastered(group).core.unacked, mastered(group).core.ready) == (0, 0)


def test_clients_of_the_old_master_keep_what_they_hold_over_a_planned_move():
    group = site()
    group.fill(6)
    taker = consumer(group, "a", prefetch=3)
    assert len(taker.wait_taken(3)) == 3
    record = group["a"].node.meta.queues["/", "q"]
    answers: list[str] = []
    group["a"].node.copies.transfer(record.id, "b", answers.append)
    group.wait(lambda: group.master() == "b", "b is the master")
    group.advance(0.3)
    assert answers == [""]
    assert taker.take() == []
    assert (mastered(group).core.unacked, mastered(group).core.ready) == (3, 3)
    ack(taker, 1)
    assert [number for number, _ in taker.wait_taken(1)] == [3]
    settle(taker, methods.BasicNack, 0, requeue=True)
    assert taker.wait_taken(1) == [(0, True)]


def test_a_queue_that_moves_back_and_forth_loses_track_of_nothing():
    group = site()
    group.fill(8)
    takers = [consumer(group, name, prefetch=2) for name in group.names]
    held = [[number for number, _ in taker.wait_taken(2)] for taker in takers]
    for to in ("b", "c", "a", "b"):
        record = group.any.node.meta.queues["/", "q"]
        group[group.master()].node.copies.transfer(record.id, to, lambda _: None)
        group.wait(lambda to=to: group.master() == to, f"{to} is the master")
        group.advance(0.3)
        assert (mastered(group, to).core.unacked, mastered(group, to).core.ready) == (6, 2)
        assert [taker.take() for taker in takers] == [[], [], []]
    for taker, numbers in zip(takers, held, strict=True):
        ack(taker, *numbers)
    group.advance(0.5)
    assert sorted(number for taker in takers for number, _ in taker.take()) == [6, 7]


def test_acks_that_the_dead_master_did_not_hear_are_told_to_the_next_one():
    group = site()
    group.fill(5)
    taker = consumer(group, "c")
    taker.wait_taken(5)
    group.cuts.add(frozenset(("a", "c")))
    ack(taker, 0, 1, 4)
    fail_over(group)
    assert (mastered(group).core.unacked, mastered(group).core.ready) == (2, 0)


def test_acks_that_died_with_the_master_are_told_to_the_next_one():
    group = site()
    group.fill(5)
    taker = consumer(group, "c")
    taker.wait_taken(5)
    group.cuts |= {frozenset(("a", "b"))}
    ack(taker, 0, 1, 4)  # the master takes them, and no mirror hears of it
    assert mastered(group, "a").core.unacked == 2
    fail_over(group)
    assert (mastered(group).core.unacked, mastered(group).core.ready) == (2, 0)


@pytest.mark.parametrize("node", ["b", "c"])
def test_what_is_given_back_after_a_fail_over_stands_at_its_place(node: str):
    group = site()
    group.fill(8)
    taker = consumer(group, node, prefetch=4)
    taker.wait_taken(4)
    fail_over(group)
    settle(taker, methods.BasicNack, 1, 3, requeue=True)
    # Two places are free, for what stands first.
    assert taker.wait_taken(2) == [(1, True), (3, True)]
    ack(taker, 0, 1, 2, 3)
    assert [number for number, _ in taker.wait_taken(4)] == [4, 5, 6, 7]
    settle(taker, methods.BasicNack, 5, 6, requeue=True)
    assert taker.wait_taken(2) == [(5, True), (6, True)]


@pytest.mark.parametrize("node", ["b", "c"])
def test_what_a_closing_channel_held_is_ready_again_in_order(node: str):
    group = site()
    group.fill(8)
    taker = consumer(group, node, prefetch=4)
    taker.wait_taken(4)
    fail_over(group)
    other = consumer(group, "c", prefetch=2)
    assert [number for number, _ in other.wait_taken(2)] == [4, 5]
    taker.client.close_socket()
    group.advance(0.2)
    ack(other, 4, 5)
    assert other.wait_taken(2) == [(0, True), (1, True)]
    ack(other, 0, 1)
    assert other.wait_taken(2) == [(2, True), (3, True)]
    ack(other, 2, 3)
    assert [number for number, _ in other.wait_taken(2)] == [6, 7]


@pytest.mark.parametrize("node", ["b", "c"])
def test_what_is_rejected_after_a_fail_over_goes_to_the_dead_letter_exchange(node: str):
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    group = site({"arguments": letters})
    group.declare("dead")
    group.fill(4)
    taker = consumer(group, node, prefetch=3)
    taker.wait_taken(3)
    fail_over(group)
    settle(taker, methods.BasicReject, 1, requeue=False)
    group.wait(lambda: group.depth("dead") == 1, "the letter is there")
    assert [number for number, _ in group.drain("c", "dead")] == [1]


@pytest.mark.parametrize("node", ["b", "c"])
def test_a_queue_with_priorities_keeps_them_and_what_clients_hold(node: str):
    group = site({"arguments": {"x-max-priority": 5}})
    client = group["a"].client()
    for number, priority in enumerate((1, 5, 3, 5, 1, 3)):
        client.publish("q", b"%d" % number, properties=b"\x18\x00\x02" + bytes((priority,)))
    group.advance(0.3)
    taker = consumer(group, node, prefetch=3)
    assert [number for number, _ in taker.wait_taken(3)] == [1, 3, 2]
    fail_over(group)
    assert (mastered(group).core.unacked, mastered(group).core.ready) == (3, 3)
    settle(taker, methods.BasicNack, 3, 2, requeue=True)
    assert taker.wait_taken(2) == [(3, True), (2, True)]
    ack(taker, 1, 2, 3)
    assert [number for number, _ in taker.wait_taken(3)] == [5, 0, 4]


@pytest.mark.parametrize("node", ["b", "c"])
def test_deliveries_are_counted_over_a_fail_over(node: str):
    group = site({"arguments": {"x-queue-type": "quorum", "x-delivery-limit": 2}})
    group.fill(2)
    taker = consumer(group, node, prefetch=1)
    taker.wait_taken(1)
    settle(taker, methods.BasicNack, 0, requeue=True)
    assert [number for number, _ in taker.wait_taken(1)] == [0]
    fail_over(group)
    settle(taker, methods.BasicNack, 0, requeue=True)
    assert [number for number, _ in taker.wait_taken(1)] == [0]
    settle(taker, methods.BasicNack, 0, requeue=True)  # the third time
    assert [number for number, _ in taker.wait_taken(1)] == [1]


def test_a_consumer_that_asked_for_it_is_cancelled_and_may_still_acknowledge():
    group = site()
    group.fill(4)
    told = consumer(group, "c", 2, arguments={"x-cancel-on-ha-failover": True})
    here = consumer(group, "b", 2, arguments={"x-cancel-on-ha-failover": True})
    told.wait_taken(2)
    here.wait_taken(2)
    fail_over(group)
    assert (told.take(), here.take()) == ([], [])
    assert (told.cancelled, here.cancelled) == (1, 1)
    assert (mastered(group).core.unacked, mastered(group).core.ready) == (4, 0)
    assert mastered(group).consumer_count == 0
    ack(told, 0, 1, 2, 3)
    ack(here, 0, 1, 2, 3)
    group.advance(0.2)
    assert (mastered(group).core.unacked, mastered(group).core.ready) == (0, 0)


def test_a_consumer_without_the_capability_hears_nothing():
    group = site()
    client = group["c"].connect()
    client.log_in(capabilities={})
    client.open(1)
    taker = Consumer(group, client, arguments={"x-cancel-on-ha-failover": True})
    fail_over(group)
    group.fill(1, at="c")
    group.advance(0.3)
    assert (taker.take(), taker.cancelled) == ([], 0)


def test_the_single_active_consumer_stays_the_active_one():
    group = site({"arguments": {"x-single-active-consumer": True}})
    first = consumer(group, "c", 1)
    second = consumer(group, "b", 1)
    third = consumer(group, "c", 1)
    fail_over(group)
    group.fill(2, at="c")
    assert first.wait_taken(1) == [(0, False)]
    group.advance(0.2)
    assert (second.take(), third.take()) == ([], [])
    first.client.close_socket()
    assert [number for number, _ in second.wait_taken(1)] == [0]
    assert third.take() == []


def test_an_exclusive_consumer_is_not_overtaken_by_a_new_one():
    group = site()
    consumer(group, "c", exclusive=True)
    group.cuts |= {frozenset(("b", "c"))}
    group.kill("a")
    group.advance(0.5)
    client = group["b"].client()
    client.send(methods.BasicConsume(queue="q", consumer_tag="new"))
    group.advance(0.5)
    group.heal()
    group.wait(lambda: bool(client.inbox), "the consumer is answered")
    assert client.expect(methods.ChannelClose).reply_code == 403


def test_an_auto_delete_queue_waits_for_its_consumers():
    group = site({"auto_delete": True})
    consumer(group, "c")
    fail_over(group)
    assert mastered(group).consumer_count == 1


# --- requests -------------------------------------------------------------------------------------


def test_a_get_under_way_is_put_to_the_next_master():
    group = site()
    group.fill(2)
    client = group["c"].client()
    group.cuts |= {frozenset(("a", "c"))}
    client.send(methods.BasicGet(queue="q"))
    fail_over(group)
    client.expect(methods.BasicGetOk)
    assert client.deliveries() == [b"0"]


def test_a_get_whose_answer_died_with_the_master_is_put_to_the_next_one():
    group = site()
    group.fill(2)
    client = group["b"].client()
    group.cuts |= {frozenset(("a", "b"))}
    client.send(methods.BasicGet(queue="q"))
    fail_over(group)
    client.expect(methods.BasicGetOk)
    assert client.deliveries() == [b"0"]


def test_a_get_that_is_asked_again_after_a_break_takes_one_message_out():
    group = site()
    group.fill(1)
    taker = consumer(group, "b", prefetch=1)
    assert len(taker.wait_taken(1)) == 1
    group.cuts |= {frozenset(("a", "c"))}
    group.publisher("a").publish(2, first=1)
    taker.client.send(methods.BasicGet(queue="q"))
    group.advance(0.1)  # it waits: the mirror on c has not got the message
    group.unlink("a", "b", eof=False)
    group.advance(0.1)
    group.heal()
    group.advance(0.3)
    taker.client.expect(methods.BasicGetOk)
    assert taker.client.deliveries() == [b"1"]
    assert (mastered(group, "a").core.unacked, mastered(group, "a").core.ready) == (2, 1)


@pytest.mark.parametrize("node", ["b", "c"])
def test_requests_under_way_are_put_to_the_next_master(node: str):
    group = site()
    group.fill(3)
    clients = [group[node].client() for _ in range(4)]
    asked = [
        (methods.QueueDeclare(queue="q", passive=True), methods.QueueDeclareOk),
        (methods.BasicConsume(queue="q", consumer_tag="c"), methods.BasicConsumeOk),
        (methods.QueuePurge(queue="q"), methods.QueuePurgeOk),
        (methods.QueueDeclare(queue="q", durable=True), methods.QueueDeclareOk),
    ]
    group.cuts |= {frozenset(("a", node))}
    for client, (method, _) in zip(clients, asked, strict=True):
        client.send(method)
        assert not client.inbox
    fail_over(group)
    for client, (_, answer) in zip(clients, asked, strict=True):
        client.expect(answer)


def test_a_delete_under_way_is_put_to_the_next_master():
    group = site()
    client = group["c"].client()
    group.cuts |= {frozenset(("a", "c"))}
    client.send(methods.QueueDelete(queue="q"))
    group.kill("a")
    group.wait(lambda: bool(client.inbox), "the delete is answered")
    client.expect(methods.QueueDeleteOk)
    assert group.view() is None


def without_master() -> Site:
    """A mirrored queue all of whose copies are on dead nodes."""
    group = wide()
    group.kill("b")
    group.kill("a")
    group.advance(2)
    return group


def test_a_new_request_waits_for_a_master_but_not_for_long():
    group = without_master()
    client = group["c"].client()
    client.send(methods.QueueDeclare(queue="q", passive=True))
    group.advance(1)
    assert not client.inbox
    group.advance(3)
    assert client.expect(methods.ChannelClose).reply_code == 404


def test_consumers_are_kept_while_there_is_no_master_and_then_cancelled():
    group = wide()
    taker = consumer(group, "c")
    group.kill("b")
    group.kill("a")
    group.advance(9)
    taker.take()
    assert taker.cancelled == 0
    group.advance(4)
    taker.take()
    assert taker.cancelled == 1


def test_a_consumer_registered_while_the_queue_moves_is_registered_at_the_new_master():
    group = site()
    client = group["c"].client()
    record = group["a"].node.meta.queues["/", "q"]
    for to, back in (("b", "a"), ("a", "b")) * 3:
        group[back].node.copies.transfer(record.id, to, lambda _: None)
        for step in range(12):
            group.advance(0.02)
            if step == 2:
                client.send(methods.BasicConsume(queue="q", consumer_tag=f"{to}-{len(client.inbox)}"))
        group.wait(lambda to=to: group.master() == to, f"{to} is the master")
    group.advance(1)
    answers = client.take()
    assert [type(answer) for answer in answers] == [methods.BasicConsumeOk] * 6
    assert mastered(group, "a").consumer_count == 6


def test_publishes_reach_a_queue_that_moves_all_the_time_once_and_in_order():
    group = site()
    publishers = {name: group.publisher(name) for name in group.names}
    record = group["a"].node.meta.queues["/", "q"]
    for turn, to in enumerate(("b", "c", "a", "c", "b", "a") * 2):
        group[group.master()].node.copies.transfer(record.id, to, lambda _: None)
        for step in range(20):
            for at, publisher in enumerate(publishers.values()):
                publisher.publish(1, at * 1_000 + turn * 20 + step)
            group.advance(0.02)
    for publisher in publishers.values():
        publisher.wait_confirmed(240)
    taken = [number for number, _ in group.drain("c")]
    for at in range(3):
        mine = [number - at * 1_000 for number in taken if number // 1_000 == at]
        assert mine == list(range(240))


def test_a_message_that_arrives_in_two_parts_while_the_queue_moves_is_not_overtaken():
    group = site()
    publisher = group.publisher("b")
    first, second = (publish(b"q", b"%d" % number, PERSISTENT) for number in range(2))
    publisher.client.feed(first[:-8])
    group["a"].node.copies.transfer(group["a"].node.meta.queues["/", "q"].id, "b", lambda _: None)
    group.wait(lambda: group.master() == "b", "b is the master")
    publisher.client.feed(first[-8:] + second)
    publisher.wait_confirmed(2)
    assert [number for number, _ in group.drain("c")] == [0, 1]


def test_a_master_leaves_the_cluster_without_force_while_another_node_is_in_sync():
    at = site()
    at.fill(5)
    heard: list[Any] = []
    at["a"].node.admin(at["a"].now, requests.LeaveCluster(), heard.append)
    at.wait(lambda: bool(heard), "a is let go")
    assert [answer.problem for answer in heard] == [None]
    at.kill("a")
    at.wait(lambda: at.master() in ("b", "c"), "another node is the master")
    assert at.depth() == 5


def test_a_master_whose_only_mirror_is_dead_does_not_leave_with_the_messages():
    at = wide()
    at.fill(5)
    at.kill("b")
    at.advance(7)
    heard: list[Any] = []
    at["a"].node.admin(at["a"].now, requests.LeaveCluster(), heard.append)
    at.wait(lambda: bool(heard), "a is answered")
    assert "1 durable queues with 5 messages are only here" in heard[0].problem.text


def test_a_consumer_that_waited_while_its_nodes_lease_ran_out_is_registered_in_the_end():
    group = site()
    first = consumer(group, "c", prefetch=1)
    queue = mastered(group, "a")
    inherited.inherit(queue)  # as a new master that does not know yet what clients hold
    client = group["c"].client()
    client.send(methods.BasicConsume(queue="q", consumer_tag="late"))
    assert client.take() == []
    link = group["a"].node.switch.links["c"]
    for outlet in list(link.outlets.values()):
        outlet.suspend()
    queue.inherited.release()
    group["c"].node.switch.links["a"].go_stale()
    group.advance(1)
    assert client.take() == [methods.BasicConsumeOk("late")]
    group.fill(2)
    assert first.wait_taken(1)
    group.wait(lambda: bool(client.inbox), "both get messages")


def test_acks_while_the_queue_is_handed_over_reach_the_new_master():
    group = site()
    group.fill(6)
    taker = consumer(group, "a", prefetch=4)
    assert len(taker.wait_taken(4)) == 4
    node = group["a"].node
    node.copies.transfer(node.meta.queues["/", "q"].id, "b", lambda _: None)
    ack(taker, 0, 2)
    group.wait(lambda: group.master() == "b", "b is the master")
    group.advance(0.5)
    got = [number for number, _ in taker.take()]
    assert got == [4, 5]
    assert (mastered(group).core.unacked, mastered(group).core.ready) == (4, 0)
    taker.client.close_socket()
    assert sorted(number for number, _ in group.drain("c")) == [1, 3, 4, 5]
