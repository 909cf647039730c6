"""Mirrored queues on the command line: what is asked of the node, what is said, and the exit codes."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from mirrormq.client.admin import Refused
from mirrormq.ctl.commands import mirrors
from mirrormq.ctl.main import main
from mirrormq.ctl.options import Options
from mirrormq.ctl.session import Session
from tests.unit.ctl.fakes import FakeNode, Terminal, refused


class Synchronising(FakeNode):
    """A node whose mirror gets on by a quarter each time it is looked at, up to `ends_at`."""

    def __init__(self, ends_at: int = 100) -> None:
        super().__init__(sync_queue={"master": "a", "unsynchronised": ["b"]})
        self.percent = 0
        self.ends_at = ends_at

    def ctl(self, command: str, **arguments: Any) -> Any:
        answer = super().ctl(command, **arguments)
        if command != "sync_status":
            return answer
        self.percent = min(self.percent + 25, self.ends_at)
        is_done = self.percent == 100
        row = {"node": "b", "state": "in-sync" if is_done else "copying", "progress": self.percent}
        return {
            "epoch": 3 + is_done,
            "in_sync": ["a", "b"] if is_done else ["a"],
            "unsynchronised": [] if is_done else ["b"],
            "mirrors": [row],
        }


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "POLL_SECONDS", 0.001)


def terminal_of(capsys: pytest.CaptureFixture[str], node: FakeNode) -> Terminal:
    return Terminal(capsys, node)


def test_sync_queue_waits_until_every_mirror_is_in_sync(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = terminal_of(capsys, Synchronising())
    found = terminal.run("-p", "v", "sync_queue", "orders")
    assert (found.code, found.out) == (
        0,
        "Synchronising queue 'orders' in vhost 'v' ...\nIn sync: a, b\n",
    )
    assert terminal.node.asked[0] == ("sync_queue", {"vhost": "v", "name": "orders"})
    assert [name for name, _ in terminal.node.asked[1:]] == ["sync_status"] * 4


def test_sync_queue_can_be_begun_without_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = terminal_of(capsys, Synchronising())
    assert terminal.run("-q", "sync_queue", "--no-wait", "orders").out == "Begun for b\n"
    found = terminal.run("sync_queue", "orders", "--no-wait", "--json")
    assert json.loads(found.out)["unsynchronised"] == ["b"]
    assert [name for name, _ in terminal.node.asked if name == "sync_status"] == []


def test_a_queue_that_is_in_sync_already_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = terminal_of(capsys, FakeNode(sync_queue={"master": "a", "unsynchronised": []}))
    found = terminal.run("-q", "sync_queue", "orders")
    assert (found.code, found.out) == (0, "All mirrors are in sync already\n")


def test_a_sync_that_stands_still_is_given_up_with_the_mirrors_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal = terminal_of(capsys, Synchronising(ends_at=50))
    found = terminal.run("-q", "sync_queue", "orders", "--timeout", "0.05")
    assert found.code == 69
    assert "no progress for 0.05 s; not in sync: b" in found.err


def test_a_person_sees_a_bar_and_json_sees_only_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    session = Session(Options(), out=screen, stdin=io.StringIO(), environment={"TERM": "xterm"})
    session._client = Synchronising()
    assert main(["sync_queue", "orders"], session=session) == 0
    assert "100 %" in screen.getvalue()
    found = terminal_of(capsys, Synchronising()).run("sync_queue", "orders", "--json")
    assert json.loads(found.out) == {
        "result": "ok",
        "node": "mirrormq@here",
        "message": "In sync: a, b",
        "in_sync": ["a", "b"],
        "unsynchronised": [],
    }


def test_a_refusal_is_told_in_the_nodes_words(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(
        sync_queue=refused("not_mirrored", "queue 'q' in vhost '/' is not mirrored"),
        cancel_sync_queue=refused("no_master", "queue 'q' in vhost '/' has no master now: start node b"),
    )
    terminal = terminal_of(capsys, node)
    found = terminal.run("sync_queue", "q")
    assert (found.code, "is not mirrored" in found.err) == (69, True)
    found = terminal.run("cancel_sync_queue", "q")
    assert (found.code, "start node b" in found.err) == (69, True)


def test_moving_a_master_says_from_where_to_where(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = terminal_of(capsys, FakeNode(move_master={"master": "b", "from": "a"}))
    assert terminal.run("-q", "move_master", "orders", "b").out == "Moved from node a to node b\n"
    assert terminal.node.asked == [("move_master", {"vhost": "/", "name": "orders", "node": "b"})]
    terminal.node.answers["move_master"] = {"master": "b", "from": "b"}
    assert terminal.run("-q", "move_master", "orders", "b").out == "Node b is its master already\n"


PLAN = {
    "node": "c",
    "lossy": True,
    "passed_over": ["a"],
    "waits_for": ["a"],
    "losses": 0,
    "copies": [
        {"node": "c", "is_complete": False, "copied": 10, "copied_of": 40, "end": 40, "flushed": 40},
    ],
}


def test_a_promotion_with_a_loss_is_announced_and_needs_a_yes(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = terminal_of(capsys, FakeNode(force_promote=PLAN))
    found = terminal.run("force_promote", "orders")
    assert found.code == 64
    assert "LOSS" in found.out
    assert "Copy on node c: copied 10 of 40, last record 40." in found.out
    assert "To lose nothing, start one." in found.out
    assert "--yes" in found.err
    assert terminal.node.asked == [
        ("force_promote", {"vhost": "/", "name": "orders", "node": "", "plan": True})
    ]
    terminal.node.asked.clear()
    found = terminal.run("force_promote", "--yes", "--node", "c", "orders")
    assert found.code == 0
    assert found.out.endswith("Node c is the master of queue 'orders' now\n")
    assert terminal.node.asked[1] == (
        "force_promote",
        {"vhost": "/", "name": "orders", "node": "c", "accept_loss": True},
    )


def test_a_promotion_by_a_program_gives_the_loss_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = terminal_of(capsys, FakeNode(force_promote={**PLAN, "epoch": 9}))
    found = json.loads(terminal.run("force_promote", "orders", "--json").out)
    assert (found["lossy"], found["epoch"], found["passed_over"]) == (True, 9, ["a"])


def test_a_promotion_without_a_loss_needs_no_yes(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = terminal_of(capsys, FakeNode(force_promote={**PLAN, "lossy": False}))
    found = terminal.run("force_promote", "orders")
    assert (found.code, "no persistent message that was confirmed is lost" in found.out) == (0, True)


CALM = {"is_single": False, "mirrored": [], "quorum": [], "is_majority_critical": False}
LONELY = [{"readable_name": f"queue 'q{number}' in vhost '/'"} for number in range(7)]
CHECKS = [
    ("check_if_node_is_mirror_sync_critical", CALM, 0, "has another copy in sync"),
    ("check_if_node_is_mirror_sync_critical", {**CALM, "mirrored": LONELY}, 69, "and 2 more"),
    ("check_if_node_is_mirror_sync_critical", {**CALM, "is_single": True}, 0, "alone"),
    ("check_if_node_is_quorum_critical", CALM, 0, "can stop"),
    ("check_if_node_is_quorum_critical", {**CALM, "quorum": LONELY[:1]}, 69, "queue 'q0'"),
    ("check_if_node_is_quorum_critical", {**CALM, "is_majority_critical": True}, 69, "no majority"),
    ("check_if_node_is_quorum_critical", {**CALM, "is_single": True}, 0, "alone"),
]


@pytest.mark.parametrize(("name", "answer", "code", "text"), CHECKS)
def test_a_check_before_a_stop_ends_with_rabbitmqs_code(
    capsys: pytest.CaptureFixture[str], name: str, answer: dict[str, Any], code: int, text: str
) -> None:
    found = terminal_of(capsys, FakeNode(check_critical=answer)).run(name)
    assert found.code == code
    assert text in (found.err if code else found.out)


def test_queues_that_synchronise_or_are_held_count_as_online(capsys: pytest.CaptureFixture[str]) -> None:
    states = ("running", "syncing", "transferring", "held", "stopped_clean", "down", "damaged")
    rows = [{"name": state, "state": state, "node": "a"} for state in states]
    terminal = terminal_of(capsys, FakeNode(list_queues=rows))
    assert terminal.run("-s", "list_queues", "--online", "name").out.split() == list(states[:4])
    assert terminal.run("-s", "list_queues", "--offline", "name").out.split() == list(states[4:])


def test_columns_about_mirrors_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "slave_pids": ["<b.2.9.0>"],
        "synchronised_slave_pids": [],
        "master": "a",
        "in_sync": ["a"],
        "unsynchronised": ["b"],
        "sync_progress": 40,
        "mirrors": [{"node": "b", "state": "copying", "progress": 40}],
    }
    terminal = terminal_of(capsys, FakeNode(list_queues=[{"name": "q", "state": "syncing", **row}]))
    found = terminal.run("-s", "list_queues", "name", "state", *row)
    assert found.out.rstrip("\n").split("\t")[:7] == [
        "q",
        "syncing",
        "[<b.2.9.0>]",
        "[]",
        "a",
        "[a]",
        "[b]",
    ]
    assert isinstance(refused("x", "y"), Refused)
