"""The job `audit` beside real clusters: copies that are the same pass, whatever happens meanwhile, and a
record that is not the same on one of them is found and named.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import pika
import pytest

pytest.importorskip("pyspark")

from mirrormq.client.bulk import BulkClient, Target
from mirrormq.kernel import records
from mirrormq.spark.jobs import cli
from mirrormq.spark.jobs import state as states
from mirrormq.spark.jobs.audit import JOB, Memory, page, summary
from mirrormq.spark.jobs.auditrun import Outcome
from mirrormq.spark.jobs.audittasks import publishes, version_of
from mirrormq.spark.jobs.auditverdict import verdicts
from mirrormq.spark.jobs.frame import Work
from mirrormq.spark.jobs.progress import Progress
from mirrormq.testing import Cluster, ClusterNode, cluster
from tests.support import tamper

MEMBERS = ("a", "b", "c")
COUNT = 2_500
Audit = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def mirrored() -> Iterator[Cluster]:
    """Three nodes; queues whose names do not begin with `single` are on all of them."""
    with cluster(nodes=3) as made:
        policy = {"name": "all", "pattern": "^(?!single|two)", "vhost": "/", "apply_to": "queues"}
        made.ask("set_policy", definition={"ha-mode": "all"}, **policy)
        # By name: a node that is away is not replaced by another one.
        two = {"ha-mode": "nodes", "ha-params": [node.name for node in made.nodes[:2]]}
        made.ask("set_policy", **{**policy, "name": "two", "pattern": "^two", "definition": two})
        yield made
        made.start_all()


@pytest.fixture
def audit(
    spark: Any, mirrored: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """Audits queues of the cluster; the result."""

    def run(*words: str, code: int = 0, name: str = "a") -> dict[str, Any]:
        hosts = ",".join(f"{node.host}:{node.port}" for node in mirrored.nodes)
        shared = ["--url", f"amqp://guest@{hosts}/", "--state-dir", str(tmp_path / "state"), "--name", name]
        shared += ["--out", str(tmp_path / "out"), "--json", "--quiet"]
        ended = cli.pipeline(["audit", *shared, *words])
        told = capsys.readouterr()
        assert ended == code, (told.out, told.err)
        return json.loads(told.out) if told.out else {"error": told.err}

    return run


def facts(made: Cluster, queue: str) -> dict[str, Any]:
    with BulkClient(Target([(node.host, node.port) for node in made.nodes])) as client:
        return dict(client.call("queues", queue=queue)["queues"][0])


def cursors(made: Cluster, queue: str) -> list[dict[str, Any]]:
    with BulkClient(Target([(node.host, node.port) for node in made.nodes])) as client:
        return list(client.call("cursor_list", queue=queue)["cursors"])


def wait_in_sync(made: Cluster, queue: str, count: int) -> dict[str, Any]:
    for _ in range(600):
        found = facts(made, queue)
        if sum(member["in_sync"] and member["is_live"] for member in found["members"]) == count:
            return found
        threading.Event().wait(0.1)
    raise AssertionError(facts(made, queue))


def node_named(made: Cluster, name: str) -> ClusterNode:
    return next(node for node in made.nodes if node.name == name)


class Client:
    """A connection to a node, or to the first one that runs."""

    def __init__(self, made: Cluster, queue: str, node: ClusterNode | None = None) -> None:
        node = node or next(node for node in made.nodes if node.is_running)
        self._connection = pika.BlockingConnection(pika.URLParameters(node.url))
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()
        self._channel.queue_declare(queue, durable=True)
        self._queue = queue

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def fill(self, count: int, first: int = 0) -> None:
        """Publish numbers; the last one is confirmed."""
        channel = self._connection.channel()
        made = pika.BasicProperties(delivery_mode=2)
        for number in range(first, first + count - 1):
            channel.basic_publish("", self._queue, b"body %08d" % number, made)
        channel.close()
        self._channel.basic_publish("", self._queue, b"body %08d" % (first + count - 1), made)

    def publish(self, body: bytes) -> None:
        self._channel.basic_publish("", self._queue, body, pika.BasicProperties(delivery_mode=2))

    def take(self, count: int, *, every: int = 1) -> None:
        """Get messages, as far as there are any, and acknowledge some of them; with 0 none."""
        found = [self._channel.basic_get(self._queue)[0] for _ in range(count)]
        for at, method in enumerate(found):
            if method is not None and every and at % every == 0:
                self._channel.basic_ack(method.delivery_tag)
        self._connection.process_data_events(0)


def filled(made: Cluster, queue: str, copies: int = 3) -> dict[str, Any]:
    with Client(made, queue) as client:
        client.fill(COUNT)
    return wait_in_sync(made, queue, copies)


def change(made: Cluster, queue: str, node: ClusterNode, *changes: Callable[[Path, int], None]) -> None:
    """Kill a node, change its files, let it come back as a member in sync."""
    known = facts(made, queue)
    node.kill()
    for one in changes:
        one(node._member.local.folder / "data", int(known["id"], 16))
    node.start()
    wait_in_sync(made, queue, len(known["members"]))


def mirror_of(made: Cluster, found: dict[str, Any]) -> ClusterNode:
    """A node with a copy of a queue that is not its master."""
    name = next(member["node"] for member in found["members"] if not member["is_master"])
    return node_named(made, name)


# --- who is right ------------------------------------------------------------------------------------------


def told(members: Sequence[str], **has: tuple[str, int]) -> list[tuple[str | None, str]]:
    return [(one.member, one.kind) for one in verdicts(members, has)]


ONE, OTHER, THIRD = ("1:1:aa:5", 5), ("1:1:bb:6", 6), ("1:1:cc:7", 7)


def test_whoever_is_alone_against_a_majority_is_named() -> None:
    assert told(MEMBERS, a=ONE, b=ONE) == [("c", "missing")]
    assert told(MEMBERS, b=ONE) == [("b", "extra")]
    assert told(MEMBERS, a=ONE, b=OTHER, c=ONE) == [("b", "altered")]
    assert told([*MEMBERS, "d", "e"], a=ONE, b=ONE, c=ONE, d=OTHER) == [("d", "altered"), ("e", "missing")]


def test_without_a_majority_nobody_is_named_and_it_is_said_who_has_what() -> None:
    assert told(("a", "b"), a=ONE) == [(None, "missing")]
    assert told(("a", "b"), a=ONE, b=OTHER) == [(None, "altered")]
    assert told(MEMBERS, a=ONE, b=OTHER, c=THIRD) == [(None, "altered")]
    (one,) = verdicts(("a", "b"), {"b": ONE})
    assert one.detail == "b has it, a does not"
    (one,) = verdicts(MEMBERS, {"a": ONE, "b": OTHER})
    assert one.detail == "they differ: a | b | c lacks it (in body)"


def test_what_differs_is_named() -> None:
    for version, what in {
        "1:1:bb:6": "differs in body",
        "1:1:bb:5": "differs in properties",
        "2:1:aa:5": "differs in epoch",
        "1:3:aa:5": "differs in flags",
    }.items():
        (one,) = verdicts(MEMBERS, {"a": ONE, "b": ONE, "c": (version, 0)})
        assert (one.member, one.detail) == ("c", what)


def test_records_are_told_apart_by_all_that_is_in_them() -> None:
    payload = bytearray(44) + b"\x00\x01q" + b"\x10\x00\x02" + b"body"
    struct.pack_into("<IH", payload, 36, 3, 3)
    batch = records.encode_batch(7, 3, 10, 0, [(records.HORIZON, 0, bytes(8)), (1, 1, bytes(payload))])
    ((seq, epoch, flags, found),) = publishes(batch + batch[:0])
    assert (seq, epoch, flags, bytes(found)) == (11, 3, 1, bytes(payload))
    plain = version_of(seq, epoch, flags, found)
    payload[0] ^= 1
    timed = version_of(seq, epoch, flags, memoryview(payload))
    assert (timed[1] != plain[1], timed[2] == plain[2]) == (True, True)
    payload[-1] ^= 1
    assert version_of(seq, epoch, flags, memoryview(payload))[2] != plain[2]


# --- a run and the next one --------------------------------------------------------------------------------


def test_a_run_that_was_interrupted_goes_on_with_what_is_not_judged(tmp_path: Path) -> None:
    def memory(ended: str) -> tuple[Memory, list[tuple[int, int]]]:
        names = [f"q{number}" for number in range(450)] if ended != "stopped" else ["other"]
        with states.opened(tmp_path / "state", "audit", {}) as state:
            work = Work(JOB, Namespace(out=tmp_path / "out"), state, Progress("audit", lambda _: None))
            made = Memory(work)
            groups = [(number, len(queues)) for number, queues in made.groups(lambda: names)]
            if not made.has(0):
                made.add(0, [{"queue": ended}])
            state.update(state=ended)
            return made, groups

    _, groups = memory("stopped")
    assert groups == [(0, 1)]
    second, groups = memory("done")
    assert (groups, list(second.rows())) == ([(0, 1)], [{"queue": "stopped"}])
    third, groups = memory("failed")
    assert (groups, list(third.rows())) == ([(0, 200), (1, 200), (2, 50)], [{"queue": "failed"}])
    with (tmp_path / "state" / "judged.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"group": 1, "rows"')
    fourth, _ = memory("failed")
    assert not fourth.has(1)
    fourth.add(2, [{"queue": "last"}])
    assert list(memory("failed")[0].rows()) == [{"queue": "failed"}, {"queue": "last"}]


def test_what_differs_is_shown_first_and_decides_how_the_run_ends(tmp_path: Path) -> None:
    plain = asdict(Outcome("/", "fine", "agree", judged=["a", "b"], messages=5, ranges=1, first=1, last=6))
    away = asdict(Outcome("/", "away", "not judged", "its node is <away>"))
    finding = {"seq": 3, "member": "b", "kind": "altered", "detail": "differs in body", "other_seq": None}
    counts = {"findings": {"altered": 1}, "by_member": {"b": 1}, "examples": [finding]}
    wrong = asdict(Outcome("/", "wrong", "differ", judged=["a", "b", "c"])) | counts
    for rows, code in (([plain], 0), ([plain, away], 4), ([plain, away, wrong], 3)):
        result = summary(list(rows), tmp_path)
        assert JOB.code(result) == code
    assert [row["queue"] for row in result["queues"]] == ["wrong", "away", "fine"]
    shown = "\n".join(JOB.lines(result))
    assert "1 altered (1 on b)" in shown
    assert "differs in body" in shown
    made = page(result)
    assert "its node is &lt;away&gt;" in made
    assert "http" not in made


# --- copies that are the same ------------------------------------------------------------------------------


def test_healthy_copies_agree_and_a_single_one_is_read_through(
    audit: Audit, mirrored: Cluster, tmp_path: Path
) -> None:
    filled(mirrored, "healthy")
    filled(mirrored, "single", 1)
    with Client(mirrored, "healthy") as client:
        client.take(300, every=3)
    told = audit("--queues", "healthy,single")
    assert told["verdict"] == "agreement"
    assert told["findings"] == {"missing": 0, "extra": 0, "altered": 0, "reordered": 0}
    healthy, single = told["queues"]
    assert (healthy["status"], len(healthy["judged"]), healthy["messages"]) == ("agree", 3, COUNT - 100)
    assert (single["status"], len(single["judged"]), single["messages"]) == ("one copy", 1, COUNT)
    assert cursors(mirrored, "healthy") == cursors(mirrored, "single") == []
    assert "healthy" in (tmp_path / "out/report.html").read_text(encoding="utf-8")


class Traffic(threading.Thread):
    """A client that publishes and one that consumes, both on one node, until they are told to end."""

    def __init__(self, made: Cluster, queue: str, node: ClusterNode) -> None:
        super().__init__(daemon=True)
        self._made, self._queue, self._node = made, queue, node
        self._ended = threading.Event()
        self.rounds = 0
        self.problem: Exception | None = None

    def run(self) -> None:
        try:
            with Client(self._made, self._queue, self._node) as client:
                while not self._ended.is_set():
                    client.fill(40, first=self.rounds * 40)
                    client.take(30, every=2)
                    self.rounds += 1
        except Exception as error:  # noqa: BLE001  (told by the test)
            self.problem = error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()
        assert self.problem is None, self.problem


def test_traffic_and_a_killed_master_are_no_difference(
    audit: Audit, mirrored: Cluster, tmp_path: Path
) -> None:
    before = filled(mirrored, "busy")
    master, mirror = node_named(mirrored, before["master"]), mirror_of(mirrored, before)
    with Traffic(mirrored, "busy", mirror) as traffic:
        # The master dies while digests are made: the cursor says that they are.
        killer = threading.Thread(target=kill_when_held, args=(mirrored, "busy", master, mirror))
        killer.start()
        told = audit("--queue", "busy")
        killer.join()
        began = traffic.rounds
        master.start()
        wait_in_sync(mirrored, "busy", 3)
        again = audit("--queue", "busy")
        assert traffic.rounds > began > 0
    assert not master_is(mirrored, "busy", master)
    assert len(told["queues"][0]["judged"]) >= 2
    assert len(again["queues"][0]["judged"]) == 3
    assert told["verdict"] == again["verdict"] == "agreement"
    assert again["queues"][0]["messages"] > COUNT / 2
    assert cursors(mirrored, "busy") == []


def kill_when_held(made: Cluster, queue: str, victim: ClusterNode, asked: ClusterNode) -> None:
    with BulkClient(Target([(asked.host, asked.port)])) as client:
        while not client.call("cursor_list", queue=queue)["cursors"]:
            threading.Event().wait(0.005)
    victim.kill()


def master_is(made: Cluster, queue: str, node: ClusterNode) -> bool:
    return bool(facts(made, queue)["master"] == node.name)


# --- copies that are not -----------------------------------------------------------------------------------


def test_a_changed_copy_is_found_and_named(audit: Audit, mirrored: Cluster, tmp_path: Path) -> None:
    found = filled(mirrored, "changed")
    mirror = mirror_of(mirrored, found)
    filled(mirrored, "intact")
    pair = filled(mirrored, "two", 2)
    with Client(mirrored, "changed") as client:
        client.take(1)
    other = node_named(mirrored, pair["members"][1]["node"])
    change(mirrored, "two", other, lambda folder, log: tamper.alter(folder, log, 10))
    change(
        mirrored,
        "changed",
        mirror,
        lambda folder, log: tamper.bring_back(folder, log, 1 + first_seq(found)),
        lambda folder, log: tamper.drop(folder, log, 700),
        lambda folder, log: tamper.alter(folder, log, 1_200),
        lambda folder, log: tamper.swap(folder, log, 1_900, 2_345),
    )
    only = filled(mirrored, "single.rot", 1)
    keeper = node_named(mirrored, only["master"])
    tamper.rot(keeper._member.local.folder / "data", int(only["id"], 16), 20)
    told = audit("--pattern", r"changed|intact|two|single\.rot", code=3)
    rows = {row["queue"]: row for row in told["queues"]}
    assert {name: row["status"] for name, row in rows.items()} == {
        "changed": "differ",
        "two": "differ",
        "single.rot": "unreadable",
        "intact": "agree",
    }
    examples = {one["seq"]: one for one in rows["changed"]["examples"]}
    assert {seq: one["kind"] for seq, one in examples.items()} == {
        1 + first_seq(found): "extra",
        700: "missing",
        1_200: "altered",
        1_900: "reordered",
        2_345: "reordered",
    }
    assert {one["member"] for one in examples.values()} == {mirror.name}
    assert (examples[1_900]["other_seq"], examples[2_345]["other_seq"]) == (2_345, 1_900)
    assert rows["changed"]["by_member"] == {mirror.name: 5}
    (one,) = rows["two"]["examples"]
    assert (one["seq"], one["kind"], one["member"]) == (10, "altered", None)
    assert all(member["node"] in one["detail"] for member in pair["members"])
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert mirror.name in page
    assert "1900" in page
    assert cursors(mirrored, "changed") == []


def first_seq(found: dict[str, Any]) -> int:
    """The epoch's record comes before the first message of a queue."""
    return int(found["first"]) - 1


# --- slow --------------------------------------------------------------------------------------------------


def big(made: Cluster, queue: str, count: int) -> None:
    """Messages of a megabyte, gone as soon as they are there: journals have to be emptied."""
    with Client(made, queue) as client:
        for number in range(count):
            client.publish(b"%d" % number + bytes(1_000_000))
            client.take(1)


def old_messages(made: Cluster) -> int:
    """A queue with a few live messages where most are gone, below the low mark of all copies; that mark."""
    with Client(made, "old") as client:
        client.fill(600)
        client.take(600, every=3)
    wait_in_sync(made, "old", 3)
    for _ in range(20):
        big(made, "ballast", 60)
        with BulkClient(Target([(node.host, node.port) for node in made.nodes])) as client:
            lows = [row["low"] for row in client.call("copies", queue="old")["copies"]]
        if min(lows) > 600:
            return int(max(lows))
    raise AssertionError(lows)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_live_below_the_low_mark_is_compared_while_it_is_consumed(
    audit: Audit, mirrored: Cluster
) -> None:
    old_messages(mirrored)
    told = audit("--queue", "old")
    assert (told["verdict"], told["messages"]) == ("agreement", 400)
    known = facts(mirrored, "old")
    mirror = mirror_of(mirrored, known)
    live = int(known["first"])
    change(mirrored, "old", mirror, lambda folder, log: tamper.alter(folder, log, live))
    ended = threading.Event()

    def consume() -> None:
        with Client(mirrored, "old") as client:
            client.take(1, every=0)  # the first one stays
            while not ended.wait(0.05):
                client.take(1)

    consumer = threading.Thread(target=consume)
    consumer.start()
    try:
        told = audit("--queue", "old", code=3)
    finally:
        ended.set()
        consumer.join()
    (row,) = told["queues"]
    assert [(one["seq"], one["kind"], one["member"]) for one in row["examples"]] == [
        (live, "altered", mirror.name)
    ]


def begun(made: Cluster, folder: Path) -> subprocess.Popen[bytes]:
    hosts = ",".join(f"{node.host}:{node.port}" for node in made.nodes)
    words = [
        "--url",
        f"amqp://guest@{hosts}/",
        "--queue",
        "held",
        "--name",
        "a",
        "--json",
        "--master",
        "local[1]",
    ]
    words += ["--state-dir", str(folder / "state"), "--out", str(folder / "out")]
    with (folder / "job.log").open("ab") as log:
        command = [sys.executable, "-m", "mirrormq", "pipeline", "audit", *words]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_cursor_is_left_by_a_run_that_is_stopped_or_by_the_one_after_a_kill(
    audit: Audit, mirrored: Cluster, tmp_path: Path, number: signal.Signals
) -> None:
    filled(mirrored, "held")
    job = begun(mirrored, tmp_path)
    while not cursors(mirrored, "held"):
        assert job.poll() is None, (tmp_path / "job.log").read_text()
        threading.Event().wait(0.01)
    if number == signal.SIGTERM:
        os.kill(job.pid, number)
        assert job.wait() == 130, (tmp_path / "job.log").read_text()
        assert cursors(mirrored, "held") == []
        assert "run it again to go on" in (tmp_path / "job.log").read_text()
    else:
        os.killpg(job.pid, number)
        job.wait()
        assert len(cursors(mirrored, "held")) == 1
    assert audit("--queue", "held")["verdict"] == "agreement"
    assert cursors(mirrored, "held") == []
