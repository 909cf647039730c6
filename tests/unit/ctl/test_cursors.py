"""Cursors on the command line."""

from __future__ import annotations

import json

import pytest

from tests.unit.ctl.fakes import FakeNode, Terminal, refused

ROW = {
    "queue": "orders",
    "name": "lake",
    "mode": "consume",
    "seq": 7,
    "epoch": 1,
    "lag": 3,
    "held_bytes": 400,
    "reader": "orders to lake",
    "reader_node": "a",
    "opened_at": 1,
    "moved_at": 2,
    "lost": None,
}


def test_cursors_are_listed_with_the_columns_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(list_cursors={"rows": [ROW], "missing": {"c": "is down"}})
    terminal = Terminal(capsys, node)
    found = terminal.run("list_cursors", "--queue", "orders", "name", "lag", "reader", "--json")
    assert json.loads(found.out) == [{"name": "lake", "lag": 3, "reader": "orders to lake"}]
    assert "node c is down" in found.err
    assert node.asked == [("list_cursors", {"vhost": "/", "name": "orders"})]


def test_a_cursor_is_dropped_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(drop_cursor={})
    assert Terminal(capsys, node).run("drop_cursor", "-p", "shop", "orders", "lake").code == 0
    assert node.asked == [("drop_cursor", {"vhost": "shop", "name": "orders", "cursor": "lake"})]


def test_a_cursor_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(drop_cursor=refused("no_such_cursor", "there is no cursor 'lake'", 404))
    found = Terminal(capsys, node).run("drop_cursor", "orders", "lake")
    assert found.code != 0
    assert "there is no cursor 'lake'" in found.err
