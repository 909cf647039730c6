"""Partition handling on the command line: what the node is asked, and what is said."""

from __future__ import annotations

import pytest

from tests.unit.ctl.fakes import FakeNode, Terminal

TOLD = {
    "handling": "ignore",
    "side": "minority",
    "why": "in reach is nobody",
    "reaction": "serving",
    "since": 1,
}


def test_the_mode_and_the_side_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(capsys, FakeNode(partition_handling=TOLD))
    said = terminal.run("partition_handling").out
    assert "ignore; this node is on the side of the minority: in reach is nobody" in said
    assert terminal.node.asked[-1] == ("partition_handling", {})


def test_a_mode_is_chosen_with_the_nodes_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(capsys, FakeNode(set_partition_handling=TOLD))
    terminal.run("partition_handling", "ignore")
    assert terminal.node.asked[-1] == ("set_partition_handling", {"mode": "ignore"})
    terminal.run("partition_handling", "pause_if_all_down", "m@a", "m@b")
    asked = {"mode": "pause_if_all_down", "nodes": ["m@a", "m@b"]}
    assert terminal.node.asked[-1] == ("set_partition_handling", asked)


def test_branches_are_counted_and_an_old_name_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    told = TOLD | {"handling": "autoheal", "branches": {"open": 2, "merging": 1, "messages": 30}}
    warning = "cluster_partition_handling = autoupgrade is deprecated: write autoheal"
    terminal = Terminal(capsys, FakeNode(set_partition_handling=told | {"warning": warning}))
    said = terminal.run("partition_handling", "autoupgrade").out
    assert "2 branches serve clients, 1 are being merged, with 30 messages." in said
    assert f"Warning: {warning}." in said


def test_a_node_that_may_serve_on_its_own_is_forgotten_by_force(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(capsys, FakeNode())
    terminal.run("forget_cluster_node", "m@a")
    assert terminal.node.asked[-1] == ("forget_cluster_node", {"node": "m@a"})
    terminal.run("forget_cluster_node", "--force", "m@a")
    assert terminal.node.asked[-1] == ("forget_cluster_node", {"node": "m@a", "force": True})
