"""Partition mode `autoheal`: both sides of a cluster that is cut in two take messages, and none is lost."""

from typing import Any

import pytest

from mirrormq.meta.merges import merges_of
from mirrormq.node import partition, requests
from mirrormq.node.branches import FILE
from mirrormq.wire import methods
from mirrormq.wire.properties import decode_properties
from tests.support.kernelkit import PERSISTENT, publish
from tests.support.scenariokit import Consumer, Site


@pytest.fixture
def site() -> Site:
    """Three nodes, and a queue with copies on all of them, whose master is `a`."""
    site = Site(partition_handling="autoheal")
    site.policy(ha_mode="all")
    site.declare(at="a")
    site.wait_copies("a", "b", "c")
    return site


def cut_off(site: Site, *names: str) -> None:
    """Cut nodes off from the others, and let them notice."""
    site.cut(*names)
    site.wait(lambda: all(site[name].node.partition.is_cut for name in names), f"{names} are cut off")
    for name in names:
        for other in set(site.names) - set(names):
            site.unlink(name, other, eof=False)
    there = next(name for name in site.names if name not in names)
    site.wait(lambda: site[there].node.meta.views["/", "q"].master not in names, "the others have a master")


def branches(site: Site, name: str) -> dict[str, int]:
    found: dict[str, int] = site[name].node.partition.status()["branches"]
    return {key: found[key] for key in ("open", "merging", "messages")}


def heal(site: Site, *names: str) -> None:
    """Heal the cluster, and wait until all branches are merged."""
    site.heal()
    site.wait(lambda: not any(site[name].node.partition.is_cut for name in names), f"{names} are back")
    wait_merged(site, *names)


def wait_merged(site: Site, *names: str) -> None:
    def is_merged() -> bool:
        return all(branches(site, name) == {"open": 0, "merging": 0, "messages": 0} for name in names)

    site.wait(is_merged, "the branches are merged")
    site.wait(lambda: not any(merges(site, name) for name in site.names), "nothing is being merged")


def merges(site: Site, name: str) -> tuple[Any, ...]:
    record = site[name].node.meta.queues.get(("/", "q"))
    return tuple(one for one in merges_of(record) if not one.is_over) if record is not None else ()


def numbers(found: list[tuple[int, bool]]) -> list[int]:
    return [number for number, _ in found]


def choose(site: Site, name: str, mode: str) -> Any:
    """Choose a mode on one node, as an administrator does."""
    answers: list[Any] = []
    site[name].node.admin(site.now, requests.SetPartitionHandling(mode=mode), answers.append)
    site.run()
    (answer,) = answers
    return answer


# --- publishing ---


@pytest.mark.slow
@pytest.mark.parametrize("side", ["a", "b"], ids=["the master", "a mirror"])
def test_both_sides_publish_and_every_confirmed_message_is_there_once(site: Site, side: str) -> None:
    site.fill(10)
    near = site.publisher(side)
    cut_off(site, side)
    near.publish(300, 100)
    near.wait_confirmed(300)
    assert branches(site, side) == {"open": 1, "merging": 0, "messages": 300}
    far = site.publisher("c")
    far.publish(20, 1000)
    far.wait_confirmed(20)
    site.advance(30)
    near.publish(5, 400)
    near.wait_confirmed(305)
    heal(site, side)
    assert site[side].node.partition.status()["branches"]["merged"] == 305
    near.publish(5, 500)
    near.wait_confirmed(310)
    assert not near.nacked | far.nacked
    found = numbers(site.drain(at="c"))
    assert sorted(found) == [*range(10), *range(100, 405), *range(500, 505), *range(1000, 1020)], "each once"
    assert [one for one in found if 100 <= one < 1000] == [*range(100, 405), *range(500, 505)], "in order"


@pytest.mark.slow
def test_what_comes_from_a_branch_says_from_which_node(site: Site) -> None:
    near = site.publisher("a")
    cut_off(site, "a")
    near.publish(1, 7)
    near.wait_confirmed(1)
    heal(site, "a")
    client = site["c"].client()
    client.send(methods.BasicGet(queue="q", no_ack=True))
    site.wait(lambda: len(client.inbox) > 1, "the message is there")
    client.expect(methods.BasicGetOk)
    raw, body = client.take()[0]
    properties = decode_properties(raw)
    assert body == b"7"
    assert properties.headers == {"x-healed-from": "a"}
    assert properties.delivery_mode == 2


@pytest.mark.slow
def test_two_nodes_that_are_cut_off_have_a_branch_each(site: Site) -> None:
    site = Site("a", "b", "c", "d", "e", partition_handling="autoheal")
    site.policy(ha_mode="all")
    site.declare(at="a")
    site.wait_copies(*site.names)
    publishers = [site.publisher(name) for name in ("a", "b", "c")]
    cut_off(site, "a", "b")
    for nth, publisher in enumerate(publishers):
        publisher.publish(10, nth * 100)
        publisher.wait_confirmed(10)
    assert branches(site, "a")["messages"] == branches(site, "b")["messages"] == 10
    heal(site, "a", "b")
    found = numbers(site.drain(at="d"))
    assert sorted(found) == [*range(10), *range(100, 110), *range(200, 210)]


@pytest.mark.slow
def test_a_queue_that_is_whole_on_this_side_goes_on_without_a_branch() -> None:
    site = Site("a", "b", "c", "d", "e", partition_handling="autoheal")
    site.policy(ha_mode="nodes", ha_params=["a", "b"])
    site.declare(at="a")
    site.wait_copies("a", "b")
    site.wait(lambda: (view := site.view()) is not None and view.waiver == "a", "it is waived")
    site.advance(2)
    near, beside = site.publisher("a"), site.publisher("b")
    site.cut("a", "b")
    site.wait(lambda: all(site[name].node.partition.is_cut for name in "ab"), "they are cut off")
    near.publish(5)
    beside.publish(5, 10)
    near.wait_confirmed(5)
    beside.wait_confirmed(5)
    assert branches(site, "a")["open"] == branches(site, "b")["open"] == 0


@pytest.mark.slow
def test_what_was_under_way_when_the_node_was_cut_off_is_refused_and_holds_nothing_up(site: Site) -> None:
    near = site.publisher("b")
    site.cut("b")
    near.publish(3)
    cut_off(site, "b")
    near.publish(3, 10)
    near.wait_confirmed(3)
    assert near.nacked == {1, 2, 3}
    assert near.confirmed == {4, 5, 6}
    heal(site, "b")
    found = numbers(site.drain(at="c"))
    assert [number for number in found if number >= 10] == [10, 11, 12]
    assert set(found) <= {0, 1, 2, 10, 11, 12}


@pytest.mark.slow
def test_where_no_side_has_a_majority_every_node_has_branches(site: Site) -> None:
    publishers = {name: site.publisher(name) for name in site.names}
    site.cuts = {frozenset(pair) for pair in (("a", "b"), ("a", "c"), ("b", "c"))}
    site.wait(lambda: all(site[name].node.partition.is_cut for name in site.names), "all are cut off")
    for one, other in (("a", "b"), ("a", "c"), ("b", "c")):
        site.unlink(one, other, eof=False)
    for nth, publisher in enumerate(publishers.values()):
        publisher.publish(10, nth * 100)
        publisher.wait_confirmed(10)
    heal(site, *site.names)
    assert sorted(numbers(site.drain())) == [*range(10), *range(100, 110), *range(200, 210)]


@pytest.mark.slow
def test_a_full_queue_that_refuses_publishes_takes_what_its_branch_confirmed(site: Site) -> None:
    site.declare("full", arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    site.wait_copies(*site.names, queue="full")
    near = site.publisher("a", "full")
    cut_off(site, "a")
    site.wait(lambda: site["c"].node.meta.views["/", "full"].master != "a", "the others have a master")
    near.publish(2, 10)
    near.wait_confirmed(2)
    site.fill(3, at="c", queue="full")
    heal(site, "a")
    assert sorted(numbers(site.drain(at="c", queue="full"))) == [0, 1, 2, 10, 11]


@pytest.mark.slow
def test_what_is_rejected_on_a_branch_becomes_one_dead_letter(site: Site) -> None:
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    site.declare("dying", arguments=dead_letters)
    site.wait_copies(*site.names, queue="dying")
    near = site.publisher("a", "dying")
    cut_off(site, "a")
    site.wait(lambda: site["c"].node.meta.views["/", "dying"].master != "a", "the others have a master")
    near.publish(5)
    near.wait_confirmed(5)
    consumer = Consumer(site, site["a"].client(), "dying", prefetch=3)
    consumer.wait_taken(3)
    for tag, _ in consumer.unacked:
        consumer.client.send(methods.BasicReject(tag, False))
    consumer.unacked.clear()
    assert len(consumer.wait_taken(2)) == 2
    consumer.client.close_socket()
    heal(site, "a")
    assert sorted(numbers(site.drain(at="c"))) == [0, 1, 2]
    assert sorted(numbers(site.drain(at="c", queue="dying"))) == [3, 4]


# --- consuming ---


@pytest.mark.slow
@pytest.mark.parametrize("method", [methods.BasicConsume(queue="q"), methods.BasicGet(queue="q")])
def test_a_request_that_was_under_way_is_answered_by_a_branch(site: Site, method: methods.Method) -> None:
    client = site["b"].client()
    site.cut("b")
    client.send(method)
    client.send(methods.QueueDeclare(queue="q", passive=True))
    cut_off(site, "b")
    site.wait(lambda: len(client.inbox) > 1, "the branch answers")
    names = [type(one) for one in client.take()]
    first = methods.BasicConsumeOk if isinstance(method, methods.BasicConsume) else methods.BasicGetEmpty
    assert names == [first, methods.QueueDeclareOk]
    near = site.publisher("b")
    near.publish(1)
    near.wait_confirmed(1)
    client.close_socket()
    heal(site, "b")
    assert numbers(site.drain(at="c")) == [0]


@pytest.mark.slow
@pytest.mark.parametrize("side", ["a", "b"], ids=["the master", "a mirror"])
def test_consumers_are_served_by_the_branch_and_by_the_queue_again(site: Site, side: str) -> None:
    early = Consumer(site, site[side].client(), prefetch=10)
    near = site.publisher(side)
    near.publish(2)
    near.wait_confirmed(2)
    assert numbers(early.wait_taken(2)) == [0, 1]
    early.ack_all()
    site.advance(1)
    cut_off(site, side)
    near.publish(10, 10)
    near.wait_confirmed(12)
    assert early.wait_taken(10) == [(number, False) for number in range(10, 20)]
    early.ack_all()
    late = Consumer(site, site[side].client(), prefetch=10)
    near.publish(10, 20)
    taken = early.wait_taken(5) + late.wait_taken(5)
    assert sorted(numbers(taken)) == list(range(20, 30)), "both are served"
    early.ack_all()
    late.ack_all()
    client = site[side].client()
    client.send(methods.BasicGet(queue="q", no_ack=True))
    site.advance(0.2)
    client.expect(methods.BasicGetEmpty)
    heal(site, side)
    far = site.publisher("c")
    far.publish(10, 100)
    far.wait_confirmed(10)
    taken = early.wait_taken(5) + late.wait_taken(5)
    assert sorted(numbers(taken)) == list(range(100, 110)), "the queue serves them"
    assert early.cancelled == late.cancelled == 0
    early.ack_all()
    late.ack_all()
    site.advance(1)
    assert site.depth() == 0


@pytest.mark.slow
def test_what_a_client_holds_of_a_branch_stays_its_own(site: Site) -> None:
    near = site.publisher("a")
    cut_off(site, "a")
    near.publish(5)
    near.wait_confirmed(5)
    holder = Consumer(site, site["a"].client(), prefetch=4)
    assert numbers(holder.wait_taken(4)) == [0, 1, 2, 3]
    site.heal()
    site.wait(lambda: not site["a"].node.partition.is_cut, "a is back")
    site.wait(lambda: branches(site, "a")["messages"] == 4, "what nobody held is merged")
    refused: list[Any] = []
    site["a"].node.admin(site.now, requests.LeaveCluster(), refused.append)
    site.run()
    assert "4 messages of branches are only here" in refused[0].problem.text
    holder.client.send(methods.BasicAck(holder.unacked[1][0], True))
    holder.client.send(methods.BasicNack(holder.unacked[2][0], False, True))
    site.wait(lambda: branches(site, "a")["messages"] == 1, "one is left")
    holder.client.close_socket()
    wait_merged(site, "a")
    found = site.drain(at="c")
    assert sorted(numbers(found)) == [2, 3, 4]
    assert {2, 3} <= {number for number, is_marked in found if is_marked}, "they may have been seen before"


@pytest.mark.slow
def test_what_lay_in_the_queue_before_is_delivered_by_the_other_side_alone(site: Site) -> None:
    site.fill(10)
    cut_off(site, "a")
    near = Consumer(site, site["a"].client())
    site.advance(3)
    assert near.take() == []
    assert numbers(site.drain(at="c")) == list(range(10))
    heal(site, "a")
    site.advance(3)
    assert near.take() == []


# --- crashes ---


def crash(site: Site, name: str) -> None:
    site.kill(name)
    site.restart(name)


@pytest.mark.slow
def test_a_branch_survives_the_death_of_its_node_and_is_merged_once(site: Site) -> None:
    near = site.publisher("a")
    cut_off(site, "a")
    near.publish(50)
    near.wait_confirmed(50)
    site.kill("a")
    site.heal()
    site.restart("a")
    wait_merged(site, "a")
    assert sorted(numbers(site.drain(at="c"))) == list(range(50))
    assert site["a"].node.partition.status()["branches"]["messages"] == 0
    crash(site, "a")
    site.advance(5)
    assert site.depth() == 0, "nothing of it is left on disk"


class Halting(Site):
    """A site that stands still a number of rounds after a merge has begun."""

    rounds = 0
    is_watching = False
    is_halted = False

    def run(self) -> None:
        while not self.is_halted and self.round():
            if self.is_watching and any(merges(self, name) for name in self.members):
                self.rounds -= 1
                self.is_halted = self.rounds <= 0

    def halt_in_merge(self, rounds: int) -> int:
        """Begin to merge 40 messages of `a`, and stop after so many rounds; how many are in the branch."""
        near = self.publisher("a")
        cut_off(self, "a")
        near.publish(40)
        near.wait_confirmed(40)
        self.rounds, self.is_watching = rounds, True
        self.heal()
        self.wait(lambda: self.is_halted, "it merges")
        return branches(self, "a")["messages"]

    def go_on_without(self, name: str) -> None:
        """A node dies now, and is started again later."""
        self.kill(name)
        self.is_watching = self.is_halted = False
        self.advance(10)
        self.restart(name)


@pytest.fixture
def halting(monkeypatch: pytest.MonkeyPatch) -> Halting:
    monkeypatch.setattr("mirrormq.base.limits.branch_slice_messages", 5)
    site = Halting(partition_handling="autoheal")
    site.policy(ha_mode="all")
    site.declare(at="a")
    site.wait_copies("a", "b", "c")
    return site


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [*range(1, 14), 17, 20, 25, 30, 40, 50, 60])
def test_a_death_at_any_time_of_a_merge_loses_and_doubles_nothing(halting: Halting, rounds: int) -> None:
    left = halting.halt_in_merge(rounds)
    assert left < 40 or rounds <= 15, "some have arrived"
    assert left > 0 or rounds >= 55, "and some have not"
    halting.go_on_without("a")
    wait_merged(halting, "a")
    assert sorted(numbers(halting.drain(at="c"))) == list(range(40))


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 3, 5, 7, 9, 11, 13, 20, 30])
def test_the_death_of_the_master_of_the_queue_loses_and_doubles_nothing_of_a_merge(
    halting: Halting, rounds: int
) -> None:
    halting.halt_in_merge(rounds)
    halting.go_on_without(halting["b"].node.meta.views["/", "q"].master)
    wait_merged(halting, "a")
    assert sorted(numbers(halting.drain(at="a"))) == list(range(40))


# --- other ends ---


@pytest.mark.slow
def test_a_branch_of_a_queue_that_was_deleted_goes_with_it_and_is_counted(site: Site) -> None:
    near = site.publisher("a")
    cut_off(site, "a")
    near.publish(5)
    near.wait_confirmed(5)
    consumer = Consumer(site, site["a"].client(), prefetch=1)
    consumer.wait_taken(1)
    client = site["c"].client()
    client.send(methods.QueueDelete(queue="q"))
    site.wait(lambda: bool(client.inbox), "it is deleted")
    site.heal()
    site.wait(lambda: not site["a"].node.partition.is_cut, "a is back")
    site.wait(lambda: branches(site, "a")["merging"] == 0, "the branch is gone")
    consumer.take()
    assert consumer.cancelled == 1
    assert site["a"].node.partition.status()["branches"]["dropped"] == 5


@pytest.mark.slow
def test_another_mode_closes_branches_and_they_are_merged_all_the_same(site: Site) -> None:
    near = site.publisher("a")
    cut_off(site, "a")
    near.publish(5)
    near.wait_confirmed(5)
    choose(site, "a", "ignore")
    near.publish(5, 10)
    site.advance(5)
    near.hear()
    assert len(near.confirmed) == 5, "with `ignore` publishes wait"
    assert branches(site, "a") == {"open": 0, "merging": 1, "messages": 5}
    choose(site, "a", "autoheal")
    near.publish(5, 20)
    near.wait_confirmed(10)
    heal(site, "a")
    found = numbers(site.drain(at="c"))
    assert [number for number in found if not 10 <= number < 20] == [0, 1, 2, 3, 4, *range(20, 25)]
    assert len(found) == len(set(found))


@pytest.mark.slow
def test_a_transaction_that_chose_a_branch_is_not_lost_with_it(site: Site) -> None:
    opener = site.publisher("a")
    cut_off(site, "a")
    opener.publish(1)
    opener.wait_confirmed(1)
    client = site["a"].client()
    client.ask(methods.TxSelect(), methods.TxSelectOk)
    client.feed(publish(b"q", b"77", PERSISTENT))
    heal(site, "a")
    client.send(methods.TxCommit())
    site.wait(lambda: bool(client.inbox), "it is committed")
    client.expect(methods.TxCommitOk)
    assert sorted(numbers(site.drain(at="c"))) == [0, 77]


def test_the_old_name_is_taken_with_a_warning() -> None:
    site = Site(partition_handling="pause_minority")
    answer = choose(site, "a", "autoupgrade")
    assert answer.value["handling"] == "autoheal"
    assert "deprecated: write autoheal" in answer.value["warning"]
    assert "warning" not in choose(site, "a", "autoheal").value
    assert site["a"].node.partition.mode == partition.AUTOHEAL
    assert FILE not in site["a"].disk.list("")
