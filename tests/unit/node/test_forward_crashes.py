"""A master that crashes at any step: what its queue has afterwards, what publishers elsewhere hear."""

from typing import Any

import pytest

from mirrormq.base import limits
from mirrormq.log import journal
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.clusterkit import ClusterKit
from tests.support.kernelkit import PERSISTENT, publish
from tests.support.nodekit import Client

TRANSIENT = b"\x00\x00"
REFUSING = {"x-max-length": 3, "x-overflow": "reject-publish"}


def cluster(**queue: Any) -> ClusterKit:
    kit = ClusterKit(disks={"home": MemoryDisk(), "master": MemoryDisk()})
    kit["master"].client().declare("q", durable=True, **queue)
    return kit


def confirming(kit: ClusterKit) -> Client:
    client = kit["home"].client()
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    return client


def drained(kit: ClusterKit) -> list[int]:
    client = kit["master"].client()
    client.consume("q", "drain", no_ack=True)
    return [int(body) for body in client.deliveries()]


class Answers:
    """What a publisher was told so far."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.acked: set[int] = set()
        self.nacked: set[int] = set()

    def hear(self) -> "Answers":
        for item in self._client.take():
            if isinstance(item, methods.BasicNack):
                assert item.delivery_tag not in self.acked | self.nacked
                self.nacked.add(item.delivery_tag)
            elif isinstance(item, methods.BasicAck):
                first = 1 if item.multiple else item.delivery_tag
                new = set(range(first, item.delivery_tag + 1)) - self.nacked
                assert new - self.acked, "answered twice"
                self.acked |= new
        return self


class Steps:
    """A few blocks of publishes on their way to the master and its disk, one small step after the other."""

    def __init__(self, kit: ClusterKit, client: Client, properties: list[bytes]) -> None:
        self.kit = kit
        self.client = client
        self.properties = properties
        self.sent = 0
        kit["master"].hold_flushes = True
        kit.hold("home", "master")
        kit.hold("master", "home")

    def publish(self, count: int) -> None:
        parts = []
        for _ in range(count):
            self.sent += 1
            kind = self.properties[self.sent % len(self.properties)]
            parts.append(publish(b"q", b"%d" % self.sent, kind))
        self.client.feed(b"".join(parts))

    def play(self, upto: int) -> bool:
        """The first `upto` steps; False if there are not so many."""
        done = 0
        for counts in ((3, 2), (4,), (1, 1, 2)):
            for count in counts:
                self.publish(count)
            while (step := self._next()) is not None:
                if done == upto:
                    return True
                done += 1
                step()
        return False

    def _next(self) -> Any:
        """The next thing that can happen on the way of a publish."""
        kit = self.kit
        member = kit["master"]
        if kit.wires["home", "master"]:
            return lambda: (kit.deliver("home", "master"), member.step())
        if member.disk.owed:
            return self._finish_one
        if kit.wires["master", "home"]:
            return lambda: (kit.deliver("master", "home"), kit["home"].step())
        return None

    def _finish_one(self) -> None:
        member = self.kit["master"]
        token = member.disk.finish_next()
        if token is not None:
            member.node.disk_done(self.kit.now, token)
        member.step()


def crash_at(step: int, kit: ClusterKit, properties: list[bytes], *, power: bool) -> tuple[Any, ...] | None:
    """Crash the master after some steps; (sent, transient ones, acks before, all answers, what is left)."""
    client = confirming(kit)
    steps = Steps(kit, client, properties)
    if not steps.play(step):
        return None
    answers = Answers(client).hear()
    before = set(answers.acked)
    kit.kill("master", power=power)
    kit.restart("master")
    kit.run()
    answers.hear()
    transient = {at for at in range(1, steps.sent + 1) if properties[at % len(properties)] == TRANSIENT}
    return steps.sent, transient, before, answers, drained(kit)


@pytest.mark.parametrize("power", [True, False], ids=["power", "process"])
@pytest.mark.parametrize(
    "properties",
    [[PERSISTENT], [TRANSIENT], [PERSISTENT, TRANSIENT], [TRANSIENT, TRANSIENT, PERSISTENT]],
    ids=["persistent", "transient", "mixed", "mostly-transient"],
)
def test_a_crash_at_any_step_doubles_reorders_and_wrongly_confirms_nothing(
    properties: list[bytes], power: bool
):
    step = 0
    while (found := crash_at(step, cluster(), properties, power=power)) is not None:
        sent, transient, before, answers, left = found
        assert answers.acked | answers.nacked == set(range(1, sent + 1)), step
        assert left == sorted(set(left)), step
        # What was confirmed is there, but for transient messages confirmed before the crash that took them.
        assert answers.acked - set(left) <= before & transient, step
        # A publish is refused only if the crash took it after the queue had it.
        assert answers.nacked <= transient, step
        step += 1
    assert step > 10


@pytest.mark.parametrize("power", [True, False], ids=["power", "process"])
@pytest.mark.parametrize("properties", [[PERSISTENT], [PERSISTENT, TRANSIENT]], ids=["persistent", "mixed"])
def test_a_crash_of_a_refusing_master_at_any_step_confirms_exactly_what_it_has(
    properties: list[bytes], power: bool
):
    step = 0
    while (found := crash_at(step, cluster(arguments=REFUSING), properties, power=power)) is not None:
        sent, transient, before, answers, left = found
        assert answers.acked | answers.nacked == set(range(1, sent + 1)), step
        assert left == sorted(set(left)), step
        assert answers.acked - set(left) <= before & transient, step
        assert not answers.nacked & set(left), step
        step += 1
    assert step > 10


def test_refusals_are_remembered_when_their_place_has_left_the_journal(monkeypatch: pytest.MonkeyPatch):
    for name, value in {
        "journal_file_bytes": 4000,
        "journal_files_max": 2,
        "recycle_slice_bytes": 1000,
    }.items():
        monkeypatch.setattr(limits, name, value)
    kit = cluster(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    local = kit["master"].client()
    local.declare("busy", durable=True)
    client = confirming(kit)
    kit.hold("master", "home")
    client.feed(publish(b"q", b"1", PERSISTENT) + publish(b"q", b"2", PERSISTENT))
    local.send(methods.BasicGet(queue="q", no_ack=True))
    client.publish("q", b"3", properties=PERSISTENT)
    for _ in range(200):
        local.publish("busy", bytes(90), properties=PERSISTENT)
    assert "log/checkpoint" in kit["master"].disk.list("")
    kit.kill("master")
    kit.restart("master")
    answers = Answers(client).hear()
    assert (answers.acked, answers.nacked) == ({1, 3}, {2})
    assert drained(kit) == [3]


@pytest.mark.parametrize("power", [True, False], ids=["power", "process"])
def test_what_was_given_up_is_never_waited_for_nor_taken_however_often_the_master_crashes(power: bool):
    kit = cluster()
    client = confirming(kit)
    client.publish("q", b"1", properties=PERSISTENT)
    kit.cut("home", "master")
    client.publish("q", b"2", properties=PERSISTENT)
    kit.advance(limits.publish_timeout_us / 1_000_000)
    answers = Answers(client).hear()
    assert (answers.acked, answers.nacked) == ({1}, {2})
    client.publish("q", b"3", properties=PERSISTENT)
    kit.kill("master", power=power)
    kit.restart("master")
    kit.kill("master", power=power)
    kit.restart("master")
    client.publish("q", b"4", properties=PERSISTENT)
    kit.kill("master", power=power)
    kit.restart("master")
    assert answers.hear().acked == {1, 3, 4}
    assert drained(kit) == [1, 3, 4]
    assert not kit.cuts


def test_the_log_says_what_a_home_node_has_given_up():
    kit = cluster()
    client = confirming(kit)
    kit.cut("home", "master")
    for number in range(5):
        client.publish("q", b"%d" % number, properties=TRANSIENT)
    kit.advance(limits.publish_timeout_us / 1_000_000)
    kit["master"].hold_flushes = True
    client.publish("q", b"5", properties=TRANSIENT)
    kit.hold("master", "home")
    for pair in (("home", "master"), ("master", "home")):
        assert pair not in kit.wires
    kit.heal("home", "master")
    kit["master"].hold_flushes = False
    kit["master"].flush()
    kit.kill("master", power=False)
    kit.cut("home", "master")
    kit.restart("master")
    log = kit.node("master").vhosts["/"].queues["q"].log  # type: ignore[attr-defined]
    assert list(log.letters.values()) == [6]


def test_what_a_killed_process_left_unflushed_is_confirmed_only_when_the_next_one_has_flushed_it():
    kit = cluster()
    client = confirming(kit)
    kit["master"].hold_flushes = True
    client.publish("q", b"1", properties=PERSISTENT)
    kit.kill("master", power=False)
    member_settings = kit.settings
    kit.settings = {**member_settings, "holds": journal.PREFIX}
    kit.restart("master")
    kit.settings = member_settings
    assert client.take() == []
    kit.kill("master")  # and now the power fails: the record was in the page cache only
    kit.restart("master")
    assert client.take() == [methods.BasicAck(1, False)]
    assert drained(kit) == [1]
