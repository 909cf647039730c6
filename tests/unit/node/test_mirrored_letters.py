"""Dead letters between mirrored queues: each arrives exactly once, whoever dies on the way."""

from mirrormq.broker import inherited
from mirrormq.broker.queueport import Rows
from mirrormq.kernel.forward import encode
from mirrormq.kernel.message import Message
from mirrormq.kernel.rows import PUBLISH
from mirrormq.node import requests
from mirrormq.wire import methods
from tests.support.kernelkit import PERSISTENT
from tests.support.scenariokit import Consumer, Site

LETTER = Message(b"", b"letters", PERSISTENT, b"1")
LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}


class Source:
    """A queue of another node in which letters died."""

    queue_id = 77

    def __init__(self) -> None:
        self.there: list[int] = []

    def arrived(self, number: int) -> None:
        self.there.append(number)


def wide() -> Site:
    """Five nodes with a queue on two of them, and its letters on the first of them and a third one."""
    made = Site("a", "b", "c", "d", "e")
    made.policy("^q$", "q", ha_mode="nodes", ha_params=["a", "b"], ha_mirror_timeout=60_000)
    made.policy("^letters$", "l", ha_mode="nodes", ha_params=["a", "c"])
    made.declare("letters", at="a")
    made.declare("q", at="a", arguments=LETTERS)
    made.wait_copies("a", "b")
    made.wait_copies("a", "c", queue="letters")
    (leader,) = made.leaders
    made[leader].node.membership.raft.transfer(made.now.mono, "e")
    made[leader].node.membership.is_due = True
    made.wait(lambda: made.leaders == {"e"}, "e leads")
    made.advance(1)
    return made


def reject(taker: Consumer, wanted: int) -> None:
    tag = next(tag for tag, number in taker.unacked if number == wanted)
    taker.client.send(methods.BasicNack(tag, False, False))


def with_a_waiting_letter() -> Site:
    """A message of q is rejected, and the mirror cannot hear of that."""
    group = wide()
    group.fill(1)
    taker = Consumer(group, group["a"].client())
    assert len(taker.wait_taken(1)) == 1
    group.cuts |= {frozenset(("a", "b"))}
    reject(taker, 0)
    group.advance(0.2)
    return group


def test_a_letter_does_not_outlive_the_record_of_its_death():
    group = wide()
    group.fill(2)
    taker = Consumer(group, group["a"].client())
    assert len(taker.wait_taken(2)) == 2
    group.cuts |= {frozenset(("a", "b"))}
    reject(taker, 0)
    group.advance(0.1)
    group.kill("a")
    group.wait(lambda: group.master() == "b" and group.master("letters") == "c", "others are the masters")
    taker = Consumer(group, group["d"].client())
    assert len(taker.wait_taken(2)) == 2
    reject(taker, 1)
    group.advance(0.5)
    reject(taker, 0)
    group.advance(0.5)
    # Had the letter of the first death survived, the next one would have got its number.
    assert sorted(number for number, _ in group.drain("d", "letters")) == [0, 1]


def test_letters_of_mirrored_queues_with_one_master_leave_when_the_mirrors_know_of_the_death():
    group = with_a_waiting_letter()
    assert group.depth("letters", "a") == 0
    group.cuts.clear()
    group.wait(lambda: group.depth("letters", "a") == 1, "the letter is there")


def test_a_letter_that_waits_for_the_record_of_its_death_follows_its_target_to_another_master():
    group = with_a_waiting_letter()
    group["a"].node.admin(group.now, requests.MoveMaster(vhost="/", name="letters", node="c"), lambda _: None)
    group.wait(lambda: group.master("letters") == "c", "the letters have another master")
    group.cuts.clear()
    group.wait(lambda: group.depth("letters", "c") == 1, "the letter is there")
    group.wait(lambda: group["a"].node.vhosts["/"].queues["q"].letters.backlog == 0, "it has left the queue")


def test_a_letter_whose_target_is_deleted_while_it_waits_is_not_waited_for():
    group = with_a_waiting_letter()
    group["d"].client().ask(methods.QueueDelete(0, "letters", False, False, False), methods.QueueDeleteOk)
    group.cuts.clear()
    group.wait(lambda: group["a"].node.vhosts["/"].queues["q"].letters.backlog == 0, "it has left the queue")


def test_a_letter_that_comes_again_while_the_home_nodes_are_heard_is_taken_once():
    group = Site()
    group.policy(ha_mode="all")
    group.declare("letters", at="a")
    group.wait_copies(*group.names, queue="letters")
    queue = group["a"].node.vhosts["/"].queues["letters"]
    waiting = inherited.inherit(queue)
    before, after = Source(), Source()
    queue.receive(LETTER, before, 1, is_resent=False)
    group.advance(0.1)
    queue.receive(LETTER, after, 1, is_resent=True)
    group.advance(0.3)
    waiting.release()
    group.advance(0.3)
    assert after.there == [1]
    assert group.depth("letters") == 1


def cut_letters(group: Site) -> None:
    """What the queue of the letters takes from now on its mirror does not hear of."""
    group.policy("^letters$", "l", ha_mode="nodes", ha_params=["a", "c"], ha_mirror_timeout=60_000)
    group.advance(1)
    group.cuts |= {frozenset(("a", "c"))}


def delete_letters(group: Site) -> None:
    group["d"].client().ask(methods.QueueDelete(0, "letters", False, False, False), methods.QueueDeleteOk)
    group.cuts.clear()
    group.advance(1)


def test_a_letter_that_its_target_has_not_brought_to_all_mirrors_is_let_go_when_the_target_is_deleted():
    group = wide()
    group.fill(1)
    taker = Consumer(group, group["a"].client())
    taker.wait_taken(1)
    cut_letters(group)
    reject(taker, 0)
    group.advance(0.2)
    queue = group["a"].node.vhosts["/"].queues["q"]
    assert queue.letters.backlog == 1
    delete_letters(group)
    assert queue.letters.backlog == 0
    assert queue.log.kept.dying == {}


def test_rows_that_their_target_has_not_brought_to_all_mirrors_are_let_go_when_the_target_is_deleted():
    group = wide()
    source = Source()
    cut_letters(group)
    queue = group["a"].node.vhosts["/"].queues["letters"]
    queue.receive(Rows(encode(LETTER, False), 1, 1, PUBLISH), source, 1, is_resent=False)
    group.advance(0.2)
    assert group.depth("letters", "a") == 1
    assert source.there == []
    delete_letters(group)
    assert source.there == [1]
