"""Rebalancing and maintenance on the command line: what the node is asked, what is said, the exit codes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from mirrormq.ctl.commands import balance
from mirrormq.ctl.main import main
from mirrormq.ctl.options import Options
from mirrormq.ctl.session import Session
from tests.unit.ctl.fakes import FakeNode, Terminal, refused

RUN: dict[str, Any] = {
    "state": "moving", "number": 9, "trigger": "on-demand", "strategy": "masters", "since": 1, "planned": 4,
    "moved": 0, "failed": 0, "cancelled": False, "problems": [], "masters": {"a": 2, "b": 2},
}  # fmt: skip
ASKED = {
    "kind": "all", "vhost_pattern": ".*", "queue_pattern": ".*", "strategy": "", "moves": [], "plan": False,
    "force": False,
}  # fmt: skip


class Balancing(FakeNode):
    """A node that moves one more master each time it is looked at."""

    def __init__(self, **end: Any) -> None:
        super().__init__(rebalance={"node": "a", **RUN, "moves": []})
        self.moved = 0
        self.end = end

    def ctl(self, command: str, **arguments: Any) -> Any:
        answer = super().ctl(command, **arguments)
        if command != "rebalance_status":
            return answer
        self.moved += 1
        is_done = self.moved >= 4
        run = {**RUN, "moved": self.moved, **({"state": "done", **self.end} if is_done else {})}
        return {"running": not is_done, "node": "a", "run": run}


class Draining(FakeNode):
    """A node that gives one more master away each time it is looked at, but for those that are stuck."""

    def __init__(self, stuck: int = 0, members: int = 3) -> None:
        super().__init__(cluster_status={"members": [{}] * members})
        self.masters = 3
        self.stuck = stuck

    def ctl(self, command: str, **arguments: Any) -> Any:
        answer = super().ctl(command, **arguments)
        if command not in ("drain", "maintenance_status"):
            return answer
        if command == "maintenance_status":
            self.masters = max(self.stuck, self.masters - 1)
        problem = {"vhost": "/", "name": "q", "reason": "no other node could take it"}
        problems = [problem] * self.stuck
        found = {"is_drained": True, "masters": self.masters, "stuck": self.stuck, "problems": problems}
        return found | {"was_drained": False}


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "POLL_SECONDS", 0.001)


def test_rebalance_waits_for_the_end_and_shows_what_every_node_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal = Terminal(capsys, Balancing())
    found = terminal.run("rebalance", "all")
    assert (found.code, found.out.splitlines()) == (
        0,
        ["Rebalancing all queues ...", "Moved 4 masters", "node\tmasters", "a\t2", "b\t2"],
    )
    assert terminal.node.asked[0] == ("rebalance", ASKED)


def test_options_reach_the_node_in_rabbitmq_queues_form(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(capsys, Balancing())
    words = ("rebalance", "quorum", "--vhost-pattern", "^v", "--queue-pattern", "^q", "--strategy", "random")
    assert json.loads(terminal.run("--json", *words, "--force").out)["moved"] == 4
    wanted = {"kind": "quorum", "vhost_pattern": "^v", "queue_pattern": "^q", "strategy": "random"}
    assert terminal.node.asked[0] == ("rebalance", ASKED | wanted | {"force": True})


def test_moves_are_named_one_by_one_or_in_a_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps([{"vhost": "w", "name": "r", "from": "a", "to": "c"}]), encoding="utf-8")
    terminal = Terminal(capsys, Balancing())
    assert terminal.run("-p", "v", "rebalance", "--move", "a=b=n@h", "--plan", str(file)).code == 0
    assert terminal.node.asked[0][1]["moves"] == [("v", "a=b", "n@h"), ("w", "r", "c")]
    for words in (("--move", "q"), ("--move", "=n"), ("--move", "q=")):
        assert terminal.run("rebalance", *words).code == 64
    assert terminal.run("rebalance", "--plan", str(tmp_path / "none")).code == 66
    file.write_text("{}", encoding="utf-8")
    file.write_text("[1]", encoding="utf-8")
    assert terminal.run("rebalance", "--plan", str(file)).code == 65


def test_a_dry_run_shows_the_moves_in_a_form_that_plan_takes(capsys: pytest.CaptureFixture[str]) -> None:
    move = {"vhost": "/", "name": "q", "from": "a", "to": "b", "messages": 3, "by": "transfer"}
    terminal = Terminal(capsys, FakeNode(rebalance={"node": "a", **RUN, "moves": [move]}))
    assert json.loads(terminal.run("rebalance", "--dry-run", "--json").out) == [move]
    assert terminal.node.asked[0][1]["plan"] is True


def test_nothing_to_move_and_no_wait_return_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(capsys, FakeNode(rebalance={**RUN, "node": "a", "planned": 0, "moves": []}))
    assert "every node has its share" in terminal.run("rebalance").out
    terminal.node.answers["rebalance"]["planned"] = 4
    assert "4 masters are to move" in terminal.run("rebalance", "--no-wait").out


def test_what_ends_badly_is_told_with_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    problem = {"vhost": "/", "name": "q", "node": "b", "reason": "the queue was deleted"}
    failed = Terminal(capsys, Balancing(failed=1, moved=3, problems=[problem])).run("rebalance")
    assert (failed.code, "queue 'q' in vhost '/': the queue was deleted" in failed.err) == (69, True)
    cancelled = Terminal(capsys, Balancing(cancelled=True, moved=2)).run("rebalance")
    assert (cancelled.code, "cancelled after 2 of 4" in cancelled.err) == (69, True)
    busy = refused("rebalance_in_progress", "rebalance in progress: node b")
    second = Terminal(capsys, FakeNode(rebalance=busy)).run("rebalance")
    assert (second.code, "node b" in second.err) == (69, True)
    assert Terminal(capsys).run("rebalance", "streams").code == 64


def test_a_bar_is_drawn_where_a_person_looks() -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Screen()
    session = Session(Options(), out=out, environment={})
    session._client = Balancing()
    assert main(["rebalance"], session=session) == 0
    assert "masters moved" in out.getvalue()
    assert "4/4" in out.getvalue()


def test_the_status_names_who_is_at_it_and_how_far(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(capsys, FakeNode(rebalance_status={"running": True, "node": "b", "run": RUN}))
    assert terminal.run("rebalance_status").out == "Node b is rebalancing: 0 of 4 done, 0 failed\n"
    terminal.node.answers["rebalance_status"] = {"running": False, "node": "b", "run": None}
    assert terminal.run("rebalance_status").out == "No rebalancing is under way\n"
    assert json.loads(terminal.run("rebalance_status", "--json").out)["running"] is False
    terminal.node.answers["cancel_rebalance"] = {"node": "b"}
    assert "Node b moves no further masters" in terminal.run("cancel_rebalance").out


def test_drain_waits_until_everything_is_given_away(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(capsys, Draining())
    found = terminal.run("drain")
    assert (found.code, found.out.splitlines()[-1]) == (0, "Node mirrormq@here is in maintenance")
    assert [name for name, _ in terminal.node.asked].count("maintenance_status") == 3
    assert Terminal(capsys, Draining()).run("drain", "--no-wait").code == 0


def test_masters_that_nobody_takes_are_an_error_unless_the_node_is_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = Terminal(capsys, Draining(stuck=1)).run("drain")
    assert found.code == 69
    assert "'q' in vhost '/' among them: no other node could take it" in found.err
    alone = Terminal(capsys, Draining(stuck=2, members=1)).run("drain")
    assert (alone.code, "keeps 2 queues" in alone.out) == (0, True)


CLIENT = {"name": "127.0.0.1:4 -> 127.0.0.1:5672", "node": "mirrormq@here"}


def test_a_node_leaves_its_cluster_when_it_has_given_everything_away(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal = Terminal(capsys, Draining())
    terminal.node.answers["list_connections"] = [{**CLIENT, "node": "mirrormq@there"}]
    assert terminal.run("leave_cluster").code == 0
    asked = [name for name, _ in terminal.node.asked]
    assert asked.index("drain") < asked.index("maintenance_status") < asked.index("leave_cluster")


def test_a_node_with_clients_stays_in_its_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(capsys, Draining())
    terminal.node.answers["list_connections"] = [CLIENT]
    found = terminal.run("leave_cluster")
    assert found.code == 69
    assert f"1 clients are connected to mirrormq@here, {CLIENT['name']} among them" in found.err
    assert not {"drain", "leave_cluster"} & {name for name, _ in terminal.node.asked}


def test_a_node_that_cannot_give_everything_away_stays_and_serves_clients_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal = Terminal(capsys, Draining(stuck=1))
    found = terminal.run("leave_cluster")
    assert (found.code, "--force" in found.err) == (69, True)
    assert [name for name, _ in terminal.node.asked][-1] == "revive"
    terminal = Terminal(capsys, Draining())
    terminal.node.answers["leave_cluster"] = refused("cannot_leave", "too few voters")
    assert terminal.run("leave_cluster").code != 0
    assert [name for name, _ in terminal.node.asked][-1] == "revive"


def test_a_stopped_or_lonely_node_has_nothing_to_give_away(capsys: pytest.CaptureFixture[str]) -> None:
    for node in (Draining(members=1), FakeNode(status={"app": "stopped"})):
        terminal = Terminal(capsys, node)
        terminal.run("leave_cluster")
        assert "drain" not in {name for name, _ in terminal.node.asked}


def test_revive_says_whether_there_was_anything_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(capsys, FakeNode(revive={"was_drained": True}))
    assert "serves clients again" in terminal.run("revive").out
    terminal.node.answers["revive"] = {"was_drained": False}
    assert "was in service already" in terminal.run("revive").out


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ({"app": "running", "listeners": [{"protocol": "amqp"}], "maintenance": {"is_drained": False}}, 0),
        ({"app": "running", "listeners": [{"protocol": "http"}], "maintenance": {"is_drained": False}}, 69),
        ({"app": "running", "listeners": [{"protocol": "amqp"}], "maintenance": {"is_drained": True}}, 69),
        ({"app": "stopped", "listeners": []}, 69),
    ],
)
def test_a_node_is_ready_when_it_takes_clients(
    capsys: pytest.CaptureFixture[str], status: dict[str, Any], code: int
) -> None:
    assert Terminal(capsys, FakeNode(status=status)).run("check_ready_to_serve_clients").code == code
